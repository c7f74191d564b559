from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from singa_dask.errors import ConfigError, Problem
from singa_dask.job import ClusterTopology, Job, JobProto
from singa_dask.job.job_pb2 import (
    AlgProto,
    ClusterProto,
    EarlyStoppingProto,
    InnerProductProto,
    LayerProto,
    LayerType,
    UpdaterProto,
)


def described(proto: object) -> SimpleNamespace:
    """Stands for a layer or updater object: all that Job asks of them is `.proto`."""
    return SimpleNamespace(proto=proto)


@pytest.fixture
def job() -> Job:
    updater = UpdaterProto(type=UpdaterProto.kSGD)
    updater.learning_rate.base_lr = 0.1
    ip = InnerProductProto(num_output=10)
    return Job(
        name="digits",
        layers=[
            LayerProto(name="data", type=LayerType.kRecordInput),
            described(LayerProto(name="ip", type=LayerType.kInnerProduct, srclayers=["data"], innerproduct_conf=ip)),
        ],
        updater=described(updater),
        cluster=ClusterTopology.allreduce(3),
        train_steps=500,
        seed=2**63,
        test_freq=100,
        gpu=[0, 1],
        debug=True,
        checkpoint_path=Path("runs/a"),
    )


def test_text_round_trip(job: Job, tmp_path: Path) -> None:
    assert Job.from_text(job.to_text()) == job
    assert Job.from_text(job.to_text()).to_text() == job.to_text()
    path = tmp_path / "job.conf"
    path.write_text(job.to_text())
    assert Job.from_file(path) == Job.from_file(str(path)) == job
    assert Job.from_proto(job.proto) == job


def test_both_spellings_build_the_same_message(job: Job) -> None:
    text = """
        name: "digits" seed: 9223372036854775808 train_steps: 500 test_freq: 100 gpu: [0, 1] debug: true
        checkpoint_path: "runs/a"
        train_one_batch { alg: kBP }
        updater { type: kSGD learning_rate { base_lr: 0.1 } }
        cluster { nworkers_per_group: 3 nservers_per_group: 3 }
        neuralnet {
          layer { name: "data" type: kRecordInput }
          layer { name: "ip" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 10 } }
        }
    """
    assert Job.from_text(text) == job


def test_jobs_differ_and_are_copies(job: Job) -> None:
    other = Job.from_proto(job.proto)
    other.proto.seed = 1
    assert other != job
    assert job != "job"
    with pytest.raises(TypeError, match="unhashable"):
        hash(job)


def test_repr_and_topology(job: Job) -> None:
    assert job.topology == ClusterTopology.allreduce(3)
    assert repr(job) == f"<Job 'digits': 2 layers, kSGD, 500 steps, {job.topology.describe()}>"
    job.proto.cluster.nworker_groups = 0
    assert "impossible topology" in repr(job)


@pytest.mark.parametrize(
    ("alg", "message"),
    [
        ("kCD", AlgProto(alg=AlgProto.kCD)),
        ("my.module:Alg", AlgProto(user_alg="my.module:Alg")),
        (AlgProto(alg=AlgProto.kBPTT), AlgProto(alg=AlgProto.kBPTT)),
    ],
)
def test_algorithms(alg: str | AlgProto, message: AlgProto) -> None:
    made = Job(name="a", layers=[], updater=UpdaterProto(), train_steps=1, alg=alg)
    assert made.proto.train_one_batch == message


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tset_freq": 5}, "tset_freq: a job has no such field. Received: tset_freq=5. Did you mean test_freq?"),
        ({"layer": []}, "layer: a job has no such field. Received: layer=[]. Use layers=[...]."),
        ({"neuralnet": None}, "Use layers=[...]."),
        ({"train_steps": "10"}, "train_steps: expected a whole number of 32 bits. Received: '10'."),
        ({"train_steps": 2.5}, "train_steps: expected a whole number of 32 bits. Received: 2.5."),
        ({"train_steps": 2**31}, "train_steps: expected a whole number of 32 bits. Received: 2147483648."),
        ({"train_steps": True}, "train_steps: expected a whole number of 32 bits. Received: True."),
        ({"seed": -1}, "seed: expected a whole number from 0 to 18446744073709551615. Received: -1."),
        ({"debug": 1}, "debug: expected True or False. Received: 1."),
        ({"name": 5}, "name: expected text. Received: 5."),
        ({"gpu": ["x"]}, "gpu: expected a whole number of 32 bits. Received: ['x']."),
        ({"alg": "kBp"}, "alg: unknown algorithm. Received: 'kBp'. Did you mean kBP?"),
        ({"alg": 1}, "alg: unknown algorithm. Received: 1."),
        ({"cluster": "allreduce"}, "cluster: expected a ClusterTopology or ClusterProto. Received: 'allreduce'."),
        (
            {"updater": "kSGD"},
            "updater: has the wrong type. Received: 'kSGD'. For example SGD(...), or a UpdaterProto.",
        ),
        ({"updater": LayerProto(name="a")}, "updater: has the wrong type"),
        ({"layers": ["ip"]}, "layers[0]: has the wrong type. Received: 'ip'."),
        (
            {"early_stopping": {"patienc": 7}},
            "early stopping has no such setting. Received: patienc=7. Did you mean pa",
        ),
        ({"early_stopping": {"patience": 0.5}}, "early_stopping.patience: expected a whole number"),
        ({"early_stopping": 7}, 'expected a mapping. Received: 7. Write early_stopping={"patience": 5'),
    ],
)
def test_wrong_arguments(fields: dict, message: str) -> None:
    right = {"name": "a", "layers": [], "updater": UpdaterProto(), "train_steps": 1}
    with pytest.raises(ConfigError) as error:
        Job(**(right | fields))
    assert message in str(error.value)


def test_cluster_as_message() -> None:
    cluster = ClusterProto(nworkers_per_group=2, workspace="runs")
    assert Job(name="a", layers=[], updater=UpdaterProto(), train_steps=1, cluster=cluster).proto.cluster == cluster


def test_check_and_located_know_the_lines(good: str) -> None:
    job = Job.from_text(good, ["cluster.nworkers_per_group=2", "cluster.nservers_per_group=2"])
    job.check()
    located = job.located(ConfigError(Problem("layer 'relu1'", "is odd")))
    assert str(located) == "32:3: neuralnet.layer[relu1]: is odd."
    job.proto.train_steps = 0
    with pytest.raises(ConfigError, match=r"^2:1: train_steps: must be at least 1"):
        job.check()


def test_from_text_takes_text_of_one_word() -> None:
    with pytest.raises(ConfigError, match="expected : after the name"):
        Job.from_text("name")
    assert Job.from_text("").proto == JobProto()


@pytest.mark.parametrize("value", [{"patience": 7, "metric": "test.loss"}, {}])
def test_early_stopping_is_a_mapping(value: dict) -> None:
    expected = EarlyStoppingProto(**value)
    for given in (value, expected):
        job = Job(name="a", layers=[], updater=UpdaterProto(), train_steps=1, early_stopping=given).proto
        assert job.HasField("early_stopping") and job.early_stopping == expected
