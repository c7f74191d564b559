"""What a page is told. Its drawing is looked at by benchmarks/dashboard.py."""

import json

import pytest

pytest.importorskip("bokeh", reason="the dashboard needs bokeh")

from singa_dask.dashboard import page as module
from singa_dask.dashboard.page import Page, colour


@pytest.fixture
def page(runs, monkeypatch):
    clock = {"cpu": 0.0, "now": 0.0}
    monkeypatch.setattr(module.time, "thread_time", lambda: clock["cpu"])
    monkeypatch.setattr(module.time, "monotonic", lambda: clock["now"])
    made = Page(runs)
    made.clock = clock
    return made


def told(page):
    """The last message."""
    return json.loads(page._wire.data["told"][-1])


def measure(run, at, group=0, **metrics):
    shares = {"wait": [0.5, 0.0], "loading": [0.75, 0.25]}
    event = {"kind": "progress", "group": group, "step": 3, "metrics": metrics, "samples_per_s": 7.0, "sent": 0.0}
    run.take(event | shares, 100.0 + at)


def test_a_page_without_runs_has_an_empty_table(page):
    assert told(page) == {"runs": [], "chosen": []}


def test_a_page_is_told_what_is_new(page, begin):
    run = begin()
    measure(run, 1, loss=2.0, accuracy=0.5)
    page.update()
    first = told(page)
    assert first["fresh"] and first["rows"] == [[0, 3, False, 1.0, 2.0, 0.5, 7.0, None, None]]
    assert first["runs"][0][:6] == ["digits", "downpour", "starting", "3/600", "7", "0"] and first["chosen"] == [0]
    assert first["times"] == [[0, "0.0", 0.0, 0.5, 0.5], [1, "0.1", 0.75, 0.0, 0.25]], "loading and waiting overlap"
    assert first["titles"] == {"loss": "loss", "metric": "accuracy", "staleness": None, "nbytes": None}
    measure(run, 2, loss=1.0, accuracy=0.75)
    run.take({"kind": "checkpoint", "step": 3}, 102.0)
    page.update()
    second = told(page)
    assert not second["fresh"] and [row[3] for row in second["rows"]] == [2.0]
    assert [mark[1] for mark in second["marks"]] == ["checkpoint"] and "points" not in second
    run.take({"kind": "metrics", "group": 0, "phase": "test", "step": 3, "metrics": {"loss": 0.5}}, 103.0)
    page.update()
    assert told(page)["points"] == [[0, "test, step 3", 3.0, 0.5, None]] and "marks" not in told(page)


def test_nothing_is_computed_where_nothing_is_new(page, begin, monkeypatch):
    begin()
    page.update()
    monkeypatch.setattr(page, "show", lambda: pytest.fail("nothing is new"))
    page.update()


def test_a_page_takes_a_hundredth_of_the_time(page, begin, monkeypatch):
    run, shown = begin(), []
    monkeypatch.setattr(
        page, "show", lambda: (shown.append(page.clock["now"]), page.clock.update(cpu=shown[-1] + 0.02))
    )
    for now in (0.0, 0.5, 1.0, 1.5, 2.0, 2.5):
        page.clock.update(now=now, cpu=now)
        measure(run, now, loss=1.0)
        page.update()
    assert shown == [0.0, 2.0], "0.02 s each"


def test_rows_that_were_left_out_are_replaced(page, begin):
    run = begin()
    for at in range(4):
        measure(run, at, loss=1.0)
    page.update()
    run._cut()
    measure(run, 9, loss=1.0)
    page.update()
    assert told(page)["fresh"] and [row[3] for row in told(page)["rows"]] == [0.0, 2.0, 9.0]


def test_a_metric_is_chosen(page, begin):
    run = begin()
    measure(run, 1, loss=2.0, accuracy=0.5, f1=0.25)
    page.update()
    assert page.select.options == ["accuracy", "f1"] and page.select.visible and page.select.value == "accuracy"
    page.select.value = "f1"
    assert told(page)["fresh"] and told(page)["rows"][0][5] == 0.25 and told(page)["titles"]["metric"] == "f1"


def test_the_newest_run_is_shown_until_another_one_is_chosen(page, begin, runs):
    begin("a", job="<first>")
    begin("b", job="second")
    page.update()
    assert "second" in told(page)["head"]
    page._choose("indices", [0], [1])
    assert "&lt;first&gt;" in told(page)["head"] and told(page)["chosen"] == [1]
    begin("c", job="third")
    page.update()
    assert "first" in told(page)["head"] and told(page)["chosen"] == [2]
    page._choose("indices", [2], [0])
    begin("d", job="fourth")
    page.update()
    assert "fourth" in told(page)["head"]


def test_many_groups_are_counted(page, begin):
    run = begin()
    for group in range(20):
        measure(run, 1, group=group, loss=1.0)
    page.update()
    assert (
        "group 15" in told(page)["head"]
        and "group 16" not in told(page)["head"]
        and "and 4 more" in told(page)["head"]
    )
    assert len({colour(group) for group in range(20)}) == 20
