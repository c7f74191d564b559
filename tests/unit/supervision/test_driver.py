"""What a call of `train` starts, and what its result says."""

from __future__ import annotations

import sys
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


def test_a_result_names_what_was_reached_and_where_it_lies(tmp_path):
    result = recorded(tmp_path / "w")
    assert (result.test, result.train, result.interrupted) == ({"accuracy": 0.5}, {"loss": 0.75}, False)
    assert result.checkpoint == tmp_path / "w/checkpoint/step-00000008.h5"
    assert (result.workspace, result.curves) == (tmp_path / "w", tmp_path / "w/curves.png")
    assert str(result).startswith("done at step 8; test ") and "0.25" not in str(result)
    assert "; 1,23" in str(result) and "resume" not in str(result) and str(result).endswith(f"see {tmp_path / 'w'}")
    assert repr(result) == f"<Result of points: {result}>"


def test_a_result_says_why_it_ended_early_and_which_evaluation_was_the_best(tmp_path):
    why = "early stopping: validate.loss has not improved since step 4"
    best = {"metric": "validate.accuracy", "value": 0.87654, "step": 4, "checkpoint": "/moved/checkpoint/best.h5"}
    result = recorded(tmp_path / "w", ended_early=why, best=best)
    assert str(result).startswith(f"done at step 8; {why}; test ") and not result.interrupted
    assert "; best validate.accuracy 0.8765 at step 4; " in str(result)
    assert result.best == {**best, "checkpoint": tmp_path / "w/checkpoint/best.h5"}
    assert recorded(tmp_path / "v").best is None


@pytest.mark.parametrize("saved", [True, False])
def test_only_a_run_that_saved_says_that_it_can_be_resumed(tmp_path, saved):
    nothing = {"samples_per_s": 0.0, "test": {}, "validate": {}, "train": {}}
    result = recorded(tmp_path, status="interrupted", stopped_by="Ctrl-C", **nothing)
    if not saved:
        result.summary["checkpoint"] = None
    way_out = "go on with --resume; " if saved else ""
    assert str(result) == f"stopped at step 8 (Ctrl-C); {way_out}2 s; see {tmp_path}"


def test_a_result_keeps_pointing_at_its_own_run(tmp_path):
    results = []
    for _ in range(3):
        Workspace(tmp_path / "w").set_aside()
        results.append(recorded(tmp_path / "w"))
    assert [result.workspace.name for result in results] == ["w-1", "w-2", "w"]
    assert len({result.checkpoint for result in results}) == 3 and all(r.checkpoint.exists() for r in results)
    Workspace(tmp_path / "w").open("job", resumes=True)
    assert results[-1].workspace.name == "w", "a run that resumes is the same run"


def test_a_result_whose_folder_is_gone_says_so(tmp_path):
    result = recorded(tmp_path / "w")
    (tmp_path / "w").rename(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match=rf"the run {result.summary['run']} is neither in .*/w nor in"):
        result.checkpoint  # noqa: B018
    assert repr(result).endswith(f"its folder {tmp_path / 'w'} is gone>")


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


@pytest.fixture
def runs(monkeypatch):
    """What was run: the prepared job, its workspace, its settings, the client, and whether it was resumed."""
    runs: list = []

    class Run:
        def __init__(self, prepared, workspace, display, callbacks, *settings):
            names = ("max_restarts", "patience_s", "max_queue_s", "processes", "curves")
            settings = {**dict(zip(names, settings, strict=True)), "callbacks": callbacks._callbacks}
            assert settings.pop("processes") and settings.pop("curves")
            self.given = prepared, workspace.folder, display, settings

        def to_end(self, client, resume):
            runs.append((*self.given, client, resume))
            return SUMMARY

    monkeypatch.setattr(driver, "Run", Run)
    monkeypatch.setattr(driver, "prepare", lambda job: prepare(job, with_data=False))
    for name in ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PALS_NRANKS"):
        monkeypatch.delenv(name, raising=False)
    return runs


def test_a_job_may_be_given_in_any_form(runs, tmp_path):
    (tmp_path / "job.conf").write_text(JOB)
    job, client = Job.from_text(JOB), SimpleNamespace(subscribe_topic=None)
    for given in (job, job.proto, tmp_path / "job.conf", str(tmp_path / "job.conf")):
        options = {"display": "display", "max_restarts": 1, "patience_s": 2.0, "callbacks": [print]}
        options["max_queue_s"] = 5.0
        result = train(given, client, workspace=tmp_path / "run", **options)
        prepared, folder, display, settings, its, resume = runs.pop()
        assert prepared.job.name == "points" and prepared.shapes["scores_weight"] == (4, 3)
        assert (folder, display, its, resume) == (tmp_path / "run", "display", client, False)
        assert settings == {"max_restarts": 1, "patience_s": 2.0, "callbacks": [print], "max_queue_s": 5.0}
        assert result.summary is SUMMARY and result.folder == tmp_path / "run"


def test_the_workspace_is_that_of_the_call_or_of_the_job_or_named_after_it(runs):
    train(Job.from_text(JOB))
    train(Job.from_text(JOB, ["cluster.workspace=mine", "resume=true"]))
    train(Job.from_text(JOB, ["cluster.workspace=mine"]), workspace="other", resume=True)
    assert [run[1] for run in runs] == [Path(name).absolute() for name in ("runs/points-allreduce", "mine", "other")]
    assert [run[-1] for run in runs] == [False, True, True] and runs[0][4] is None


def test_callbacks_are_checked_before_any_data_are_written(runs, tmp_path):
    with pytest.raises(ConfigError, match="callbacks: must be functions"):
        train(Job.from_text(JOB), data=([[0.0]], [0]), callbacks=[3], workspace=tmp_path / "run")
    assert not runs and not (tmp_path / "run").exists()


def test_what_is_no_client_is_refused(runs):
    with pytest.raises(ConfigError, match=r"client: must be a Dask client\. Received: 'tcp://"):
        train(Job.from_text(JOB), "tcp://10.0.0.1:8786")
    assert not runs


def test_a_copy_of_the_driver_starts_no_cluster(runs, monkeypatch):
    monkeypatch.setenv("PMI_SIZE", "1")
    train(Job.from_text(JOB))
    monkeypatch.setenv("PMI_SIZE", "4")
    with pytest.raises(ConfigError, match=r"PMI_SIZE: says that mpiexec .* Received: 4\. Give --mpi"):
        train(Job.from_text(JOB))
    train(Job.from_text(JOB), SimpleNamespace(subscribe_topic=None))
    monkeypatch.setattr(local_dask, "current_process", lambda: SimpleNamespace(_inheriting=True))
    with pytest.raises(SystemExit) as caught:
        train(Job.from_text(JOB))
    assert caught.value.code == local_dask.UNGUARDED
    assert len(runs) == 2


def test_the_cluster_of_a_call_replaces_the_jobs(runs):
    job = Job.from_text(JOB, ["cluster.workspace=mine"])
    train(job, cluster=ClusterTopology.hogwild(2))
    prepared, folder, *_ = runs.pop()
    assert prepared.topology == ClusterTopology.hogwild(2) and folder == Path("mine").absolute()
    assert job.topology == ClusterTopology(), "the given job stays as it is"
    for wrong in ({"cluster": "automatic"}, {"cluster": "auto", "processes": False}):
        with pytest.raises(ConfigError, match=r"cluster: cannot be chosen\. Received: .* Give cluster=\"auto\" and"):
            train(job, **wrong)
    assert not runs


def test_a_run_that_resumes_keeps_the_cluster_that_was_chosen(runs, monkeypatch, capsys, tmp_path):
    ran = Job.from_text(JOB, ["neuralnet.layer[scores].partition_dim=1"])
    ran.proto.cluster.CopyFrom(ClusterTopology.sandblaster(2, 1).to_proto())
    (tmp_path / "job.conf").write_text(ran.to_text())
    monkeypatch.setattr(driver, "plan", None)
    result = train(Job.from_text(JOB), cluster="auto", workspace=tmp_path, resume=True)
    prepared, *_ = runs.pop()
    assert prepared.topology == ClusterTopology.sandblaster(2, 1) and result.expected is None
    assert prepared.job.neuralnet.layer[1].partition_dim == 1
    assert capsys.readouterr().out == f"auto: {prepared.topology.describe()}, as in the run that goes on\n"


def test_a_plan_waits_for_workers_as_a_run_does(runs, monkeypatch):
    waited, client = [], SimpleNamespace(subscribe_topic=None)
    planned = SimpleNamespace(job=Job.from_text(JOB), recommended=predicted(ClusterTopology(), 1000.0))
    monkeypatch.setattr(driver, "wait_all", lambda *given: waited.append(given))
    monkeypatch.setattr(driver, "plan", lambda job, client, note: waited.append("planned") or planned)
    train(Job.from_text(JOB), client, cluster="auto", max_queue_s=7.0)
    (asked, name, workspace, _, *times), then = waited
    assert asked is client and (name, workspace) == ("points", str(Path("runs/points-auto").absolute()))
    assert times == [30.0, 7.0] and then == "planned"


def test_a_plan_chooses_the_cluster_and_its_prediction_is_compared(runs, monkeypatch, capsys):
    chosen = predicted(ClusterTopology.allreduce(2), 1000.0)
    planned = SimpleNamespace(job=Job.from_text(JOB), recommended=chosen)
    planned.job.proto.cluster.CopyFrom(chosen.candidate.job.cluster)
    monkeypatch.setattr(driver, "plan", lambda job, client, note: note("measuring") or planned)
    result = train(Job.from_text(JOB), cluster="auto")
    prepared, folder, *_ = runs.pop()
    assert prepared.topology == ClusterTopology.allreduce(2) and folder == Path("runs/points-auto").absolute()
    said = capsys.readouterr()
    assert said.out == "auto: AllReduce, 2 workers, dim 0: 1,000 samples/s expected, 32 ms a step\n"
    assert said.err == "measuring\n"
    assert result.expected == 1000.0 and "prediction" not in str(result), "too few steps"
    long = {**SUMMARY, "step": 50}
    assert "1,234 samples/s, 23 % above the prediction; " in str(Result(long, folder, 1000.0))
    assert "900 samples/s, 10 % below the prediction" in str(Result({**long, "samples_per_s": 900.0}, folder, 1000.0))
