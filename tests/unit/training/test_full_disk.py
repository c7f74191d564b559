"""Commands that write on a full disk: one sentence, exit code 1, and nothing is left."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import h5py
import numpy as np
import pytest
from support.commands import run_here
from support.limits import small_disk
from support.shards import write_shards

from singa_dask import Job, Model, layers, updaters
from singa_dask.inference.raw_file import RawFile
from singa_dask.job import job_to_text
from singa_dask.job.job_pb2 import Phase
from singa_dask.training import checkpoint as checkpoints
from singa_dask.training.prepare import prepare

SAMPLES, OUTPUTS = 3000, 40


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, whose net was not trained, and its data."""
    folder = tmp_path_factory.mktemp("full")
    draw = np.random.default_rng(0)
    x, y = (draw.normal(size=(SAMPLES, columns)).astype("f4") for columns in (4, OUTPUTS))
    write_shards(folder / "data", x, y, 1)
    np.savez(folder / "own.npz", x=x, y=y)
    read = layers.RecordInput(path=str(folder / "data"), batchsize=10)
    net = [read, layers.InnerProduct(num_output=OUTPUTS), layers.EuclideanLoss()]
    job = Job(name="x", layers=net, updater=updaters.SGD(lr=0.1), train_steps=8)
    prepared = prepare(job, phases=[Phase.kTest])
    values = Model(prepared.job.neuralnet, seed=0).state_dict()
    saved = checkpoints.Checkpoint(8, 0, job_to_text(prepared.job), values, described=prepared.described)
    checkpoints.save(saved, checkpoints.path_of(folder / "run" / "checkpoint", 8))
    return folder


COMMANDS = {
    "csv": "predict run --data data --out DISK/p.csv",
    "parquet": "predict run --data data --out DISK/p.parquet",
    "shard": "shard npz --source own.npz --out DISK/shards",
    "export": "export run --onnx DISK/net.onnx",
    "new": "new data --out DISK/job.conf",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_one_sentence_and_nothing_left(run, tmp_path, name):
    if name == "export":
        pytest.importorskip("onnx")
    full = tmp_path / "full"
    full.mkdir()
    command = COMMANDS[name].replace("DISK", str(tmp_path)).split()
    assert run_here(*command, cwd=run, env={}).code == 0  # imports and compiles
    command[-1] = str(full / Path(command[-1]).name)
    with small_disk(500):
        ran = run_here(*command, cwd=run, env={})
    assert ran.code == 1 and ran.err.startswith("error: ") and ran.err.count("\n") == 1, ran.err
    assert "its disk is full (File too large)" in ran.err and str(full) in ran.err
    assert not os.listdir(full)


PREDICT = """
    import resource, sys
    from singa_dask.cli import main

    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv.pop(1)), resource.RLIM_INFINITY))
    main()
"""


@pytest.mark.parametrize("nbytes", [1_000, 400_000], ids=["first rows", "later rows"])
def test_predictions_in_hdf5(run, tmp_path, nbytes):
    """In a process of its own: HDF5 itself crashes where it cannot write."""
    command = ["predict", "run", "--data", "data", "--out", str(tmp_path / "p.h5")]
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PREDICT), str(nbytes), *command],
        cwd=run, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert ran.returncode == 1 and ran.stderr.count("\n") == 1, ran.stderr
    assert f"error: {tmp_path / 'p.h5'}: its disk is full (File too large)" in ran.stderr
    assert not os.listdir(tmp_path)


def test_predictions_of_many_classes_in_hdf5(tmp_path):
    from singa_dask.inference.blocks import Samples
    from singa_dask.inference.files import LayerOutput, writing

    names = tuple(f"class number {i}" for i in range(10_000))
    scores = np.zeros((3, len(names)), np.float32)
    with writing(tmp_path / "p.h5", [LayerOutput("loss", True, names)]) as write:
        for first in range(0, 9, 3):
            write(Samples(np.arange(first, first + 3), {"loss": scores}, {"loss": np.array(names[:3], object)}))
    with h5py.File(tmp_path / "p.h5") as file:
        probabilities = file["loss/probabilities"]
        assert probabilities.shape == (9, len(names)) and probabilities.attrs["classes"][-1] == names[-1]
        assert file["loss/label"].asstr()[-1] == names[2] and file["sample"][-1] == 8


def test_what_found_no_room_is_read_back_from_memory(tmp_path):
    """HDF5 reads again what it wrote, in other pieces."""
    file = RawFile(tmp_path / "p.h5")
    with small_disk(4):
        for piece in (b"abcd", b"efgh", b"ijkl"):
            file.write(piece)
        file.seek(2)
        assert file.read(8) == b"cdefghij"
    with pytest.raises(OSError, match="File too large"):
        file.check()
    file.close()
