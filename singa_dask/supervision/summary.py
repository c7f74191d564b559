"""The parts of a run's summary that its groups and its machine tell."""

from __future__ import annotations

import platform
from collections.abc import Collection, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from singa_dask import __version__


def rate(reports: Collection[Mapping[str, Any]], restarted: bool) -> float:
    """Samples per second of all groups together, some of which may have come later, or left. The work of
    a group before its restart is not known: then the sum of the rates since."""
    if restarted:
        return round(sum(report["samples_per_s"] for report in reports), 1)
    seconds = max((report["seconds"] for report in reports), default=0.0)
    return round(sum(report["samples"] for report in reports) / seconds, 1) if seconds else 0.0


def of_group(report: Mapping[str, Any]) -> dict[str, Any]:
    """What the record keeps of one worker group."""
    operations = {
        name: {"bytes": int(done["bytes"]), "seconds": round(done["seconds"], 4)}
        for name, done in report["operations"].items()
    }  # of the first worker
    kept = {
        "step": report["step"],
        "samples_per_s": round(report["samples_per_s"], 1),
        "wait": [round(share, 4) for share in report["wait"]],
        "loading": [round(share, 4) for share in report["loading"]],
        "operations": operations,
    }
    if report["gpu_memory"]:
        kept["gpu_memory"] = report["gpu_memory"]
    server = report["server"]
    return kept if server is None else {**kept, "server": {name: round(value, 4) for name, value in server.items()}}


@cache
def versions() -> dict[str, str | None]:
    packages = ("numpy", "numba", "dask", "distributed", "mpi4py", "h5py", "protobuf")
    own = {"python": platform.python_version(), "singa-dask": __version__}
    return {**own, **{name: _version(name) for name in packages}}


def _version(package: str) -> str | None:
    """None if the package is there without its metadata, such as a copy of its files."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
