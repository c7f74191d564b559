"""What a process records of the steps that are traced, and what it does not."""

import threading
from types import SimpleNamespace

import pytest

from singa_dask.tracing import EVENT, Recorder, carried, recorder, records_of, span

WHO = "worker", 0, 1, 2
ORIGIN = SimpleNamespace(group=3, generation=1)


@pytest.fixture
def made():
    """A recorder of the steps 4 and 5, and the events that it sends."""
    events = []
    return Recorder((4, 6), events.append, WHO, "tcp://a:1"), events


def spans(events):
    return [record for event in events for record in records_of(event)[1]]


def train(of, steps):
    for step in steps:
        of.reach(step)
        with span("step"), span("forward"):
            pass


def test_steps_that_are_traced_are_recorded_and_sent_one_step_later(made):
    of, events = made
    with of.here("computing"):
        train(of, range(3, 7))
        assert len(events) == 1 and not events[0]["over"], "the first span is told, so that it can be missed"
        train(of, range(7, 9))
    assert [(record.name, record.step) for record in spans(events)] == [
        ("forward", 4), ("step", 4), ("forward", 5), ("step", 5)
    ]  # fmt: skip
    assert len(events) == 2 and events[1]["over"] and events[1]["kind"] == EVENT
    assert tuple(events[1]["who"]) == WHO and events[1]["address"] == "tcp://a:1"
    assert all(record.began <= record.ended for record in spans(events))
    names, records = records_of(events[1])
    assert {names[record.thread] for record in records} == {"computing"}


def test_without_a_recorder_nothing_is_made():
    assert span("forward") is span("push", 5, slice=1, origin=ORIGIN) is recorder._NOTHING
    assert carried(train, "loading", "load", 0, 1) is train


def test_nothing_is_recorded_after_the_context(made):
    of, events = made
    of.reach(4)
    with of.here():
        pass
    assert span("forward") is recorder._NOTHING and events == []


def test_both_ends_of_an_arrow_belong_to_its_step(made):
    """With one_behind, values are taken a step later."""
    of, events = made
    with of.here():
        for step in range(3, 8):
            of.reach(step)
            with span("push", step, slice=0, origin=ORIGIN):
                pass
            with span("take", step - 1, slice=0, origin=ORIGIN):
                pass
    of.send()
    found = [(record.name, record.step, record.group, record.generation) for record in spans(events)]
    assert sorted(found) == [(name, step, 3, 1) for name in ("push", "take") for step in (4, 5)]


@pytest.mark.parametrize(
    ("start", "steps", "at", "recorded"),
    [(0, 4, 0, False), (0, 5, 0, True), (5, 32, 0, True), (6, 32, 0, False), (6, 32, 4, True)],
)
def test_loading_is_recorded_if_it_is_of_traced_steps_or_beside_them(made, start, steps, at, recorded):
    of, events = made
    of.reach(at)
    with of.here():
        load = carried(lambda number: number, "loading", "load", start, steps)
    called = []
    loader = threading.Thread(target=lambda: called.append(load(7)))
    loader.start()
    loader.join()
    of.send()
    assert called == [7]
    assert [(record.name, record.step, record.steps) for record in spans(events)] == recorded * [
        ("load", start, steps)
    ]
    assert not recorded or "loading" in records_of(events[-1])[0].values()


def test_threads_have_a_track_each_and_lose_nothing(made):
    of, events = made
    of.reach(4)

    def work():
        with of.here():
            for _ in range(200):
                with span("work"):
                    pass

    threads = [threading.Thread(target=work, name=f"thread {i}") for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    of.send()
    assert len(spans(events)) == 800
    assert {f"thread {i}" for i in range(4)} >= {*records_of(events[-1])[0].values()} - {""}


def test_a_block_that_raises_is_recorded(made):
    of, events = made
    of.reach(4)
    with of.here(), pytest.raises(ValueError, match="x"), span("step"):
        raise ValueError("x")
    of.send()
    assert [record.name for record in spans(events)] == ["step"]


def test_spans_beyond_the_limit_are_counted_and_events_are_bounded(made, monkeypatch):
    monkeypatch.setattr(recorder, "LIMIT", 25)
    monkeypatch.setattr(recorder, "_CHUNK", 10)
    of, events = made
    with of.here():
        of.reach(4)
        for _ in range(30):
            with span("step"):
                pass
    of.send()
    assert [len(records_of(event)[1]) for event in events] == [0, 10, 10, 5]
    assert [event["over"] for event in events] == [False, False, False, True]
    assert [event["left_out"] for event in events] == [0, 5, 5, 5]
    with of.here(), span("late", 5):
        pass
    of.send()
    assert events[-1]["left_out"] == 6 and events[-1]["over"]


def test_a_server_waits_for_all_groups_that_it_has_seen():
    events = []
    of = Recorder((4, 6), events.append, ("server", 0, 0, 1), track="updates")

    def update(group, step):
        with of.here(), span("update", step, slice=1, origin=SimpleNamespace(group=group, generation=1)):
            pass
        of.reach(step, group)

    for step in range(3, 9):
        update(0, step)
        update(1, step - 3)
    assert len(events) == 1
    for step in range(6, 8):
        update(1, step)
    assert events[-1]["over"] and len(events) == 2
    assert sorted((record.group, record.step) for record in spans(events)) == [(0, 4), (0, 5), (1, 4), (1, 5)]
    names, records = records_of(events[-1])
    assert {names[record.thread] for record in records} == {"updates"}
