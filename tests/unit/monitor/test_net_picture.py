"""Pictures of nets: what they say, and that it can be read."""

from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.patches import FancyBboxPatch
from support.commands import cluster, example

from singa_dask.errors import ConfigError
from singa_dask.job import Job
from singa_dask.job.job_pb2 import Phase
from singa_dask.monitor.net_picture import draw_net
from singa_dask.monitor.net_tables import net_tables
from singa_dask.monitor.traffic import Traffic
from singa_dask.training.prepare import has_shapes, prepare

SPLIT = ("neuralnet.partition_dim=1",)


def prepared(job="digits", overrides=(), topology="allreduce", phases=()):
    loaded = Job.from_file(example(job), overrides=overrides, cluster=topology and cluster(topology))
    return prepare(loaded, with_data=False, phases=list(phases))


def texts(path):
    return [element.text for element in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.parametrize("overrides", [(), SPLIT])
def test_the_svg_says_everything_as_text(tmp_path, overrides):
    job = prepared(overrides=overrides)
    totals = draw_net(job, "train", tmp_path / "new" / "net.svg")
    said = texts(tmp_path / "new" / "net.svg")
    for layer in ("data  RecordInput", "conv1  Convolution", "pool1  Pooling", "ip2  InnerProduct"):
        assert layer in said
    assert {"8 x 8 x 16", "16,448 parameters", "17,258 parameters", "labels"} <= set(said)
    assert "AllReduce (synchronous): 1 worker group of 3 workers; mini-batch of 96" in said
    assert totals.split("; ")[0] == "17,258 parameters"
    assert all(total in said for total in totals.split("; "))
    assert ("transition between partitions: bytes that each worker sends per step" in said) == bool(overrides)


def test_transitions_show_the_bytes_of_the_formula(tmp_path):
    """Of 3 workers, each sends 2/3 of the 96 images to gather them on all: 8 x 8 values of 4 bytes."""
    job = prepared(overrides=SPLIT, phases=[Phase.kTest])
    draw_net(job, "train", tmp_path / "net.svg")
    said = texts(tmp_path / "net.svg")
    assert said[said.index("batch to replicated") + 1] == "16.4 kB sent"
    train, test = (Traffic.of(job, phase) for phase in ("train", "test"))
    sent = {row.layer: train.of_layer(row) for row in job.layers["train"]}
    assert sent["data:replicated"] == 96 * 64 * 4 * 2 // 3
    assert sent["ip1:batch"] == sent["relu2:replicated"] == 2 * 96 * 64 * 4 * 2 // 3  # forward and backward
    assert sent["data:labels"] == 96 * 8 * 2 // 3
    (row,) = (row for row in job.layers["test"] if row.layer == "ip1:batch")
    assert test.replicated == 0 and test.of_layer(row) == round(test.batch * 64 * 4 * 2 / 3)  # without gradients
    assert "replicated" not in draw_net(job, "test", tmp_path / "net.svg")
    (table, *_) = net_tables(job)
    assert [column.header for column in table.columns][-1] == "bytes sent"
    cells = dict(zip(table.columns[0].cells, table.columns[-1].cells, strict=True))
    assert cells["data:replicated"] == "16.4 kB" and cells["conv1"] == ""


def test_replicated_parameters_travel_twice(tmp_path):
    job, alone = prepared(), prepared(topology=None)
    assert Traffic.of(job, "train").replicated == round(2 * 2 / 3 * 17_258 * 4)
    assert "92 kB for replicated parameters" in draw_net(job, "train", tmp_path / "net.svg")
    coded = prepared(overrides=("cluster.codec=kHalf",))
    assert "(before kHalf encodes them)" in draw_net(coded, "train", tmp_path / "net.svg")
    assert draw_net(alone, "train", tmp_path / "net.svg") == "17,258 parameters"
    (table, *_) = net_tables(job)
    assert [column.header for column in table.columns] == ["layer", "type", "output", "parameters", "partition"]


def test_time_steps_are_shown(tmp_path):
    draw_net(prepared("char-rnn", topology=None), "train", tmp_path / "net.svg")
    assert "50 steps of 512" in texts(tmp_path / "net.svg")


@pytest.mark.parametrize("job", ["alexnet", "char-rnn"])
def test_text_stays_in_its_box_and_nothing_overlaps(tmp_path, figures, job):
    """AlexNet over 3 workers has 23 layers and 9 transitions."""
    topology = None if job == "char-rnn" else "allreduce"
    ready = prepared(job, overrides=SPLIT if topology else (), topology=topology)
    draw_net(ready, "train", tmp_path / "net.png")
    figure, axes = figures[0], figures[0].axes[0]
    renderer = figure.canvas.get_renderer()
    boxes = [p.get_window_extent(renderer) for p in axes.patches if isinstance(p, FancyBboxPatch)]
    words = [text.get_window_extent(renderer) for text in axes.texts]
    assert len(boxes) == len(ready.layers["train"])
    assert not [pair for pair in combinations(boxes, 2) if pair[0].overlaps(pair[1])]
    assert not [pair for pair in combinations(words, 2) if pair[0].overlaps(pair[1])]
    for word in words:
        assert figure.bbox.containsx(word.x0) and figure.bbox.containsx(word.x1)
        for box in filter(word.overlaps, boxes):
            assert box.x0 <= word.x0 and word.x1 <= box.x1 and box.y0 <= word.y0 and word.y1 <= box.y1


def test_the_same_net_is_the_same_file(tmp_path):
    job = prepared()
    for name in ("a.svg", "b.svg"):
        draw_net(job, "train", tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("net.pdf", "--out: the suffix selects the format, .svg or .png. Received: net.pdf"),
        (f"{__file__}/net.svg", "--out: cannot be written"),
    ],
)
def test_files_that_cannot_be_written(path, words):
    with pytest.raises(ConfigError, match=words):
        draw_net(prepared(), "train", Path(path))


def test_shapes_come_from_the_job_if_it_has_them():
    job = Job.from_file(example())
    assert has_shapes(job, Phase.kTest)
    del job.proto.neuralnet.layer[0].store_conf.shape[:]
    assert not has_shapes(job, Phase.kTest)
