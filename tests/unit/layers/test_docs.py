"""The layer with two sources of docs/layers.md."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from support.gradients import check_gradients

from singa_dask import Model, layers
from singa_dask.errors import ConfigError

TEXT = (Path(__file__).parents[3] / "docs" / "layers.md").read_text()


@pytest.fixture
def difference():
    (code,) = (block for block in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL) if "class Difference" in block)
    names = {"__name__": "of_the_documentation"}
    exec(code, names)
    return names["Difference"]


def net(difference, width: int = 4):
    data = layers.RecordInput("data", shape=[4])
    first = layers.Tanh()(layers.InnerProduct("first", num_output=4)(data))
    second = layers.InnerProduct("second", num_output=width)(first)
    return layers.SoftmaxLoss()(
        layers.InnerProduct("scores", num_output=3)(difference("difference")(second, first)), data
    )


def test_it_has_right_gradients(difference):
    model = Model([net(difference)], dtype=np.float64)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(5, 4)), rng.integers(0, 3, 5)
    model(x, y)
    model.net.backward()
    check_gradients(model.net, lambda: float(model(x, y)), per_entry=4)


def test_sources_of_other_shapes_are_refused(difference):
    with pytest.raises(ConfigError, match="the sources must have the same shape"):
        Model([net(difference, width=5)])
