"""The nets that PyTorch's users write, against PyTorch's numbers."""

from __future__ import annotations

import random

import numpy as np
import pytest
from peers import drawn, expected, ours, refused
from peers.nets import NETS, REASONS, ROWS
from simulation.batch import seed_of_tree

from singa_dask.errors import ConfigError
from singa_dask.ops import get_ops
from singa_dask.tensors.device import get_default_device

PLAYED = 12  # jobs, others for each state of the code; the rest are `long`
MODES = ("loop", "model", "job")
TRAINED = {mode: [name for name, net in NETS.items() if not getattr(net, mode)] for mode in MODES}
_LONG = {"resnet50"}  # 161 layers
_NOW = set(random.Random(seed_of_tree()).sample(sorted({*TRAINED["job"]} - _LONG), PLAYED))


def assert_equal(name: str, found: ours.Trained) -> None:
    wanted = expected.losses(name)
    np.testing.assert_allclose(
        np.array(found.losses) / np.maximum(1, wanted), wanted / np.maximum(1, wanted), atol=1e-9
    )
    for each in expected.kept(name, "state"):
        sketch = expected.sketch(name, each.name, found.state[each.name])
        np.testing.assert_allclose(sketch, each.sketch, rtol=0, atol=1e-9 * max(1, each.norm), err_msg=each.name)


@pytest.mark.parametrize("name", TRAINED["loop"])
def test_a_loop_trains_it_as_pytorch_does(name, monkeypatch):
    """In float64, which tensors cannot be asked for: the device computes in it."""
    monkeypatch.setitem(vars(get_default_device()), "ops", get_ops("cpu", np.float64))
    assert_equal(name, ours.loop(name))


@pytest.mark.parametrize("name", TRAINED["model"])
def test_a_model_trains_it_as_pytorch_does(name):
    assert_equal(name, ours.model(name))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name not in _NOW), id=name) for name in TRAINED["job"]]
)
def test_a_job_of_two_workers_trains_it_as_pytorch_does(name, tmp_path):
    """In float32, and hardly farther from PyTorch's float64 than its own float32 is."""
    found, (first, *_) = ours.job(name, tmp_path), expected.losses(name)
    assert len(found.losses) == drawn.STEPS
    assert abs(found.losses[0] - first) <= 1e-5 * max(1, first)
    for kind, arrays in (("gradients", found.gradients), ("state", found.state)):
        if arrays:
            own, theirs = expected.distances(name, kind, arrays)
            assert own <= 3 * theirs, kind


@pytest.mark.parametrize(
    ("name", "mode"),
    [(name, mode) for name, net in NETS.items() for mode in MODES if getattr(net, mode)],
)
def test_what_is_refused_says_why(name, mode):
    with pytest.raises(ConfigError, match=getattr(NETS[name], mode)):
        refused.attempt(name, mode)


def test_the_list_refuses_nothing_else():
    """What the nets are called by their users, and the reasons for which one is refused."""
    assert len(ROWS) == 43
    refused = {reason for net in NETS.values() for reason in (net.loop, net.model, net.job) if reason}
    assert refused == set(REASONS)
    assert sum(net.own for net in NETS.values()) <= 4


def test_pytorchs_numbers_are_few():
    assert expected.FILE.stat().st_size < 2_000_000


@pytest.mark.parametrize("name", TRAINED["loop"])
def test_pytorchs_numbers_are_of_this_list(name):
    """Its losses, each gradient and each parameter; what float32 changes is little."""
    assert expected.losses(name).shape == (drawn.STEPS,)
    for kind in ("gradients", "state"):
        kept = list(expected.kept(name, kind))
        assert all(len(each.sketch) == 2 + min(8, each.size) for each in kept)
        assert 0 < max(each.off for each in kept) < 1e-3
