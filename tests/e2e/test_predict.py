"""From a table to a trained net, and from files, shards and a cluster to predictions with names."""

import shutil
from functools import partial

import h5py
import numpy as np
import onnxruntime
import pandas as pd
import pytest
from support.commands import run_here, sets
from support.leaks import leaks_forbidden

from singa_dask import load_model

JOB = """
name: "clouds" train_steps: 40 disp_freq: 40
train_one_batch { alg: kBP }
updater { type: kAdam learning_rate { type: kFixed base_lr: 0.1 } }
neuralnet {
  layer { name: "data" type: kCSVInput include: kTrain store_conf { path: "shards" batchsize: 30 normalise: true } }
  layer { name: "scores" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 2 } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "scores" srclayers: "data" }
}
"""


@pytest.fixture(scope="module")
def trained(environment, tmp_path_factory):
    """A folder with a run, and the table that it was trained on."""
    folder = tmp_path_factory.mktemp("trained")
    draw = np.random.default_rng(0)
    kinds = draw.integers(0, 2, 300)
    table = pd.DataFrame(draw.normal(size=(300, 3)) + 4 * kinds[:, None], columns=list("xyz"))
    table["kind"] = np.array(["near", "far"])[kinds]
    table.to_csv(folder / "table.csv", index=False)
    (folder / "job.conf").write_text(JOB)
    shard = ("shard", "csv", "--source", "table.csv", "--label", "kind", "--out", "shards", "--no-shuffle")
    with leaks_forbidden():
        for command in (shard, ("train", "job.conf", "--workspace", "run")):
            run_here(*command, cwd=folder, env=environment, code=0)
    return folder, table


def test_a_run_predicts_files_here_and_on_a_cluster(singa_dask, here, trained, tmp_path, no_leaks):
    folder, table = trained
    for name in ("run", "shards"):  # the run has the job
        shutil.copytree(folder / name, tmp_path / name)
    ran = here("predict", "run", "--data", "shards")
    assert ran.last_line == "run/checkpoint/step-00000040.h5: wrote 300 predictions to predictions.csv"
    alone = pd.read_csv(tmp_path / "predictions.csv")
    assert list(alone.columns) == ["sample", "label", "class", "probability", "probability_far", "probability_near"]
    assert list(alone["label"]) == list(table["kind"])
    assert (alone["label"] == alone["class"]).mean() > 0.98
    new = table.drop(columns="kind")
    new.to_csv(tmp_path / "new.csv", index=False)
    singa_dask("predict", "run", "--data", "new.csv", "--out", "new.parquet", "--workers", 2)
    expected = alone.drop(columns="label")
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "new.parquet"), expected, check_dtype=False, rtol=1e-4)
    with h5py.File(tmp_path / "new.h5", "w") as file:
        file["table/features"] = new.to_numpy(np.float32)
    here("predict", "run", "--data", "new.h5", "--x", "table/features", "--out", "p.h5")
    with h5py.File(tmp_path / "p.h5") as file:
        probabilities = file["loss/probabilities"]
        assert list(probabilities.attrs["classes"]) == ["far", "near"]
        np.testing.assert_allclose(probabilities[:, 0], alone["probability_far"], rtol=1e-4, atol=1e-6)


def test_a_run_is_exported_with_its_normalisation(trained, environment, tmp_path):
    folder, table = trained
    export = partial(run_here, "export", "job.conf", "--checkpoint", "run", cwd=folder, env=environment)
    told = export("--onnx", tmp_path / "model" / "clouds.onnx", code=0)
    assert "inputs data; outputs loss" in told.out
    raw = table[list("xyz")].to_numpy(np.float32)
    (scores,) = onnxruntime.InferenceSession(tmp_path / "model" / "clouds.onnx").run(["loss"], {"data": raw})
    np.testing.assert_allclose(scores, load_model(folder / "run").predict(raw), atol=1e-5)
    refused = export("--onnx", "job.conf/clouds.onnx", code=2)
    assert "error: --onnx: cannot be written" in refused.err


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["run"], 2, "--data: is missing, and the job has no test data"),
        (["job.conf"], 2, "is a job file: give --checkpoint"),
        (["run", "--checkpoint", "run"], 2, "leave one out"),
        (["run", "--out", "p.xls"], 2, "--out: must end in .csv, .parquet, .h5, .hdf5"),
        (["run", "--data", "none.csv"], 2, "--data: does not exist"),
        (["run", "--x", "a"], 2, "--x, --y and the options of reading are for --data"),
        (["run", "--workers", "2", "--scheduler", "tcp://127.0.0.1:1"], 2, "--workers starts a local"),
        (["shards"], 1, "no checkpoint found"),
        (["run", *sets(neuralnet__nothing=1)], 2, "nothing"),
    ],
)
def test_wrong_calls_say_the_way_out(trained, environment, arguments, code, told):
    folder, _ = trained
    assert told in run_here("predict", *arguments, cwd=folder, env=environment, code=code).err
    assert not list(folder.glob("*p.*")) and not (folder / "predictions.csv").exists()


def test_a_table_with_categories_becomes_numbers_with_the_name_of_the_target(here, tmp_path):
    draw = np.random.default_rng(0)
    colours, area = draw.integers(0, 3, 900), draw.normal(50, 10, 900)
    table = pd.DataFrame({"colour": np.array(["red", "green", "blue"])[colours], "area": area})
    table["price"] = 1000 * colours + 20 * area
    table.to_csv(tmp_path / "houses.csv", index=False)
    here("shard", "csv", "--source", "houses.csv", "--target", "price", "--out", "shards")
    net = JOB[: JOB.index("layer { name")].replace("clouds", "houses").replace("40", "150")
    store = 'path: "shards" batchsize: 50 normalise: true normalise_target: true'
    (tmp_path / "job.conf").write_text(
        f"""{net}
          layer {{ name: "data" type: kRecordInput store_conf {{ {store} }} }}
          layer {{ name: "size" type: kInnerProduct srclayers: "data" innerproduct_conf {{ num_output: 1 }} }}
          layer {{ name: "loss" type: kEuclideanLoss srclayers: "size" srclayers: "data" }}
        }}"""
    )
    here("train", "job.conf", "--workspace", "run")
    here("predict", "run", "--data", "houses.csv")
    found = pd.read_csv(tmp_path / "predictions.csv")
    assert list(found.columns) == ["sample", "true_price", "price"]
    np.testing.assert_allclose(found["true_price"], table["price"], rtol=1e-4)
    np.testing.assert_allclose(found["price"], table["price"], atol=60)
    predicted = load_model(tmp_path / "run").predict(table)
    np.testing.assert_allclose(predicted["price"], found["price"], rtol=1e-4)
    table.assign(colour="pink").to_csv(tmp_path / "pink.csv", index=False)
    ran = here("predict", "run", "--data", "pink.csv", "--out", "pink.h5", code=1)
    assert "the category 'pink' was not in the training data" in ran.err
    assert not (tmp_path / "pink.h5").exists()
