"""The file of a trace, read by Perfetto's own messages."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("perfetto", reason="`make setup` installs it")

from support.traces import arrows, read_trace

from singa_dask.tracing.perfetto import Process, trace_of
from singa_dask.tracing.recorder import Record

MS = 1_000_000


def rank(number, *records, ahead_ns=0):
    return Process(f"worker group 0, rank {number} (a)", {7: "computing", 8: "loading"}, records, ahead_ns)


def test_names_nesting_and_what_spans_are_about():
    step = Record("step", 7, 0, 9 * MS, 12)
    bucket = Record("update", 7, 2 * MS, 3 * MS, 12, bucket=4)
    load = Record("load", 8, MS, 2 * MS, 0, steps=32)
    seen = read_trace(trace_of([rank(0, load, bucket, step)]))
    assert [(span.thread, span.name, span.began, span.ended, span.about) for span in seen] == [
        ("computing", "step 12", 0, 9 * MS, {"step": 12}),
        ("computing", "update bucket 4", 2 * MS, 3 * MS, {"step": 12, "bucket": 4}),
        ("loading", "load 0 to 31", MS, 2 * MS, {"step": 0, "steps": 32}),
    ]
    assert [span.parent and span.parent.name for span in seen] == [None, "step 12", None]
    assert {span.process for span in seen} == {"worker group 0, rank 0 (a)"}


def test_an_arrow_leads_from_the_gradient_to_the_server_to_the_parameters():
    def of(name, thread, began, group, step):
        return Record(name, thread, began, began + 1, step, slice=5, group=group, generation=2)

    updates = [(0, 10), (1, 10), (0, 20)]
    own = {group: [] for group, _ in updates}
    for began, (group, step) in enumerate(updates):
        own[group] += [of("push", 7, 100 * began, group, step), of("take", 7, 100 * began + 60, group, step)]
    server = [of("update", 0, 100 * began + 30, *update) for began, update in enumerate(updates)]
    processes = [Process("server group 0, server 0 (a)", {0: "updates"}, server), rank(0, *own[0]), rank(1, *own[1])]
    found = arrows(read_trace(trace_of(processes)))
    assert len(found) == 3
    for spans in found.values():
        assert [span.name for span in spans] == ["push slice 5", "update slice 5", "take slice 5"]
        assert len({(span.about["group"], span.about["generation"], span.about["step"]) for span in spans}) == 1
        assert [len(span.flows) for span in spans] == [1, 1, 0] and len(spans[2].ends) == 1


def test_clocks_of_other_machines_are_put_right():
    (first, second) = read_trace(
        trace_of([rank(0, Record("step", 7, 100, 200, 0)), rank(1, Record("step", 7, 1100, 1200, 0), ahead_ns=1000)])
    )
    assert (first.began, first.ended) == (second.began, second.ended) == (100, 200)


@pytest.mark.skipif("TRACE_PROCESSOR" not in os.environ, reason="it names Perfetto's trace_processor_shell")
def test_perfetto_s_own_queries_find_spans_and_arrows(tmp_path):
    from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig

    def of(name, thread, began):
        return Record(name, thread, began, began + 1, 12, slice=5, group=0, generation=1)

    server = Process("server group 0, server 0 (a)", {0: "updates"}, [of("update", 0, 300)])
    file = tmp_path / "trace.pftrace"
    file.write_bytes(
        trace_of([rank(0, Record("step", 7, 100, 900, 12), of("push", 7, 200), of("take", 7, 400)), server])
    )
    config = TraceProcessorConfig(bin_path=os.environ["TRACE_PROCESSOR"])
    with TraceProcessor(trace=str(file), config=config) as processor:
        spans = processor.query(
            "select process.name as process, thread.name as thread, slice.name as name, slice.dur as dur from slice "
            "join thread_track on slice.track_id = thread_track.id join thread using (utid) join process using (upid)"
        )
        assert {(row.process, row.thread, row.name, row.dur) for row in spans} == {
            ("worker group 0, rank 0 (a)", "computing", "step 12", 800),
            ("worker group 0, rank 0 (a)", "computing", "push slice 5", 1),
            ("worker group 0, rank 0 (a)", "computing", "take slice 5", 1),
            ("server group 0, server 0 (a)", "updates", "update slice 5", 1),
        }
        ends = processor.query(
            "select a.name as a, b.name as b from flow "
            "join slice a on slice_out = a.id join slice b on slice_in = b.id order by a.ts"
        )
        assert [(row.a, row.b) for row in ends] == [
            ("push slice 5", "update slice 5"),
            ("update slice 5", "take slice 5"),
        ]
        wrong = processor.query("select name from stats where severity = 'error' and value > 0")
        assert [row.name for row in wrong] == []


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=12))
def test_spans_of_a_thread_end_in_order_whatever_their_clock_did(times):
    records = [Record(f"span {i}", 7, began, ended, 0) for i, (began, ended) in enumerate(times)]
    seen = read_trace(trace_of([rank(0, *records)]))
    assert sorted(span.name for span in seen) == sorted(record.name for record in records)
    for span in seen:
        assert span.began <= span.ended
        assert span.parent is None or span.parent.began <= span.began <= span.ended <= span.parent.ended
