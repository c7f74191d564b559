"""Traces as Perfetto's own messages read them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent


@dataclass
class Seen:
    """A span. about: its annotations. flows, ends: the numbers of its arrows, and of those that end here."""

    process: str
    thread: str
    name: str
    began: int
    about: dict[str, int] = field(default_factory=dict)
    flows: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    parent: Seen | None = None
    ended: int = 0

    @property
    def where(self) -> tuple[str, int]:
        return self.process.rpartition(" (")[0], self.about["step"]


def read_trace(file: Path | bytes) -> list[Seen]:
    """All spans. Fails unless each ends, after those that it encloses, on a thread of a process."""
    content = file if isinstance(file, bytes) else file.read_bytes()
    trace = Trace.FromString(content)
    processes, threads = {}, {}
    numbers = [packet.track_descriptor.uuid for packet in trace.packet if packet.HasField("track_descriptor")]
    assert len({*numbers}) == len(numbers), "two tracks have the same number"
    for packet in trace.packet:
        track = packet.track_descriptor
        if track.HasField("process"):
            processes[track.process.pid] = track.process.process_name
        elif track.HasField("thread"):
            threads[track.uuid] = processes[track.thread.pid], track.thread.thread_name
    seen: list[Seen] = []
    under: defaultdict[int, list[Seen]] = defaultdict(list)
    last: defaultdict[int, int] = defaultdict(int)
    for packet in trace.packet:
        if not packet.HasField("track_event"):
            continue
        event, at = packet.track_event, packet.timestamp
        assert at >= last[event.track_uuid]
        last[event.track_uuid] = at
        stack = under[event.track_uuid]
        if event.type == TrackEvent.TYPE_SLICE_END:
            stack.pop().ended = at
            continue
        about = {each.name: each.int_value for each in event.debug_annotations}
        arrows = tuple(event.flow_ids), tuple(event.terminating_flow_ids)
        parent = stack[-1] if stack else None
        span = Seen(*threads[event.track_uuid], event.name, at, about, *arrows, parent)
        seen.append(span)
        stack.append(span)
    assert not any(under.values()), "a span does not end"
    return seen


def arrows(seen: list[Seen]) -> dict[int, list[Seen]]:
    """The spans of each arrow, in the order of their beginnings."""
    found: defaultdict[int, list[Seen]] = defaultdict(list)
    for span in sorted(seen, key=lambda each: each.began):
        for number in (*span.flows, *span.ends):
            found[number].append(span)
    return dict(found)


def check_trace(file: Path, ranks: set[str], steps: range) -> list[Seen]:
    """The spans, after a look at those of every traced step of each rank, and at both ends of every arrow."""
    seen = read_trace(file)
    expected = {(rank, step) for rank in ranks for step in steps}
    for name in ("step", "data", "forward", "backward", "metrics", "pull"):
        assert {span.where for span in seen if span.name.split()[0] == name} == expected, name
    for stage in ("prepare", "start", "update", "gather"):
        buckets = [span for span in seen if span.name.startswith(f"{stage} bucket")]
        assert {span.where for span in buckets} == expected, stage
        assert {span.about["bucket"] for span in buckets} == {
            *range(max(span.about["bucket"] for span in buckets) + 1)
        }
    found = arrows(seen)
    pushed = {span.where for spans in found.values() for span in spans if span.name.startswith("push")}
    assert pushed == expected
    for spans in found.values():
        assert [span.name.split()[0] for span in spans] == ["push", "update", "take"]
        assert len({(span.about["group"], span.about["step"], span.about["slice"]) for span in spans}) == 1
        assert spans[0].where == spans[2].where and len(spans[2].ends) == 1
    return seen
