"""Two workers on a limited network: the step with each codec, and how much of the exchange the backward pass hides.

    hidden = (T_without - T_with) / (T_serial - T_ideal)

T_with: a step of the group, with overlap whether it pays or not (a job tries both and keeps the faster). T_without:
the same, but the buckets are exchanged when the backward pass is over, one after another and in the same thread.
T_serial: a step without a group, then the exchange of the buckets, as long as each took in T_without: encoding,
sending, the update, and back. T_ideal: the same where every bucket leaves as soon as its last gradient is there and
those before it are through, and the worker's one core computes the step while a bucket waits for the network, not
while it is coded or updated, nor while the core carries its bytes: plain sockets take so much of it at this rate
(`carrying_s_per_mb`). It is no less than the bytes of a step take at the network's rate. So what is coded beside the
backward pass makes later buckets complete later. A round times each of them once; `hidden` is the median of the
rounds', and there is none where less than a twentieth of T_without can be hidden. More than all is hidden where a job
also sends a bucket while the one before it is updated and coded.

How long an exchange takes is asked of steps, not of exchanges one right after another: the network lets a burst of 128
KB pass at once when it has been idle, as it is while a step computes, and all that a small net sends may be that.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tools.carrying import carrying_s_per_mb
from tools.groups import Group, our_group
from tools.network import Host, bits_per_s

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
            carrying_s = carrying_s_per_mb(hosts, rate)
            group.chunks.clear()
            found = _rounds(group, ["compute", *_runs(codecs)], rounds, hosts[0])
            for name in codecs:
                yield {"net": net, "rate": rate, "codec": name, **_row(group, found, name, rate, carrying_s)}


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


def _row(
    group: Group, found: Mapping[str, Sequence[Mapping[str, Any]]], codec: str, rate: str, carrying_s: float
) -> dict[str, Any]:
    ours, late, compute = (found[run] for run in (f"{codec} beside", f"{codec} after", "compute"))
    buckets = group.ready["buckets"][codec]
    can = [_hideable(buckets, rate, carrying_s, *turns) for turns in zip(compute, late, strict=True)]
    hidden = [
        (without["seconds"] - step["seconds"]) / most
        for step, without, most in zip(ours, late, can, strict=True)
        if most > 0
    ]
    row: dict[str, Any] = {"rounds": len(ours), "mb": round(statistics.median(turn["mb"] for turn in ours), 3)}
    row |= {"ms": _ms(ours), "without_overlap_ms": _ms(late), "compute_ms": _ms(compute)}
    row["exchange_ms"] = round(1e3 * statistics.median(sum(wall for wall, _ in turn["spent"]) for turn in late), 2)
    row["carrying_ms"] = round(1e3 * carrying_s * row["mb"], 2)
    row["hideable_ms"] = round(1e3 * statistics.median(can), 2)
    told = row["hideable_ms"] > 0.05 * row["without_overlap_ms"]
    row["hidden"] = round(statistics.median(hidden), 2) if told else None
    quartiles = statistics.quantiles(hidden, n=4)[::2] if told and hidden[1:] else []
    row["hidden_quartiles"] = [round(cut, 2) for cut in quartiles]
    if "kFull beside" in found:
        pairs = zip(found["kFull beside"], ours, strict=True)
        row["faster"] = round(statistics.median(full["seconds"] / step["seconds"] for full, step in pairs), 2)
    return row


def _hideable(
    buckets: Sequence[Sequence[str]],
    rate: str,
    carrying_s: float,
    compute: Mapping[str, Any],
    late: Mapping[str, Any],
) -> float:
    """T_serial - T_ideal of a round. buckets: the parameters of each, in the order in which they leave."""
    waited = sum(seconds - processor for seconds, processor in late["spent"])
    free = max(0.0, 1 - carrying_s * late["mb"] / waited)  # the share of the waiting in which the core can compute
    clock = computed = exchanged = 0.0  # computed: how far the step without a group has come by then
    for names, (seconds, processor) in zip(buckets, late["spent"], strict=True):
        ready = compute["seconds"] - min(compute["after"][name] for name in names)
        clock += max(0.0, ready - computed) + seconds
        computed = min(compute["seconds"], max(computed, ready) + free * (seconds - processor))
        exchanged += seconds
    ideal = clock + compute["seconds"] - computed
    return compute["seconds"] + exchanged - max(ideal, 8e6 * late["mb"] / bits_per_s(rate))


def _ms(turns: Sequence[Mapping[str, Any]]) -> float:
    return round(1e3 * statistics.median(turn["seconds"] for turn in turns), 2)
