"""The parts of a run's summary that its groups and its machine tell."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any


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
        **{name: round(report[name], 4) for name in ("steps", "samples", "seconds", "evaluating_s", "saving_s")},
        **{name: report[name] for name in ("began", "exchange", "processes")},
        "samples_per_s": round(report["samples_per_s"], 1),
        "wait": [round(share, 4) for share in report["wait"]],
        "loading": [round(share, 4) for share in report["loading"]],
        "operations": operations,
    }
    if report["gpu_memory"]:
        kept["gpu_memory"] = report["gpu_memory"]
    server = report["server"]
    return kept if server is None else {**kept, "server": {name: round(value, 4) for name, value in server.items()}}
