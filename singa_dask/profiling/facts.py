"""Which machines a profile is of: their processor, their cores, and the libraries that compute on them."""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from singa_dask import __version__
from singa_dask.cluster.bootstrap import mpi_library, mpi_report
from singa_dask.errors import ClusterError
from singa_dask.planning.profile import Profile

if TYPE_CHECKING:
    from singa_dask.cluster import WorkerInfo

_PACKAGES = ("numpy", "numba", "mpi4py", "distributed")


def facts_here() -> Profile:
    """An empty profile of this machine, as one host of which this process may use all its cores."""
    versions = {name: version(name) for name in _PACKAGES}
    versions |= {"python": platform.python_version(), "singa_dask": __version__, "mpi": _mpi()}
    cores = len(os.sched_getaffinity(0))
    return Profile(host=socket.gethostname(), cpu=_processor(), cores=cores, versions=versions)


@cache
def package_versions() -> dict[str, str | None]:
    """The versions of Python, of this package and of those that it rests on; None of one without its metadata, such
    as a copy of its files."""
    packages = ("numpy", "numba", "dask", "distributed", "mpi4py", "h5py", "protobuf")
    own = {"python": platform.python_version(), "singa-dask": __version__}
    return {**own, **{name: _version(name) for name in packages}}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def facts_of(here: Profile, workers: Sequence[WorkerInfo]) -> Profile:
    """An empty profile of the hosts of these Dask workers. here: `facts_here` of one of them."""
    hosts = by_host(workers)
    cpus = [frozenset().union(*(info.cpus for info in infos)) for infos in hosts.values()]
    cores = max(len(cpus[0]), *(info.cores for info in workers))
    # Networks of hosts of one kind differ.
    notes = {"hosts": sorted(hosts)} if len(hosts) > 1 else {}
    return replace(here, cores=cores, hosts=len(hosts), notes=notes)


def by_host(workers: Sequence[WorkerInfo]) -> dict[str, list[WorkerInfo]]:
    """The workers of each host, the host with most of them first."""
    hosts: dict[str, list[WorkerInfo]] = {}
    for info in workers:
        hosts.setdefault(info.host, []).append(info)
    return dict(sorted(hosts.items(), key=lambda item: -len(item[1])))


def _processor() -> str:
    """The name of the processor; on a system that does not tell, of its architecture."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.machine()


def _mpi() -> str:
    try:
        # The same words before and after MPI is loaded.
        return " ".join((mpi_report().library or mpi_library()).split())
    except ClusterError:  # one worker needs none
        return "none"
