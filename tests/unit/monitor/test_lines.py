"""The lines that events leave behind."""

import os

import pytest
from support.run_events import PROGRESS, SERVER, START, TEST, TRAIN

from singa_dask.monitor.lines import EventLines, shares

SAVED = {"kind": "checkpoint", "group": 0, "step": 600, "path": "/x/step-00000600.h5"}
END = {"kind": "end", "group": 0, "step": 600}
ASYNC = {**START, "groups": 2, "ranks": 1}


def _lines(*events, width=80):
    lines = EventLines()
    return [line for event in events for line in lines.lines(event, width)]


ALONE = {**TRAIN, "wait": [0.0], "loading": [0.0]}
BUSY = {**TRAIN, "loading": [0.0]}
IDLE = {**BUSY, "wait": [0.0, 0.0]}
ONE, TWO = {**ALONE, "server": SERVER}, {**ALONE, "server": SERVER, "group": 1}
TWO_STARTS, TWO_TEST = {**ASYNC, "group": 1, "steps": 3125}, {**TEST, "group": 1}
STEP = "step 50  train     loss 0.2500  accuracy 0.9000"
OF_SERVERS = "staleness 1.0  update 3.2 ms  stalls 4 %"
# The width of the terminal, events, and the lines that they leave.
LINES = {
    "one group that fits": (
        80,
        [{**START, "ranks": 1, "step": 20}, PROGRESS, ALONE, TEST, SAVED, END],
        [
            "1 worker ready: 600 steps of 96 samples, from step 20",
            "step  50/600  train     loss 0.2500  accuracy 0.9000  12,346 samples/s",
            "step 600/600  test      loss 0.1000  accuracy 0.9800",
            "step 600/600  saved     /x/step-00000600.h5",
        ],
    ),
    "the processes of a machine": (
        80,
        [{**START, "exchange": "shared memory", "pids": pids} for pids in ([7, 8, 9], list(range(9)))]
        + [{**START, "pids": [7, 8, 9]}],
        [
            "3 workers ready (shared memory; processes 7, 8, 9): 600 steps of 96 samples",
            "3 workers ready (shared memory): 600 steps of 96 samples",
            "3 workers ready (MPI): 600 steps of 96 samples",
        ],
    ),
    "without a start": (80, [TEST], ["step 600  test      loss 0.1000  accuracy 0.9800"]),
    "as wide as it may be": (
        120,
        [TRAIN],
        [
            f"{STEP}  12,346 samples/s  waits 2/10/30 %  waits for data 0/0/5 %",
        ],
    ),
    "on GPUs": (
        120,
        [{**ALONE, "gpu_memory": 1_234_000_000}],
        [f"{STEP}  12,346 samples/s  1.23 GB on each GPU"],
    ),
    "on GPUs, shortened": (
        72,
        [{**ALONE, "gpu_memory": 1_234_000_000}],
        [f"{STEP}  12,346/s  1.23 GB"],
    ),
    "shortened": (
        88,
        [TRAIN],
        [f"{STEP}  12,346/s  waits 2/10/30 %  data 0/0/5 %"],
    ),
    "shortened once more": (
        84,
        [TRAIN],
        [f"{STEP}  12,346/s  waits 2-30 %  data 0-5 %"],
    ),
    "that goes on below": (
        76,
        [TRAIN],
        [f"{STEP}  12,346/s", "  waits 2/10/30 %  data 0/0/5 %"],
    ),
    "once shortened, alike": (
        80,
        [IDLE, BUSY, IDLE],
        [
            f"{STEP}  12,346 samples/s  waits 0/0 %",
            f"{STEP}  12,346/s  waits 2/10/30 %",
            f"{STEP}  12,346/s  waits 0/0 %",
        ],
    ),
    "several groups": (
        120,
        [ASYNC, TWO_STARTS, ONE, TWO, TWO_TEST, END],
        [
            "group 0  1 worker ready: 600 steps of 96 samples",
            "group 1  1 worker ready: 3125 steps of 96 samples",
            f"group 0  step  50/600  train     loss 0.2500  accuracy 0.9000  12,346/s  {OF_SERVERS}",
            f"group 1  step   50/3125  train     loss 0.2500  accuracy 0.9000  12,346/s  {OF_SERVERS}",
            "group 1  step  600/3125  test      loss 0.1000  accuracy 0.9800",
            "group 0  step 600/600  ended",
        ],
    ),
    "several groups, narrow": (
        80,
        [ASYNC, TWO_STARTS, TWO],
        [
            "group 0  1 worker ready: 600 steps of 96 samples",
            "group 1  1 worker ready: 3125 steps of 96 samples",
            "group 1  step   50/3125  train     loss 0.2500  accuracy 0.9000  12,346/s",
            f"           {OF_SERVERS}",
        ],
    ),
    "a group that starts again, and one that joins": (
        80,
        [START, {**START, "step": 200}, {**START, "group": 1, "step": 300}, TEST],
        [
            "3 workers ready (MPI): 600 steps of 96 samples",
            "3 workers ready (MPI): 600 steps of 96 samples, from step 200",
            "group 1  joined with 3 workers (MPI): 600 steps of 96 samples, from step 300",
            "group 0  step 600/600  test      loss 0.1000  accuracy 0.9800",
        ],
    ),
}


@pytest.mark.parametrize("name", LINES)
def test_lines(name):
    width, events, lines = LINES[name]
    assert _lines(*events, width=width) == lines
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize("steps", [50, 600, 3125])
@pytest.mark.parametrize("ranks", [1, 3, 8, 40])
@pytest.mark.parametrize("groups", [1, 12])
@pytest.mark.parametrize("server", [None, SERVER])
def test_nothing_is_wider_than_80_columns(steps, ranks, groups, server):
    waits = [0.1 + 0.02 * rank for rank in range(ranks)]
    train = {**TRAIN, "group": groups - 1, "wait": waits, "loading": waits} | ({"server": server} if server else {})
    for line in _lines({**START, "steps": steps, "groups": groups, "group": groups - 1}, train):
        assert len(line) <= 80, line


def test_a_long_path_is_told_from_here_or_by_its_end(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    below = tmp_path / ("w" * 70) / "checkpoint" / "step-00000600.h5"
    below = str(below)
    here = os.path.relpath(below)
    head = "step 600/600  saved     "
    for width, path in ((300, below), (len(head + here), here), (60, ".../checkpoint/step-00000600.h5")):
        assert _lines(START, {**SAVED, "path": below}, width=width)[1:] == [head + path]
    elsewhere = "/" + "e" * 80 + "/checkpoint/step-00000600.h5"
    assert _lines(START, {**SAVED, "path": elsewhere})[1:] == [head + ".../checkpoint/step-00000600.h5"]


def test_shares_of_many_ranks_are_a_range():
    assert shares([0.5]) == shares([0.5] * 3, ranges=True) == shares([0.5] * 9) == "50 %"
    assert shares([0.01 * rank for rank in range(20)]) == "0-19 %"
