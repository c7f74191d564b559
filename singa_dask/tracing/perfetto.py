"""The file of a trace, for Perfetto: processes, their threads, spans, and arrows between spans."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from singa_dask.tracing.recorder import Record
from singa_dask.tracing.trace_pb2 import DebugAnnotation, Trace, TrackDescriptor, TrackEvent

TAKE = "take"  # the end of an arrow


@dataclass(frozen=True)
class Process:
    """The track of a rank or a server. threads: their names, by number. ahead_ns: by how much its clock is ahead."""

    name: str
    threads: Mapping[int, str]
    records: Sequence[Record]
    ahead_ns: int = 0


def trace_of(processes: Iterable[Process]) -> bytes:
    """The contents of a .pftrace file. Spans of the same update, which have a group, are connected by an arrow."""
    parts, arrows = list[bytes](), dict[tuple[int, ...], int]()
    uuid = 0  # also of processes and threads: those of two hosts may have the same number
    for process in processes:
        pid = uuid = uuid + 1
        track = TrackDescriptor(uuid=uuid, process={"pid": pid, "process_name": process.name})
        parts.append(_One(uuid, track_descriptor=track).written(0))
        for thread, name in process.threads.items():
            records = [record for record in process.records if record.thread == thread]
            if not records:
                continue
            uuid += 1
            track = TrackDescriptor(uuid=uuid, thread={"pid": pid, "tid": uuid, "thread_name": name})
            parts.append(_One(uuid, track_descriptor=track).written(0))
            parts += _packets(uuid, records, process.ahead_ns, arrows)
    return b"".join(parts)


class _One:
    """A packet that is written again and again, as messages of protobuf are slow to make. Traces are joined by
    concatenation."""

    def __init__(self, uuid: int, **fields: Any) -> None:
        self._trace = Trace()
        self._packet = self._trace.packet.add(trusted_packet_sequence_id=uuid, **fields)
        self.event = self._packet.track_event if "track_event" in fields else TrackEvent()
        self.step = next(iter(self.event.debug_annotations), DebugAnnotation())

    def written(self, at: int) -> bytes:
        self._packet.timestamp = at
        return self._trace.SerializeToString()


def _packets(
    uuid: int, records: Iterable[Record], ahead_ns: int, arrows: dict[tuple[int, ...], int]
) -> Iterator[bytes]:
    """The packets of the spans of a thread."""
    end = _One(uuid, track_event=TrackEvent(type=TrackEvent.TYPE_SLICE_END, track_uuid=uuid))
    begins: dict[tuple[object, ...], _One] = {}
    for at, record in _events(records):
        if record is None:
            yield end.written(at - ahead_ns)
            continue
        kind = record.name, *record[5:]  # all but its times and its step
        if kind not in begins:
            begins[kind] = _One(uuid, track_event=_event(uuid, record))
        begin = begins[kind]
        begin.step.int_value = record.step
        if record.name == "step" or record.steps > 1:
            begin.event.name = _label(record)
        if record.group >= 0:
            arrow = record.group, record.generation, record.step, record.slice
            ids = begin.event.terminating_flow_ids if record.name == TAKE else begin.event.flow_ids
            ids[:] = [arrows.setdefault(arrow, len(arrows) + 1)]
        yield begin.written(at - ahead_ns)


def _event(uuid: int, record: Record) -> TrackEvent:
    event = TrackEvent(type=TrackEvent.TYPE_SLICE_BEGIN, track_uuid=uuid, name=_label(record))
    for name in ("step", "steps", "bucket", "slice", "group", "generation"):
        value = getattr(record, name)
        if value >= 0 and (name, value) != ("steps", 1):
            event.debug_annotations.add(name=name, int_value=value)
    return event


def _label(record: Record) -> str:
    if record.steps > 1:
        return f"{record.name} {record.step} to {record.step + record.steps - 1}"
    if record.bucket >= 0 or record.slice >= 0:
        return f"{record.name} {f'bucket {record.bucket}' if record.bucket >= 0 else f'slice {record.slice}'}"
    return f"{record.name} {record.step}" if record.name == "step" else record.name


def _events(records: Iterable[Record]) -> Iterator[tuple[int, Record | None]]:
    """When the spans of a thread begin, and (None) when they end; each ends before what encloses it."""
    ends: list[int] = []
    longest_first = sorted(records, key=attrgetter("ended"), reverse=True)
    for record in sorted(longest_first, key=attrgetter("began")):
        while ends and ends[-1] <= record.began:
            yield ends.pop(), None
        yield record.began, record
        ended = max(record.began, record.ended)
        ends.append(min(ended, ends[-1]) if ends else ended)
    while ends:
        yield ends.pop(), None
