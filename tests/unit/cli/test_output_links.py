"""What commands write: never through a link, nor in place of a device."""

import os

import numpy as np
import pytest
from support.shards import write_shards
from support.special_files import CALLED, intact, put

from singa_dask import updaters
from singa_dask.data import Manifest
from singa_dask.data.resolve import _lock
from singa_dask.inference.blocks import Samples
from singa_dask.inference.files import LayerOutput, writing
from singa_dask.job import Job, job_to_text
from singa_dask.layers import InnerProduct, RecordInput, SoftmaxLoss
from singa_dask.monitor.curves import draw_curves
from singa_dask.monitor.plots import plot_confusion
from singa_dask.monitor.progress import Display
from singa_dask.ops.cpu.toolkit.compile_lock import CompileLock
from singa_dask.profiling import store
from singa_dask.supervision.driver import train

pytestmark = pytest.mark.timeout(30, method="signal", func_only=True)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run with a plan-free job: its workspace, and its job file."""
    folder = tmp_path_factory.mktemp("trained")
    labels = np.arange(60) % 2
    write_shards(folder / "data", np.stack([labels, 1 - labels], 1).astype(np.float32), labels, classes=2)
    layers = [RecordInput(path=str(folder / "data"), batchsize=30), InnerProduct(num_output=2), SoftmaxLoss()]
    job = Job(name="points", layers=layers, updater=updaters.SGD(lr=0.1), train_steps=2, checkpoint_freq=2)
    (folder / "job.conf").write_text(job_to_text(job.proto))
    train(job, processes=False, workspace=folder / "run", display=Display(), curves=False)
    return folder


COMMANDS = {
    "predict": (("predict", "RUN", "--data", "DATA", "--out", "out.csv"), "--out"),
    "predict to HDF5": (("predict", "RUN", "--data", "DATA", "--out", "out.h5"), "--out"),
    "show": (("show", "JOB", "--out", "out.png"), "--out"),
    "export": (("export", "RUN", "--onnx", "out.onnx"), "--onnx"),
    "plan": (("plan", "JOB", "--profile", "none.json", "--json", "out.json"), "--json"),
    "profile": (("profile", "--show", "--json", "out.json"), "--json"),
}


@pytest.mark.parametrize("kind", ["link", "fifo", "socket", "folder"])
@pytest.mark.parametrize("command", COMMANDS)
def test_an_output_that_is_no_file_is_refused_before_any_work(here, trained, tmp_path, victim, command, kind):
    words, option = COMMANDS[command]
    path = tmp_path / words[-1]
    if kind == "link":
        path.symlink_to(victim)
    else:
        put(kind, path)
    names = {"RUN": trained / "run", "DATA": trained / "data", "JOB": trained / "job.conf"}
    ran = here(*(names.get(word, word) for word in words))
    called = CALLED.get(kind, "a symbolic link")
    assert ran.code == 2 and f"'{option}': '{words[-1]}' is {called}" in ran.err, ran
    assert intact(victim) and (path.is_symlink() if kind == "link" else path.exists() and not path.is_file())


@pytest.mark.parametrize("there", [True, False])
def test_shards_are_written_where_a_link_leads(here, tmp_path, there):
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "disk" / "shards")
    if there:
        (tmp_path / "disk" / "shards").mkdir()
    (tmp_path / "rows.csv").write_text("a,b\n" + "1,2\n3,4\n" * 5)
    for more in ((), ("--overwrite",)):
        ran = here("shard", "csv", "--source", "rows.csv", "--y", "b", "--out", "out", *more)
        assert ran.code == 0 and (tmp_path / "out").is_symlink(), ran
    assert Manifest.load(tmp_path / "disk" / "shards").total == 10
    assert [path.name for path in (tmp_path / "disk").iterdir()] == ["shards"]


def predictions(path):
    outputs = [LayerOutput("scores", classifies=False, names=("a",))]
    with writing(path, outputs) as write:
        write(Samples(np.arange(2), {"scores": np.ones((2, 1))}, {}))


def curves(path):
    draw_curves([{"group": 0, "phase": "train", "step": step, "loss": 1.0} for step in (1, 2)], path, "points")


# What writes, at which path, with which other names beside it that can be told beforehand.
WRITERS = {
    "predictions.csv": (predictions, "predictions.csv", f".predictions.csv.{os.getpid()}.tmp"),
    "predictions.h5": (predictions, "predictions.h5", f".predictions.h5.{os.getpid()}.tmp"),
    "predictions.parquet": (predictions, "predictions.parquet", f".predictions.parquet.{os.getpid()}.tmp"),
    "curves": (curves, "curves.png", "curves.png"),
    "confusion": (lambda path: plot_confusion(np.eye(2), path), "confusion.png", "confusion.png"),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_a_writer_follows_no_link(tmp_path, victim, writer):
    write, name, predicted = WRITERS[writer]
    (tmp_path / predicted).symlink_to(victim)
    write(tmp_path / name)
    assert intact(victim) and (tmp_path / name).stat().st_size and not (tmp_path / name).is_symlink()
    assert {path.name for path in tmp_path.iterdir()} == {name, "victim", predicted}


def compiles(folder):
    CompileLock().acquire(folder)


def locks(folder):
    with _lock(folder / "digits.lock"):
        pass


def measures(folder):
    with store.locked("here", print):
        pass


@pytest.mark.parametrize(
    ("take", "name"), [(compiles, "compiling"), (locks, "digits.lock"), (measures, "profiles/here.lock")]
)
def test_a_lock_of_a_cache_neither_empties_nor_makes_what_a_link_names(tmp_path, monkeypatch, victim, take, name):
    monkeypatch.setenv("SINGA_DASK_CACHE", str(tmp_path))
    (tmp_path / "profiles").mkdir()
    (tmp_path / name).symlink_to(victim)
    take(tmp_path)
    assert intact(victim)
    victim.unlink()
    if take is not measures:
        take(tmp_path)
    assert not victim.exists()
