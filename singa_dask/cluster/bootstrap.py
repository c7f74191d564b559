"""How a process becomes a rank. It can initialise MPI once; every group in it is a communicator of that one world."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from singa_dask.cluster.pmi_server import PmiEndpoint
from singa_dask.errors import ClusterError

# What launchers leave for the processes that they start. MPI must take its bootstrap from our server alone.
_LAUNCHER_VARIABLES = re.compile(r"(PMI|PMIX|PMI2|HYDRA|HYDI|MPI_LOCAL|OMPI|PRTE|MPIEXEC)_")
# How many processes a launcher says that it started: Hydra, Open MPI, SLURM, Cray PALS.
_LAUNCHED_SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PALS_NRANKS")
_SEGMENT = re.compile(r"/dev/shm/mpich_shm_\w+$")


class MpiUnusable(ClusterError):
    """There is no MPI library that can form groups here: trying again would not help."""


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


def spend_world(comm: Any) -> None:
    """Remember that a group failed in this process. Keep its communicator: MPI may still write into its buffers."""
    _process.spent = True
    _process.abandoned.append(comm)


def join_world(endpoint: PmiEndpoint, rank: int, size: int, host: str, deadline: float) -> None:
    """Make this process rank `rank` of a new world of `size`, with the PMI server at `endpoint`.

    host: the own address that other ranks can reach, "" when all share this machine. deadline: of time.monotonic().
    Raises ClusterError when that cannot be.
    """
    mpi = load_mpi()
    if mpi.Is_initialized():
        hint = "Import mpi4py.MPI inside functions, not where a module is imported, and restart the workers."
        raise ClusterError(f"rank {rank}: this process has initialised MPI already. {hint}")
    with _connected(endpoint, rank, size, deadline) as sock:
        descriptor = os.dup(sock.fileno())
        pmi = {"PMI_FD": str(descriptor), "PMI_RANK": str(rank), "PMI_SIZE": str(size)}
        with _environment({**_network(host), **pmi}), ended_by_alarm(deadline):
            _process.world = endpoint.kvsname
            provided = mpi.Init_thread(mpi.THREAD_MULTIPLE)
        # MPI that was not bootstrapped makes every process rank 0 of 1, without an error.
        if (mpi.COMM_WORLD.rank, mpi.COMM_WORLD.size) != (rank, size):
            got = f"rank {mpi.COMM_WORLD.rank} of {mpi.COMM_WORLD.size}"
            raise ClusterError(
                f"rank {rank} of {size} became {got}: {library_name(mpi)} does not take its start from PMI-1"
            )
        if provided < mpi.THREAD_SERIALIZED:
            raise ClusterError(f"rank {rank}: {library_name(mpi)} cannot be called from threads, as Dask workers must")
        sock.sendall(b"cmd=ready\n")


def communicator(world_ranks: Sequence[int], group: str) -> Any:
    """A new MPI communicator of these ranks of the world, in this order. Collective over them, and blocking.

    Raises ClusterError when this process is not among them or becomes another rank than planned.
    """
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    if world.rank not in world_ranks:
        raise ClusterError(f"this process is rank {world.rank} of its MPI world; the group wants {list(world_ranks)}")
    members = world.group.Incl(list(world_ranks))
    made = world.Create_group(members, zlib.crc32(group.encode()) % 32768)
    members.Free()
    planned = (list(world_ranks).index(world.rank), len(world_ranks))
    if (made.rank, made.size) != planned:
        raise ClusterError(f"planned rank {planned[0]} of {planned[1]}, became rank {made.rank} of {made.size}")
    return made


def join_launched(timeout_s: float) -> Any:
    """mpi4py.MPI, initialised into the world that the launcher of this process (mpiexec, srun) has planned.

    When MPI_Init takes longer than `timeout_s` seconds, because a process of the job died before it, this one ends by
    SIGALRM. Raises ClusterError where there is no MPI library, or one that threads may not call.
    """
    mpi = load_mpi(launched=True)
    if not mpi.Is_initialized():
        with _added(_messages()), ended_by_alarm(time.monotonic() + timeout_s):
            mpi.Init_thread(mpi.THREAD_MULTIPLE)
    if mpi.Query_thread() < mpi.THREAD_SERIALIZED:
        raise ClusterError(f"{library_name(mpi)} cannot be called from threads, as Dask workers must")
    return mpi


def launched_sizes(environment: Mapping[str, str]) -> dict[str, int]:
    """How many processes the launcher of this one has started, by the variable that says so."""
    return {name: int(text) for name in _LAUNCHED_SIZES if (text := environment.get(name, "")).isdigit()}


def launched_size(environment: Mapping[str, str]) -> int:
    """How many processes the launcher of this one has started; 0 where there was none."""
    return max(launched_sizes(environment).values(), default=0)


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


def unlink_segments(kvsname: str = "", process: int | str = "self") -> None:
    """Remove the names of MPICH's shared memory: of a process (by pid), and of the world `kvsname`.

    Once every rank of a machine has attached, names serve nothing, and a killed group would leave them (3 MB each).
    """
    with open(f"/proc/{process}/maps") as maps:
        paths = {line.split(maxsplit=5)[-1].strip() for line in maps if "/dev/shm/" in line}
    paths = {path for path in paths if _SEGMENT.match(path)}
    if kvsname:
        paths.add(f"/dev/shm/{segment_name(kvsname)}")
    for path in paths:
        with suppress(FileNotFoundError):
            os.unlink(path)


def unlink_orphans() -> None:
    """Remove segments of UCX that nobody holds any more, on this machine.

    UCX removes a segment's name right after making it. A process that is killed in between leaves it, under a name
    that only the process knew. Whoever else is in between has the file open: what nobody has open is left for ever.
    """
    mine = {str(path) for path in Path("/dev/shm").glob("ucx_shm_posix_*") if _is_mine(path)}
    if not mine:
        return
    held: set[str] = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            held.update(os.readlink(link) for link in Path(f"/proc/{process.pid}/fd").iterdir())
            held.update(region.path for region in process.memory_maps())
    for path in mine - held:
        with suppress(FileNotFoundError):
            os.unlink(path)


def _is_mine(path: Path) -> bool:
    try:
        return path.stat().st_uid == os.geteuid()
    except FileNotFoundError:
        return False


def segment_name(kvsname: str) -> str:
    """How MPICH 5 names the shared memory of a world: by the FNV-1a hash of its kvsname.

    >>> segment_name("kvs_abc")
    'mpich_shm_79f992aa_0'
    """
    value = 0x811C9DC5
    for byte in kvsname.encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return f"mpich_shm_{value:x}_0"


def interface_of(host: str) -> str:
    """The network interface that has this address. Raises ClusterError when there is none."""
    wanted = {str(info[4][0]) for info in socket.getaddrinfo(host, None)}
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address.partition("%")[0] in wanted for address in addresses):
            return name
    raise ClusterError(f"no network interface of {socket.gethostname()} has the address {host} of its Dask worker")


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


@contextmanager
def _connected(endpoint: PmiEndpoint, rank: int, size: int, deadline: float) -> Iterator[socket.socket]:
    """A connection to the PMI server, once every other rank has one too."""
    address = f"{endpoint.host}:{endpoint.port}"
    try:
        with socket.create_connection((endpoint.host, endpoint.port), _left(deadline)) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.sendall(f"cmd=hello token={endpoint.token} rank={rank} size={size}\n".encode())
            sock.settimeout(_left(deadline))
            answer = sock.recv(64)
            if answer.strip() != b"cmd=go":
                raise ClusterError(
                    f"rank {rank}: the group gave up before it formed, or refused this rank ({address})"
                )
            sock.settimeout(None)
            yield sock
    except TimeoutError as error:
        raise ClusterError(f"rank {rank}: not every rank of the group came in time ({address})") from error
    except OSError as error:
        raise ClusterError(
            f"rank {rank} on {socket.gethostname()} cannot reach the driver at {address}: {error}"
        ) from error


@contextmanager
def ended_by_alarm(deadline: float) -> Iterator[None]:
    """Let the kernel end this process when the block outlasts the deadline.

    MPI_Init spins when another rank dies in it, and mpi4py calls it with the interpreter locked, so that no thread of
    ours could notice. The default action of SIGALRM needs no interpreter.
    """
    ours = signal.getsignal(signal.SIGALRM) == signal.SIG_DFL and signal.getitimer(signal.ITIMER_REAL)[0] == 0
    if ours:
        signal.setitimer(signal.ITIMER_REAL, _left(deadline))
    try:
        yield
    finally:
        if ours:
            signal.setitimer(signal.ITIMER_REAL, 0)


def _left(deadline: float) -> float:
    return max(0.01, deadline - time.monotonic())


def _network(host: str) -> dict[str, str]:
    """Settings of MPI's network layers, for what the user has not set."""
    if not host:
        # Ranks of one machine use shared memory; without this MPI also listens on every interface, for anybody.
        settings = {"UCX_TLS": "self,sm", "FI_TCP_IFACE": interface_of("127.0.0.1")}
    else:
        interface = interface_of(host)
        settings = {"FI_TCP_IFACE": interface, **_messages()}
        if not os.path.isdir("/sys/class/infiniband"):
            settings["UCX_NET_DEVICES"] = interface
    return {name: value for name, value in settings.items() if name not in os.environ}


def _messages() -> dict[str, str]:
    """How MPICH's UCX sends long messages over TCP, unless the user has said how.

    By itself it lets both sides agree on one first, over the connection that has the data: where a rank answers while
    it sends one itself, its answer waits behind that, and the two go one after the other.
    """
    if "UCX_RNDV_THRESH" in os.environ or os.path.isdir("/sys/class/infiniband"):
        return {}
    return {"UCX_RNDV_THRESH": "intra:auto,inter:inf"}


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Only `variables` and no launcher's, so that neither other launchers nor our children are misled."""
    hidden = {name: value for name, value in os.environ.items() if _LAUNCHER_VARIABLES.match(name)}
    for name in hidden:
        del os.environ[name]
    try:
        with _added(variables):
            yield
    finally:
        os.environ.update(hidden)


@contextmanager
def _added(variables: dict[str, str]) -> Iterator[None]:
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            os.environ.pop(name, None)
