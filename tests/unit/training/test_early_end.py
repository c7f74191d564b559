"""Early stopping, the best checkpoint and learning rates on a plateau in the training loop of three ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.topologies import run_topology, server_links
from support.trained import assert_alike, saved_at, train_group, write_points

from singa_dask.errors import ConfigError
from singa_dask.inference import evaluate
from singa_dask.job import Job
from singa_dask.job.job_pb2 import Phase
from singa_dask.server.messages import Update
from singa_dask.server.protocol import ServerProtocol
from singa_dask.training import checkpoint as checkpoints
from singa_dask.training.prepare import prepare

JOB = """
name: "points" train_steps: 40 disp_freq: 4 validate_freq: 4 checkpoint_freq: 8 seed: 5
train_one_batch { alg: kBP }
updater { type: kSGD momentum: 0.9 learning_rate { type: kFixed base_lr: 0.1 } }
cluster { nworkers_per_group: 3 }
neuralnet {
  layer { name: "data" type: kRecordInput exclude: kVal store_conf { path: "%(folder)s/train" batchsize: 20 } }
  layer { name: "data" type: kRecordInput include: kVal store_conf { path: "%(folder)s/valid" batchsize: 20 } }
  layer { name: "scores" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 2 } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "scores" srclayers: "data" }
}
"""
STANDSTILL = "updater.learning_rate.base_lr=0"
PLATEAU = ["updater.learning_rate.type=kReduceOnPlateau"] + [
    f"updater.learning_rate.reduceonplateau_conf.{setting}"
    for setting in ("patience=1", "min_delta=100", "factor=0.5")
]


@pytest.fixture
def job(tmp_path):
    write_points(tmp_path, spread=1.0, train=90, valid=47)
    return lambda *overrides: prepare(Job.from_text(JOB % {"folder": tmp_path}, overrides))


def run(prepared, folder: Path, resume: int | None = None, path: Path | None = None):
    """Train all ranks; returns the first one's report and all events."""
    path = path or (None if resume is None else checkpoints.path_of(folder, resume))
    return train_group(prepared, folder, resume=path, first=resume or 0)


def values(events, metric: str = "loss") -> dict[int, float]:
    return {e["step"]: e["metrics"][metric] for e in events if e.get("phase") == "validate"}


def saved(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_run_that_no_longer_improves_ends_early_with_a_checkpoint_and_is_complete(job, tmp_path):
    report, events = run(job(STANDSTILL, "early_stopping.patience=3"), tmp_path / "run")
    assert (report["step"], report["interrupted"]) == (12, False)
    assert report["ended_early"] == "early stopping: validate.loss has not improved since step 0"
    assert report["metrics"].keys() == {"train", "validate"}
    assert saved(tmp_path / "run") == ["step-00000008.h5", "step-00000012.h5"]
    (told,) = [event for event in events if event["kind"] == "decision"]
    assert told["ends"] and told["text"] == report["ended_early"]
    assert [event["step"] for event in events if event.get("phase") == "train"] == [4, 8, 12]


def test_a_run_that_goes_on_improving_does_not_end_early(job, tmp_path):
    report, _ = run(job("early_stopping.patience=2", "train_steps=16"), tmp_path / "run")
    assert (report["step"], report["ended_early"]) == (16, None)


def test_the_test_that_was_not_due_is_made_at_an_early_end(job, tmp_path):
    layer = f'neuralnet.layer[0].store_conf.path="{tmp_path}/train"'
    report, _ = run(job(STANDSTILL, layer, "early_stopping.patience=2", "test_freq=7"), tmp_path / "run")
    assert report["step"] == 8 and report["metrics"].keys() == {"train", "validate", "test"}


def test_patience_survives_a_resume_and_a_run_that_has_ended_early_ends_at_once(job, tmp_path):
    early = job(STANDSTILL, "early_stopping.patience=4")
    run(job(STANDSTILL, "early_stopping.patience=4", "train_steps=8"), tmp_path)
    report, events = run(early, tmp_path, resume=8)
    assert report["step"] == 16 and sorted(values(events)) == [8, 12, 16]
    report, events = run(early, tmp_path, resume=16)
    assert report["step"] == 16 and report["ended_early"] and sorted(values(events)) == [16]
    report, _ = run(job(STANDSTILL, "early_stopping.patience=5"), tmp_path, resume=16)
    assert report["step"] == 20


@pytest.mark.parametrize("metric", ["validate.loss", "validate.accuracy"])
def test_the_best_checkpoint_has_the_parameters_that_were_measured(job, tmp_path, metric):
    prepared = job(f'keep_best="{metric}"', "updater.learning_rate.base_lr=2", "seed=1")
    report, events = run(prepared, tmp_path)
    measured = values(events, metric.partition(".")[2])
    value = (min if metric.endswith("loss") else max)(measured.values())
    step = next(step for step, found in measured.items() if found == value)
    path = tmp_path / "best.h5"
    assert report["best"] == {"metric": metric, "value": value, "step": step, "checkpoint": str(path)}
    assert 0 < step < 40, "or this tests nothing"
    assert checkpoints.load(path).step == step
    means = evaluate.measure(prepared.job, path, Phase.kVal).numbers
    assert means[metric.partition(".")[2]] == pytest.approx(value, rel=1e-6)


def test_the_best_checkpoint_is_one_to_resume_from(job, tmp_path):
    prepared = job('keep_best="validate.loss"', "updater.learning_rate.base_lr=2", "seed=1")
    report, whole = run(prepared, tmp_path / "whole")
    best = report["best"]
    (tmp_path / "rest").mkdir()
    (tmp_path / "whole/best.h5").rename(tmp_path / "rest/best.h5")
    found, faults = checkpoints.newest(tmp_path / "rest")
    assert (found.path.name, found.step, faults) == ("best.h5", best["step"], [])
    report, rest = run(prepared, tmp_path / "rest", resume=best["step"], path=found.path)
    assert values(rest) == {step: value for step, value in values(whole).items() if step >= best["step"]}
    assert report["best"] == {**best, "checkpoint": str(tmp_path / "rest/best.h5")}
    assert rest[1]["kind"] == "best", "a run that fails later has a best checkpoint too"


def test_of_the_best_and_the_last_checkpoint_the_later_one_is_the_newest(job, tmp_path):
    folder = tmp_path / "run"
    run(job('keep_best="validate.loss"', "train_steps=8"), folder)
    assert saved(folder) == ["best.h5", "step-00000008.h5"]
    assert checkpoints.newest(folder)[0].path.name == "step-00000008.h5"
    checkpoints.path_of(folder, 8).rename(checkpoints.path_of(folder, 4))
    assert checkpoints.newest(folder)[0].path.name == "best.h5"
    (folder / "best.h5").write_bytes(b"damaged")
    found, (fault,) = checkpoints.newest(folder)
    assert found.path.name == "step-00000004.h5" and "best.h5" in fault


def test_a_learning_rate_falls_on_a_plateau_for_all_ranks_and_in_a_resumed_run(job, tmp_path):
    """With min_delta so large that nothing is an improvement, the rate is halved at 4, 8, ..., as a schedule does."""
    falling = job(*PLATEAU, "train_steps=16")
    _, events = run(falling, tmp_path / "whole")
    texts = [event["text"] for event in events if event["kind"] == "decision"]
    assert texts == [f"learning rate reduced to {rate}" for rate in (0.05, 0.025, 0.0125, 0.00625)]
    steps, rates = "step=[0,4,8,12]", "step_lr=[0.1,0.05,0.025,0.0125]"
    conf = "updater.learning_rate.fixedstep_conf"
    fixed = job("updater.learning_rate.type=kFixedStep", f"{conf}.{steps}", f"{conf}.{rates}", "train_steps=16")
    run(fixed, tmp_path / "fixed")
    (tmp_path / "rest").mkdir()
    checkpoints.path_of(tmp_path / "whole", 8).rename(checkpoints.path_of(tmp_path / "rest", 8))
    run(falling, tmp_path / "rest", resume=8)
    for folder in ("whole", "rest"):
        assert_alike(saved_at(tmp_path / folder, 16), saved_at(tmp_path / "fixed", 16))


@pytest.mark.parametrize("setting", ['keep_best="validate.auc"', 'early_stopping.metric="validate.auc"'])
def test_a_metric_that_is_not_measured_is_an_error_before_the_first_step(job, tmp_path, setting):
    with pytest.raises(ConfigError, match=r"Received: validate.auc. Write one of: validate.loss, validate.accuracy\."):
        run(job(setting), tmp_path)
    assert not list(tmp_path.glob("*.h5"))


TOPOLOGIES = {
    "sandblaster": ["nworkers_per_group=2", "nservers_per_group=2", "server_worker_separate=true"],
    "downpour": ["nworker_groups=2", "nworkers_per_group=2", "nservers_per_group=2", "server_worker_separate=true"],
    "bounded": ["nworker_groups=3", "nworkers_per_group=1", "max_staleness=1", "server_worker_separate=true"],
    "hogwild": ["nworker_groups=2", "nserver_groups=2", "nworkers_per_group=1"],
}


@pytest.fixture(params=TOPOLOGIES)
def group_job(request, job):
    cluster = [f"cluster.{setting}" for setting in TOPOLOGIES[request.param]]
    return lambda *overrides: job(*cluster, *overrides)


def test_all_worker_groups_end_where_the_lead_no_longer_improves(group_job, tmp_path):
    prepared = group_job(STANDSTILL, "early_stopping.patience=2", "train_steps=100000")
    ran = run_topology(prepared, tmp_path / "run")
    lead, *others = ran.reports.values()
    assert len(others) == prepared.topology.nworker_groups - 1
    assert (lead["step"], lead["interrupted"]) == (8, False) and lead["ended_early"] and lead["metrics"]["validate"]
    assert all(report["step"] < 100_000 and report["ended_early"] is None for report in others)
    assert "step-00000008.h5" in saved(tmp_path / "run")


def test_a_lower_learning_rate_reaches_all_groups_and_is_equal_for_all_slices_of_a_step(
    group_job, tmp_path, monkeypatch
):
    rates: dict[tuple[int, int], set[int]] = {}
    handle = ServerProtocol.handle

    def recorded(protocol, sender, request):
        if isinstance(request, Update):
            rates.setdefault((request.origin.group, request.step), set()).add(request.reductions)
        return handle(protocol, sender, request)

    monkeypatch.setattr(ServerProtocol, "handle", recorded)
    early = ["early_stopping.patience=10", "early_stopping.min_delta=100"]  # until then all groups go on
    prepared = group_job(*PLATEAU, *early, "train_steps=100000")
    ran = run_topology(prepared, tmp_path / "run")
    assert all(len(found) == 1 for found in rates.values()), "slices of a step differ"
    for group, report in ran.reports.items():
        reductions = [max(rates[group, step]) for step in range(report["step"])]
        assert reductions == sorted(reductions)
        assert reductions[-1] > 0 if group else reductions == [step // 4 for step in range(40)]
    known = checkpoints.newest(tmp_path / "run")[0].decisions["reductions"]
    assert known == 10, "with that of the last evaluation"
    for server in ran.servers.values():
        assert {s.reductions for s in server.protocol.slices.values()} == {9}


def test_the_best_checkpoint_is_what_was_measured_though_other_groups_go_on(group_job, tmp_path):
    prepared = group_job('keep_best="validate.loss"', "train_steps=20", "updater.learning_rate.base_lr=0.01")
    ran = run_topology(prepared, tmp_path / "run")
    best = ran.reports[0]["best"]
    assert best["step"] > 0, "or no group has changed anything before"
    means = evaluate.measure(prepared.job, Path(best["checkpoint"]), Phase.kVal).numbers
    assert means["loss"] == pytest.approx(best["value"], rel=1e-5)


@pytest.mark.parametrize("told", [True, False], ids=["by the driver", "by the newest checkpoint"])
def test_a_lead_that_is_formed_again_while_servers_go_on_keeps_its_patience_and_rate(job, tmp_path, told):
    settings = [*PLATEAU, "cluster.server_worker_separate=true", "early_stopping.patience=4"]
    settings += ["early_stopping.min_delta=100"]
    first, rest = job(*settings, "train_steps=8"), job(*settings)
    links, events, reports = server_links(first), [], []
    services = {"links": lambda: links}
    for prepared, again in ((first, False), (rest, True)):
        decided = [event["state"] for event in events if event["kind"] == "decided"] if told else []
        group = {"generation": int(again), "puts": not again, "fresh": not again, "first": 8 * again}
        folder = tmp_path / str(again) if told else tmp_path
        report, _ = train_group(prepared, folder, events, services=services, decided=decided and decided[-1], **group)
        reports.append(report)
    texts = [event["text"] for event in events if event["kind"] == "decision"]
    assert texts[:-1] == [f"learning rate reduced to {rate}" for rate in (0.05, 0.025, 0.0125, 0.00625)]
    assert [report["step"] for report in reports] == [8, 16] and reports[1]["ended_early"]
