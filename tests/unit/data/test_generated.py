"""Samples that an input layer of a user's own generates: the example of docs/own-code.md, and what goes wrong."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from support.topologies import run_topology

from singa_dask import layers, load_model, updaters
from singa_dask.data import Loader, make_stream
from singa_dask.data.generated import generated_manifest, samples_of
from singa_dask.errors import ConfigError, DataError
from singa_dask.inference.blocks import own_blocks
from singa_dask.job import ClusterTopology, Job
from singa_dask.job.job_pb2 import Phase
from singa_dask.layers import GeneratedInput
from singa_dask.training import checkpoint as checkpoints
from singa_dask.training.prepare import prepare

PAGE = (Path(__file__).parents[3] / "docs" / "own-code.md").read_text()
NAMES: dict = {}
exec(next(code for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "GeneratedInput" in code), NAMES)
Waves = NAMES["Waves"]
SETTINGS = {"length": 8, "samples": 50, "seed": 3}


class Numbers(GeneratedInput):
    """A sample is its number, and so is its target."""

    def setup(self, *src):
        return (1,)

    @property
    def target_shape(self):
        return (1,)

    def num_samples(self):
        return self.user_conf.get("samples", 40)

    def generate(self, numbers):
        return numbers[:, None], numbers[:, None]


def loaded(layer, steps, nranks=1, **stream):
    """The features that each rank of a group gets in each of `steps` steps."""
    stream = make_stream(layer.conf, generated_manifest(layer), seed=7, **stream)
    with ThreadPoolExecutor(1) as pool:
        loaders = [
            Loader(stream, layer.conf, pool.submit, rank, nranks, stop_step=steps, generated=layer)
            for rank in range(nranks)
        ]
        return [[loader.next() for loader in loaders] for _ in range(steps)]


def test_the_workers_of_a_group_share_each_mini_batch_and_resume_anywhere():
    layer = Waves("data", batchsize=10, **SETTINGS)
    alone, shared = loaded(layer, 7), loaded(layer, 7, nranks=3)
    for (whole,), parts in zip(alone, shared, strict=True):
        assert [len(part.features) for part in parts] == [3, 3, 4]
        np.testing.assert_array_equal(whole.features, np.concatenate([part.features for part in parts]))
        np.testing.assert_array_equal(whole.labels, np.concatenate([part.labels for part in parts]))
    assert whole.features.dtype == np.float32
    assert whole.labels.dtype == np.int64
    assert not np.array_equal(alone[0][0].features, alone[5][0].features), "the next epoch has another order"


def test_groups_have_disjoint_samples_and_an_epoch_has_all():
    layer = Numbers("data", batchsize=4)
    seen = [
        np.concatenate([batch.features.ravel() for (batch,) in loaded(layer, 5, group=group, ngroups=2)])
        for group in range(2)
    ]
    assert sorted(np.concatenate(seen).tolist()) == list(range(40))


def test_an_evaluation_reads_every_sample_once_in_order():
    batches = loaded(Numbers("data", batchsize=16), 3, phase=Phase.kTest, once=True)
    assert [len(batch.features) for (batch,) in batches] == [16, 16, 8]
    np.testing.assert_array_equal(np.concatenate([b.labels for (b,) in batches]).ravel(), np.arange(40))


def job(cluster, **fields):
    net = (
        Waves("data", batchsize=12, include=["kTrain"], **SETTINGS),
        Waves("data", batchsize=20, include=["kTest"], **{**SETTINGS, "seed": 4}),
        layers.InnerProduct("ip", "data", num_output=4),
        layers.SoftmaxLoss("loss", ["ip", "data"]),
    )
    updater = updaters.SGD(lr=0.1)
    return Job(name="waves", train_steps=6, layers=net, updater=updater, cluster=cluster, test_freq=6, **fields)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The run of one worker, and its checkpoint."""
    folder = tmp_path_factory.mktemp("alone")
    return run_topology(prepare(job(ClusterTopology.allreduce(1))), folder), checkpoints.path_of(folder, 6)


def test_training_in_parallel_equals_serial_training(alone, tmp_path):
    ran = run_topology(prepare(job(ClusterTopology.allreduce(3))), tmp_path)
    paths = checkpoints.path_of(tmp_path, 6), alone[1]
    weights = [np.asarray(checkpoints.load(path).parameters["ip_weight"]) for path in paths]
    np.testing.assert_allclose(*weights, rtol=1e-5)
    assert ran.reports[0]["metrics"]["test"] == pytest.approx(alone[0].reports[0]["metrics"]["test"], rel=1e-5)


def test_a_trained_net_predicts_samples_that_are_given(alone):
    model = load_model(alone[1])
    assert model.predict(np.zeros((5, 8))).shape == (5, 4)
    with pytest.raises(ConfigError, match="--data: is missing, and layer 'data' generates its samples"):
        own_blocks(model)


def test_other_settings_are_other_data():
    every = (Numbers("n", batchsize=4, **settings) for settings in ({}, {}, {"samples": 39}, {"other": 1}))
    found = (make_stream(layer.conf, generated_manifest(layer), seed=7).fingerprint for layer in every)
    first, again, fewer, other = found
    assert first == again and len({first, fewer, other}) == 3


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, r"neuralnet\.layer\[data\]\.user_conf: has no batchsize"),
        ({"batchsize": 2}, r"neuralnet\.layer\[data\]: batchsize is shared by the 3 workers.*Received: 2\. Use 3"),
        ({"batchsize": "4"}, r"data\.batchsize: expected an integer"),
        ({"batchsize": 4, "samples": 0}, r"num_samples must return an integer of at least 1"),
        ({"batchsize": 4, "has_label": 1}, r"data\.has_label: expected True or False"),
    ],
)
def test_settings_that_cannot_be_used_are_refused_before_anything_starts(settings, says):
    def faulty():
        net = Numbers("data", **settings), layers.InnerProduct("ip", num_output=1), layers.MSELoss("loss")
        return Job(
            name="n", train_steps=1, layers=net, updater=updaters.SGD(lr=0.1), cluster=ClusterTopology.allreduce(3)
        )

    with pytest.raises(ConfigError, match=says):
        prepare(faulty())


def test_generated_samples_and_those_of_shards_do_not_pair():
    net = (
        Numbers("data", batchsize=4),
        layers.RecordInput("more", path="shards", shape=[1], batchsize=4),
        layers.Concate("both", ["data", "more"], concate_dim=1),
        layers.MSELoss("loss", ["both", "both"]),
    )
    mixed = Job(name="n", train_steps=1, layers=[*net], updater=updaters.SGD(lr=0.1))
    with pytest.raises(ConfigError, match=r"input layers must generate equally many samples.*Received: data, more"):
        prepare(mixed, with_data=False)


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        (lambda numbers: numbers[:, None], "returned no labels, but has_label is true"),
        (lambda numbers: (numbers, numbers), r"must return samples of shape \(3, 1\)\. Received: \(3,\)"),
        (lambda numbers: (numbers[:, None], numbers), r"must return targets of shape \(3, 1\)\. Received: \(3,\)"),
        (lambda numbers: (numbers[:, None].astype(str), None), "returned no labels"),
        (lambda numbers: (numbers[:, None].astype(str), numbers[:, None]), "samples that are numbers. Received: <U"),
        (lambda numbers: 1 / 0, "generate failed for samples 4 to 9: ZeroDivisionError: division by zero"),
    ],
)
def test_what_generate_must_not_return(monkeypatch, returned, says):
    monkeypatch.setattr(Numbers, "generate", lambda self, numbers: returned(numbers))
    with pytest.raises(DataError, match=rf"layer 'data': .*{says}"):
        samples_of(Numbers("data", batchsize=4), np.array([4, 9, 6]))
