"""Faults in the wiring of layers: duplicate names, unknown sources, sources missing in a phase, cycles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from singa_dask.errors import nearest
from singa_dask.job.job_pb2 import LayerProto, Phase
from singa_dask.job.paths import Path
from singa_dask.job.phases import runs_in


class WiringFault(NamedTuple):
    """A fault of a layer. layer: its position in the list; path: of the field in it; the rest: parts of a Problem."""

    layer: int
    path: Path
    message: str
    received: str
    hint: str | None = None


def unknown_sources(layers: Sequence[LayerProto]) -> Iterator[WiringFault]:
    """Sources that no layer of any phase is named after."""
    names = {layer.name for layer in layers}
    for index, layer in enumerate(layers):
        read: list[tuple[Path, str]] = [(("srclayers", i), source) for i, source in enumerate(layer.srclayers)]
        if layer.rnn_dummy_conf.dynamic_srclayer:
            read.append((("rnn_dummy_conf", "dynamic_srclayer"), layer.rnn_dummy_conf.dynamic_srclayer))
        for path, source in read:
            if source not in names:
                hint = nearest(source, names - {layer.name, ""})
                yield WiringFault(index, path, "no layer has this name", source, hint)


def faults_in_phase(layers: Sequence[LayerProto], phase: int) -> Iterator[WiringFault]:
    """Duplicate names in a phase, and sources that do not run in it.

    Layers of different phases may share a name: SINGA's jobs have one "data" layer for training, one for testing.
    """
    running = [runs_in(layer, phase) for layer in layers]
    names = {layer.name for layer in layers}
    present = {layer.name for layer, runs in zip(layers, running, strict=True) if runs}
    seen: set[str] = set()
    for index, layer in enumerate(layers):
        if not running[index]:
            continue
        if layer.name in seen:
            hint = "Rename one, or let them run in different phases (include: kTrain, include: kTest)."
            message = "another layer of the same phase has this name"
            yield WiringFault(index, ("name",), message, layer.name, hint)
        seen.add(layer.name)
        for i, source in enumerate(layer.srclayers):
            if source in names and source not in present:
                name = Phase.Name(phase)
                message = f"does not run in phase {name}, but {layer.name!r} reads it there"
                hint = f"Exclude {layer.name!r} from the phase too (exclude: {name}), or include {source!r}."
                yield WiringFault(index, ("srclayers", i), message, source, hint)


def circles(sources: Mapping[str, Sequence[str]]) -> Iterator[list[str]]:
    """Disjoint cycles of a graph (name -> names it reads), each in the direction of the data flow."""
    stuck = _stuck(sources)
    while stuck:
        walk = [next(iter(stuck))]
        while walk.count(walk[-1]) == 1:
            walk.append(next(b for b in stuck[walk[-1]] if b in stuck))
        circle = walk[walk.index(walk[-1]) + 1 :]
        yield circle[::-1]
        stuck = _stuck({name: before for name, before in stuck.items() if name not in circle})


def circle_fault(circle: Sequence[str], order: Mapping[str, int]) -> WiringFault:
    """The fault of a cycle, reported at its first layer. order: positions of the layers."""
    start = min(range(len(circle)), key=lambda i: order[circle[i]])
    ordered = [*circle[start:], *circle[: start + 1]]
    hint = "Remove one of these sources, or read its previous time step, for example with unroll_len: 10 shift: 1."
    message = "these layers form a cycle"
    return WiringFault(order[ordered[0]], ("srclayers",), message, " -> ".join(ordered), hint)


def _stuck(sources: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
    """The graph without the layers that do not depend on a cycle (Kahn 1962)."""
    waits = {name: sum(b in sources for b in before) for name, before in sources.items()}
    readers: dict[str, list[str]] = {name: [] for name in sources}
    for name, before in sources.items():
        for b in before:
            readers.get(b, []).append(name)
    free = [name for name, count in waits.items() if count == 0]
    for name in free:  # grows while it is walked
        for reader in readers[name]:
            waits[reader] -= 1
            if waits[reader] == 0:
                free.append(reader)
    taken = set(free)
    return {name: before for name, before in sources.items() if name not in taken}
