"""Unrolling: a layer of a recurrent net becomes one instance per time step.

    layer { name: "gru" type: kGRU srclayers: "onehot" unroll_len: 3 }      0#gru, 1#gru, 2#gru

Instances share the parameters of the first. SINGA's rules for which instances of a source instance j reads:

    kUnrollOneToOne      instance j - shift of the source; the first `shift` instances read nothing from it
    kUnrollOneToAll      every instance of the source
    kUnrollFirstToLast   the first instance reads the last one of the source; the others read nothing from it
    kUnrollCustomized    instance unroll_source[j] of the source, nothing for -1 (SINGA defines the name only)
    kUnrollAllToOne      every instance of the source, as one sample (T, ...): only in folded nets (ours)
    kUnrollOneToEach     position j of the source's samples (T, ...): only in folded nets (ours)

The instances of a data layer whose rows are sequences (kCharRNN, kRecordInput with `sequence`) are its records, and
with kUnrollOneToAll instance j reads record j. A recurrent layer always reads its previous instance, also if the job
does not list the layer among its own sources. Unless the job says otherwise, another second source of a recurrent
layer is connected by kUnrollFirstToLast, and further sources of attention by kUnrollOneToAll; of their records, all
are read.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from singa_dask.errors import ConfigError, Problem
from singa_dask.job.job_pb2 import LayerProto, LayerType, NetProto, UnrollConnType
from singa_dask.job.layer_types import LOSSES, type_name
from singa_dask.job.stores import answers_rows, steps_of
from singa_dask.job.time_steps import RECURRENT, attended, connection_type, set_steps

# Time steps of a layer, and connections between those of two layers, at most: checks look at each.
MAX_STEPS = 100_000
MAX_CONNECTIONS = 10_000_000
# Layers that extract time steps from a sequence.
_FRAMES = frozenset({LayerType.kFrame, LayerType.kRNNLabel})
_READ_LABELS = frozenset({LayerType.kSoftmaxLoss, LayerType.kCudnnSoftmaxLoss, LayerType.kAccuracy})
# Input layers, which are never unrolled.
_INPUTS = frozenset({LayerType.kCSVInput, LayerType.kRecordInput, LayerType.kCharRNN})
_GENERATED = re.compile(r"\d+#|.*@")


class Connection(NamedTuple):
    """How a layer's instances read one source.

    instances: for each of them, the instances of the source. frames: whether these are records of sequences; otherwise
    they are instances of a layer or whole rows.
    """

    source: str
    kind: int
    shift: int
    instances: tuple[Sequence[int], ...]
    frames: bool = False

    @property
    def delayed(self) -> bool:
        """Whether it reads an earlier time step, so that a cycle is allowed."""
        return self.kind == UnrollConnType.kUnrollCustomized or (
            self.kind == UnrollConnType.kUnrollOneToOne and self.shift > 0
        )

    def is_loop(self, layer: LayerProto) -> bool:
        """Whether it reads the layer's own previous time step."""
        one_to_one = self.kind == UnrollConnType.kUnrollOneToOne
        return self.source == layer.name and one_to_one and self.shift == 1


class Times(NamedTuple):
    """Lengths in time of the layers of one phase: their instances, or the records of their sequences."""

    lengths: Mapping[str, int]
    sequences: Mapping[str, LayerProto]

    @classmethod
    def of(cls, layers: Iterable[LayerProto]) -> Times:
        """The lengths of these layers of a plain net."""
        layers = list(layers)
        sequences = {layer.name: layer for layer in layers if is_sequence(layer)}
        return cls({layer.name: _steps(layer) or layer.unroll_len for layer in layers}, sequences)


class Fault(NamedTuple):
    """A fault of a layer's unrolling: the field, and the parts of a Problem."""

    field: str
    message: str
    received: str | None = None
    hint: str | None = None


def plain(net: NetProto) -> NetProto:
    """The net of `flat`, in which every layer says how it reads sequences with labels or targets of their own."""
    result = flat(net)
    set_steps(result.layer)
    return result


def flat(net: NetProto) -> NetProto:
    """The net without layer groups (their layers follow the others); every layer has the net's unroll_len."""
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
    """Whether the layer's rows are sequences of records, which other layers read step by step."""
    return layer.type == LayerType.kCharRNN or _steps(layer) > 0


def _steps(layer: LayerProto) -> int:
    is_text = layer.type == LayerType.kCharRNN
    return max(layer.char_rnn_conf.unroll_len, 0) if is_text else steps_of(layer.store_conf)


def connections(layer: LayerProto, times: Times) -> list[Connection]:
    """One connection per source. `times` must know every source."""
    customized = iter(layer.unroll_source)
    found = []
    for i, source in enumerate(layer.srclayers):
        kind = connection_type(layer, i)
        shift = layer.shift[i] if i < len(layer.shift) else 0
        sequence = source in times.sequences
        if sequence and layer.unroll_len == 1 and kind == UnrollConnType.kUnrollOneToOne:
            found.append(Connection(source, kind, shift, ((0,),)))  # whole rows
            continue
        last = times.lengths[source] - 1
        read: list[Sequence[int]] = []
        for j in range(layer.unroll_len):
            if kind == UnrollConnType.kUnrollAllToOne and j == 0:
                read.append(range(last + 1))
            elif kind == UnrollConnType.kUnrollOneToEach:
                read.append((0,))
            elif kind == UnrollConnType.kUnrollOneToAll:
                read.append((j,) if sequence and not attended(layer, i) else range(last + 1))
            elif kind == UnrollConnType.kUnrollFirstToLast:
                read.append((last,) if j == 0 else ())
            else:
                k = j - shift if kind == UnrollConnType.kUnrollOneToOne else next(customized, -1)
                read.append((k,) if k >= 0 else ())
        found.append(Connection(source, kind, shift, tuple(read), sequence))
    return found


def faults(layer: LayerProto, times: Times) -> Iterator[Fault]:
    """The faults of one layer's unrolling."""
    sources = len(layer.srclayers)
    for field in ("unroll_conn_type", "shift"):
        given = len(getattr(layer, field))
        if given > sources:
            yield Fault(field, f"must have one entry per source, which is {sources}", f"{given} entries")
    if any(shift < 0 for shift in layer.shift):
        yield Fault("shift", "must not be negative", str(list(layer.shift)))
        return
    if is_sequence(layer) and layer.unroll_len > 1:
        hint = "Leave it out: the layer's rows are sequences already."
        yield Fault("unroll_len", "a data layer of sequences cannot be unrolled", str(layer.unroll_len), hint)
        return
    if _GENERATED.match(layer.name) and any(length > 1 for length in times.lengths.values()):
        hint = "Choose a name without @ that does not start with a number and #."
        yield Fault("name", "is reserved for the time steps of unrolled layers", layer.name, hint)
    if layer.type == LayerType.kRNNDummy and layer.unroll_len > 1:
        message = "a kRNNDummy reads the output of the previous call and cannot be unrolled"
        yield Fault("unroll_len", message, str(layer.unroll_len), "Set unroll_len: 1 for its net.")
        return
    kinds = layer.unroll_conn_type
    wanted = layer.unroll_len * sum(kind == UnrollConnType.kUnrollCustomized for kind in kinds[:sources])
    if len(layer.unroll_source) != wanted:
        received = f"{len(layer.unroll_source)} entries"
        hint = "For example unroll_source: [-1, 0, 1, 2], with unroll_conn_type: kUnrollCustomized."
        message = f"needs {wanted} entries: one for each instance of each kUnrollCustomized connection"
        yield Fault("unroll_source", message, received, hint)
        return
    if not all(source in times.lengths for source in layer.srclayers):
        return  # reported elsewhere
    found = connections(layer, times)
    for connection in found:
        if (count := sum(map(len, connection.instances))) > MAX_CONNECTIONS:
            message = f"connects every time step of {connection.source!r} with every one of {layer.name!r}"
            hint = f"At most {MAX_CONNECTIONS:,} connections are possible: use fewer time steps."
            yield Fault("unroll_conn_type", message, f"{count:,} connections", hint)
            return
    bare = [j for j in range(layer.unroll_len) if found and not any(c.instances[j] for c in found)]
    if bare:
        message = f"leaves time step {bare[0]} of {layer.unroll_len} without a source"
        hint = "The first `shift` steps read nothing. Write one shift per source: shift: 0 shift: 1."
        yield Fault("shift" if layer.shift else "unroll_conn_type", message, hint=hint)
    for position, connection in enumerate(found):
        yield from _wrong_connection(layer, position, connection, times)


def _wrong_connection(layer: LayerProto, position: int, connection: Connection, times: Times) -> Iterator[Fault]:
    source, length = connection.source, times.lengths[connection.source]
    own = connection.kind in (UnrollConnType.kUnrollOneToOne, UnrollConnType.kUnrollOneToAll)
    if connection.frames and own and layer.unroll_len != length and not attended(layer, position):
        message = f"its rows are sequences of {length}, but {layer.name!r} has {layer.unroll_len} time steps"
        hint = f"Write neuralnet {{ unroll_len: {length} }}, or use kUnrollFirstToLast to read only the last record."
        yield Fault("srclayers", message, source, hint)
        return
    beyond = [read[-1] for read in connection.instances if read and read[-1] >= length]
    if beyond:
        message = f"has {length} time steps, but {layer.name!r} (with {layer.unroll_len}) reads step {beyond[0]}"
        hint = "Give both the same unroll_len, or read the source with unroll_conn_type: kUnrollOneToAll."
        yield Fault("srclayers", message, source, hint)
    initial = connection.kind == UnrollConnType.kUnrollFirstToLast and source != layer.name
    if layer.type in RECURRENT and position > 0 and not (connection.is_loop(layer) or initial):
        message = f"{source!r} cannot be its state at every step: the state is the layer's previous output"
        hint = "The second source may be the layer itself with shift: 1, or an initial state with kUnrollFirstToLast."
        yield Fault("srclayers", message, source, hint)
    if position != 1 or source not in times.sequences:
        return
    whole = answers_rows(times.sequences[source].store_conf)
    if whole and connection.frames and type_name(layer) in LOSSES:
        hint = "Leave out unroll_len of the net and of this layer: what reads the sequences has it by itself."
        yield Fault("srclayers", "a row has labels or targets of its own, not one for each time step", source, hint)
    if layer.type in _READ_LABELS:
        if not connection.frames and not whole:
            hint = "For the last one, write unroll_conn_type: kUnrollOneToOne unroll_conn_type: kUnrollFirstToLast."
            yield Fault("srclayers", "a row has one label per record: choose one", source, hint)
        if times.sequences[source].type == LayerType.kCharRNN:
            hint = "Put a kRNNLabel between them: its labels are the next symbols."
            yield Fault("srclayers", "a text has no labels", source, hint)


def unrolled(layers: Sequence[LayerProto], recurrent: Container[str] = ()) -> list[LayerProto]:
    """The layers of one phase of a plain net, with one message per instance.

    recurrent: the names of recurrent layers. Raises ConfigError if a layer's unrolling has faults.
    """
    times = Times.of(layers)
    check_connections(layers)
    result: list[LayerProto] = []
    for layer in layers:
        instances = [_instance(layer, j) for j in range(layer.unroll_len)]
        frames: dict[str, LayerProto] = {}
        for connection in connections(layer, times):
            for instance, read in zip(instances, connection.instances, strict=True):
                names = [_name(connection.source, k, times) for k in read]
                if reads_frames(layer, connection):
                    found = [frame(instance, times.sequences[connection.source], k) for k in read]
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
    """Whether the layer reads single records of this source and does not extract them itself."""
    return connection.frames and layer.type not in _FRAMES


def frame(reader: LayerProto, source: LayerProto, record: int, steps: int = 1) -> LayerProto:
    """The layer that extracts `steps` records of a sequence for a reader, starting at `record`. source: an input
    layer, or one without labels that gives sequences."""
    name = f"{source.name}@{reader.name}" if steps > 1 else f"{record}#{source.name}@{reader.name}"
    result = LayerProto(name=name, type=LayerType.kFrame, srclayers=[source.name], unroll_index=record)
    if source.type not in _INPUTS or answers_rows(source.store_conf):
        result.store_conf.has_label = False
    if steps > 1:
        result.unroll_len = steps
    return result


def origin(layer: LayerProto) -> str:
    """The name in the job of the layer that this one is an instance of."""
    prefix = f"{layer.unroll_index}#"
    return layer.name.removeprefix(prefix) if layer.HasField("unroll_index") else layer.name


def check_connections(layers: Sequence[LayerProto]) -> None:
    """Raise ConfigError if the unrolling of a layer of one phase has faults."""
    times = Times.of(layers)
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
