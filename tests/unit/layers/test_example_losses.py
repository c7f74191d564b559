"""The losses of examples/losses: their values by definition, and their gradients."""

import importlib.util
import itertools
import sys
from pathlib import Path

import numpy as np
import pytest

from singa_dask import autograd
from singa_dask.layers import Loss
from singa_dask.net.check_layer import check_layer
from singa_dask.tensors.tensor import from_numpy

FILE = Path(__file__).parents[3] / "examples" / "losses" / "losses.py"
SPEC = importlib.util.spec_from_file_location("example_losses", FILE)
losses = importlib.util.module_from_spec(SPEC)
sys.modules[SPEC.name] = losses
SPEC.loader.exec_module(losses)

DRAW = np.random.default_rng(0)
X, Y = DRAW.standard_normal((3, 4)), DRAW.integers(0, 2, (3, 4)).astype(float)
A, B, C = DRAW.standard_normal((3, 3, 5))
SAME = np.array([[1.0], [0], [0]])
LABELS = np.array([[1, 2, 2], [3, 0, 0], [2, 1, 0]])
SCORES = DRAW.standard_normal((3, 6, 4))


def softmax(x):
    return np.exp(x) / np.exp(x).sum(axis=-1, keepdims=True)


def binary(x, y):
    return np.where(y == 1, 1 / (1 + np.exp(-x)), 1 / (1 + np.exp(x)))


def ctc(x, y):
    """The sum over all paths, one by one."""
    found = []
    for scores, labels in zip(softmax(x), y, strict=True):
        total, wanted = 0.0, labels[labels != 0].tolist()
        for path in itertools.product(range(x.shape[2]), repeat=x.shape[1]):
            if [c for c, _ in itertools.groupby(path) if c] == wanted:
                total += np.prod(scores[np.arange(len(path)), path])
        found.append(-np.log(total))
    return np.array(found)


def kl(x, teacher):
    p, q = softmax(teacher / 2), softmax(x / 2)
    return 4 * (p * np.log(p / q)).sum(axis=1)


CASES = {
    "focal": (
        (X, Y),
        lambda x, y: (np.where(y, 0.25, 0.75) * -((1 - binary(x, y)) ** 2) * np.log(binary(x, y))).mean(1),
    ),
    "dice": (
        (X, Y),
        lambda x, y: 1 - (2 * (y / (1 + np.exp(-x))).sum(1) + 1) / ((1 / (1 + np.exp(-x)) + y).sum(1) + 1),
    ),
    "distillation": ((X, Y), kl),
    "normal_kl": ((A, B), lambda m, v: (m**2 + np.exp(v) - v - 1).sum(1) / 2),
    "contrastive": (
        (A, A + 0.2 * B, SAME),
        lambda a, b, s: np.where(
            s[:, 0], ((a - b) ** 2).sum(1), np.maximum(1 - np.linalg.norm(a - b, axis=1), 0) ** 2
        ),
    ),
    "triplet": ((A, B, C), lambda a, p, n: np.maximum(((a - p) ** 2 - (a - n) ** 2).sum(1) + 1, 0)),
    "ctc": ((SCORES, LABELS), ctc),
}


@pytest.mark.parametrize("name", CASES)
def test_values(name):
    given, formula = CASES[name]
    tensors = [from_numpy(each.astype(np.float32 if each.dtype.kind == "f" else np.int32)) for each in given]
    found = getattr(losses, name)(*tensors)
    assert found.shape == (3,)
    np.testing.assert_allclose(found.to_numpy(), formula(*given), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_gradients(name):
    check_layer(Loss(getattr(losses, name)), CASES[name][0])


def test_every_loss_is_tested():
    assert {name for name, each in vars(losses).items() if getattr(each, "__module__", "") == SPEC.name} == set(CASES)
    assert autograd is losses.F
