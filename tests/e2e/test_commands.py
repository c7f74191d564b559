"""The other commands, and what they say when something is wrong."""

import os
import signal
import subprocess
import time

import numpy as np
import onnxruntime
import pandas as pd
import psutil
import pytest
from support.commands import COMMAND, ROOT, cluster, example, metrics, said, sets, started, wait_until

from singa_dask import load_model

# heat needs its data for a check, since it normalises by their statistics; test_heat.py makes them.
EXAMPLES = sorted(path.parent.name for path in (ROOT / "examples").glob("*/job.conf") if path.parent.name != "heat")


@pytest.mark.parametrize("job", EXAMPLES)
def test_every_example_is_ready_to_run(here, job):
    ran = here("check", example(job), "--cluster", cluster(), "--no-data")
    assert ran.code == 0, ran.err
    assert f"{job}: ready to run; AllReduce" in ran.last_line
    assert "MPICH" in ran.out


def test_check_prints_the_net(here):
    ran = here("check", example())
    assert ran.code == 0, ran.err
    rows = [line.split() for line in ran.out.splitlines()]
    assert ["conv1", "Convolution", "8", "x", "8", "x", "16", "160", "batch"] in rows
    assert ["17,258"] in rows


def test_show_draws_a_net_whose_data_are_absent(singa_dask, here, tmp_path):
    split = sets(neuralnet__partition_dim=1)
    ran = singa_dask(
        "show", example("alexnet"), "--cluster", cluster(), *split, "--phase", "test", "--out", "a/net.png"
    )
    assert ran.code == 0, ran.err
    assert ran.last_line.startswith("a/net.png: 62,378,344 parameters; each worker sends per step ")
    assert (tmp_path / "a" / "net.png").read_bytes().startswith(b"\x89PNG")
    ran = here("show", example("alexnet"), "--out", "net.pdf")
    assert ran.code == 2
    assert "--out: the suffix selects the format, .svg or .png. Received: net.pdf. Use --out net.svg." in ran.err


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("updater.learning_rate.bas_lr=1", "Did you mean base_lr?"),
        ("neuralnet.layer[conv1].convolution_conf.kernel=50", "larger than the image"),
        ("neuralnet.layer[relu1].srclayers=[conv11]", "Did you mean conv1?"),
        ("cluster.nworkers_per_group=0", "cluster.nworkers_per_group"),
        (
            "neuralnet.layer[ip2].innerproduct_conf.num_output=5",
            "the data of 'data' have 10 classes. Received: 5 outputs",
        ),
        ("name=../x", "is used as a folder name"),
        ("neuralnet.layer[0].store_conf.path=dataset:digit/train", "digits"),
    ],
)
def test_each_fault_is_one_clear_line_and_exit_code_2(here, override, says):
    ran = here("check", example(), "--set", override)
    assert ran.code == 2, ran.err
    assert ran.out == ""
    lines = [line for line in ran.err.strip().splitlines() if not line.startswith("writing the shards")]
    assert lines
    assert all(line.startswith("error: ") for line in lines), ran.err
    assert says in ran.err


def test_a_missing_file_names_the_nearest_and_nothing_goes_on(environment, tmp_path, no_leaks):
    missing = ROOT / "examples" / "digit" / "job.conf"
    began = time.monotonic()
    with subprocess.Popen([*COMMAND, "train", missing], cwd=tmp_path, env=environment, stderr=subprocess.PIPE) as run:
        assert run.wait(40) == 2
        ended = time.monotonic()
        said = run.stderr.read().decode()  # until nobody has it open
        outlived = time.monotonic() - ended
    assert outlived < max(0.3, (ended - began) / 4), "a process outlives the command"
    assert said == f"error: job file: file not found. Received: {missing}. Did you mean {example()}?\n"


def test_ctrl_c_before_there_are_workers(environment, tmp_path, no_leaks):
    """A terminal sends it to the process that workers will be forked from as well, which is still importing then."""
    with started("train", example(), folder=tmp_path, env=environment) as run:
        command = psutil.Process(run.pid)
        wait_until(lambda: any("forkserver" in str(c.cmdline()) for c in command.children()), run, tmp_path)
        time.sleep(0.1)
        os.killpg(run.pid, signal.SIGINT)
        assert run.wait(40) == 130
    assert said(tmp_path) == "interrupted\n"


def test_ctrl_c_in_code_made_from_text(environment, tmp_path):
    """Python itself remembers such a one, and would have the command die of SIGINT although it caught it."""
    (tmp_path / "slow.py").write_text("exec('import signal; signal.raise_signal(signal.SIGINT)')\n")
    job = tmp_path / "job.conf"
    job.write_text(example().read_text().replace("type: kReLU", 'user_type: "slow:Layer"', 1))
    ran = subprocess.run([*COMMAND, "check", job], cwd=tmp_path, env=environment, capture_output=True, timeout=20)
    assert (ran.returncode, ran.stderr) == (130, b"interrupted\n")


def test_your_own_csv_from_file_to_predictions(singa_dask, here, tmp_path, no_leaks):
    """Two clouds of points: shards, training on 2 workers, test, predictions."""
    draw = np.random.default_rng(0)
    for name in ("train", "test"):
        kinds = draw.integers(0, 2, 300)
        points = draw.normal(size=(300, 3)) + 4 * kinds[:, None]
        lines = [f"{['near', 'far'][k]},{x:.4f},{y:.4f},{z:.4f}" for k, (x, y, z) in zip(kinds, points, strict=True)]
        (tmp_path / f"{name}.csv").write_text("kind,x,y,z\n" + "\n".join(lines) + "\n")
        options = ["--label", "kind", "--shards", 3, *(["--no-shuffle"] if name == "test" else [])]
        ran = here("shard", "csv", "--source", f"{name}.csv", "--out", name, *options)
        assert ran.code == 0, ran.err
        assert "300 samples in 3 shards" in ran.out
    (tmp_path / "job.conf").write_text(
        """
        name: "clouds" train_steps: 60 disp_freq: 20 test_freq: 60 test_steps: 6
        train_one_batch { alg: kBP }
        updater { type: kAdam learning_rate { type: kFixed base_lr: 0.1 } }
        cluster { nworkers_per_group: 2 nservers_per_group: 2 }
        neuralnet {
          layer { name: "data" type: kCSVInput exclude: kTest store_conf { path: "train" batchsize: 33 } }
          layer { name: "data" type: kCSVInput include: kTest store_conf { path: "test" batchsize: 50 } }
          layer { name: "scores" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 2 } }
          layer { name: "loss" type: kSoftmaxLoss srclayers: "scores" srclayers: "data" }
        }
        """
    )
    ran = singa_dask("train", "job.conf")
    assert ran.code == 0, ran.err
    rows = metrics(tmp_path / "runs" / "clouds-allreduce")
    assert rows[-1]["accuracy"] > 0.98
    other = sets(**{"neuralnet__layer[scores]__innerproduct_conf__num_output": 3})
    ran = here("test", "job.conf", "--checkpoint", "runs/clouds-allreduce", *other)
    assert ran.code == 1
    assert (
        "step-00000060.h5 does not fit this job: parameter 'scores_bias': (2,) in the checkpoint, (3,) in this job"
        in ran.err
    )
    assert (
        "'scores_weight': (3, 2) in the checkpoint, (3, 3) in this job. Give the job that it was trained with"
        in ran.err
    )
    ran = singa_dask("predict", "job.conf", "--checkpoint", "runs/clouds-allreduce", "--out", "out.csv")
    assert ran.code == 0, ran.err
    table = pd.read_csv(tmp_path / "out.csv")
    assert list(table.columns) == ["sample", "label", "class", "probability", "probability_far", "probability_near"]
    assert table["sample"].tolist() == list(range(300))
    assert (table["label"] == table["class"]).mean() == pytest.approx(rows[-1]["accuracy"])
    model = load_model(tmp_path / "runs" / "clouds-allreduce")
    assert model.classes == ("far", "near")
    likely = np.sort(model.predict(points).max(axis=1))
    np.testing.assert_allclose(likely, np.sort(table["probability"]), atol=1e-3)
    bare = "".join(f"{line.partition(',')[2]}\n" for line in (tmp_path / "test.csv").read_text().splitlines())
    (tmp_path / "new.csv").write_text(bare)
    options = ["--label", "none", "--no-shuffle", "--out", "new"]
    assert here("shard", "csv", "--source", "new.csv", *options).code == 0
    new = sets(
        **{"neuralnet__layer[1]__store_conf__path": "new", "neuralnet__layer[1]__store_conf__has_label": "false"}
    )
    ran = here("predict", "job.conf", "--checkpoint", "runs/clouds-allreduce", "--out", "new-out.csv", *new)
    assert ran.code == 0, ran.err
    assert (pd.read_csv(tmp_path / "new-out.csv")["class"] == table["class"]).all()
    ran = singa_dask("export", "job.conf", "--checkpoint", "runs/clouds-allreduce", "--onnx", "model/clouds.onnx")
    assert ran.code == 0, ran.err
    assert "inputs data; outputs loss" in ran.out
    raw = np.loadtxt(tmp_path / "test.csv", delimiter=",", skiprows=1, usecols=(1, 2, 3), dtype=np.float32)
    scores = onnxruntime.InferenceSession(tmp_path / "model" / "clouds.onnx").run(["loss"], {"data": raw})[0]
    assert np.sort(scores.max(axis=1)) == pytest.approx(
        np.sort(table["probability"]), abs=1e-5
    )  # shards deal the rows out
    kinds = np.loadtxt(tmp_path / "test.csv", delimiter=",", skiprows=1, usecols=0, dtype=str)
    assert np.mean(scores.argmax(axis=1) == (kinds == "near")) == pytest.approx(rows[-1]["accuracy"])
    ran = here("export", "job.conf", "--checkpoint", "runs/clouds-allreduce", "--onnx", "out.csv/clouds.onnx")
    assert ran.code == 2 and "error: --onnx: cannot be written" in ran.err


def test_help_is_there_at_once_and_without_dask(singa_dask):
    ran = singa_dask("train", "--help")
    assert ran.code == 0
    assert "--scheduler-file" in ran.out
