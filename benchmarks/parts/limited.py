"""Two workers on a limited network: the step with each codec, with and without overlap.

ms: a step of the group, with overlap whether it pays or not (a job tries both and keeps the faster).
without_overlap_ms: the same, but the buckets are exchanged when the backward pass is over, one after another and in
the same thread. exchange_ms: the part of the latter that exchanges them. compute_ms: a step without a group.

How long an exchange takes is asked of steps, not of exchanges one right after another: the network lets a burst of 128
KB pass at once when it has been idle, as it is while a step computes, and all that a small net sends may be that.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tools.groups import Group, our_group
from tools.network import Host

CODECS: dict[str, dict[str, Any]] = {
    "kFull": {},
    "kHalf": {"codec": "kHalf"},
    "kBFloat16": {"codec": "kBFloat16"},
    "kPartial": {"codec": "kPartial", "sparsity": 0.5},
    "kTopK": {"codec": "kTopK", "sparsity": 0.05},
}
RATES = ("100mbit", "1gbit")
NETS = ("mnist-cnn", "mlp-64")
# At least so many rounds, however slow the network; then none begins after so many seconds.
LEAST, LONGEST_S = 3, 75.0


def measure(
    net: str, rates: Sequence[str], codecs: Sequence[str], rounds: int, hosts: Sequence[Host]
) -> Iterator[dict[str, Any]]:
    """One row per rate and codec; milliseconds are medians. faster: than kFull, at a turn each per round."""
    with our_group(net, {name: CODECS[name] for name in codecs}, hosts=hosts) as group:
        for rate in rates:
            for host in hosts:
                host.limit(rate)
            group.chunks.clear()
            found = _rounds(group, ["compute", *_runs(codecs)], rounds, hosts[0])
            for name in codecs:
                yield {"net": net, "rate": rate, "codec": name, **_row(found, name)}


def _runs(codecs: Sequence[str]) -> list[str]:
    return [f"{codec} {kind}" for codec in codecs for kind in ("beside", "after")]


def _rounds(group: Group, runs: Sequence[str], rounds: int, near: Host) -> dict[str, list[dict[str, Any]]]:
    """Turns of each run, in either direction by turns. mb: sent per step."""
    found: dict[str, list[dict[str, Any]]] = {run: [] for run in runs}
    for run in runs:
        group.warm_up(run)
    began = time.monotonic()
    for number in range(rounds):
        if number >= LEAST and time.monotonic() - began > LONGEST_S:
            break
        for run in runs[:: -1 if number % 2 else 1]:
            before = near.sent()
            turn = group.run(run)
            found[run].append({**turn, "mb": (near.sent() - before) / 1e6 / turn["steps"]})
    return found


def _row(found: Mapping[str, Sequence[Mapping[str, Any]]], codec: str) -> dict[str, Any]:
    ours, late, compute = (found[run] for run in (f"{codec} beside", f"{codec} after", "compute"))
    row: dict[str, Any] = {"rounds": len(ours), "mb": round(statistics.median(turn["mb"] for turn in ours), 3)}
    row |= {"ms": _ms(ours), "without_overlap_ms": _ms(late), "compute_ms": _ms(compute)}
    row["exchange_ms"] = round(1e3 * statistics.median(turn["exchange_s"] for turn in late), 2)
    if "kFull beside" in found:
        pairs = zip(found["kFull beside"], ours, strict=True)
        row["faster"] = round(statistics.median(full["seconds"] / step["seconds"] for full, step in pairs), 2)
    return row


def _ms(turns: Sequence[Mapping[str, Any]]) -> float:
    return round(1e3 * statistics.median(turn["seconds"] for turn in turns), 2)
