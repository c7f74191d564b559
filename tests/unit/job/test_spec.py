"""Jobs as Python objects, and overrides."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from google.protobuf import text_encoding

from singa_dask.errors import ConfigError, Problem
from singa_dask.job import ClusterTopology, Job, JobProto, apply_overrides, check_job, load_job, read_job
from singa_dask.job.job_pb2 import (
    AlgProto,
    ClusterProto,
    EarlyStoppingProto,
    InnerProductProto,
    LayerProto,
    LayerType,
    UpdaterProto,
)
from singa_dask.job.paths import format_path, layer_names


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
    assert Job.from_text(job.to_text()) == job == Job.from_proto(job.proto)
    assert Job.from_text(job.to_text()).to_text() == job.to_text()
    path = tmp_path / "job.conf"
    path.write_text(job.to_text())
    assert Job.from_file(path) == Job.from_file(str(path)) == job


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
    assert job not in (other, "job") and Job.__hash__ is None


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
        ({"train_steps": "10"}, "train_steps: expected an integer of 32 bits. Received: '10'."),
        ({"train_steps": 2.5}, "train_steps: expected an integer of 32 bits. Received: 2.5."),
        ({"train_steps": 2**31}, "train_steps: expected an integer of 32 bits. Received: 2147483648."),
        ({"train_steps": True}, "train_steps: expected an integer of 32 bits. Received: True."),
        ({"seed": -1}, "seed: expected an integer from 0 to 18446744073709551615. Received: -1."),
        ({"debug": 1}, "debug: expected True or False. Received: 1."),
        ({"name": 5}, "name: expected text. Received: 5."),
        ({"gpu": ["x"]}, "gpu: expected an integer of 32 bits. Received: ['x']."),
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
        ({"early_stopping": {"patience": 0.5}}, "early_stopping.patience: expected an integer"),
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


# Overrides


def test_every_given_field_can_be_overridden(good: str) -> None:
    """Blank out each value of a job, then override it back: the job is as before."""
    job = load_job(good + 'checkpoint_path: "a,b" checkpoint_path: "\\"c\\" =[d]" debug: true seed: 7')
    count = 0
    for path, message, field in values(job, ()):
        changed = JobProto()
        changed.CopyFrom(job)
        value = getattr(message, field.name)
        blank(changed, path)
        assert changed != job
        text = "[" + ",".join(spell(field, v) for v in value) + "]" if field.is_repeated else spell(field, value)
        apply_overrides(changed, [f"{format_path(path, layer_names(changed))}={text}"])
        assert changed == job
        count += 1
    assert count > 40


def values(message: Any, path: tuple) -> Iterator[tuple[tuple, Any, Any]]:
    for field, value in message.ListFields():
        if field.message_type is None:
            if field.name != "name":  # layers are found by it
                yield (*path, field.name), message, field
        elif field.is_repeated:
            for i, entry in enumerate(value):
                yield from values(entry, (*path, field.name, i))
        else:
            yield from values(value, (*path, field.name))


def blank(job: JobProto, path: tuple) -> None:
    message: Any = job
    for part in path[:-1]:
        message = message[part] if isinstance(part, int) else getattr(message, part)
    message.ClearField(path[-1])


def spell(field: Any, value: Any) -> str:
    if field.enum_type is not None:
        return field.enum_type.values_by_number[value].name
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{text_encoding.CEscape(value, True)}"' if isinstance(value, str) else str(value)


RELU, LOSS = 'name: "relu1" type: kReLU', 'srclayers: "ip1" srclayers: "data" }\n  layer'


@pytest.mark.parametrize(
    ("override", "old", "new"),
    [
        ("updater.learning_rate.base_lr = 0.01", "base_lr: 0.1", "base_lr: 0.01"),
        ("neuralnet.layer[conv1].convolution_conf.num_filters=30", "num_filters: 8", "num_filters: 30"),
        ('neuralnet.layer["relu1"].type=kTanh', RELU, 'name: "relu1" type: kTanh'),
        ("neuralnet.layer[conv1].param[0].lr_scale=3", 'name: "w1"', 'name: "w1" lr_scale: 3'),
        ("neuralnet.layer[ip1].param[0].name=w", "num_output: 10 }", 'num_output: 10 } param { name: "w" }'),
        ("neuralnet.layer[5].srclayers[1]=conv1", LOSS, LOSS.replace("data", "conv1")),
        ("neuralnet.layer[5].srclayers[2]=data", LOSS, LOSS.replace(" }", ' srclayers: "data" }', 1)),
        ("gpu=[0, 1]", "test_steps: 5", "test_steps: 5 gpu: [0, 1]"),
        ("gpu=[]", "test_steps: 5", "test_steps: 5 gpu: -1"),
        ("checkpoint_path=/tmp/a=b, c", "test_steps: 5", 'test_steps: 5 checkpoint_path: "/tmp/a=b, c"'),
        ("updater.adam_conf={ beta1: 0.8 }", "type: kSGD", "type: kSGD adam_conf { beta1: 0.8 }"),
        ("updater.type=kAdam", "type: kSGD", "type: kAdam"),
        ("cluster={ }", "cluster { nworkers_per_group: 3 nservers_per_group: 3 }", "cluster { }"),
    ],
)
def test_an_override_says_what_the_text_could(good: str, broken, override: str, old: str, new: str) -> None:
    job = load_job(good)
    assert apply_overrides(job, [override]) is job
    assert job == load_job(broken(old, new))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("test_stps=5", "test_stps: there is no such field in a job. Received: test_stps. Did you mean test_steps?"),
        ("momentum=1", "momentum: there is no such field in a job. Received: momentum. It belongs in updater { }."),
        ("test_steps=x", "test_steps: expected an integer. Received: x."),
        ("test_steps=", "test_steps: has no value. Received: nothing."),
        ("test_steps[0]=1", "test_steps: is no list. Received: [0]. Leave the brackets out."),
        ("test_steps.x=1", "test_steps: is a single value without fields. Received: test_steps."),
        ("gpu=[0,x]", "gpu: expected an integer. Received: [0,x]."),
        ("gpu=[0,,1]", "gpu: has no value. Received: [0,,1]."),
        ("gpu=[0", "gpu: the list is not closed. Received: [0. Write [A, B]."),
        ("gpu[3]=1", "gpu: has 0 entries. Received: [3]. Valid: 0."),
        (
            "updater=kSGD",
            "updater: is a block. Received: kSGD. Set one of its fields (updater.type=...), or all: { ... }.",
        ),
        (
            "updater={ typ: kSGD }",
            "updater.typ: there is no such field in updater { }. Received: typ. Did you mean type?",
        ),
        ("updater={ } }", "updater: expected the name of a field. Received: }."),
        ("updater.type=kSDG", "updater.type: no such UpdaterType. Received: kSDG. Did you mean kSGD?"),
        ("neuralnet.layer.type=kReLU", "Choose one: layer[0] or by name."),
        (
            "neuralnet.layer[relu].type=kTanh",
            "neuralnet.layer: no layer has this name. Received: relu. Did you mean relu1?",
        ),
        ("neuralnet.layer[data].type=kTanh", "2 layers have this name. Received: data. Write layer[0] or layer[1]."),
        ("neuralnet.layer[7].type=kTanh", "neuralnet.layer: has 7 entries. Received: [7]. Valid: 0 to 6."),
        ("neuralnet.layer[conv1].kernel=3", "It belongs in convolution_conf { } or pooling_conf { }."),
        (
            "neuralnet.layer[conv1].param[w1].name=x",
            "neuralnet.layer[conv1].param: expected a position from 0. Received: [w1].",
        ),
        ("updater.=3", "updater.: the path ends with a dot."),
        ("a..b=3", "a: there is no such field"),
        ("neuralnet..layer=3", "is not a valid path"),
        ("neuralnet.layer[0=3", "is not a valid path"),
        ("test_steps", 'an override must be written as "path=value". Received: test_steps.'),
        ("=3", 'an override must be written as "path=value"'),
        ('name="a', "name: the closing quote is missing"),
        ('name="a" b', "name: unexpected text after the closing quote"),
    ],
)
def test_wrong_overrides(good: str, text: str, message: str) -> None:
    job = load_job(good)
    with pytest.raises(ConfigError) as error:
        apply_overrides(job, ["test_steps=77", text])
    assert len(error.value.problems) == 1
    assert f"override: {message}" in str(error.value) or message in str(error.value)
    assert str(error.value).startswith("override: ")
    assert job == load_job(good)


def test_every_wrong_override_is_reported(good: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_job(good, ["a=1", "test_steps=2", "b=1"])
    assert [p.key for p in error.value.problems] == ["a", "b"]


def test_problems_of_overridden_fields_say_so(good: str) -> None:
    job, positions = read_job(good, ["updater.momentum=2"])
    with pytest.raises(ConfigError, match=r"^override: updater\.momentum: must be at least 0 and below 1"):
        check_job(job, positions.find)
