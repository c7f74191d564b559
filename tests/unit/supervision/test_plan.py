"""Plans in Python: what is predicted, and the job that comes of it."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.planned import MB, mlp, profile_of

from singa_dask.errors import ConfigError
from singa_dask.job import ClusterTopology, Job, Strategy
from singa_dask.monitor.plan_table import rows_of
from singa_dask.planning.advise import FreeMemory
from singa_dask.supervision import plan as plans
from singa_dask.supervision.plan import Cluster, plan


@pytest.fixture
def planned(monkeypatch):
    """Plan a job for a host with 2 cores, whose profile is known."""
    monkeypatch.setattr(plans.Cluster, "of", lambda client: Cluster(2, memory=FreeMemory(1000.0 * MB)))
    job = mlp()

    def run(job=job, **settings):
        return plan(job, profile=profile_of(mlp()), with_data=False, **settings)

    return run


def test_a_plan_predicts_every_strategy_and_recommends_one(planned):
    made = planned()
    assert {each.candidate.topology.nworkers for each in made.predictions} == {1, 2}
    assert {each.candidate.topology.strategy for each in made.predictions} == set(Strategy) - {Strategy.HYBRID}
    assert made.reason.count(". ") == 1 and made.reason in " ".join(str(made).split())
    assert made.job.topology == made.recommended.candidate.topology and made.job.name == "points"
    assert all(each in made.predictions for each in [made.recommended, *rows_of(made.advice)])
    told = json.loads(made.to_json())
    chosen = told["predictions"][told["recommended"]]
    assert len(told["predictions"]) == len(made.predictions) and told["reason"] == made.reason
    assert chosen["samples_per_s"] == made.recommended.samples_per_s and chosen["fits"] is True
    assert ClusterTopology(**chosen["topology"]) == made.recommended.candidate.topology
    assert sum(chosen["parts"].values()) == pytest.approx(chosen["step_s"])


def test_the_recommended_partition_becomes_the_jobs(planned):
    made = planned(workers=[2])
    (split,) = [each for each in made.predictions if each.candidate.partition == "dim 1"]
    job = plans.job_of(made.given, split.candidate)
    assert job.proto.neuralnet.partition_dim == 1 and job.topology == ClusterTopology.allreduce(2)
    chosen = Job.from_proto(split.candidate.job)
    chosen.proto.neuralnet.layer[1].partition_dim = 1
    chosen.proto.neuralnet.layer[1].param.add().partition_dim = 1
    explicit = plans.job_of(made.given, plans.Candidate(chosen.proto, "auto")).proto.neuralnet.layer[1]
    assert (explicit.partition_dim, explicit.param[0].partition_dim) == (1, 1)
    explicit.ClearField("partition_dim")
    assert explicit.innerproduct_conf == made.given.proto.neuralnet.layer[1].innerproduct_conf


def test_the_given_job_stays_as_it_is(planned):
    job = Job.from_proto(mlp())
    job.folder = Path("somewhere")
    job.proto.cluster.workspace = "here"
    before = job.to_text()
    made = planned(job=job)
    assert job.to_text() == before and made.given is job
    assert made.job.proto.cluster.workspace == "here" and made.job.folder == Path("somewhere")


def test_a_job_that_leaves_its_partition_open_gets_an_explicit_one(planned):
    job = mlp()
    job.cluster.CopyFrom(ClusterTopology.allreduce(2).to_proto())
    job.neuralnet.partition = job.neuralnet.auto
    made = planned(job=job)
    assert not any(each.candidate.partition == "job" for each in made.predictions)
    for each in made.predictions:
        assert not plans.job_of(made.given, each.candidate).proto.neuralnet.HasField("partition")


def test_clusters_that_are_not_there_are_imagined(planned):
    assert planned().here and not planned().advice.machines.imagined
    more = planned(workers=[4], cores=8, workers_per_host=1, bandwidth=1e9, latency=5e-5)
    assert not more.here and more.advice.machines.imagined and more.advice.memory == FreeMemory()
    assert (more.advice.machines.cores, more.advice.machines.hosts_for(6)) == (8, 6)
    assert planned(workers=[4], workers_per_host=1).advice.memory.host == 1000 * MB, "the same hosts"


def test_a_dask_cluster_bounds_what_runs(planned, monkeypatch):
    monkeypatch.setattr(plans.Cluster, "of", lambda client: Cluster(2, 1, 3, processes=3))
    made = planned()
    assert {each.candidate.topology.nworkers for each in made.predictions} == {1, 2, 3}
    assert max(each.candidate.topology.nprocesses for each in made.predictions) == 3
    more = planned(workers=[6])
    assert more.advice.machines.imagined and more.advice.machines.hosts_for(6) == 2


def test_what_the_profile_cannot_tell_is_noted(planned):
    profile, notes = profile_of(mlp()), []
    for name in [name for name in profile.curves if "kTopK" in name]:
        del profile.curves[name]
    made = plan(mlp(), profile=profile, with_data=False, note=notes.append)
    assert not any(each.candidate.topology.codec == "kTopK" for each in made.predictions)
    assert len(notes) == 1 and notes[0].startswith("not predicted: AllReduce with 2 workers (kTopK")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"workers": [0]}, r"workers: must be integers from 1 on\. Received: 0\. For example"),
        ({"workers": []}, "workers: must be integers"),
        ({"strategies": ["allreduced"]}, "Did you mean allreduce?"),
        ({"allow": ["codecs"]}, "Did you mean codec?"),
        ({"memory": 100.0}, "no candidate fits"),
        ({"latency": 5e-5}, r"latency: needs a bandwidth\. Received: 5e-05 s\. Give the network's bandwidth too"),
    ],
)
def test_wrong_settings_are_named(planned, settings, says):
    with pytest.raises(ConfigError, match=says.replace("?", r"\?")):
        planned(**settings)


def test_a_local_cluster_is_this_machine():
    here = Cluster.of(None)
    assert here.hosts == 1 and here.processes is None and here.memory.host > 0
    assert here.counts()[0] == 1 and here.counts()[-1] == here.cores
    assert Cluster(12).counts() == [1, 2, 4, 8, 12]


def test_without_workers_there_is_no_plan(monkeypatch):
    monkeypatch.setattr(plans, "answering", lambda client: ([], "tcp://a: TimeoutError()"))
    with pytest.raises(ConfigError, match=r"no Dask worker answers\. tcp://a"):
        Cluster.of(SimpleNamespace())
