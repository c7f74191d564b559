"""Unrolling: a layer of a recurrent net becomes one instance per time step.

    layer { name: "gru" type: kGRU srclayers: "onehot" unroll_len: 3 }      0#gru, 1#gru, 2#gru

Instances share the parameters of the first. How instance j of a layer is connected to a source, SINGA's rules:

    kUnrollOneToOne      instance j - shift of the source; the first `shift` instances read nothing from it
    kUnrollOneToAll      every instance of the source
    kUnrollFirstToLast   the first instance reads the source's last one, the others read nothing from it
    kUnrollCustomized    instance unroll_source[j] of the source, nothing where that is -1 (SINGA has the name only)

Of a data layer whose rows are sequences (kCharRNN, kRecordInput with `sequence`) every instance reads its own step. A
recurrent layer also reads its own instance before, whether or not the job says so by a source of its own name.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from singa_dask.errors import ConfigError, Problem
from singa_dask.job.job_pb2 import LayerProto, LayerType, NetProto, UnrollConnType

# Take a time step out of a sequence themselves.
_FRAMES = frozenset({LayerType.kFrame, LayerType.kRNNLabel})


class Connection(NamedTuple):
    """How a layer's instances read one source. instances: for each of them, which ones of the source."""

    source: str
    kind: int
    shift: int
    instances: tuple[tuple[int, ...], ...]

    @property
    def delayed(self) -> bool:
        """Whether it reads an earlier time step, and so may lead back."""
        return self.kind == UnrollConnType.kUnrollCustomized or (
            self.kind == UnrollConnType.kUnrollOneToOne and self.shift > 0
        )


class Times(NamedTuple):
    """Of the layers of one phase: how often each is unrolled, and which of them have sequences as rows."""

    lengths: Mapping[str, int]
    sequences: frozenset[str]

    @classmethod
    def of(cls, layers: Iterable[LayerProto]) -> Times:
        """Those of these layers, which `plain` has given their unroll_len."""
        layers = list(layers)
        names = frozenset(layer.name for layer in layers if is_sequence(layer))
        return cls({layer.name: layer.unroll_len for layer in layers}, names)


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
        if not layer.HasField("unroll_len") and not is_sequence(layer) and net.unroll_len > 1:
            layer.unroll_len = net.unroll_len
    return result


def is_sequence(layer: LayerProto) -> bool:
    """Whether the layer's rows are sequences of records, read by the time steps of others."""
    return layer.type == LayerType.kCharRNN or layer.store_conf.sequence > 0


def connections(layer: LayerProto, times: Times) -> list[Connection]:
    """One for each source, all of which `times` knows."""
    customized = iter(layer.unroll_source)
    found = []
    for i, source in enumerate(layer.srclayers):
        kind = UnrollConnType.kUnrollOneToOne
        if i < len(layer.unroll_conn_type):
            kind = layer.unroll_conn_type[i]
        elif source in times.sequences and layer.unroll_len > 1:
            kind = UnrollConnType.kUnrollOneToAll
        shift = layer.shift[i] if i < len(layer.shift) else 0
        last = times.lengths[source] - 1
        read: list[tuple[int, ...]] = []
        for j in range(layer.unroll_len):
            if kind == UnrollConnType.kUnrollOneToAll:
                read.append(tuple(range(last + 1)))
            elif kind == UnrollConnType.kUnrollFirstToLast:
                read.append((last,) if j == 0 else ())
            else:
                k = j - shift if kind == UnrollConnType.kUnrollOneToOne else next(customized, -1)
                read.append((k,) if k >= 0 else ())
        found.append(Connection(source, kind, shift, tuple(read)))
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
        hint = "The first steps read nothing from a source with a shift: give the layer a source without one too."
        yield Fault("shift" if layer.shift else "unroll_conn_type", message, hint=hint)
    for connection in found:
        length = times.lengths[connection.source]
        beyond = [k for read in connection.instances for k in read if k >= length]
        if beyond:
            message = f"is unrolled {length} times, but {layer.name!r} ({layer.unroll_len} times) reads {beyond[0]}"
            hint = "Give both one unroll_len, or read it with unroll_conn_type: kUnrollOneToAll."
            yield Fault("srclayers", message, connection.source, hint)


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
                if reads_frames(layer, connection, times):
                    frame = _frame(instance, connection.source, layer.unroll_len)
                    frames[frame.name] = frame
                    names = [frame.name]
                instance.srclayers.extend(names)
        _recur(layer, instances, layer.name in recurrent)
        result.extend([*frames.values(), *instances])
    return result


def reads_frames(layer: LayerProto, connection: Connection, times: Times) -> bool:
    """Whether each instance of the layer reads its own time step of this source."""
    one_to_all = connection.kind == UnrollConnType.kUnrollOneToAll
    return one_to_all and connection.source in times.sequences and layer.type not in _FRAMES


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
    return f"{k}#{source}" if times.lengths[source] > 1 else source


def _instance(layer: LayerProto, j: int) -> LayerProto:
    instance = LayerProto()
    instance.CopyFrom(layer)
    for field in ("unroll_len", "unroll_conn_type", "shift", "unroll_source", "srclayers"):
        instance.ClearField(field)
    if layer.unroll_len > 1:
        instance.name = f"{j}#{layer.name}"
        instance.unroll_index = j
    return instance


def _frame(reader: LayerProto, source: str, length: int) -> LayerProto:
    """The layer that hands a reader its time step of a sequence."""
    frame = LayerProto(name=f"{source}@{reader.name}", type=LayerType.kFrame, srclayers=[source])
    if length > 1:
        frame.name = f"{reader.unroll_index}#{source}@{origin(reader)}"
        frame.unroll_index = reader.unroll_index
    return frame


def _recur(layer: LayerProto, instances: Sequence[LayerProto], recurrent: bool) -> None:
    """Let a recurrent layer's instances read the one before, and RNNDummy's what came out of the step before."""
    if recurrent and layer.name not in layer.srclayers:
        for before, instance in pairwise(instances):
            instance.srclayers.append(before.name)
    dynamic = layer.rnn_dummy_conf.dynamic_srclayer
    if layer.type == LayerType.kRNNDummy and dynamic and len(instances) > 1:
        instances[0].rnn_dummy_conf.dynamic_srclayer = f"{len(instances) - 1}#{dynamic}"
        for j, instance in enumerate(instances[1:]):
            instance.srclayers[:] = [f"{j}#{dynamic}"]
