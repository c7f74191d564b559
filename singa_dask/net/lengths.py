"""Sequences of different lengths: which input layer tells the steps of each sequence that count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest

from singa_dask.errors import ConfigError, Problem
from singa_dask.job.job_pb2 import LayerProto, LayerType, UnrollConnType
from singa_dask.job.layer_types import CLASSIFYING, LOSSES, type_name

# Layers whose output has the time steps of their first source.
_ACROSS_STEPS = frozenset({"kAttention", "kGRU", "kLSTM", "kRNN", "kReverse"})


def lengths_of(layers: Sequence[LayerProto], looks_ahead: Callable[[LayerProto], bool]) -> dict[str, str]:
    """Of the layers that depend on sequences of different lengths, in time: the input layer that reads the lengths.

    layers: of one phase. looks_ahead: whether a layer reads later steps than its own. Raises ConfigError if no layer
    reads the lengths, or if the steps that fill up a sequence would count.
    """
    found = {layer.name: _reader(layer, layers) for layer in layers if layer.store_conf.lengths}
    if not found:
        return {}
    grown = True
    while grown:  # layers may be in any order
        grown = False
        for layer in layers:
            own = layer.srclayers[:1] if type_name(layer) in _ACROSS_STEPS else layer.srclayers
            read = {found[source] for source in own if source in found}
            if layer.name in found or layer.unroll_len == 1 or not read:
                continue
            if len(read) > 1:
                hint = "Let all inputs of the layer name the same column of lengths."
                message = "reads sequences whose lengths are in several layers"
                raise ConfigError(Problem(f"layer {layer.name!r}", message, ", ".join(sorted(read)), hint))
            found[layer.name] = read.pop()
            grown = True
    sequences = {layer.name for layer in layers if layer.store_conf.lengths}
    for layer in layers:
        _check(layer, sequences, found, looks_ahead)
    return found


def _reader(sequences: LayerProto, layers: Sequence[LayerProto]) -> str:
    column = sequences.store_conf.lengths
    for layer in layers:
        if not layer.srclayers and layer.store_conf.column == column:
            return layer.name
    hint = f'Add a kRecordInput with store_conf {{ column: "{column}" has_label: false }}.'
    key = f"layer {sequences.name!r}.store_conf.lengths"
    raise ConfigError(Problem(key, "no layer reads this column", column, hint))


def _check(
    layer: LayerProto, sequences: set[str], found: dict[str, str], looks_ahead: Callable[[LayerProto], bool]
) -> None:
    """Check that a layer reads no steps that fill up a sequence."""
    problem, hint = "", "Give sequences of one length, without lengths."
    counts = type_name(layer) in CLASSIFYING or layer.type == LayerType.kAttention
    for position, (source, kind) in enumerate(zip_longest(layer.srclayers, layer.unroll_conn_type)):
        answers = position == 1 and type_name(layer) in LOSSES
        if source in sequences and layer.unroll_len == 1 and not answers:
            problem = "reads whole sequences, of which the last steps may only fill them up"
            hint = "Put a recurrent layer or attention between them."
        elif source in found and kind == UnrollConnType.kUnrollAllToOne and not counts:
            problem = "reads all steps, of which the last may only fill a sequence up"
            hint = "Leave out store_conf.lengths, and let the function read the lengths as a further source."
    if layer.name in found and layer.name not in sequences and looks_ahead(layer):
        problem = "reads later steps, which may only fill up a sequence"
    if problem:
        raise ConfigError(Problem(f"layer {layer.name!r}", problem, hint=hint))
