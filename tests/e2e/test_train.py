"""`singa-dask train`: what it reaches, what it leaves behind, and how it goes on."""

import re

import h5py
import numpy as np
import pytest
from support import commands
from support.commands import ROOT, audited, cluster, example, metrics, parameters, sets, summary
from support.leaks import leaks_forbidden
from support.traces import check_trace

from singa_dask.training.checkpoint import newest
from singa_dask.training.history import metrics_of

SHORT = sets(train_steps=12, test_freq=0, test_steps=0, checkpoint_freq=0, disp_freq=4)


@pytest.fixture(scope="module")
def whole(environment, tmp_path_factory):
    """The workspace of a short run by three workers that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    options = ("--cluster", cluster(), *SHORT, "--workspace", "run", "--trace", "9:12")
    with leaks_forbidden():
        commands.run("train", example(), *options, cwd=folder, env=environment, code=0)
    return folder / "run"


def updater_state(workspace):
    with h5py.File(newest(workspace / "checkpoint")[0].path) as file:
        return {name: data[()] for name, data in file["updater/velocity"].items()}


def test_digits_with_three_workers(singa_dask, here, tmp_path, no_leaks):
    ran = singa_dask("train", example(), "--cluster", cluster())
    workspace = tmp_path / "runs" / "digits-allreduce"
    told = summary(workspace)
    assert (told["status"], told["strategy"], told["topology"]["nworkers_per_group"]) == ("completed", "allreduce", 3)
    assert told["step"] == told["train_steps"] == 600
    assert told["test"]["accuracy"] >= 0.97
    assert told["samples_per_s"] > 0
    operations, shares = told["groups"]["0"]["operations"], [told["groups"]["0"][name] for name in ("wait", "loading")]
    assert all(len(share) == 3 and all(0 <= part <= 1 for part in share) for share in shares)
    assert sum(done["bytes"] for done in operations.values()) == told["exchanged_bytes"]
    assert operations["reduce_scatter"]["seconds"] > 0 and operations["reduce_scatter"]["bytes"] > 0
    assert operations["barrier"]["seconds"] > 0  # nothing is sent on one machine, but the workers meet
    lead = told["groups"]["0"]
    assert len(lead["processes"]) == 3 and lead["steps"] == 600 and told["began"] < lead["began"]
    assert min(lead["seconds"], lead["evaluating_s"], lead["saving_s"]) > 0
    assert lead["seconds"] + lead["evaluating_s"] + lead["saving_s"] < told["wall_s"]
    assert here("why", "digits-allreduce").out.count(". ") < 3
    assert f"test loss {told['test']['loss']:.4f}  accuracy {told['test']['accuracy']:.4f}" in ran.last_line
    assert str(workspace) in ran.last_line
    assert (workspace / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(p.name for p in (workspace / "checkpoint").iterdir()) == ["step-00000300.h5", "step-00000600.h5"]
    rows = metrics(workspace)
    assert [row["step"] for row in rows if row["phase"] == "train"] == list(range(50, 601, 50))
    assert [row["step"] for row in rows if row["phase"] == "test"] == list(range(0, 601, 100))
    assert metrics_of(rows[-1]) == told["test"]

    shown = here("audit", "digits-allreduce")
    assert shown.err == "" and re.search(r"^0 +0-599 +0-599 +- +- *$", shown.out, re.MULTILINE)
    assert shown.out.splitlines()[-1] == "clean: 600 mini-batches contained once"

    smaller = sets(**{"neuralnet__layer[1]__store_conf__batchsize": 100})  # the job has test_steps: 1
    tested = here("test", example(), "--checkpoint", workspace, *smaller)
    assert f"accuracy {told['test']['accuracy']:.4f}" in tested.out
    some = here("test", example(), "--checkpoint", workspace, *smaller, *sets(test_steps=1))
    assert re.search(r"accuracy \d\.\d\d00;", some.out) and some.out != tested.out

    here("predict", example(), "--checkpoint", workspace, "--out", "out.csv")
    header, *lines = (tmp_path / "out.csv").read_text().splitlines()
    probabilities = [f"probability_{digit}" for digit in range(10)]
    assert header.split(",") == ["sample", "label", "class", "probability", *probabilities]
    table = np.array([line.split(",") for line in lines], float)
    assert table[:, 0].tolist() == list(range(len(table)))
    assert np.mean(table[:, 1] == table[:, 2]) == pytest.approx(told["test"]["accuracy"], abs=1e-6)


def test_one_worker_three_and_separate_servers_reach_the_same_parameters(singa_dask, here, tmp_path, whole, no_leaks):
    here("train", example(), "--workspace", "serial", *SHORT)
    singa_dask("train", example(), "--cluster", cluster("sandblaster"), "--workspace", "sandblaster", *SHORT)
    serial = parameters(tmp_path / "serial")
    for workspace in (whole, tmp_path / "sandblaster"):
        for name, value in parameters(workspace).items():
            np.testing.assert_allclose(value, serial[name], rtol=1e-5, atol=1e-6, err_msg=f"{name}, {workspace}")


def test_the_last_steps_of_a_run_are_traced(whole):
    seen = check_trace(whole / "trace.pftrace", {f"worker group 0, rank {rank}" for rank in range(3)}, range(9, 12))
    assert {span.process.split(",")[0] for span in seen} == {"worker group 0"}, "its servers are in its processes"
    assert {"saving"} <= {span.name for span in seen}


def test_resume_is_bit_identical(singa_dask, here, tmp_path, whole, no_leaks):
    parts = tmp_path / "parts"
    train = ["train", example(), "--workspace", "parts", "--cluster", cluster(), *SHORT]
    singa_dask(*train, *sets(train_steps=5))
    assert "from step 5" in singa_dask(*train, "--resume").out
    for read in (parameters, updater_state):
        for name, value in read(parts).items():
            np.testing.assert_array_equal(value, read(whole)[name])
    assert [row["step"] for row in metrics(parts)] == [4, 5, 8, 12]
    assert audited(parts)[0]["contained"] == [[0, 12]]

    before = summary(parts)
    other = sets(**{"neuralnet__layer[ip1]__innerproduct_conf__num_output": 32, "updater__type": "kAdam"})
    refused = here(*train, *other, *sets(resume="true"), code=1)
    assert "'w_ip1': (256, 64) in the checkpoint, (256, 32) in this job" in refused.err
    assert "updater state: velocity in the checkpoint, mean, squares in this job" in refused.err
    assert summary(parts) == before, "a refused resume touches nothing"


def test_a_run_resumes_with_another_number_of_worker_groups(singa_dask, tmp_path, no_leaks):
    options = ["train", example(), "--workspace", "run", *SHORT]
    singa_dask(*options, "--cluster", cluster("hogwild"), *sets(train_steps=4))
    ran = singa_dask(*options, *sets(cluster__nworker_groups=2, cluster__nserver_groups=1), "--resume")
    was, now = "Distributed Hogwild (asynchronous): 3 worker groups", "Downpour (asynchronous): 2 worker groups"
    assert f"resumed with another cluster. Before: {was}" in ran.out + ran.err
    assert f"Now: {now}" in ran.out + ran.err and "from step 4" in ran.out
    told = summary(tmp_path / "run")
    assert (told["status"], told["step"], len(told["groups"])) == ("completed", 12, 2)
    assignments = {(row["assignment"]["groups"], row["group"]): row["contained"] for row in audited(tmp_path / "run")}
    assert assignments == {**{(3, g): [[0, 4]] for g in range(3)}, **{(2, g): [[4, 12]] for g in range(2)}}


def test_the_class_in_the_docs_trains_on_workers_and_is_exported(singa_dask, here, tmp_path, no_leaks):
    """A residual net as docs/nets.md writes it; called on arrays it computes too."""
    text = (ROOT / "docs" / "nets.md").read_text()
    blocks = [block.split("```")[0] for block in text.split("```python")[1:3]]
    made: dict = {}
    exec("".join(blocks), made)
    assert made["scores"].shape == (5, 10)
    (tmp_path / "job.conf").write_text(made["job"].to_text())
    few = sets(train_steps=120, disp_freq=20)
    ran = singa_dask("train", "job.conf", "--cluster", cluster("downpour"), "--workspace", "run", *few)
    assert float(re.findall(r"accuracy +([\d.]+)", ran.out)[-1]) > 0.8, ran.out
    here("export", "job.conf", "--checkpoint", "run", "--onnx", "net.onnx")


def test_the_layer_in_the_docs_trains(here, tmp_path):
    """A user's layer, in a module in the current folder, as docs/own-layers.md writes it."""
    text = (ROOT / "docs" / "own-layers.md").read_text()
    (tmp_path / "my_module.py").write_text(text.split("```python")[1].split("```")[0])
    job = example().read_text().replace('srclayers: "ip1" }', 'srclayers: "s" }')
    own = '  layer { name: "s" user_type: "my_module:Scale" srclayers: "ip1" }\n'
    (tmp_path / "job.conf").write_text(job.replace('  layer { name: "relu2"', own + '  layer { name: "relu2"'))
    here("train", "job.conf", *sets(train_steps=60, test_freq=60), "--workspace", "run")
    assert summary(tmp_path / "run")["test"]["accuracy"] > 0.8
    assert abs(parameters(tmp_path / "run")["s_factor"][0] - 1) > 1e-3


def test_a_diverging_run_fails_and_says_why(here, tmp_path):
    ran = here("train", example(), *SHORT, *sets(updater__learning_rate__base_lr=1e30), "--workspace", "run", code=1)
    assert "diverged" in ran.err and "base_lr" in ran.err
    told = summary(tmp_path / "run")
    assert told["status"] == "failed" and "diverged" in told["error"]


def test_resume_without_a_checkpoint_says_so(here):
    assert "no valid checkpoint to resume from" in here("train", example(), *SHORT, "--resume", code=1).err
