"""The layers of docs/own-layers.md."""

import re
from pathlib import Path

import numpy as np
import pytest
from support.gradients import check_gradients, loss_of
from support.nets_over_time import ROWS, text, texts

from singa_dask import Model, layers
from singa_dask.errors import ConfigError
from singa_dask.job.job_pb2 import Phase
from singa_dask.layers.context import Step
from singa_dask.net import Batch, Net
from singa_dask.ops import get_ops

DOCS = (Path(__file__).parents[3] / "docs" / "own-layers.md").read_text()


def documented(name):
    (code,) = (block for block in re.findall(r"```python\n(.*?)```", DOCS, re.DOTALL) if f"class {name}" in block)
    names = {"__name__": "of_the_documentation"}
    exec(code, names)
    return names[name]


def model(width=4):
    """One with the layer that has two sources."""
    data = layers.RecordInput("data", shape=[4])
    first = layers.Tanh()(layers.InnerProduct("first", num_output=4)(data))
    second = layers.InnerProduct("second", num_output=width)(first)
    difference = documented("Difference")("difference")(second, first)
    return Model([layers.SoftmaxLoss()(layers.InnerProduct(num_output=3)(difference), data)], dtype=np.float64)


def test_the_layer_with_two_sources_has_right_gradients():
    made, rng = model(), np.random.default_rng(0)
    x, y = rng.normal(size=(5, 4)), rng.integers(0, 3, 5)
    check_gradients(made.net, lambda: float(made(x, y)), per_entry=4)


def test_sources_of_other_shapes_are_refused():
    with pytest.raises(ConfigError, match="the sources must have the same shape"):
        model(width=5)


def test_the_recurrent_layer_has_right_gradients():
    net = Net(text(documented("Leaky")("cell", "in")), Phase.kTrain, get_ops("cpu", np.float64))
    net.initialise(3)
    feed, step = {"data": Batch(texts(1)[0])}, Step(Phase.kTrain, 0, total_rows=ROWS)
    check_gradients(net, lambda: loss_of(net, feed, step), per_entry=20)
