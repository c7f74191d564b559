"""What a run shows."""

import io

import pytest
from support.run_events import PROGRESS, SERVER, START, TEST, TRAIN

from singa_dask.monitor.progress import LineDisplay, LiveDisplay
from singa_dask.output.console import Console


def test_lines():
    stream = io.StringIO()
    display = LineDisplay(stream)
    display.note("forming the worker group")
    for event in (START, TRAIN, PROGRESS, TEST):
        display.handle(event)
    assert stream.getvalue().splitlines() == [
        "forming the worker group",
        "3 workers ready (MPI): 600 steps of 96 samples",
        "step  50/600  train     loss 0.2500  accuracy 0.9000  12,346/s",
        "  waits 2/10/30 %  data 0/0/5 %",
        "step 600/600  test      loss 0.1000  accuracy 0.9800",
    ]


class _Panel:
    """A live display on a terminal of `width` columns, and the panel that it shows now."""

    def __init__(self, width):
        self.width = width
        self.display = LiveDisplay(Console(file=io.StringIO(), force_terminal=True, width=width, legacy_windows=False))

    def after(self, *events):
        for event in events:
            self.display.handle(event)
        console = Console(file=io.StringIO(), width=self.width)
        console.print(self.display._render())
        return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_a_live_display_keeps_lines_and_shows_the_latest_figures():
    console = Console(file=io.StringIO(), force_terminal=True, width=120, legacy_windows=False)
    with LiveDisplay(console) as display:
        display.note("forming the worker group")
        for event in (START, PROGRESS, TEST):
            display.handle(event)
        display.note("stopping after this step")
    shown = console.file.getvalue()
    for said in ("50/600", "stopping after this step", "workers wait 2/10/30 %", "step 600/600  test"):
        assert said in shown


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (120, "loss 0.2500  accuracy 0.9000  12,346 samples/s  workers wait 2/10/30 %  for data 0/0/5 %"),
        (80, "loss 0.2500  accuracy 0.9000  12,346/s  waits 2-30 %  data 0-5 %"),
    ],
)
def test_the_figures_of_one_group_stay_on_one_line(width, expected):
    bar, latest = _Panel(width).after(START, PROGRESS)
    assert bar.startswith("training ") and bar.endswith(" 50/600 4 s left")
    assert latest == expected


def test_with_figures_of_servers_one_group_gets_headings():
    _, head, figures = _Panel(80).after(START, {**PROGRESS, "server": SERVER})
    assert head.split() == ["loss", "accuracy", "samples/s", "staleness", "stalls", "update", "waits", "data"]
    assert " ".join(figures.split()) == "0.2500 0.9000 12,346 1.0 4 % 3.2 ms 2-30 % 0-5 %"


def test_a_bar_and_a_row_of_figures_per_group():
    panel = _Panel(80)
    start = {**START, "groups": 3}
    status, *bars = panel.after({**start, "group": 1})
    assert status == "starting"
    assert [bar[:7] for bar in bars] == ["group 0", "group 1", "group 2"]
    assert [bar.endswith("starting") for bar in bars] == [True, False, True]

    first = {**PROGRESS, "server": SERVER}
    later = {**first, "group": 1, "step": 500, "metrics": {"loss": 0.125, "accuracy": 0.95}}
    *bars, head, one, two = panel.after(start, {**start, "group": 2}, first, later)
    assert [bar.split()[-4 if "left" in bar else -1] for bar in bars] == ["50/600", "500/600", "0/600"]
    assert head.split()[:4] == ["loss", "accuracy", "samples/s", "staleness"]
    assert one.split()[:5] == ["group", "0", "0.2500", "0.9000", "12,346"]
    assert two.split()[:5] == ["group", "1", "0.1250", "0.9500", "12,346"]
    assert max(map(len, [*bars, head, one, two])) <= 80


def test_columns_that_do_not_fit_are_left_out():
    start = {**START, "groups": 2}
    for width, last in ((79, "data"), (60, "stalls"), (40, "samples/s")):
        shown = _Panel(width).after(start, {**PROGRESS, "server": SERVER})
        assert shown[2].split()[-1] == last and len(shown) == 4


def test_a_group_that_joins_gets_a_bar_when_it_starts():
    panel = _Panel(80)
    assert panel.after(START, PROGRESS)[0].startswith("training")
    first, second, *_ = panel.after({**START, "group": 1, "step": 300})
    assert first.startswith("group 0") and second.startswith("group 1") and "300/600" in second


def test_a_group_that_ends_shows_done_and_one_that_starts_again_goes_back():
    panel = _Panel(80)
    start = {**START, "groups": 2}
    events = [start, {**start, "group": 1}, PROGRESS, {"kind": "end", "group": 0, "step": 600}]
    first, second, *_ = panel.after(*events, {"kind": "end", "group": 1, "step": 70})
    assert first.endswith("600/600 done") and second.endswith("70/600 stopped")
    first, second, *_ = panel.after({**start, "group": 1, "step": 40})
    assert first.endswith("600/600 done") and second.endswith("40/600")
