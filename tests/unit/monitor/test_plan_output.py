"""Tables and pictures of plans: what they say."""

from dataclasses import replace
from io import StringIO

import pytest
from matplotlib.figure import Figure
from rich.console import Console
from support.planned import MB, predicted

from singa_dask.job import ClusterTopology, load_job
from singa_dask.monitor.plan_picture import best_by_strategy, plan_figure
from singa_dask.monitor.plan_table import WIDTH, describe, expectation, instructions, plan_html, plan_text, print_plan
from singa_dask.planning.advise import FreeMemory, advise
from singa_dask.planning.prediction import Machines

ONE = predicted(ClusterTopology(), 1000.0, sent=0.0)
TWO = predicted(ClusterTopology.allreduce(2), 1500.0)
SPLIT = predicted(ClusterTopology.allreduce(2), 1800.0, partition="dim 1")
STALE = predicted(ClusterTopology.downpour(16, 1, 8), 9000.0, staleness=15.0, extrapolated=0.5)
CODED = predicted(ClusterTopology(nworkers_per_group=2, nservers_per_group=2, codec="kHalf"), 1900.0, memory=999 * MB)
SERVERS = [predicted(ClusterTopology.sandblaster(2, n), 100.0 * n) for n in (1, 2, 3)]
EVERY = [ONE, TWO, SPLIT, STALE, CODED, *SERVERS]
HOST = Machines(cores=2)
CLOUD = Machines(16, None, 1, 1e9, 5e-5, imagined=True)


def rows(text):
    return [line.split() for line in text.splitlines()]


def test_the_table_marks_what_is_recommended_and_shows_the_best():
    text = plan_text(advise(EVERY, HOST, memory=FreeMemory(1900 * MB)), "points")
    assert [">", "AllReduce", "2", "dim", "1", "1,800", "17.8", "0", "2", "MB"] in [row[:10] for row in rows(text)]
    assert [row[:3] for row in rows(text) if row[:1] == ["Sandblaster"]] == [["Sandblaster", "2+3", "dim"]]
    assert "3 other candidates are left out; --all shows them." in text and "AllReduce   2       dim 0" in text
    (stale,) = [row for row in rows(text) if row[:2] == ["Downpour", "16x1+8"]]
    assert stale[2] == "~9,000" and stale[4] == "15" and "kHalf" not in text
    assert max(map(len, text.splitlines())) <= WIDTH


def test_all_candidates_are_shown_on_request():
    text = plan_text(advise(EVERY, HOST, memory=FreeMemory(1900 * MB)), "points", every=True)
    assert len([row for row in rows(text) if row[:1] == ["Sandblaster"]]) == 3 and "left out" not in text
    assert "999 MB!" in text and "! more than the hosts have." in text


LISTED = 640 + 1024  # bytes of activations of fc1 and fc2
LATE = predicted(replace(ClusterTopology.downpour(2, 1, 1), one_behind=True), 900.0, extrapolated=0.1)
SHARED = predicted(ClusterTopology.allreduce(2), 1700.0, shares=True)
GIVEN = predicted(ClusterTopology.allreduce(2), 1900.0, partition="job")
TO_SERVERS = predicted(
    ClusterTopology.sandblaster(2, 1), 1900.0, partition="dim 1", activations=LISTED + 2000.0, sent=LISTED + 5000.0
)
ALL_LISTED = predicted(ClusterTopology.allreduce(2), 1900.0, partition="dim 1", activations=LISTED, sent=LISTED)
# Candidates, what the text says of them, and what it does not say.
SAID = {
    "split": (
        [ONE, SPLIT],
        [
            "Split over the workers of a group: fc1, fc2.",
            "fc1 576 split by output features: 1.02 kB of activations instead of 2.3 kB of gradients",
            "fc2 325 split by input features: 640 B of activations instead of 1.3 kB of gradients",
        ],
        [],
    ),
    "not split": (
        [ONE, TWO],
        [
            "No layer is split over",
            "fc2 325 not split: 1.3 kB of gradients instead of 8.19 kB",
            "fc1 576 not split: 2.3 kB of gradients; splitting (1.02 kB of activations) gains < 3 %",
            "A mini-batch has 32 samples.",
        ],
        [],
    ),
    "not tried": (
        [ONE, GIVEN],
        ["fc1 576 not split: 2.3 kB of gradients (1.02 kB of activations if it were split)"],
        [],
    ),
    "one worker": (
        [ONE],
        ["No layer is split: the recommended candidate has one worker."],
        ["rows", "share memory"],
    ),
    "more is sent than layers with parameters send": (
        [ONE, TO_SERVERS],
        ["and 2 kB of activations at layers without parameters and 3 kB of gradients to servers"],
        [],
    ),
    "all that is sent": ([ONE, ALL_LISTED], [], [" kB and "]),
    "legend": (
        [ONE, SHARED, SPLIT, CODED, LATE],
        [
            "dim 0: each worker takes some of the rows; dim 1: each worker takes some of the features;",
            "kHalf: sent as float16; one behind: ",
            "per step, as if workers did not share memory.",
            "~ more than 5 % of the step was estimated from other shapes, numbers of rows or threads.",
            "What a worker sends in a step, by layer",
        ],
        ["auto:"],
    ),
    "shared memory": ([ONE, SHARED], ["What a worker would send in a step without shared memory"], []),
}


@pytest.mark.parametrize("name", SAID)
def test_the_text_says_what_is_split_and_sent_and_explains_the_table(name):
    candidates, said, unsaid = SAID[name]
    text = " ".join(plan_text(advise(candidates, HOST, allow=["codec"]), "points").split())
    for words in said:
        assert words in text
    assert not [words for words in unsaid if words in text]


def test_machines_are_described():
    assert describe(HOST, 8e9) == "one host with 2 cores and 8 GB of memory"
    assert describe(CLOUD, None) == (
        "hosts with 16 cores, 1 worker on each, 1 Gbit/s, 50 us; this cluster is not there, nothing was measured on it"
    )
    assert describe(Machines(1, 3, 2), None) == "3 hosts with 1 core, 2 workers on each"


def test_the_instructions_are_a_cluster_file():
    text = instructions(SPLIT.candidate, "job.conf", here=False)
    first, _, block = text.partition("\n")
    assert first.endswith("singa-dask train job.conf --cluster FILE --set neuralnet.partition_dim=1")
    assert ClusterTopology.from_proto(load_job(block).cluster) == ClusterTopology.allreduce(2)
    assert instructions(SPLIT.candidate, "job.conf", here=True).splitlines()[0].endswith("--cluster auto")
    alone = instructions(ONE.candidate, "job.conf", here=False)
    assert "partition" not in alone and load_job(alone.partition("\n")[2]).HasField("cluster")


def test_a_line_says_what_is_expected():
    assert expectation(SPLIT) == "AllReduce, 2 workers, dim 1: 1,800 samples/s expected, 17.8 ms a step"
    assert expectation(STALE) == (
        "Downpour, 16 workers and 8 servers: 9,000 samples/s expected (not all of it measured), 56.9 ms a step"
    )


def test_terminals_and_notebooks_get_colours():
    stream = StringIO()
    print_plan(Console(file=stream, force_terminal=True, width=WIDTH), advise(EVERY, HOST), "points")
    assert "\x1b[1m" in stream.getvalue()
    html = plan_html(advise(EVERY, HOST), "points")
    assert html.startswith("<pre>") and "Recommended" in html


@pytest.mark.parametrize(("machines", "hollow"), [(HOST, 1), (CLOUD, 6)])
def test_the_picture_has_a_line_for_each_strategy(machines, hollow):
    advice = advise(EVERY, machines)
    lines = best_by_strategy(advice)
    assert {strategy.value: [each.samples_per_s for each in points] for strategy, points in lines.items()} == {
        "AllReduce": [1000.0, 1800.0],
        "Sandblaster": [1000.0, 300.0],
        "Downpour": [1000.0, 9000.0],
    }
    figure = plan_figure(advice, "points")
    (axes,) = figure.axes
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels[:3] == ["AllReduce", "Sandblaster", "Downpour"] and axes.get_yscale() == "log"
    assert "recommended: AllReduce with 2 workers (partition dim 1)" in labels
    assert sum(len(line.get_xdata()) for line in axes.lines if line.get_markerfacecolor() == "white") == hollow


def test_few_workers_have_linear_axes():
    figure = plan_figure(advise([ONE, TWO], HOST), "points")
    assert isinstance(figure, Figure) and figure.axes[0].get_yscale() == "linear"
    assert figure.axes[0].get_ylim()[0] == 0
