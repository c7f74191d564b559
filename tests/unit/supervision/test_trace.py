"""Which steps a run traces, and what becomes of what its ranks and servers send."""

import logging

import pytest

pytest.importorskip("perfetto", reason="`make setup` installs it")

from support.traces import arrows, read_trace

from singa_dask.errors import ConfigError
from singa_dask.job import ClusterTopology
from singa_dask.server.messages import Origin
from singa_dask.supervision import trace as module
from singa_dask.supervision.trace import Trace, steps_of, traced, tracing
from singa_dask.tracing import Recorder, recorder, span


@pytest.mark.parametrize(
    ("given", "start", "steps"),
    [("100:110", 0, range(100, 110)), ("0:1", 0, range(1)), ("20", 0, range(10, 30)), (20, 500, range(510, 530))],
)
def test_steps_are_a_range_or_their_number(given, start, steps):
    assert traced(steps_of(given), start, 1000) == steps


@pytest.mark.parametrize("given", ["", "ten", "10:", ":10", "10:10", "10:5", "0", "-3", "1:2:3", -1, "1.5", "5" * 30])
def test_other_texts_are_refused_with_the_way_out(given):
    with pytest.raises(ConfigError) as raised:
        steps_of(given)
    assert str(raised.value).startswith("trace: must be the steps from:to, or their number. Received: ")
    assert repr(given) in str(raised.value) and "Give 100:110 for the steps 100 to 109" in str(raised.value)


@pytest.mark.parametrize(
    ("given", "start", "said"),
    [
        ("100:121", 0, "makes the steps 0 to 119, not 100 to 120. Received: 100:121. Trace others, for example 0:10"),
        (111, 0, "not 10 to 120. Received: 111"),
        ("5:10", 50, "the run makes the steps 50 to 119, not 5 to 9. Received: 5:10. Trace others, for example 50:60"),
    ],
)  # fmt: skip
def test_steps_that_the_run_does_not_make_are_refused(given, start, said):
    with pytest.raises(ConfigError) as raised:
        traced(steps_of(given), start, 120)
    assert said in str(raised.value)


class Played:
    """A trace of the steps 4 and 5 of a run under Downpour: two worker groups of one rank, and a server."""

    def __init__(self, folder, **about):
        self.said, self.path, self.about = [], folder / "trace.pftrace", about
        topology = ClusterTopology.downpour(2, 1, 1)
        self.trace = Trace(range(4, 6), self.path, self.said.append, topology)
        self.server = self.recorder("server", 0)

    def recorder(self, of, group, generation=1):
        def emit(event):
            self.trace.take({**event, **self.about.get(of, {})})

        return Recorder(
            (4, 6), emit, (of, group, 0, generation), f"tcp://{of}-{group}", track="updates" * (of == "server")
        )

    def train(self, group, steps, generation=1):
        own, origin = self.recorder("worker", group, generation), Origin(group, generation)
        with own.here("computing"):
            for step in steps:
                own.reach(step)
                with span("step"):
                    with span("push", step, slice=0, origin=origin):
                        pass
                    with self.server.here(), span("update", step, slice=0, origin=origin):
                        pass
                    with span("take", step, slice=0, origin=origin):
                        pass
                self.server.reach(step, group)
        return own

    def read(self):
        return read_trace(self.path)


def test_the_file_is_there_once_all_have_made_the_steps_and_is_said_once(tmp_path):
    played = Played(tmp_path)
    with tracing(played.trace, None):
        for group in range(2):
            assert played.said == []
            played.train(group, range(9))
        played.trace._pool.submit(lambda: None).result()
        assert played.said == [f"trace: {played.path}, open it at ui.perfetto.dev"]
    assert len(played.said) == 1
    seen = played.read()
    names = [f"worker group {group}, rank 0" for group in range(2)]
    assert {span.where for span in seen if span.name.startswith("step")} == {
        (n, step) for n in names for step in (4, 5)
    }
    assert [[span.name for span in spans] for spans in arrows(seen).values()] == 4 * [
        ["push slice 0", "update slice 0", "take slice 0"]
    ]


def test_what_is_lost_is_named_and_what_is_formed_again_has_its_generation(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_LATE_S", 0.0)
    played = Played(tmp_path)
    with tracing(played.trace, None):
        played.train(0, range(9))
        played.train(1, range(5))  # and is killed
        played.train(1, range(4, 9), generation=2)
        played.trace._pool.submit(lambda: None).result()
        assert len(played.said) == 1, "nothing more is to come"
    (said,) = played.said
    assert said.endswith("; it lacks what was recorded by worker group 1, rank 0, which did not send it")
    assert {span.where for span in played.read() if span.name.startswith("step")} == {
        ("worker group 0, rank 0", 4), ("worker group 0, rank 0", 5),
        ("worker group 1, rank 0, generation 2", 4), ("worker group 1, rank 0, generation 2", 5),
    }  # fmt: skip


def test_a_run_waits_for_what_is_under_way_at_its_end(tmp_path, monkeypatch):
    played = Played(tmp_path)
    own = played.train(0, range(6))
    monkeypatch.setattr(module.time, "sleep", lambda seconds: (own.send(), played.server.send()))
    with tracing(played.trace, None):
        pass
    assert played.said == [f"trace: {played.path}, open it at ui.perfetto.dev"]
    assert len(played.read()) == 8


def test_spans_that_are_left_out_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(recorder, "LIMIT", 5)
    played = Played(tmp_path)
    with tracing(played.trace, None):
        for group in range(2):
            played.train(group, range(9))
    assert played.said[-1].endswith("; 2 spans are left out: a rank or server records at most 200,000")


def test_a_run_that_ends_before_the_steps_says_so(tmp_path):
    played = Played(tmp_path)
    with tracing(played.trace, None):
        played.train(0, range(3))
    assert played.said == ["trace: none of the steps 4 to 5 was made"] and not played.path.exists()


@pytest.mark.parametrize(
    ("answers", "said"), [({"tcp://server-0": (0.5, 1e-5)}, ""), ({}, "; the clock of far did not answer")]
)
def test_the_clock_of_another_machine_is_compared(tmp_path, monkeypatch, answers, said):
    monkeypatch.setattr(module, "clock_offsets", lambda client, addresses: answers)
    played = Played(tmp_path, server={"machine": "another", "host": "far"})
    with tracing(played.trace, None):
        for group in range(2):
            played.train(group, range(9))
    assert played.said == [f"trace: {played.path}, open it at ui.perfetto.dev{said}"]
    push, update, take = sorted(arrows(played.read())[1], key=lambda span: "put".index(span.name[0]))
    ahead_s = 0.5 if answers else 0
    assert push.began <= update.began + 1e9 * ahead_s <= take.began
    assert update.process == "server group 0, server 0 (far)"


def test_a_file_that_cannot_be_written_does_not_end_the_run(tmp_path, caplog):
    played = Played(tmp_path)
    played.path.mkdir()
    with caplog.at_level(logging.ERROR), tracing(played.trace, None):
        for group in range(2):
            played.train(group, range(9))
    assert "the trace could not be written: NotAFile" in caplog.text and played.said == []
