"""The file of a trace, for Perfetto: processes, their threads, spans, and arrows between spans."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from singa_dask.tracing.recorder import Record
from singa_dask.tracing.trace_pb2 import Trace, TrackEvent

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
    trace, arrows = Trace(), dict[tuple[int, ...], int]()
    uuid = 0  # also of processes and threads: those of two hosts may have the same number
    for process in processes:
        pid = uuid = uuid + 1
        named = trace.packet.add(trusted_packet_sequence_id=uuid).track_descriptor
        named.uuid, named.process.pid, named.process.process_name = uuid, pid, process.name
        for thread, name in process.threads.items():
            records = [record for record in process.records if record.thread == thread]
            if not records:
                continue
            uuid += 1
            named = trace.packet.add(trusted_packet_sequence_id=uuid).track_descriptor
            named.uuid, named.thread.pid, named.thread.tid, named.thread.thread_name = uuid, pid, uuid, name
            for at, record in _events(records):
                packet = trace.packet.add(timestamp=at - process.ahead_ns, trusted_packet_sequence_id=uuid)
                packet.track_event.track_uuid = uuid
                packet.track_event.type = TrackEvent.TYPE_SLICE_BEGIN if record else TrackEvent.TYPE_SLICE_END
                if record:
                    _begin(packet.track_event, record, arrows)
    return trace.SerializeToString()


def _begin(event: TrackEvent, record: Record, arrows: dict[tuple[int, ...], int]) -> None:
    event.name = _label(record)
    for name in ("step", "steps", "bucket", "slice", "group", "generation"):
        value = getattr(record, name)
        if value >= 0 and (name, value) != ("steps", 1):
            event.debug_annotations.add(name=name, int_value=value)
    if record.group >= 0:
        arrow = record.group, record.generation, record.step, record.slice
        ids = event.terminating_flow_ids if record.name == TAKE else event.flow_ids
        ids.append(arrows.setdefault(arrow, len(arrows) + 1))


def _label(record: Record) -> str:
    if record.steps > 1:
        return f"{record.name} {record.step} to {record.step + record.steps - 1}"
    if record.bucket >= 0 or record.slice >= 0:
        return f"{record.name} {f'bucket {record.bucket}' if record.bucket >= 0 else f'slice {record.slice}'}"
    return f"{record.name} {record.step}" if record.name == "step" else record.name


def _events(records: Iterable[Record]) -> Iterator[tuple[int, Record | None]]:
    """When the spans of a thread begin, and (None) when they end; each ends before what encloses it."""
    ends: list[int] = []
    for record in sorted(records, key=lambda each: (each.began, -each.ended)):
        while ends and ends[-1] <= record.began:
            yield ends.pop(), None
        yield record.began, record
        ends.append(max(record.began, min([record.ended, *ends[-1:]])))
    while ends:
        yield ends.pop(), None
