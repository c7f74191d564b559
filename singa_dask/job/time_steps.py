"""Which layers have time steps, where samples are sequences with labels or targets of their own.

What recurrent layers, attention and kReverse read has time steps, and so has what lies between these and a layer that
reads whole sequences (B, T, ...): a function, a loss that compares all steps, or a layer of positions. Other layers
read the last step. What a layer says itself stays.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from singa_dask.job.job_pb2 import LayerProto, LayerType, UnrollConnType
from singa_dask.job.layer_types import CLASSIFYING, FORMULAS, LOSSES, type_name
from singa_dask.job.stores import answers_rows, net_shape, steps_of
from singa_dask.job.user_code import user_code

RECURRENT = frozenset({LayerType.kGRU, LayerType.kLSTM, LayerType.kRNN})
_ACROSS_STEPS = RECURRENT | {LayerType.kAttention, LayerType.kReverse}
_OF_POSITIONS = frozenset({"kClassToken", "kSelect"})
_OF_NEIGHBOURS = frozenset({"kConvolution", "kTransposedConvolution", "kPooling", "kGlobalPooling", "kUpsampling"})
_OF_ELEMENTS = frozenset({"kAdd", "kSub", "kMul", "kDiv", "kMax"})
*_FUNCTIONS, _LOSS = FORMULAS


def set_steps(layers: Sequence[LayerProto]) -> None:
    """Set `unroll_len` and `unroll_conn_type` of the layers of a plain net whose input layers have such sequences."""
    rows = {layer.name: steps_of(layer.store_conf) for layer in layers if answers_rows(layer.store_conf)}
    if not rows:
        return
    named = {layer.name: layer for layer in layers}
    after = _reached(rows, layers)
    vectors = all(len(named[name].store_conf.shape) < 2 for name in rows)
    whole = {name for name in after if _reads_whole(named[name], named, {*rows.values()}, vectors=vectors)}
    for name in _reached(whole, layers):
        if named[name].type == LayerType.kAttention and named[name].unroll_len == 1:
            whole.add(name)  # with time steps it gives the same
    own = {
        layer.name
        for layer in layers
        if layer.unroll_len > 1 or (layer.type in _ACROSS_STEPS and not layer.HasField("unroll_len"))
    } - whole
    timed = _timed(layers, own, whole) & after
    single = {name for name in timed if type_name(named[name]) in _OF_ELEMENTS and named[name].unroll_len == 1}
    single = {name for name in single if not after | rows.keys() >= {*named[name].srclayers}}
    if single:  # they combine all steps with something that has none
        whole |= single
        timed = _timed(layers, own, whole) & after
    later = _reached(own, layers)
    lengths = _lengths(layers, rows, timed)
    for layer in layers:
        if layer.name in timed and not layer.HasField("unroll_len"):
            layer.unroll_len = lengths.get(layer.name, 0)
        if layer.name in after and not layer.unroll_conn_type:
            layer.unroll_conn_type.extend(_connected(layer, rows, timed, whole, later))


def _timed(layers: Sequence[LayerProto], own: set[str], whole: set[str]) -> set[str]:
    """What has time steps. own: layers over time; whole: those that read sequences whole."""
    between = _reached(own, layers, but=whole) & _reached(whole, layers, back=True)
    return (own | between | _reached(own | between, layers, back=True, but=whole)) - whole


def connection_type(layer: LayerProto, position: int) -> int:
    """How a layer's instances read the source at this position."""
    if position < len(layer.unroll_conn_type):
        return layer.unroll_conn_type[position]
    if layer.type in RECURRENT and position > 0 and layer.srclayers[position] != layer.name:
        return UnrollConnType.kUnrollFirstToLast  # its initial state
    return UnrollConnType.kUnrollOneToAll if attended(layer, position) else UnrollConnType.kUnrollOneToOne


def attended(layer: LayerProto, position: int) -> bool:
    """Whether the layer attends to all time steps of the source at this position."""
    return layer.type == LayerType.kAttention and position > 0


def _reads_whole(layer: LayerProto, named: Mapping[str, LayerProto], steps: Collection[int], *, vectors: bool) -> bool:
    """steps: of the sequences. vectors: whether each of them is a vector, and no image."""
    if layer.unroll_len > 1:
        return False
    if layer.type == LayerType.kAttention:
        return layer.HasField("unroll_len")
    if (compared := _compared(layer)) is not None:
        return _compares_steps(layer, *compared, named, steps)
    return layer.user_type in _FUNCTIONS or type_name(layer) in _OF_POSITIONS | (_OF_NEIGHBOURS if vectors else set())


def _compared(layer: LayerProto) -> tuple[Collection[int], Collection[int]] | None:
    """The positions of the sources whose labels, and whose labels or targets, a loss reads; None for other layers."""
    if type_name(layer) in LOSSES:
        return ((1,) if type_name(layer) in CLASSIFYING else ()), (1,)
    if layer.user_type == _LOSS:
        return json.loads(layer.user_conf).get("labels") or (), range(1, len(layer.srclayers))
    if layer.user_type and layer.user_type not in FORMULAS:
        with suppress(Exception):  # code that cannot be imported: the set-up of the net says why
            found = user_code(layer.user_type, "user_type")
            if found.is_loss:
                return found.label_sources, {*found.label_sources, *found.target_sources}
    return None


def _compares_steps(
    loss: LayerProto,
    labels: Collection[int],
    read: Collection[int],
    named: Mapping[str, LayerProto],
    steps: Collection[int],
) -> bool:
    """Whether a loss has labels of positions, or a target for each step, or compares with features; otherwise a
    sequence has one label or target. labels, read: of `_compared`."""
    count = len(loss.srclayers)
    names = [loss.srclayers[i] for i in read if -count <= i < count]
    answers = [named[name].store_conf for name in names if name in named]
    targets = [net_shape(tuple(store.target_shape)) for store in answers if store.target_shape and not store.horizon]
    if any(store.label_shape for store in answers):
        return True
    if any(len(shape) == 3 and shape[0] in steps for shape in targets):
        return True
    return not labels and not any(store.target_shape for store in answers)


def _lengths(layers: Sequence[LayerProto], rows: Mapping[str, int], timed: Collection[str]) -> dict[str, int]:
    """The time steps of what depends on sequences: its own, or those of its first source that has some."""
    lengths, before = dict(rows), 0
    while len(lengths) > before:  # they may be in any order
        before = len(lengths)
        for layer in layers:
            given = layer.unroll_len if layer.name in timed and layer.HasField("unroll_len") else 0
            found = given or next((lengths[source] for source in layer.srclayers if source in lengths), 0)
            if found:
                lengths.setdefault(layer.name, found)
    return lengths


def _connected(
    layer: LayerProto, rows: Collection[str], timed: Collection[str], whole: Collection[str], later: Collection[str]
) -> Iterator[int]:
    """How a layer reads its sources."""
    for position, source in enumerate(layer.srclayers):
        if layer.name in whole:
            yield UnrollConnType.kUnrollAllToOne if source in timed else UnrollConnType.kUnrollOneToOne
        elif layer.name in timed and source in whole and not _apart(layer, position):
            yield UnrollConnType.kUnrollOneToEach
        elif source in rows and (layer.name in timed or layer.name not in later):
            yield UnrollConnType.kUnrollOneToAll if layer.name in timed else UnrollConnType.kUnrollOneToOne
        elif source in timed if layer.name not in timed else (source not in timed and position > 0):
            yield UnrollConnType.kUnrollFirstToLast
        else:
            yield connection_type(layer, position)


def _apart(layer: LayerProto, position: int) -> bool:
    """Whether what the layer reads there is no sequence, but an initial state or lengths."""
    return position > 0 and (layer.type in RECURRENT or layer.type == LayerType.kReverse)


def _reached(
    start: Iterable[str], layers: Sequence[LayerProto], *, back: bool = False, but: Collection[str] = ()
) -> set[str]:
    """The layers that depend on these; back: those that give these sequences. but: what is reached, and not gone
    through."""
    edges: dict[str, set[str]] = {}
    for layer in layers:
        for position, source in enumerate(layer.srclayers):
            if back and _apart(layer, position):
                continue
            reader, read = (layer.name, source) if back else (source, layer.name)
            edges.setdefault(reader, set()).add(read)
    found, left = set[str](), list(start)
    while left:
        for name in edges.get(left.pop(), set()) - found:
            found.add(name)
            if name not in but:
                left.append(name)
    return found
