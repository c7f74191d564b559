"""What a process finds of its machine: versions, libraries, memory, disks, GPUs, its clock."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import h5py
import numpy as np
from threadpoolctl import threadpool_info

from singa_dask.cluster.bootstrap import command_of, mpi_library
from singa_dask.comm.communicator import Communicator
from singa_dask.errors import SingaError, reason
from singa_dask.ops.gpu.visible import has_cupy, visible_gpus
from singa_dask.profiling.facts import package_versions

SUMMED_NBYTES = 4 << 20
_CALLS = 15
_GPU_S = 60.0
_SHARED = Path("/dev/shm")
_GPU_PROGRAM = """
from singa_dask.comm.nccl_library import libraries
from singa_dask.errors import SingaError
from singa_dask.ops.gpu.preflight import usable_cupy
for what, part in (("CuPy", usable_cupy), ("NCCL", libraries)):
    try:
        part()
    except SingaError as error:
        print(what, error)
"""


@dataclass(frozen=True)
class Health:
    """What one process finds.

    versions: of Python and packages. mpi, mpi_fault: name of the library, or why there is none. blas: (library,
    threads). shared, temporary: (free, total) bytes of /dev/shm and of the temporary folder; None where there is none.
    hdf5_fault, gpu_faults: "" and () if all is well.
    """

    versions: dict[str, str | None] = field(default_factory=dict)
    mpi: str = ""
    mpi_fault: str = ""
    blas: tuple[tuple[str, int], ...] = ()
    shared: tuple[int, int] | None = None
    folder: str = ""
    temporary: tuple[int, int] | None = None
    hdf5_fault: str = ""
    gpus: tuple[str, ...] = ()
    gpu_faults: tuple[str, ...] = ()


def look() -> Health:
    """What this process finds. Loads neither MPI nor CUDA into it."""
    mpi, fault = "", ""
    try:
        mpi = mpi_library()
    except SingaError as error:
        fault = str(error)
    hdf5_fault, folder = "", tempfile.gettempdir()
    try:
        _write_hdf5()
    except OSError as error:
        hdf5_fault = reason(error)
    blas = tuple(
        (info["internal_api"], info["num_threads"]) for info in threadpool_info() if info["user_api"] == "blas"
    )
    return Health(
        versions=package_versions(),
        mpi=mpi,
        mpi_fault=fault,
        blas=blas,
        shared=_room(_SHARED),
        folder=folder,
        temporary=_room(Path(folder)),
        hdf5_fault=hdf5_fault,
        gpus=tuple(gpu.name or f"GPU {gpu.number}" for gpu in visible_gpus()),
        gpu_faults=_gpu_faults() if visible_gpus() and has_cupy() else (),
    )


def _room(folder: Path) -> tuple[int, int] | None:
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return None
    return usage.free, usage.total


def _write_hdf5() -> None:
    """Raises OSError if an HDF5 file cannot be written and read in the temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        path, values = Path(folder) / "probe.h5", np.arange(4.0)
        with h5py.File(path, "w") as file:
            file["x"] = values
        with h5py.File(path, "r") as file:
            if not np.array_equal(file["x"][:], values):
                raise OSError("other values were read than were written")


def _gpu_faults() -> tuple[str, ...]:
    """What CuPy and NCCL lack, asked in a process of its own, so that this one stays without CUDA."""
    try:
        done = subprocess.run(command_of(_GPU_PROGRAM), capture_output=True, text=True, timeout=_GPU_S)
    except subprocess.TimeoutExpired:
        return (f"CuPy did not answer within {_GPU_S:g} s. Try `nvidia-smi` there: the driver may hang.",)
    if done.returncode:
        return (done.stderr.strip()[-300:],)
    return tuple(done.stdout.strip().splitlines())


def time_all_reduce(comm: Communicator, plan: None) -> float:
    """Seconds of an all-reduce of SUMMED_NBYTES, the median of several, of the slowest rank. Collective."""
    array = np.ones(SUMMED_NBYTES // 4, np.float32)
    seconds = np.array([median(_timed(comm.all_reduce, array) for _ in range(_CALLS))])
    every = np.zeros(comm.size)
    every[comm.rank] = seconds[0]
    comm.all_reduce(every)
    return float(every.max())


def _timed(function: Callable[[np.ndarray], None], array: np.ndarray) -> float:
    array[:] = 1
    began = time.perf_counter()
    function(array)
    return time.perf_counter() - began
