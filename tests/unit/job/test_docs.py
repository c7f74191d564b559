"""docs/job.md and docs/job-python.md show what really happens."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from singa_dask.errors import ConfigError
from singa_dask.job import Job, apply_overrides
from singa_dask.job.gpus import CPUS

ROOT = Path(__file__).parents[3]
TEXT = "".join((ROOT / "docs" / f"{page}.md").read_text() for page in ("job", "job-python"))
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", TEXT, re.DOTALL)
PYTHON = [code for language, code in BLOCKS if language == "python"][1:]  # job.md has overrides alone


(EXAMPLE,) = (code for language, code in BLOCKS if not language and code.startswith("name:"))


@pytest.fixture(scope="module")
def names() -> dict:
    """What the first block of Python defines."""
    found: dict = {}
    exec(PYTHON[0], found)
    return found


def test_both_spellings_of_the_example_train_the_same_job(names: dict) -> None:
    job = Job.from_text(EXAMPLE)
    job.check()
    python = Job.from_proto(names["job"].proto)
    for layer in python.proto.neuralnet.layer:
        for field, value in layer.ListFields():
            if field.message_type and not field.is_repeated and not value.ListFields():
                layer.ClearField(field.name)  # a block without settings says nothing
    assert python.to_text() == job.to_text()


def test_layers_without_names_make_the_nets_that_the_text_says(names: dict) -> None:
    other = {"train_steps": 1, "updater": names["SGD"](lr=0.1), "name": "digits", "test_freq": 1, "test_steps": 1}
    exec(PYTHON[1], names)
    chain = Job(layers=names["layers"], **other)
    exec(PYTHON[2], names)
    graph = Job(layers=names["layers"], **other)
    for made in (chain, graph):
        made.check()
    renamed = chain.to_text().replace('"innerproduct', '"ip').replace("recordinput1", "data")
    assert Job.from_text(renamed.replace("softmaxloss1", "loss")).proto.neuralnet == names["job"].proto.neuralnet
    order = [layer.name for layer in graph.proto.neuralnet.layer]
    assert order == ["recordinput1", "innerproduct1", "relu1", "concate1", "scores", "softmaxloss1", "accuracy1"]


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("typos", [("train_steps:", "train_step:"), ("kSGD", "kSDG"), ("num_output: 100", "num_outputs: 100")]),
        (
            "wrong",
            [
                *[("train_steps: 500", ""), ("momentum: 0.9", "momentum: 9"), ('"relu1" inner', '"relu" inner')],
                ("batchsize: 64", "batchsize: 2"),
            ],
        ),
    ],
)
def test_errors_are_real(name: str, changes: list, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = EXAMPLE
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    monkeypatch.chdir(tmp_path)
    Path(f"{name}.conf").write_text(text)
    with pytest.raises(ConfigError) as error:
        Job.from_file(f"{name}.conf").check()
    (shown,) = (code for _, code in BLOCKS if code.startswith(f"{name}.conf:"))
    assert str(error.value) + "\n" == shown


def test_overrides_of_the_table_work() -> None:
    table = TEXT.split("| override | sets |")[1].split("\n\n")[0]
    overrides = [o for row in table.splitlines()[2:] for o in re.findall(r"`([^`]+)`", row.split(" | ")[0])]
    assert len(overrides) == 10
    job = Job.from_text(EXAMPLE)
    job.proto.neuralnet.layer.add(name="conv1")
    apply_overrides(job.proto, overrides)
    assert job.proto.cluster.nworkers_per_group == 4
    assert job.proto.neuralnet.layer[2].param[0].lr_scale == 2
    assert list(job.proto.gpu) == [CPUS]
