"""The graph of a net: the layers of a phase, their order, and the consumers of each output."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from singa_dask.errors import ConfigError, Problem
from singa_dask.job.energy import without_feedback
from singa_dask.job.job_pb2 import LayerProto, NetProto
from singa_dask.job.paths import format_path
from singa_dask.job.phases import graph_phase, runs_in
from singa_dask.job.unroll import plain
from singa_dask.job.wiring import WiringFault, circle_fault, circles, faults_in_phase, unknown_sources
from singa_dask.net.fold import in_time


@dataclass(frozen=True)
class Edge:
    """One use of a layer's output: the `position`-th source of layer `consumer`."""

    consumer: str
    position: int


@dataclass(frozen=True)
class Graph:
    """Layers of one phase.

    layers: name -> message, in topological order; the file's order decides among independent layers.
    consumers: name -> its uses, in the file's order of the consumers (a layer read twice has two).
    """

    layers: dict[str, LayerProto]
    consumers: dict[str, tuple[Edge, ...]]


def build_graph(net: NetProto, phase: int, *, fold: bool = True) -> Graph:
    """The graph of the layers that run in `phase` (see graph_phase), with time steps folded if `fold` is set and the
    graph allows it.

    Raises ConfigError for duplicate names, sources missing in this phase, invalid unrolling, and cycles.
    """
    every = plain(net).layer
    phase = graph_phase(every, phase)
    found = [*unknown_sources(every), *faults_in_phase(every, phase)]
    faults = [fault for fault in found if runs_in(every[fault.layer], phase)]
    if faults:
        raise ConfigError([_problem(fault, every) for fault in faults])
    present = [layer for layer in every if runs_in(layer, phase)]
    present = in_time(without_feedback(present), fold=fold)
    layers = {layer.name: layer for layer in _topological(present)}
    consumers: dict[str, list[Edge]] = {layer.name: [] for layer in present}
    for layer in present:
        for position, source in enumerate(layer.srclayers):
            consumers[source].append(Edge(layer.name, position))
    return Graph(layers, {name: tuple(edges) for name, edges in consumers.items()})


def _topological(layers: Sequence[LayerProto]) -> list[LayerProto]:
    """Kahn's algorithm; among available layers, the first in the file comes first."""
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
        circle = next(circles({layer.name: layer.srclayers for layer in layers}))
        raise ConfigError(_problem(circle_fault(circle, index), layers))
    return order


def _problem(fault: WiringFault, layers: Sequence[LayerProto]) -> Problem:
    key = f"layer {layers[fault.layer].name!r}.{format_path(fault.path, {})}"
    return Problem(key, fault.message, fault.received, fault.hint)
