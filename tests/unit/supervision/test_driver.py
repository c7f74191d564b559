"""What a call of `train` starts, and what its result says."""

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.planned import predicted

from singa_dask.cluster import local_dask
from singa_dask.errors import CheckpointError, ConfigError
from singa_dask.job import ClusterTopology, Job
from singa_dask.supervision import driver
from singa_dask.supervision.driver import Result, train
from singa_dask.training.prepare import prepare
from singa_dask.training.workspace import Workspace

SUMMARY = {
    "job": "points",
    "run": "1a2b",
    "status": "completed",
    "stopped_by": None,
    "step": 8,
    "ended_early": None,
    "best": None,
    "checkpoint": "w/checkpoint/step-00000008.h5",
    "samples_per_s": 1234.5,
    "wall_s": 2.0,
    "test": {"accuracy": 0.5},
    "validate": {"accuracy": 0.25},
    "train": {"loss": 0.75},
}


def recorded(folder, **more):
    """The result of a run that was recorded in this folder."""
    workspace = Workspace(folder)
    workspace.open("job")
    workspace.append({"group": 0, "phase": "train", "step": 8, "loss": 0.75})
    (workspace.checkpoints / "step-00000008.h5").write_text("x")
    checkpoint = str(workspace.checkpoints / "step-00000008.h5")
    return Result({**SUMMARY, "run": workspace.id, "checkpoint": checkpoint, **more}, folder)


BEST = {"metric": "validate.accuracy", "value": 0.87654, "step": 4, "checkpoint": "/moved/checkpoint/best.h5"}
NOTHING = {"samples_per_s": 0.0, "test": {}, "validate": {}, "train": {}}
STOPPED = NOTHING | {"status": "interrupted", "stopped_by": "Ctrl-C"}


@pytest.mark.parametrize(
    ("more", "expected", "text"),
    [
        ({}, None, "done at step 8; test accuracy 0.5000; 1,234 samples/s; 2 s; see "),
        ({"ended_early": "early stopping"}, None, "done at step 8; early stopping; test "),
        ({"best": BEST}, None, "; best validate.accuracy 0.8765 at step 4; "),
        (STOPPED, None, "stopped at step 8 (Ctrl-C); go on with --resume; 2 s; see "),
        ({**STOPPED, "checkpoint": None}, None, "stopped at step 8 (Ctrl-C); 2 s; see "),
        ({}, 1000.0, "; 1,234 samples/s; "),  # too few steps for a comparison
        ({"step": 50}, 1000.0, "; 1,234 samples/s, 23 % above the prediction; "),
        ({"step": 50, "samples_per_s": 900.0}, 1000.0, "; 900 samples/s, 10 % below the prediction; "),
    ],
)
def test_a_result_says_how_the_run_ended(tmp_path, more, expected, text):
    result = replace(recorded(tmp_path / "w", **more), expected=expected)
    assert text in f"{result} " and str(result).endswith(f"see {tmp_path / 'w'}")
    assert result.interrupted == ("stopped" in text) and repr(result) == f"<Result of points: {result}>"


def test_a_result_names_what_was_reached_and_where_it_lies(tmp_path):
    result = recorded(tmp_path / "w", best=BEST)
    assert (result.test, result.train) == ({"accuracy": 0.5}, {"loss": 0.75})
    assert result.checkpoint == tmp_path / "w/checkpoint/step-00000008.h5"
    assert (result.workspace, result.curves) == (tmp_path / "w", tmp_path / "w/curves.png")
    assert result.best == {**BEST, "checkpoint": tmp_path / "w/checkpoint/best.h5"}
    assert (
        recorded(tmp_path / "v", checkpoint=None).best is None is recorded(tmp_path / "u", checkpoint=None).checkpoint
    )


def test_a_result_keeps_pointing_at_its_own_run(tmp_path):
    results = []
    for _ in range(3):
        Workspace(tmp_path / "w").set_aside()
        results.append(recorded(tmp_path / "w"))
    assert [result.workspace.name for result in results] == ["w-1", "w-2", "w"]
    assert len({result.checkpoint for result in results}) == 3 and all(r.checkpoint.exists() for r in results)
    Workspace(tmp_path / "w").open("job", resumes=True)
    assert results[-1].workspace.name == "w", "a run that resumes is the same run"
    (tmp_path / "w").rename(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match=rf"the run {results[-1].summary['run']} is neither in .*/w nor in"):
        results[-1].checkpoint  # noqa: B018
    assert repr(results[-1]).endswith(f"its folder {tmp_path / 'w'} is gone>")


def test_the_history_is_a_table(tmp_path, monkeypatch):
    result = recorded(tmp_path)
    assert list(result.history.columns) == ["group", "phase", "step", "loss"] and result.history.loss[0] == 0.75
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert result.history == [{"group": 0, "phase": "train", "step": 8, "loss": 0.75}]


JOB = """
name: "points" train_steps: 8
train_one_batch { alg: kBP }
updater { type: kSGD learning_rate { type: kFixed base_lr: 0.1 } }
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { path: "nowhere" shape: 4 batchsize: 10 } }
  layer { name: "scores" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 3 } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "scores" srclayers: "data" }
}
"""


CLIENT = SimpleNamespace(subscribe_topic=None)


def job(*settings):
    return Job.from_text(JOB, [*settings])


@pytest.fixture
def runs(monkeypatch):
    """What was run: the prepared job, its workspace, its settings, the client, and whether it was resumed."""
    runs: list = []

    def run(prepared, workspace, display, callbacks, *settings):
        given = prepared, workspace.folder, (display, callbacks._callbacks, *settings)
        return SimpleNamespace(to_end=lambda *how: runs.append((*given, *how)) or SUMMARY)

    monkeypatch.setattr(driver, "Run", run)
    monkeypatch.setattr(driver, "prepare", lambda job: prepare(job, with_data=False))
    for name in ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PALS_NRANKS"):
        monkeypatch.delenv(name, raising=False)
    return runs


@pytest.mark.parametrize("form", ["a job", "a message", "a path", "a name"])
def test_a_job_may_be_given_in_any_form(runs, tmp_path, form):
    path = tmp_path / "job.conf"
    path.write_text(JOB)
    given = {"a job": job(), "a message": job().proto, "a path": path, "a name": str(path)}[form]
    options = {"display": "display", "max_restarts": 1, "patience_s": 2.0, "callbacks": [print], "max_queue_s": 5.0}
    result = train(given, CLIENT, workspace=tmp_path / "run", trace="3:5", **options)
    ((prepared, folder, settings, client, resume),) = runs
    assert prepared.job.name == "points" and prepared.shapes["scores_weight"] == (4, 3)
    assert (folder, client, resume) == (tmp_path / "run", CLIENT, False)
    assert settings == ("display", [print], 1, 2.0, 5.0, True, True, (3, 5))
    assert result.summary is SUMMARY and result.folder == tmp_path / "run"


def test_the_workspace_is_that_of_the_call_or_of_the_job_or_named_after_it(runs):
    train(job())
    train(job("cluster.workspace=mine", "resume=true"))
    train(job("cluster.workspace=mine"), workspace="other", resume=True)
    assert [run[1] for run in runs] == [Path(name).absolute() for name in ("runs/points-allreduce", "mine", "other")]
    assert [run[-2:] for run in runs] == [(None, False), (None, True), (None, True)]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"data": ([[0.0]], [0]), "callbacks": [3]}, "callbacks"),  # before any data are written
        ({"client": "tcp://10.0.0.1:8786"}, r"client: must be a Dask client\. Received: 'tcp://"),
        ({"cluster": "automatic"}, r"cluster: cannot be chosen\. Received: 'automatic'"),
        ({"cluster": "auto", "processes": False}, "cluster"),
    ],
)
def test_what_cannot_run_is_refused(runs, tmp_path, wrong, says):
    with pytest.raises(ConfigError, match=says):
        train(job(), **wrong, workspace=tmp_path / "run")
    assert not runs and not (tmp_path / "run").exists()


def test_a_copy_of_the_driver_starts_no_cluster(runs, monkeypatch):
    monkeypatch.setenv("PMI_SIZE", "1")
    train(job())
    monkeypatch.setenv("PMI_SIZE", "4")
    with pytest.raises(ConfigError, match=r"PMI_SIZE: says that mpiexec .* Received: 4\. Give --mpi"):
        train(job())
    train(job(), CLIENT)
    monkeypatch.setattr(local_dask, "current_process", lambda: SimpleNamespace(_inheriting=True))
    with pytest.raises(SystemExit) as caught:
        train(job())
    assert caught.value.code == local_dask.UNGUARDED and len(runs) == 2


def test_the_cluster_of_a_call_replaces_the_jobs(runs):
    given = job("cluster.workspace=mine")
    train(given, cluster=ClusterTopology.hogwild(2))
    ((prepared, folder, *_),) = runs
    assert prepared.topology == ClusterTopology.hogwild(2) and folder == Path("mine").absolute()
    assert given.topology == ClusterTopology(), "the given job stays as it is"


def test_a_run_that_resumes_keeps_the_cluster_that_was_chosen(runs, monkeypatch, capsys, tmp_path):
    ran = job("neuralnet.layer[scores].partition_dim=1")
    ran.proto.cluster.CopyFrom(ClusterTopology.sandblaster(2, 1).to_proto())
    (tmp_path / "job.conf").write_text(ran.to_text())
    monkeypatch.setattr(driver, "plan", None)
    assert train(job(), cluster="auto", workspace=tmp_path, resume=True).expected is None
    ((prepared, *_),) = runs
    assert prepared.topology == ClusterTopology.sandblaster(2, 1)
    assert prepared.job.neuralnet.layer[1].partition_dim == 1
    assert capsys.readouterr().out == f"auto: {prepared.topology.describe()}, as in the run that goes on\n"


def test_a_plan_waits_for_workers_as_a_run_does_and_chooses_the_cluster(runs, monkeypatch, capsys):
    waited, chosen = [], predicted(ClusterTopology.allreduce(2), 1000.0)
    planned = SimpleNamespace(job=job(), recommended=chosen)
    planned.job.proto.cluster.CopyFrom(chosen.candidate.job.cluster)

    def plan(job, client, note):
        waited.append(client)
        note("measuring")
        return planned

    monkeypatch.setattr(driver, "wait_all", lambda *given: waited.append(given))
    monkeypatch.setattr(driver, "plan", plan)
    result = train(job(), CLIENT, cluster="auto", max_queue_s=7.0)
    (asked, name, workspace, _, *times), then = waited
    assert asked is then is CLIENT and (name, workspace) == ("points", str(Path("runs/points-auto").absolute()))
    ((prepared, folder, *_),) = runs
    assert times == [30.0, 7.0] and folder == Path("runs/points-auto").absolute()
    assert prepared.topology == ClusterTopology.allreduce(2) and result.expected == 1000.0
    said = capsys.readouterr()
    assert said.out == "auto: AllReduce, 2 workers, dim 0: 1,000 samples/s expected, 32 ms a step\n"
    assert said.err == "measuring\n"
    train(job(), cluster="auto")
    assert len(waited) == 3, "workers of its own need no waiting"
