"""Folding: the time steps of an unrolled net become blocks of rows of one net, if the graph allows it.

T steps of B rows become T B rows, ordered by step. A rowwise layer then runs once for all steps, and a recurrent layer
runs the whole time loop in one call. Nets with other dependencies between steps are unrolled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from singa_dask import functions
from singa_dask.errors import ConfigError, Problem
from singa_dask.job.job_pb2 import LayerProto, LayerType, UnrollConnType
from singa_dask.job.layer_types import CLASSIFYING, type_name
from singa_dask.job.stores import answers_rows, records_of
from singa_dask.job.unroll import (
    Connection,
    Times,
    attended,
    check_connections,
    connections,
    frame,
    reads_frames,
    unrolled,
)
from singa_dask.layers import RecordInput, layer_class
from singa_dask.net.lengths import lengths_of

# Layers that read the lengths of sequences of different lengths.
_COUNTING = frozenset({LayerType.kAttention, LayerType.kReverse})
_WHOLE = frozenset({UnrollConnType.kUnrollAllToOne, UnrollConnType.kUnrollOneToEach})
_ALL: Any = slice(None)
# user_conf of functions that take the last one of all time steps.
_LAST = [functions.getitem(RecordInput("x"), (_ALL, -1, *rest)).proto.user_conf for rest in ((), (_ALL,))]


def in_time(layers: Sequence[LayerProto], *, fold: bool = True) -> list[LayerProto]:
    """The layers of one phase of a plain net, folded if `fold` is set and the graph allows it, else unrolled.

    Raises ConfigError if a layer's unrolling has faults, or if a layer needs all time steps in one call but the graph
    does not allow folding.
    """
    over_time = [layer for layer in layers if layer.unroll_len > 1]
    check_connections(layers)
    _check_steps(layers)
    lengths = lengths_of(layers, _looks_ahead)
    if over_time:
        try:
            return _folded(layers, lengths, fold=fold)
        except _NotFolded as reason:
            for layer in layers:
                whole = {*layer.unroll_conn_type} & _WHOLE
                if whole or (layer.unroll_len > 1 and (layer_class(layer).across_steps or layer.name in lengths)):
                    raise _needs_folding(layer, reason) from None
    return unrolled(layers, {layer.name for layer in over_time if layer_class(layer).recurrent})


def _check_steps(layers: Sequence[LayerProto]) -> None:
    """Check that recurrent layers have time steps, or read sequences that continue from step to step."""
    named = {layer.name: layer for layer in layers}
    for layer in layers:
        if layer.unroll_len == 1 and _reads_single_samples(layer, named) and layer_class(layer).recurrent:
            message = "is recurrent, but has no time steps: it would read each sample as one step"
            hint = (
                "Set unroll_len of the net to the number of steps T, and sequence: T of its input layer. If a "
                "sequence has one label or target, set time_steps: T there instead, or sequence: T and a horizon. "
                "Then only a recurrent layer of your own needs unroll_len: T."
            )
            raise ConfigError(Problem(f"layer {layer.name!r}", message, "unroll_len: 1", hint))


def _reads_single_samples(layer: LayerProto, named: Mapping[str, LayerProto]) -> bool:
    """Whether what a recurrent layer reads, by its first source, comes from samples that are no sequences, or whole
    ones."""
    seen, left = set[str](), list(layer.srclayers[:1])
    origins = []
    while left:
        name = left.pop()
        if name in seen or name not in named:
            continue
        seen.add(name)
        source = named[name]
        own = not source.srclayers or source.type == LayerType.kRNNDummy
        if own:
            store = source.store_conf
            single = (not store.sequence or answers_rows(store)) and records_of(store) != 1
            origins.append(source.HasField("store_conf") and single)
        left += () if own else source.srclayers
    return bool(origins) and all(origins)


def _looks_ahead(layer: LayerProto) -> bool:
    """Whether a layer reads later time steps than its own."""
    kind = layer_class(layer)
    return kind.across_steps and not (kind.recurrent or layer.type in _COUNTING)


class _NotFolded(Exception):
    """Why a net is not folded."""


def _needs_folding(layer: LayerProto, reason: _NotFolded) -> ConfigError:
    message = "computes all time steps in one call, so its net must be folded, and this net cannot be"
    hint = "docs/recurrent.md lists the conditions, under Time steps."
    return ConfigError(Problem(f"layer {layer.name!r}", message, str(reason), hint))


def _folded(layers: Sequence[LayerProto], ends: Mapping[str, str], *, fold: bool) -> list[LayerProto]:
    """The folded layers. ends: of `lengths_of`. Raises _NotFolded if a layer or a connection prevents folding."""
    times = Times.of(layers)
    if not fold:
        raise _NotFolded("folding is switched off")
    result: list[LayerProto] = []
    for layer in layers:
        if layer.unroll_len > 1 and not layer_class(layer).from_proto(layer).rowwise:
            raise _NotFolded(f"an output row of {layer.name!r} may depend on other rows")
        folded = LayerProto()
        folded.CopyFrom(layer)
        for field in ("unroll_conn_type", "shift", "unroll_source", "srclayers"):
            folded.ClearField(field)
        for position, connection in enumerate(connections(layer, times)):
            if _takes_last(layer, connection, times):
                folded.type, folded.unroll_len = LayerType.kLastStep, times.lengths[connection.source]
                folded.ClearField("user_type")
                folded.srclayers.append(connection.source)
                continue
            source = _source(layer, position, connection, times)
            if source is None:
                raise _NotFolded(f"{layer.name!r} reads other time steps of {connection.source!r} than its own")
            if isinstance(source, LayerProto):
                if source.type == LayerType.kLastStep and connection.source in ends:
                    source.srclayers.append(ends[connection.source])
                if all(source.name != each.name for each in result):
                    result.append(source)
                source = source.name
            if source:
                folded.srclayers.append(source)
            if connection.frames and source == connection.source:
                folded.unroll_index = connection.instances[0][0]
        counted = _lengths_for(layer, ends, times)
        if counted is not None and type_name(layer) in CLASSIFYING:
            result += _counting(folded, counted, times.lengths[layer.srclayers[0]])
        elif counted is not None and counted not in folded.srclayers:
            folded.srclayers.append(counted)
        result.append(folded)
    return result


def _takes_last(layer: LayerProto, read: Connection, times: Times) -> bool:
    """Whether a layer is x[:, -1] of the time steps of a layer; then it computes that step alone."""
    whole = read.kind == UnrollConnType.kUnrollAllToOne and read.source not in times.sequences
    return layer.user_conf in _LAST and layer.unroll_len == 1 and whole and times.lengths[read.source] > 1


def _counting(loss: LayerProto, lengths: str, steps: int) -> list[LayerProto]:
    """Let a loss count only the steps before the end of each sequence; the layers that it reads for that."""
    weights: list[Any] = [RecordInput(name) for name in loss.srclayers[2:]]
    before: Any = functions.less(np.arange(steps), RecordInput(lengths))
    before.proto.name = f"{lengths}@{loss.name}"
    counted: Any = functions.where(before, *weights or [1.0], 0.0)
    counted.proto.name = f"weights@{loss.name}"
    counted.proto.srclayers[0] = before.name
    loss.srclayers[2:] = [counted.name]
    return [before.proto, counted.proto]


def _lengths_for(layer: LayerProto, ends: Mapping[str, str], times: Times) -> str | None:
    """The layer with the lengths of the sequences of which `layer` reads all steps in one call."""
    if layer.type == LayerType.kReverse or UnrollConnType.kUnrollAllToOne in layer.unroll_conn_type[:1]:
        return ends.get(layer.srclayers[0])
    if layer.type != LayerType.kAttention or layer.attention_conf.causal:
        return None
    memory = layer.srclayers[min(1, len(layer.srclayers) - 1)]
    return ends.get(memory if times.lengths[memory] > 1 else layer.srclayers[0])


def _source(layer: LayerProto, position: int, connection: Connection, times: Times) -> str | LayerProto | None:
    """What replaces a connection: the source's name, "" for nothing, or a layer in between; None if it prevents
    folding."""
    source, length = connection.source, times.lengths[connection.source]
    kind, recurrent = connection.kind, layer_class(layer).recurrent
    given = position > 0 and (recurrent or layer.type in _COUNTING)
    last = kind == UnrollConnType.kUnrollFirstToLast and (layer.unroll_len == 1 or given)
    if kind == UnrollConnType.kUnrollOneToEach:
        return source if layer.unroll_len == 1 else frame(layer, LayerProto(name=source), 0, layer.unroll_len)
    if kind == UnrollConnType.kUnrollAllToOne and layer.unroll_len == 1:
        if length == 1 or source in times.sequences:
            return source
        return LayerProto(name=f"{source}@", type=LayerType.kAllSteps, srclayers=[source], unroll_len=length)
    if attended(layer, position) and kind == UnrollConnType.kUnrollOneToAll:
        sequence = times.sequences.get(source)
        return source if sequence is None else frame(layer, sequence, 0, length)
    if source in times.sequences:
        own = kind in (UnrollConnType.kUnrollOneToOne, UnrollConnType.kUnrollOneToAll) and connection.shift == 0
        if not (own or last):
            return None
        if not reads_frames(layer, connection):
            return source
        sequence = times.sequences[source]
        return frame(layer, sequence, 0, layer.unroll_len) if own else frame(layer, sequence, length - 1)
    if last:
        if length == 1:
            return source
        name = f"{source}@{layer.name}"
        return LayerProto(name=name, type=LayerType.kLastStep, srclayers=[source], unroll_len=length)
    if kind == UnrollConnType.kUnrollOneToOne and length == layer.unroll_len:
        if length == 1 or connection.shift == 0:
            return source if connection.shift == 0 else ""
        return "" if recurrent and connection.is_loop(layer) else None
    if kind == UnrollConnType.kUnrollOneToAll and length == layer.unroll_len == 1:
        return source
    return None
