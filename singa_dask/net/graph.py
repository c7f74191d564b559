"""The graph of a net: which layers a phase has, in which order they run, and who reads whose output."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from singa_dask.errors import ConfigError, Problem, nearest
from singa_dask.job.energy import without_feedback
from singa_dask.job.job_pb2 import LayerProto, NetProto, Phase
from singa_dask.job.phases import runs_in
from singa_dask.job.unroll import plain
from singa_dask.net.fold import in_time


@dataclass(frozen=True)
class Edge:
    """One use of a layer's output: the `position`-th source of layer `consumer`."""

    consumer: str
    position: int


@dataclass(frozen=True)
class Graph:
    """Layers of one phase.

    layers: name -> message, sources before their consumers; layers that are free to go first keep the file's order.
    consumers: name -> its uses, in the file's order of the consumers (a layer read twice has two).
    """

    layers: dict[str, LayerProto]
    consumers: dict[str, tuple[Edge, ...]]


def build_graph(net: NetProto, phase: int, *, fold: bool = True) -> Graph:
    """The graph of the layers that run in `phase`; layers of several time steps are folded where they can be and
    `fold` says so, else unrolled.

    Raises ConfigError for repeated names, sources that do not exist in this phase, unrolling that cannot be, cycles.
    """
    every = plain(net).layer
    present = [layer for layer in every if runs_in(layer, phase)]
    problems = _repeated_names(present) + _missing_sources(every, present, phase)
    if problems:
        raise ConfigError(problems)
    present = in_time(without_feedback(present), fold=fold)
    layers = {layer.name: layer for layer in _topological(present)}
    consumers: dict[str, list[Edge]] = {layer.name: [] for layer in present}
    for layer in present:
        for position, source in enumerate(layer.srclayers):
            consumers[source].append(Edge(layer.name, position))
    return Graph(layers, {name: tuple(edges) for name, edges in consumers.items()})


def _repeated_names(layers: Iterable[LayerProto]) -> list[Problem]:
    seen: set[str] = set()
    problems = []
    for layer in layers:
        if layer.name in seen:
            problems.append(
                Problem(
                    f"layer {layer.name!r}.name",
                    "two layers of one phase have this name",
                    hint="Give each its own, or `include` them in different phases.",
                )
            )
        seen.add(layer.name)
    return problems


def _missing_sources(every: Sequence[LayerProto], present: Sequence[LayerProto], phase: int) -> list[Problem]:
    names = {layer.name for layer in present}
    elsewhere = {layer.name for layer in every} - names
    problems = []
    for layer in present:
        for source in layer.srclayers:
            if source in elsewhere:
                message = f"source layer is left out of phase {Phase.Name(phase)} by its include or exclude"
                hint = f"Leave {layer.name!r} out of the phase too, or let {source!r} in."
            elif source not in names:
                message, hint = "no layer has this name", nearest(source, names)
            else:
                continue
            problems.append(Problem(f"layer {layer.name!r}.srclayers", message, source, hint))
    return problems


def _topological(layers: Sequence[LayerProto]) -> list[LayerProto]:
    """Kahn's algorithm; among the layers that may go next, the first of the file goes."""
    index = {layer.name: i for i, layer in enumerate(layers)}
    waiting = [len(layer.srclayers) for layer in layers]
    readers: list[list[int]] = [[] for _ in layers]
    for i, layer in enumerate(layers):
        for source in layer.srclayers:
            readers[index[source]].append(i)
    free = [i for i, count in enumerate(waiting) if count == 0]
    order = []
    while free:
        i = heapq.heappop(free)
        order.append(layers[i])
        for reader in readers[i]:
            waiting[reader] -= 1
            if waiting[reader] == 0:
                heapq.heappush(free, reader)
    if len(order) < len(layers):
        raise ConfigError(_cycle([layer for layer, count in zip(layers, waiting, strict=True) if count]))
    return order


def _cycle(stuck: Sequence[LayerProto]) -> Problem:
    sources = {layer.name: layer.srclayers for layer in stuck}
    path = [stuck[0].name]
    while path.count(path[-1]) == 1:
        path.append(next(source for source in sources[path[-1]] if source in sources))
    loop = path[path.index(path[-1]) :]
    return Problem(
        f"layer {loop[0]!r}.srclayers",
        "the layers feed each other in a circle",
        received=" <- ".join(loop),
        hint="Remove one of these sources.",
    )
