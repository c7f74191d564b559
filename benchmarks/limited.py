"""Two workers on a limited network: the step with each codec, and how much of the exchange the backward pass hides.

    hidden = (T_without - T_with) / min(T_comm, T_hide)

T_with: a step of the group with buckets of the default size. T_without: with one bucket, which leaves when the
backward pass is over. T_comm: the exchange of the buckets of T_with alone, one after another: encoding, sending, the
update, and back. T_hide: for how long a backward pass without a group goes on when the bucket that leaves first is
complete; nothing can hide more than that. A round times each of them once; `hidden` is the median of the rounds'.
kThreshold has none: its replicas send more or less in a round, as their residuals happen to be.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from groups import Group, our_group
from network import Host

CODECS: dict[str, dict[str, Any]] = {
    "kFull": {},
    "kHalf": {"codec": "kHalf"},
    "kBFloat16": {"codec": "kBFloat16"},
    "kPartial": {"codec": "kPartial", "sparsity": 0.5},
    "kTopK": {"codec": "kTopK", "sparsity": 0.05},
    "kThreshold": {"codec": "kThreshold"},
}
# About 5 % of the elements exceed them in a step, with what earlier ones have left.
THRESHOLDS = {"mnist-cnn": 6e-3, "mlp-64": 1e-2}
ONE_BUCKET = {"bucket_size": 1 << 30}
RATES = ("100mbit", "1gbit")
NETS = tuple(THRESHOLDS)
# At least so many rounds, however slow the network; then none begins after so many seconds.
LEAST, LONGEST_S = 3, 45.0


def measure(
    net: str, rates: Sequence[str], codecs: Sequence[str], rounds: int, hosts: Sequence[Host]
) -> Iterator[dict[str, Any]]:
    """One row per rate and codec; milliseconds are medians. faster: than kFull, at one step each per round."""
    variants = {}
    for name in codecs:
        settings = dict(CODECS[name])
        if name == "kThreshold":
            settings["sparsity"] = THRESHOLDS[net]
        variants |= {name: settings, f"{name} one": settings | ONE_BUCKET}
    with our_group(net, variants, hosts=hosts) as group:
        for rate in rates:
            for host in hosts:
                host.limit(rate)
            group.chunks.clear()
            found = _rounds(group, ["compute", *_runs(codecs)], rounds, hosts[0])
            for name in codecs:
                yield {"net": net, "rate": rate, "codec": name, **_row(group, found, name)}


def _runs(codecs: Sequence[str]) -> list[str]:
    return [f"{codec}{kind}" for codec in codecs for kind in ("", " one", " alone")]


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


def _row(group: Group, found: Mapping[str, Sequence[Mapping[str, Any]]], codec: str) -> dict[str, Any]:
    ours, one, alone, compute = (found[run] for run in (codec, f"{codec} one", f"{codec} alone", "compute"))
    first = group.ready["first"][codec]
    hide = [min(turn["after"][name] for name in first) for turn in compute]
    hidden = [
        (without["seconds"] - step["seconds"]) / min(sent["seconds"], can)
        for step, without, sent, can in zip(ours, one, alone, hide, strict=True)
    ]
    row: dict[str, Any] = {"rounds": len(ours), "mb": round(statistics.median(turn["mb"] for turn in ours), 3)}
    row |= {"ms": _ms(ours), "one_bucket_ms": _ms(one), "alone_ms": _ms(alone), "compute_ms": _ms(compute)}
    row["hide_ms"] = round(1e3 * statistics.median(hide), 2)
    row["hidden"] = None if codec == "kThreshold" else round(statistics.median(hidden), 2)
    row["hidden_quartiles"] = [round(cut, 2) for cut in statistics.quantiles(hidden, n=4)[::2]] if hidden[1:] else []
    if "kFull" in found:
        pairs = zip(found["kFull"], ours, strict=True)
        row["faster"] = round(statistics.median(full["seconds"] / step["seconds"] for full, step in pairs), 2)
    return row


def _ms(turns: Sequence[Mapping[str, Any]]) -> float:
    return round(1e3 * statistics.median(turn["seconds"] for turn in turns), 2)
