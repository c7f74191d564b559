"""Jobs that leave the partition of their net to the cost model."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from support.planned import mlp, profile_of

from singa_dask.errors import ConfigError
from singa_dask.job import ClusterTopology, Job
from singa_dask.job.job_pb2 import NetProto
from singa_dask.monitor.progress import Display
from singa_dask.planning.partition import PartitionChoice, is_open
from singa_dask.planning.ways import Way
from singa_dask.profiling.facts import facts_here
from singa_dask.profiling.store import key_of, save
from singa_dask.supervision import driver, partitioning
from singa_dask.supervision.partitioning import as_before, resolve_by_cache, resolve_partition


def job_of(workers=2, **settings):
    """Without data, which are not looked at."""
    job = Job.from_proto(mlp(**settings))
    job.proto.neuralnet.layer[0].store_conf.path = "points"
    job.proto.cluster.nworkers_per_group = job.proto.cluster.nservers_per_group = workers
    job.proto.neuralnet.partition = NetProto.auto
    return job


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SINGA_DASK_CACHE", str(tmp_path / "cache"))


def dims(job):
    return {layer.name: layer.partition_dim for layer in job.proto.neuralnet.layer}


@pytest.fixture
def said():
    return []


def test_without_a_profile_nothing_is_split_and_the_way_out_is_said(said):
    job = resolve_by_cache(job_of(), said.append, with_data=False)
    assert not is_open(job.proto) and set(dims(job).values()) == {-1}
    assert "run `singa-dask profile` first" in said[0]


def test_a_profile_in_the_cache_decides(said):
    facts, job = facts_here(), job_of(hidden=4096)
    profile = profile_of(job.proto)
    assert {sample.forward for sample in profile.layers} == {1e-3}, "whatever its work: splitting gains nothing"
    profile.cpu, profile.cores, profile.hosts, profile.versions = facts.cpu, facts.cores, facts.hosts, facts.versions
    save(key_of(facts), profile)
    job = resolve_by_cache(job, said.append, with_data=False)
    assert not is_open(job.proto) and dims(job)["fc1"] == 0
    assert said == ["auto, with all workers on this machine: no layer is split, which would gain less than 3%"]


def test_one_worker_needs_no_profile(monkeypatch):
    monkeypatch.setattr(partitioning, "Profiler", None)
    job = resolve_partition(job_of(workers=1), None, print, print)
    assert not job.proto.neuralnet.HasField("partition") and set(dims(job).values()) == {-1}


def test_a_choice_that_splits_layers_rests_on_measurements_of_these(monkeypatch, said):
    measured = []

    def learn(candidates, machines, code):
        measured.append([candidate.job.neuralnet.layer[1].partition_dim for candidate in candidates])

    def choose(job, profile, machines, memory):
        assert (profile, machines.hosts) == ("the profile", 1) and memory > 0
        return PartitionChoice(job, {"fc1": Way(1, 1)}, reasons={"fc1": "why"}, step_s=0.5, unsplit_s=2.0)

    def prepared(job, with_data, on_gpus):
        return SimpleNamespace(job=job.proto, topology=job.topology, code=None)

    profiler = nullcontext(SimpleNamespace(profile="the profile", learn=learn))
    monkeypatch.setattr(partitioning, "Profiler", lambda client, note: profiler)
    monkeypatch.setattr(partitioning, "choose_partition", choose)
    monkeypatch.setattr(partitioning, "prepared_for_model", prepared)
    job = resolve_partition(job_of(), None, said.append, print)
    layer = job.proto.neuralnet.layer[1]
    assert not is_open(job.proto) and (layer.partition_dim, layer.param[0].partition_dim) == (1, 1)
    assert measured == [[-1], [1]]
    assert said == ["auto: split: fc1; a step takes 500 ms, undivided 2 s"]


def test_no_partition_is_chosen_for_gpus():
    job = job_of()
    job.proto.gpu.extend([0, 1])
    with pytest.raises(ConfigError, match=r"gpu: cannot be predicted: the cost model knows CPUs only.*\[0, 1\]"):
        resolve_partition(job, None, print, print)


@pytest.fixture
def ran(tmp_path):
    """The job of an earlier run in this folder, whose first InnerProduct was split over its inputs."""
    job = job_of()
    job.proto.neuralnet.ClearField("partition")
    Way(1, 0).write(job.proto.neuralnet.layer[1])
    (tmp_path / "job.conf").write_text(job.to_text())
    return Job.from_file(tmp_path / "job.conf")


def test_a_run_that_resumes_keeps_its_partition(ran):
    job = as_before(job_of(), ran.proto)
    assert not is_open(job.proto) and dims(job) == dims(ran) and dims(job)["fc1"] == 1
    assert job.proto.neuralnet.layer[1].param[0].partition_dim == 0
    assert as_before(job_of(workers=3), ran.proto) is None


@pytest.mark.parametrize(("resume", "dim"), [(True, 1), (False, 0)])
def test_train_chooses_only_for_a_new_run(tmp_path, monkeypatch, ran, resume, dim):
    prepared, chosen = [], Job.from_proto(ran.proto)
    chosen.proto.neuralnet.layer[1].partition_dim = 0
    there = SimpleNamespace(topology=ClusterTopology())
    monkeypatch.setattr(driver, "resolve_partition", lambda *given: chosen)
    monkeypatch.setattr(driver, "prepare", lambda job: prepared.append(job) or there)
    monkeypatch.setattr(driver, "Run", lambda *given: SimpleNamespace(to_end=lambda client, resume: {}))
    driver.train(job_of(), workspace=tmp_path, resume=resume, display=Display())
    assert dims(prepared[0])["fc1"] == dim
