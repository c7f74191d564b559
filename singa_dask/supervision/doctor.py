"""Whether a Dask cluster is fit to train: what was found, how grave it is, and the way out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from singa_dask.cluster import WorkerInfo
from singa_dask.cluster.remote import clock_offsets
from singa_dask.cluster.workers import answering
from singa_dask.data.shared_files import SharedFiles, in_words, other_views
from singa_dask.errors import SingaError
from singa_dask.job.topology import counted
from singa_dask.profiling.cluster import PATIENCE_S, of_one_world, on_workers, run_group
from singa_dask.profiling.facts import by_host
from singa_dask.profiling.health import SUMMED_NBYTES, Health, look, time_all_reduce
from singa_dask.training.memory import format_nbytes

# Of packages whose versions must be equal: others differ without harm, or with little.
_EQUAL = ("python", "singa-dask", "dask", "distributed")
# Bytes of /dev/shm that MPI takes for a process (3 MB in MPICH), and what leaves room for other programs.
_SHARED_NEEDED, _SHARED_AMPLE = 4 << 20, 16 << 20
_TEMPORARY_AMPLE = 1 << 30
_CLOCK_S = 0.1
# Bytes per second of an all-reduce below which gradients are likely to take most of a step.
_SLOW_MACHINE, _SLOW_NETWORK = 2e8, 5e7
_NOT_SUMMED: tuple[int, int, float] | str = ""
_SHARE = "Name a folder on a file system that this machine and all workers share (--workspace)."


class Level(Enum):
    """How grave a finding is."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True)
class Check:
    """One line of the examination."""

    subject: str
    level: Level
    found: str
    way_out: str = ""


@dataclass(frozen=True)
class ClusterReport:
    """What was found of a cluster.

    here: of this process. workers: Dask workers that answer; silent: why others do not. healths, offsets: of free
    workers by address; offsets as of `clock_offsets`. unseen: why workers do not see the workspace. summed: ranks,
    hosts and seconds of an all-reduce, or why there is none.
    """

    here: Health
    workers: Sequence[WorkerInfo] = ()
    silent: str = ""
    healths: Mapping[str, Health] = field(default_factory=dict)
    fault: str = ""
    offsets: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    workspace: str = ""
    unseen: str = ""
    summed: tuple[int, int, float] | str = ""


def examine(client: Any, workspace: Path, note: Callable[[str], None] = lambda text: None) -> ClusterReport:
    """What is found of a client's Dask cluster. note: is told what is being examined."""
    note("this machine")
    here = look()
    workers, silent = answering(client)
    free = [info for info in workers if not info.group]
    healths: dict[str, Health] = {}
    fault, summed = "", _NOT_SUMMED
    note(f"{len(free)} free workers")
    try:
        found = on_workers(client, free, look, timeout_s=PATIENCE_S) if free else []
        healths = {info.address: health for info, health in zip(free, found, strict=True)}
    except SingaError as error:
        fault = str(error)
    note("clocks and files")
    offsets = clock_offsets(client, [info.address for info in workers])
    unseen = _unseen(client, workspace)
    if len(joining := of_one_world(free)) > 1 and not fault:
        note(f"an all-reduce of {len(joining)} workers")
        summed = _summed(client, joining)
    return ClusterReport(here, workers, silent, healths, fault, offsets, str(workspace), unseen, summed)


def _unseen(client: Any, workspace: Path) -> str:
    try:
        views = other_views(client, SharedFiles((), workspace, _SHARE))
    except SingaError as error:
        return str(error)
    return in_words(views) if views else ""


def _summed(client: Any, workers: Sequence[WorkerInfo]) -> tuple[int, int, float] | str:
    try:
        seconds = run_group(client, [info.address for info in workers], time_all_reduce, None, 0.0)[0]
    except SingaError as error:
        return str(error)
    return len(workers), len(by_host(workers)), seconds


def checks(cluster: ClusterReport) -> list[Check]:
    """All lines of the examination."""
    return [check for of in _CHECKS for check in of(cluster)]


def _workers(cluster: ClusterReport) -> Iterator[Check]:
    if cluster.silent:
        yield Check("workers", Level.WARNING, f"not counted: {cluster.silent}", "Restart these workers.")
    if not cluster.workers:
        yield Check("workers", Level.ERROR, "no Dask worker answers", "Start some: `dask worker ADDRESS`.")
        return
    hosts = by_host(cluster.workers)
    text = f"{counted(len(cluster.workers), 'worker')} on {counted(len(hosts), 'host')}"
    busy = [info for info in cluster.workers if info.group]
    text += f", of which {len(busy)} are in use and were not examined" if busy else ""
    bare = [info for info in cluster.workers if not info.nanny]
    if bare:
        way_out = "Start `dask worker` with its nanny (no --no-nanny)."
        text += f"; {len(bare)} have no nanny, which would replace a lost process"
        yield Check("workers", Level.WARNING, text, way_out)
    else:
        yield Check("workers", Level.OK, text)
    if cluster.fault:
        yield Check("workers", Level.ERROR, cluster.fault, "Install the same version of singa_dask on all hosts.")


def _versions(cluster: ClusterReport) -> Iterator[Check]:
    own = cluster.here.versions
    differing: defaultdict[str, set[str]] = defaultdict(set)
    for health in cluster.healths.values():
        for name, there in health.versions.items():
            if there != own.get(name):
                differing[name].add(str(there))
    if not differing:
        yield Check("versions", Level.OK, ", ".join(f"{name} {own.get(name)}" for name in (*_EQUAL, "numpy", "numba")))
    for name, found in differing.items():
        level = Level.ERROR if name in _EQUAL else Level.WARNING
        text = f"{name} is {own.get(name)} here and {', '.join(sorted(found))} on workers"
        yield Check("versions", level, text, "Install the same version on all hosts.")


def _mpi(cluster: ClusterReport) -> Iterator[Check]:
    libraries = defaultdict(list)
    for address, health in {"this process": cluster.here, **cluster.healths}.items():
        libraries[health.mpi].append(address)
        if health.mpi_fault:
            way_out = "Install an MPI library: `pip install mpich`, or load the module of your site."
            yield Check("MPI", Level.ERROR, f"{address}: {health.mpi_fault}", way_out)
    libraries.pop("", None)
    if len(libraries) > 1:
        text = "; ".join(f"{name} ({', '.join(where[:3])})" for name, where in libraries.items())
        yield Check("MPI", Level.ERROR, f"different libraries: {text}", "Use one MPI library on all hosts.")
    elif libraries:
        yield Check("MPI", Level.OK, next(iter(libraries)))


def _cores(cluster: ClusterReport) -> Iterator[Check]:
    for host, infos in by_host(cluster.workers).items():
        cores = len(frozenset().union(*(info.cpus for info in infos))) or max(info.cores for info in infos)
        text = f"{host}: {counted(len(infos), 'worker')}, {counted(cores, 'core')}"
        blas = {name for info in infos if (health := cluster.healths.get(info.address)) for name in health.blas}
        text += "".join(f"; {library} with {counted(threads, 'thread')}" for library, threads in sorted(blas))
        if len(infos) > cores:
            yield Check("cores", Level.WARNING, f"{text}: workers take turns", f"Start {cores} workers on this host.")
        elif infos and not blas and any(info.address in cluster.healths for info in infos):
            yield Check(
                "cores", Level.WARNING, f"{text}; NumPy has no BLAS", "Install NumPy from PyPI or conda-forge."
            )
        else:
            yield Check("cores", Level.OK, text)


def _memory(cluster: ClusterReport) -> Iterator[Check]:
    for host, (health, count) in _hosts(cluster).items():
        if health.shared is None:
            yield Check("shared memory", Level.ERROR, f"{host}: there is no /dev/shm", "Mount it: MPI needs it.")
            continue
        free, total = health.shared
        text = f"{host}: /dev/shm has {format_nbytes(free)} of {format_nbytes(total)} free"
        way_out = "Remove abandoned files in /dev/shm; in a container, raise --shm-size."
        if free < _SHARED_NEEDED * count:
            yield Check("shared memory", Level.ERROR, f"{text}, too little for {counted(count, 'worker')}", way_out)
        elif free < _SHARED_AMPLE * count:
            yield Check("shared memory", Level.WARNING, text, way_out)
        else:
            yield Check("shared memory", Level.OK, text)


def _files(cluster: ClusterReport) -> Iterator[Check]:
    for host, (health, _) in _hosts(cluster).items():
        if health.hdf5_fault:
            text = f"{host}: an HDF5 file in {health.folder} failed: {health.hdf5_fault}"
            yield Check("HDF5", Level.ERROR, text, "Set TMPDIR to a folder that can be written; reinstall h5py.")
        free = (health.temporary or (0, 0))[0]
        text = f"{host}: HDF5 files are written and read; {health.folder} has {format_nbytes(free)} free"
        if free < _TEMPORARY_AMPLE:
            yield Check("files", Level.WARNING, text, "Free space, or set TMPDIR to another disk.")
        elif not health.hdf5_fault:
            yield Check("files", Level.OK, text)
    if cluster.unseen:
        yield Check("workspace", Level.ERROR, cluster.unseen)
    elif cluster.workers:
        yield Check("workspace", Level.OK, f"all workers see {cluster.workspace} and can write to it")


def _gpus(cluster: ClusterReport) -> Iterator[Check]:
    seen = {info.node: info.gpus for info in cluster.workers if info.gpus.seen}
    if not seen:
        yield Check("GPUs", Level.OK, "none: workers compute on CPUs")
        return
    for node, report in seen.items():
        text = f"{node.partition('/')[0]}: {', '.join(gpu.name or f'GPU {gpu.number}' for gpu in report.seen)}"
        if not report.cupy:
            way_out = "`pip install '.[gpu]'` in a clone of singa_dask installs it."
            yield Check("GPUs", Level.WARNING, f"{text}; no CuPy, so that workers compute on CPUs", way_out)
        else:
            yield Check("GPUs", Level.OK, text)
    for fault in dict.fromkeys(fault for health in cluster.healths.values() for fault in health.gpu_faults):
        yield Check("GPUs", Level.WARNING if fault.startswith("NCCL") else Level.ERROR, fault)


def _clocks(cluster: ClusterReport) -> Iterator[Check]:
    if not cluster.offsets:
        return
    address, (ahead, half) = max(cluster.offsets.items(), key=lambda item: abs(item[1][0]))
    text = f"at most {1e3 * abs(ahead):.1f} ms apart from this machine's (to {1e3 * half:.1f} ms)"
    if abs(ahead) - half > _CLOCK_S:
        text = f"that of {address} is {abs(ahead):.3g} s {'ahead of' if ahead > 0 else 'behind'} this machine's"
        way_out = "Run chrony or ntpd: times in metrics.jsonl and traces are of several clocks."
        yield Check("clocks", Level.WARNING, text, way_out)
    else:
        yield Check("clocks", Level.OK, text)


def _all_reduce(cluster: ClusterReport) -> Iterator[Check]:
    if isinstance(cluster.summed, str):
        if cluster.summed:
            way_out = "Check MPI, ports between the hosts, and `dask worker --interface`."
            yield Check("all-reduce", Level.ERROR, cluster.summed, way_out)
        return
    ranks, hosts, seconds = cluster.summed
    rate = SUMMED_NBYTES * 2 * (ranks - 1) / ranks / seconds
    group = f"{ranks} workers on {counted(hosts, 'host')}"
    time_taken = f"{format_nbytes(SUMMED_NBYTES)} of {group} in {1e3 * seconds:.3g} ms"
    text = f"{time_taken}: each sends {format_nbytes(rate)} per second"
    if rate < (_SLOW_MACHINE if hosts == 1 else _SLOW_NETWORK):
        way_out = (
            "Stop other programs; start fewer workers."
            if hosts == 1
            else "Use a faster network (`dask worker --interface`), or codec: kHalf or kTopK."
        )
        yield Check("all-reduce", Level.WARNING, text, way_out)
    else:
        yield Check("all-reduce", Level.OK, text)


_CHECKS = (_workers, _versions, _mpi, _cores, _memory, _files, _gpus, _clocks, _all_reduce)


def _hosts(cluster: ClusterReport) -> dict[str, tuple[Health, int]]:
    """What the first worker of each host has found, and the number of workers there."""
    hosts = by_host([info for info in cluster.workers if info.address in cluster.healths])
    return {host: (cluster.healths[infos[0].address], len(infos)) for host, infos in hosts.items()}
