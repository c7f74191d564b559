"""What MPI is to this process: which library, which world, which launcher."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from singa_dask.errors import ClusterError, MpiUnusable, Problem

# How many processes a launcher says that it started: Hydra, Open MPI, SLURM, Cray PALS.
_LAUNCHED_SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PALS_NRANKS")

_PROGRAM = """
from singa_dask.cluster.bootstrap import library_name, load_mpi
from singa_dask.errors import ClusterError
try:
    print("found", library_name(load_mpi()))
except ClusterError as error:
    print("fault", error)
"""


@dataclass(frozen=True)
class MpiReport:
    """What MPI is to a process.

    world: "" while MPI is not initialised, else a name that only processes of the same world share.
    rank, size: in that world. ours: whether we made the world, so that a fresh process could join another.
    library: of MPI, "" while it is not loaded.
    """

    world: str = ""
    rank: int = 0
    size: int = 1
    ours: bool = False
    spent: bool = False
    library: str = ""


@dataclass
class _Process:
    """What this process must remember for ever, because MPI_Init cannot be repeated."""

    world: str = ""
    spent: bool = False
    retired: bool = False
    abandoned: list[Any] = field(default_factory=list)


_process = _Process()


def mpi_report() -> MpiReport:
    """What MPI is to this process; loads and initialises nothing."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None:
        return MpiReport()
    library = library_name(mpi)
    if not mpi.Is_initialized():
        return MpiReport(library=library)
    world = mpi.COMM_WORLD
    name = _process.world or _launched_world(world.size)
    return MpiReport(name, world.rank, world.size, bool(_process.world), _process.spent, library)


def enter_world(name: str) -> None:
    """Remember the world that this process is about to enter."""
    _process.world = name


def spend_world(comm: Any) -> None:
    """Remember that a group failed in this process. Keep its communicator: MPI may still write into its buffers."""
    _process.spent = True
    _process.abandoned.append(comm)


def retire_process() -> None:
    """Remember that no group may run in this process any more."""
    _process.retired = True


def is_retired() -> bool:
    """Whether no group may run in this process any more."""
    return _process.retired


def launched_sizes(environment: Mapping[str, str]) -> dict[str, int]:
    """How many processes the launcher of this one has started, by the variable that says so."""
    return {name: int(text) for name in _LAUNCHED_SIZES if (text := environment.get(name, "")).isdigit()}


def launched_size(environment: Mapping[str, str]) -> int:
    """How many processes the launcher of this one has started; 0 where there was none."""
    return max(launched_sizes(environment).values(), default=0)


def each_alone(count: int, library: str) -> Problem:
    """What is wrong where a launcher has started `count` processes, each of which got an MPI world of its own."""
    message = f"{count} processes were started, and each is alone in an MPI world of its own"
    pmi = "pmix" if "open mpi" in library.lower() else "pmi2"
    hint = f"The launcher must belong to the MPI library that mpi4py loads, {library}; for srun, add --mpi={pmi}."
    return Problem("mpiexec", message, hint=hint)


def this_node() -> str:
    """Host name and file system of shared memory: containers of one machine have a /dev/shm each."""
    shared = os.stat("/dev/shm").st_dev if os.path.isdir("/dev/shm") else 0
    return f"{socket.gethostname()}/{shared}"


def load_mpi(*, launched: bool = False) -> Any:
    """mpi4py.MPI, loaded but not initialised, and not finalised at exit. launched: a launcher started this process.

    MPI_Finalize is collective: at exit, with ranks lost or leaving one by one, it would wait for ever.
    Raises MpiUnusable where there is no MPI library, or one that cannot form groups inside Dask workers.
    """
    import mpi4py

    mpi4py.rc.initialize = False
    mpi4py.rc.finalize = False
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise MpiUnusable(
            f"MPI cannot be loaded ({error}); `pip install mpich`, or load the cluster's module"
        ) from error
    if not launched and "open mpi" in MPI.Get_library_version().lower() and not MPI.Is_initialized():
        raise MpiUnusable(
            f"{library_name(MPI)} cannot form groups inside running Dask workers, as it has no PMI-1. "
            "Use an MPICH-family library (`pip install mpich`), or have MPI start everything "
            "(`mpiexec -n 4 singa-dask train JOB --mpi`, a rank more than workers) or the workers "
            "(`mpiexec -n 4 dask-mpi --worker-class distributed.Worker --scheduler-file scheduler.json`)."
        )
    return MPI


def library_name(mpi: Any) -> str:
    """What MPI calls itself, without the details of its build."""
    return mpi.Get_library_version().partition("\n")[0].partition(", package")[0].strip("\0 ")


def command_of(program: str) -> list[str]:
    """The command of a new process that runs this code, and imports from where this process does."""
    return [sys.executable, "-P", "-c", f"import sys\nsys.path[:] = {sys.path!r}\n{program}"]


def mpi_library(timeout_s: float = 30.0) -> str:
    """The name of the MPI library, asked in a process of its own, so that this one stays without MPI.

    Raises ClusterError where there is none, or one that cannot form groups inside Dask workers.
    """
    try:
        done = subprocess.run(command_of(_PROGRAM), capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        raise ClusterError(
            f"MPI did not load within {timeout_s:g} s on {socket.gethostname()}. Try `python -c 'import mpi4py.MPI'` "
            "there; its file system or network may be slow."
        ) from error
    verdict, _, text = done.stdout.strip().partition(" ")
    if verdict == "found":
        return " ".join(text.split())
    raise ClusterError(text or f"MPI cannot be loaded: {done.stderr.strip()[-500:]}. Install it: `pip install mpich`.")


def _launched_world(size: int) -> str:
    """A name of a world that a launcher made, from what it told all its processes alike."""
    jobs = (
        "SLURM_JOB_ID",
        "SLURM_STEP_ID",
        "PBS_JOBID",
        "LSB_JOBID",
        "JOB_ID",
        "PMIX_NAMESPACE",
        "OMPI_MCA_ess_base_jobid",
    )
    return "/".join(["launched", str(size), *(os.environ.get(name, "") for name in jobs)])
