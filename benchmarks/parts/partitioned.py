"""One replica over several workers, by partition of its net: seconds, bytes and memory of a step.

The mini-batch is that of the whole group. `outputs`: every InnerProduct is split over its outputs, so that each reads
all that the one before it made. `mixed` is what `neuralnet.partition_dim: 1` makes of it: behind a layer that is split
over its outputs, one with fewer outputs than inputs is split over its inputs.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from tools.groups import Group, partitioned_group
from tools.network import Host

_SPLIT = "neuralnet.partition_dim=1"
_OUTPUTS = "neuralnet.layer[{}].param[0].partition_dim=1"
INNER_PRODUCTS = {"mlp-64": ("fc1", "fc2", "fc3", "fc4", "fc5", "fc6"), "alexnet-fc": ("ip6", "ip7", "ip8")}
NETS = tuple(INNER_PRODUCTS)
BATCH = "dim 0"


def partitions(net: str) -> dict[str, list[str]]:
    """The overrides of each partition."""
    outputs = [_SPLIT, *(_OUTPUTS.format(name) for name in INNER_PRODUCTS[net])]
    return {BATCH: [], "outputs": outputs, "mixed": [_SPLIT]}


def on_network(
    net: str, rounds: int, hosts: Sequence[Host], ways: Mapping[str, Sequence[str]] | None = None
) -> list[dict[str, Any]]:
    """A row per partition; milliseconds are medians. faster: than dim 0, in the same round. ways: the overrides of
    each partition; by default `partitions`.

    mb: what a worker sends per step, the most of any; formula: that, through (n - 1) / n b d for each transition of d
    values and 2 (n - 1) / n for each parameter that all workers have.
    """
    ways = ways or partitions(net)
    with partitioned_group(net, ways, size=len(hosts), hosts=hosts) as group:
        return _rows(net, group, _rounds(group, list(ways), rounds))


def on_one_machine(
    net: str, rounds: int, workers: int, ways: Mapping[str, Sequence[str]] | None = None
) -> list[dict[str, Any]]:
    """The same where the workers share memory."""
    ways = ways or partitions(net)
    with partitioned_group(net, ways, size=workers) as group:
        return _rows(net, group, _rounds(group, list(ways), rounds))


def memory(net: str, counts: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    """The peak of a worker's memory above what it had before, and what the formula says; workers exchange messages."""
    rows = []
    for count in counts:
        for name, overrides in partitions(net).items():
            if count == 1 and name != BATCH:
                continue
            with partitioned_group(net, {name: overrides}, size=count, tcp=count > 1) as group:
                turns = [group.run(name) for _ in range(rounds)]
                need = group.ready[name]["need"]
            peak, total = turns[-1]["peak"], need["total"]
            row = {"net": net, "workers": count, "partition": name, "peak_mb": _mb(peak), "formula_mb": _mb(total)}
            rows.append({**row, "ratio": round(peak / total, 3), "parts_mb": [_mb(part) for part in need.values()]})
    return rows


def _rounds(group: Group, names: Sequence[str], rounds: int) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for name in names:
        group.warm_up(name)
    for number in range(rounds):
        for name in names[:: -1 if number % 2 else 1]:
            found[name].append(group.run(name))
    return found


def _rows(net: str, group: Group, found: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    rows = []
    for name, turns in found.items():
        said, last = group.ready[name], turns[-1]
        sent = {"exchange": last["exchange"], **last["transitions"]}
        formula = {"exchange": said["exchange"], **said["transitions"]}
        faster = [base["seconds"] / turn["seconds"] for base, turn in zip(found[BATCH], turns, strict=True)]
        row = {"net": net, "workers": len(group.ranks), "partition": name, "rounds": len(turns)}
        row |= {"ms": round(1e3 * statistics.median(turn["seconds"] for turn in turns), 2)}
        row |= {"faster": round(statistics.median(faster), 2), "mb": _mb(sum(sent.values()))}
        row |= {"formula_mb": _mb(sum(formula.values()))}
        row |= {"ratio": round(sum(sent.values()) / sum(formula.values()), 3)}
        calls = [[call, round(sent.get(call, 0)), round(formula.get(call, 0))] for call in sent | formula]
        rows.append({**row, "bytes": calls})
    return rows


def _mb(nbytes: float) -> float:
    return round(nbytes / 1e6, 3)
