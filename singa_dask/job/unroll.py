"""Unrolling: a layer of a recurrent net becomes one instance per time step.

    layer { name: "gru" type: kGRU srclayers: "onehot" unroll_len: 3 }      0#gru, 1#gru, 2#gru

Instances share the parameters of the first. How instance j of a layer is connected to a source, SINGA's rules:

    kUnrollOneToOne      instance j - shift of the source; the first `shift` instances read nothing from it
    kUnrollOneToAll      every instance of the source
    kUnrollFirstToLast   the first instance reads the source's last one, the others read nothing from it
    kUnrollCustomized    instance unroll_source[j] of the source, nothing where that is -1 (SINGA has the name only)

Of a data layer whose rows are sequences (kCharRNN, kRecordInput with `sequence`) the records are the instances, and
kUnrollOneToAll reads one's own. A recurrent layer also reads its own instance before, whether or not the job says so
by a source of its own name.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from singa_dask.errors import ConfigError, Problem
from singa_dask.job.job_pb2 import LayerProto, LayerType, NetProto, UnrollConnType

# Take a time step out of a sequence themselves.
_FRAMES = frozenset({LayerType.kFrame, LayerType.kRNNLabel})
_RECURRENT = frozenset({LayerType.kGRU, LayerType.kLSTM, LayerType.kRNN})
_READ_LABELS = frozenset({LayerType.kSoftmaxLoss, LayerType.kCudnnSoftmaxLoss, LayerType.kAccuracy})
# Read data, and are one however often the net is unrolled.
_INPUTS = frozenset({LayerType.kCSVInput, LayerType.kRecordInput, LayerType.kCharRNN})
_GENERATED = re.compile(r"\d+#|.*@")


class Connection(NamedTuple):
    """How a layer's instances read one source. instances: for each of them, which ones of the source. frames: whether
    those are records of sequences; else instances of a layer, or all that a row has."""

    source: str
    kind: int
    shift: int
    instances: tuple[tuple[int, ...], ...]
    frames: bool = False

    @property
    def delayed(self) -> bool:
        """Whether it reads an earlier time step, and so may lead back."""
        return self.kind == UnrollConnType.kUnrollCustomized or (
            self.kind == UnrollConnType.kUnrollOneToOne and self.shift > 0
        )

    def is_loop(self, layer: LayerProto) -> bool:
        """Whether it is the layer's own time step before."""
        one_to_one = self.kind == UnrollConnType.kUnrollOneToOne
        return self.source == layer.name and one_to_one and self.shift == 1


class Times(NamedTuple):
    """Of the layers of one phase: how often each is unrolled, or of how many records its sequences are."""

    lengths: Mapping[str, int]
    sequences: Mapping[str, LayerProto]

    @classmethod
    def of(cls, layers: Iterable[LayerProto]) -> Times:
        """Those of these layers, which `plain` has given their unroll_len."""
        layers = list(layers)
        sequences = {layer.name: layer for layer in layers if is_sequence(layer)}
        return cls({layer.name: _records(layer) or layer.unroll_len for layer in layers}, sequences)


class Fault(NamedTuple):
    """What is wrong with a layer's unrolling: the field, and the parts of a Problem."""

    field: str
    message: str
    received: str | None = None
    hint: str | None = None


def plain(net: NetProto) -> NetProto:
    """The net without layer groups (their layers follow the others), every layer with an unroll_len of its own."""
    result = NetProto()
    result.CopyFrom(net)
    del result.layer_group[:]
    for group in net.layer_group:
        result.layer.extend(group.layer)
    for layer in result.layer:
        if not layer.HasField("unroll_len") and layer.type not in _INPUTS and net.unroll_len > 1:
            layer.unroll_len = net.unroll_len
    return result


def is_sequence(layer: LayerProto) -> bool:
    """Whether the layer's rows are sequences of records, read by the time steps of others."""
    return layer.type == LayerType.kCharRNN or layer.store_conf.sequence > 0


def _records(layer: LayerProto) -> int:
    records = layer.char_rnn_conf.unroll_len if layer.type == LayerType.kCharRNN else layer.store_conf.sequence
    return max(records, 0)


def connections(layer: LayerProto, times: Times) -> list[Connection]:
    """One for each source, all of which `times` knows."""
    customized = iter(layer.unroll_source)
    found = []
    for i, source in enumerate(layer.srclayers):
        given = i < len(layer.unroll_conn_type)
        kind = layer.unroll_conn_type[i] if given else UnrollConnType.kUnrollOneToOne
        shift = layer.shift[i] if i < len(layer.shift) else 0
        sequence = source in times.sequences
        if sequence and layer.unroll_len == 1 and kind == UnrollConnType.kUnrollOneToOne:
            found.append(Connection(source, kind, shift, ((0,),)))  # whole rows
            continue
        last = times.lengths[source] - 1
        read: list[tuple[int, ...]] = []
        for j in range(layer.unroll_len):
            if kind == UnrollConnType.kUnrollOneToAll:
                read.append((j,) if sequence else tuple(range(last + 1)))
            elif kind == UnrollConnType.kUnrollFirstToLast:
                read.append((last,) if j == 0 else ())
            else:
                k = j - shift if kind == UnrollConnType.kUnrollOneToOne else next(customized, -1)
                read.append((k,) if k >= 0 else ())
        found.append(Connection(source, kind, shift, tuple(read), sequence))
    return found


def faults(layer: LayerProto, times: Times) -> Iterator[Fault]:
    """What is wrong with the unrolling of one layer."""
    sources = len(layer.srclayers)
    for field in ("unroll_conn_type", "shift"):
        given = len(getattr(layer, field))
        if given > sources:
            yield Fault(field, f"has one entry per source, of which there are {sources}", f"{given} entries")
    if any(shift < 0 for shift in layer.shift):
        yield Fault("shift", "must not be negative", str(list(layer.shift)))
        return
    if is_sequence(layer) and layer.unroll_len > 1:
        hint = "Leave it out: its rows are sequences already."
        yield Fault("unroll_len", "a data layer of sequences is one for all time steps", str(layer.unroll_len), hint)
        return
    if _GENERATED.match(layer.name) and any(length > 1 for length in times.lengths.values()):
        hint = "Choose a name without @, that does not begin with a number and #."
        yield Fault("name", "is kept for the time steps of unrolled layers", layer.name, hint)
    if layer.type == LayerType.kRNNDummy and layer.unroll_len > 1:
        hint = "Give its net unroll_len: 1."
        yield Fault("unroll_len", "a kRNNDummy reads what came out of the step before", str(layer.unroll_len), hint)
        return
    kinds = layer.unroll_conn_type
    wanted = layer.unroll_len * sum(kind == UnrollConnType.kUnrollCustomized for kind in kinds[:sources])
    if len(layer.unroll_source) != wanted:
        received = f"{len(layer.unroll_source)} entries"
        hint = "For example unroll_source: [-1, 0, 1, 2], with unroll_conn_type: kUnrollCustomized."
        message = f"needs {wanted}: one for each instance and each source that is connected by kUnrollCustomized"
        yield Fault("unroll_source", message, received, hint)
        return
    if not all(source in times.lengths for source in layer.srclayers):
        return  # a fault of its own
    found = connections(layer, times)
    bare = [j for j in range(layer.unroll_len) if found and not any(c.instances[j] for c in found)]
    if bare:
        message = f"leaves time step {bare[0]} of {layer.unroll_len} without a source"
        hint = "Where a source has a shift the first steps read nothing of it. Each has its own: shift: 0 shift: 1."
        yield Fault("shift" if layer.shift else "unroll_conn_type", message, hint=hint)
    for position, connection in enumerate(found):
        yield from _wrong_connection(layer, position, connection, times)


def _wrong_connection(layer: LayerProto, position: int, connection: Connection, times: Times) -> Iterator[Fault]:
    source, length = connection.source, times.lengths[connection.source]
    own = connection.kind in (UnrollConnType.kUnrollOneToOne, UnrollConnType.kUnrollOneToAll)
    if connection.frames and own and layer.unroll_len != length:
        message = f"its rows are sequences of {length}, but {layer.name!r} has {layer.unroll_len} time steps"
        hint = f"Write neuralnet {{ unroll_len: {length} }}, or kUnrollFirstToLast for the last record alone."
        yield Fault("srclayers", message, source, hint)
        return
    beyond = [k for read in connection.instances for k in read if k >= length]
    if beyond:
        message = f"is unrolled {length} times, but {layer.name!r} ({layer.unroll_len} times) reads {beyond[0]}"
        hint = "Give both one unroll_len, or read it with unroll_conn_type: kUnrollOneToAll."
        yield Fault("srclayers", message, source, hint)
    initial = connection.kind == UnrollConnType.kUnrollFirstToLast and source != layer.name
    if layer.type in _RECURRENT and position > 0 and not (connection.is_loop(layer) or initial):
        message = f"{source!r} would be its state at every step, which is what it gave at the step before"
        hint = "Its second source may be itself with shift: 1, or a first state, by kUnrollFirstToLast."
        yield Fault("srclayers", message, source, hint)
    if layer.type in _READ_LABELS and position == 1 and source in times.sequences:
        if not connection.frames:
            hint = "For that of the last: unroll_conn_type: kUnrollOneToOne unroll_conn_type: kUnrollFirstToLast."
            yield Fault("srclayers", "a row has a label for every record: say which", source, hint)
        if times.sequences[source].type == LayerType.kCharRNN:
            hint = "Put a kRNNLabel between: its labels are the symbols that come next."
            yield Fault("srclayers", "a text has no labels", source, hint)


def unrolled(layers: Sequence[LayerProto], recurrent: Container[str] = ()) -> list[LayerProto]:
    """The layers of one phase, as `plain` has them, with one message for each instance.

    recurrent: the names of the recurrent ones. Raises ConfigError where a layer's unrolling has faults.
    """
    times = Times.of(layers)
    _check(layers, times)
    result: list[LayerProto] = []
    for layer in layers:
        instances = [_instance(layer, j) for j in range(layer.unroll_len)]
        frames: dict[str, LayerProto] = {}
        for connection in connections(layer, times):
            for instance, read in zip(instances, connection.instances, strict=True):
                names = [_name(connection.source, k, times) for k in read]
                if reads_frames(layer, connection):
                    found = [frame(instance, connection.source, k) for k in read]
                    frames |= {each.name: each for each in found}
                    names = [each.name for each in found]
                elif connection.frames and read:
                    instance.unroll_index = read[0]
                instance.srclayers.extend(names)
        if layer.name in recurrent and layer.name not in layer.srclayers:
            for before, instance in pairwise(instances):
                instance.srclayers.append(before.name)
        result.extend([*frames.values(), *instances])
    return result


def reads_frames(layer: LayerProto, connection: Connection) -> bool:
    """Whether the layer reads single records of this source, and does not take them out of the row itself."""
    return connection.frames and layer.type not in _FRAMES


def frame(reader: LayerProto, source: str, record: int, steps: int = 1) -> LayerProto:
    """The layer that hands a reader `steps` records of a sequence, from this one on."""
    name = f"{source}@{reader.name}" if steps > 1 else f"{record}#{source}@{reader.name}"
    result = LayerProto(name=name, type=LayerType.kFrame, srclayers=[source], unroll_index=record)
    if steps > 1:
        result.unroll_len = steps
    return result


def origin(layer: LayerProto) -> str:
    """The name in the job of the layer of which this one is an instance."""
    prefix = f"{layer.unroll_index}#"
    return layer.name.removeprefix(prefix) if layer.HasField("unroll_index") else layer.name


def _check(layers: Sequence[LayerProto], times: Times) -> None:
    problems = [
        Problem(f"layer {layer.name!r}.{fault.field}", fault.message, fault.received, fault.hint)
        for layer in layers
        for fault in faults(layer, times)
    ]
    if problems:
        raise ConfigError(problems)


def _name(source: str, k: int, times: Times) -> str:
    return f"{k}#{source}" if times.lengths[source] > 1 and source not in times.sequences else source


def _instance(layer: LayerProto, j: int) -> LayerProto:
    instance = LayerProto()
    instance.CopyFrom(layer)
    for field in ("unroll_len", "unroll_conn_type", "shift", "unroll_source", "srclayers"):
        instance.ClearField(field)
    if layer.unroll_len > 1:
        instance.name = f"{j}#{layer.name}"
        instance.unroll_index = j
        instance.num_instances = layer.unroll_len
    return instance
