from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf import text_encoding

from singa_dask.errors import ConfigError
from singa_dask.job import apply_overrides, check_job, load_job, read_job
from singa_dask.job.job_pb2 import JobProto
from singa_dask.job.paths import format_path, layer_names


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
        ("gpu=[]", "test_steps: 5", "test_steps: 5"),
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
        ("test_steps=x", "test_steps: expected a whole number. Received: x."),
        ("test_steps=", "test_steps: has no value. Received: nothing."),
        ("test_steps[0]=1", "test_steps: is no list. Received: [0]. Leave the brackets out."),
        ("test_steps.x=1", "test_steps: is a single value without fields. Received: test_steps."),
        ("gpu=[0,x]", "gpu: expected a whole number. Received: [0,x]."),
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
