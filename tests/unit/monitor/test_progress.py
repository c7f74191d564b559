"""What a run shows."""

import io

from rich.console import Console

from singa_dask.monitor.progress import LineDisplay, LiveDisplay, display_for

START = {"kind": "start", "step": 0, "steps": 600, "batch": 96, "ranks": 3}
TRAIN = {
    "kind": "metrics",
    "phase": "train",
    "step": 50,
    "metrics": {"loss": 0.25, "accuracy": 0.9},
    "samples_per_s": 12_345.6,
    "wait": [0.02, 0.1, 0.3],
    "loading": [0.0, 0.0, 0.05],
}
TEST = {"kind": "metrics", "phase": "test", "step": 600, "metrics": {"loss": 0.1, "accuracy": 0.98}}
SAVED = {"kind": "checkpoint", "step": 600, "path": "/x/step-00000600.h5"}


def test_lines():
    stream = io.StringIO()
    display = LineDisplay(stream)
    for event in (START, TRAIN, {**TRAIN, "kind": "progress"}, TEST, SAVED):
        display.handle(event)
    assert stream.getvalue().splitlines() == [
        "3 workers ready: 600 steps of 96 samples",
        "step  50/600  train     loss 0.2500  accuracy 0.9000  12,346 samples/s  "
        "waits 2/10/30 %  waits for data 0/0/5 %",
        "step 600/600  test      loss 0.1000  accuracy 0.9800",
        "step 600/600  saved     /x/step-00000600.h5",
    ]


def test_live_display_keeps_lines_and_shows_the_latest_figures():
    console = Console(file=io.StringIO(), force_terminal=True, width=120, legacy_windows=False)
    with LiveDisplay(console) as display:
        display.note("forming the worker group")
        display._live.refresh()
        display.handle(START)
        display.handle({**TRAIN, "kind": "progress"})
        display._live.refresh()
        display.handle(TEST)
        display.note("stopping after this step")
    shown = console.file.getvalue()
    assert "forming the worker group" in shown
    assert "50/600" in shown
    assert "stopping after this step" in shown
    assert "workers wait 2/10/30 %" in shown
    assert "step 600/600  test" in shown


def test_no_terminal_means_lines():
    assert isinstance(display_for(io.StringIO()), LineDisplay)
