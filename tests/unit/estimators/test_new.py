"""Job files for shards."""

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from support.shards import write_shards

from singa_dask import load_model, shard
from singa_dask.cli import main
from singa_dask.data import shard_files
from singa_dask.errors import ConfigError, DataError
from singa_dask.estimators.new import write_job
from singa_dask.job import Job
from singa_dask.monitor.progress import Display
from singa_dask.supervision.driver import train

DRAW = np.random.default_rng(0)
ROWS = 120
LITTLE = "accuracy would say little"


def normal(*shape):
    return DRAW.normal(size=(ROWS, *shape)).astype(np.float32)


def trained(path, tmp_path, **fields):
    """What the job file reaches after a few steps."""
    job = Job.from_file(path, [f"{name}={value}" for name, value in ({"train_steps": 4} | fields).items()])
    return train(job, processes=False, workspace=tmp_path / "run", display=Display(), curves=False)


CLASSES = DRAW.integers(0, 3, ROWS)
DATA = {
    "vectors, classes": (normal(5), CLASSES, ["hidden1", "hidden2"], {"f1", "accuracy"}),
    "vectors, a number": (normal(5), normal(), ["hidden1", "hidden2"], {"mae", "r2"}),
    "vectors, numbers": (normal(5), normal(2), ["hidden1", "hidden2"], {"mae", "r2"}),
    "images, channels first": (normal(3, 16, 12), CLASSES, ["conv1", "pool1", "conv2", "hidden1"], {"f1"}),
    "fields without channels": (normal(8, 8), normal(8, 8), ["down1a", "wide1", "skip1", "up1b"], {"mae"}),
    "fields, channels first": (normal(3, 16, 24), normal(2, 16, 24), ["pool2", "down3b", "skip2", "skip1"], {"r2"}),
    "fields of odd sizes": (normal(9, 15), normal(9, 15), ["conv1", "conv2", "conv3", "output"], {"mae"}),
    "fields to smaller ones": (normal(8, 8), normal(4, 4), ["conv1", "hidden1"], {"mae"}),
    "maps of classes": (normal(8, 12, 2), DRAW.integers(0, 3, (ROWS, 8, 12)), ["down1a", "skip1"], {"iou", "dice"}),
    "volumes": (normal(2, 4, 4, 4), CLASSES, ["hidden1", "hidden2"], {"f1"}),
    "images too small to convolve": (normal(3, 2, 2), CLASSES, ["hidden1", "hidden2"], {"f1"}),
}


@pytest.mark.parametrize("kind", DATA)
def test_a_job_suits_its_data_and_trains(tmp_path, kind):
    x, y, layers, metrics = DATA[kind]
    write_shards(tmp_path / "shards", x, y, classes=3 if y.dtype.kind == "i" else None)
    job = write_job(str(tmp_path / "shards"), tmp_path / "job.conf")
    found = [layer.name for layer in job.proto.neuralnet.layer]
    assert [name for name in found if name in layers] == layers
    assert ("conv1" in found) == ("conv1" in layers)
    result = trained(tmp_path / "job.conf", tmp_path)
    assert metrics <= set(result.summary["validate"])
    assert Job.from_file(tmp_path / "job.conf") == job
    checked = CliRunner().invoke(main, ["check", str(result.workspace / "job.conf")])  # as it was resolved
    assert checked.exit_code == 0, checked.output


def test_fields_of_several_variables_are_channels(tmp_path):
    x = {"sst": normal(8, 8), "slp": normal(8, 8)}
    for name, y in (("fields", normal(8, 8)), ("numbers", normal())):
        shard(x, y, tmp_path / name, validation=0.2, sample_weight=np.ones(ROWS))
        said = CliRunner().invoke(main, ["new", str(tmp_path / name), "--out", str(tmp_path / f"{name}.conf")]).output
        assert "sst, slp: stacked as the 2 channels of one image." in said
        result = trained(tmp_path / f"{name}.conf", tmp_path)
        model = load_model(result.workspace)
        assert model.predict({**x}).shape[0] == ROWS
        assert model.net.shapes["stacked"] == (8, 8, 2)


def test_columns_that_are_not_read_are_named_on_the_screen(tmp_path):
    shard({"a": normal(5), "b": normal(3)}, CLASSES, tmp_path / "shards")
    said = CliRunner().invoke(main, ["new", str(tmp_path / "shards"), "--out", str(tmp_path / "job.conf")]).output
    assert "Not read: b. Further input layers read them" in said
    trained(tmp_path / "job.conf", tmp_path)


@pytest.mark.parametrize(("classes", "metrics"), [(2, ["auc", "f1"]), (3, ["f1"])])
def test_a_rare_class_is_not_judged_by_accuracy(tmp_path, classes, metrics):
    labels = np.zeros(1000, int)
    labels[:26], labels[26 : 300 * (classes - 2)] = 1, 2
    write_shards(tmp_path / "shards", DRAW.normal(size=(1000, 4)), labels, shuffle_seed=0, classes=classes)
    said = []
    job = write_job(str(tmp_path / "shards"), tmp_path / "job.conf", said.append)
    assert (job.proto.metric, job.proto.keep_best) == (metrics, f"validate.{metrics[0]}")
    assert said == [f"keep_best: validate.{metrics[0]}. The class 1 is rare (2.6 % of the samples), so that {LITTLE}."]


def test_the_smallest_of_many_like_classes_is_not_rare(tmp_path):
    write_shards(tmp_path / "shards", DRAW.normal(size=(1000, 4)), np.arange(1000) % 12, shuffle_seed=0, classes=12)
    said = []
    job = write_job(str(tmp_path / "shards"), tmp_path / "job.conf", said.append)
    assert (job.proto.keep_best, said) == ("validate.accuracy", [])


def test_maps_of_another_size_get_no_proposal(tmp_path):
    write_shards(tmp_path / "shards", normal(8, 8), DRAW.integers(0, 2, (ROWS, 4, 4)))
    with pytest.raises(ConfigError, match="no net is proposed for labels of positions"):
        write_job(str(tmp_path / "shards"), tmp_path / "job.conf")


def test_the_comments_say_what_the_data_are_and_what_to_do_next(tmp_path):
    write_shards(tmp_path / "shards", normal(3, 16, 12), CLASSES, classes=3)
    write_job(str(tmp_path / "shards"), tmp_path / "mine.conf")
    text = (tmp_path / "mine.conf").read_text()
    assert "# 120 samples: 'x', 3 x 16 x 12 float32, to predict 'y', 3 classes." in text
    assert "# Train: singa-dask train mine.conf" in text
    assert "# The share of the samples that is never trained on.\n      validation_share: 0.1" in text


def test_splits_are_found_and_measured_as_a_whole(tmp_path):
    for split, rows in (("train", 120), ("validation", 70), ("test", 30)):
        write_shards(tmp_path / "shards" / split, normal(4)[:rows], CLASSES[:rows], classes=3)
    job = write_job(str(tmp_path / "shards"), tmp_path / "job.conf").proto
    stores = [layer.store_conf for layer in job.neuralnet.layer if not layer.srclayers]
    assert [Path(store.path).name for store in stores] == ["train", "validation", "test"]
    assert [store.batchsize[0] for store in stores] == [64, 70, 30]
    assert not any(store.validation_share for store in stores)
    assert (job.validate_steps, job.test_steps, job.test_freq) == (0, 0, job.train_steps)
    result = trained(tmp_path / "job.conf", tmp_path, test_freq=4)
    assert result.test and result.summary["validate"]


def test_weights_of_samples_are_read(tmp_path):
    write_shards(tmp_path / "shards", normal(4), CLASSES, classes=3, weight=np.ones(ROWS))
    job = write_job(str(tmp_path / "shards"), tmp_path / "job.conf").proto
    assert list(job.neuralnet.layer[-1].srclayers) == ["output", "data", "sample_weight"]
    trained(tmp_path / "job.conf", tmp_path)


def test_a_text_gets_a_net_that_predicts_the_next_symbol(tmp_path):
    (tmp_path / "text.txt").write_text("to be or not to be, that is the question. " * 30)
    shard_files("text", tmp_path / "shards", source=tmp_path / "text.txt", validation=0.2)
    job = write_job(str(tmp_path / "shards"), tmp_path / "job.conf")
    assert job.proto.neuralnet.unroll_len > 1
    result = trained(tmp_path / "job.conf", tmp_path)
    assert 0 < result.summary["validate"]["loss"] < 5


def test_a_file_is_never_overwritten(tmp_path):
    (tmp_path / "job.conf").write_text("mine")
    done = CliRunner().invoke(main, ["new", str(tmp_path), "--out", str(tmp_path / "job.conf")])
    assert (done.exit_code, (tmp_path / "job.conf").read_text()) == (2, "mine")
    assert "out: exists already" in done.output and "Name another file, or remove it." in done.output


def test_the_command_names_the_next_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_shards("shards", normal(4), CLASSES, classes=3)
    done = CliRunner().invoke(main, ["new", "shards"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "run `singa-dask train job.conf`" in done.output
    assert str(tmp_path / "shards") in (tmp_path / "job.conf").read_text()


@pytest.mark.parametrize(
    ("folder", "error", "message"),
    [("shards", ConfigError, "have neither labels nor targets"), ("no", DataError, "is not a folder of shards")],
)
def test_what_has_nothing_to_predict_is_refused(tmp_path, folder, error, message):
    write_shards(tmp_path / "shards", normal(4))
    with pytest.raises(error, match=message):
        write_job(str(tmp_path / folder), tmp_path / "job.conf")
    assert not (tmp_path / "job.conf").exists()
