"""check_layer names each fault of a layer, and finds none in the layers of the package and of its pages."""

import re
from pathlib import Path

import numpy as np
import pytest
from support.layer_cases import CASES, Bench
from support.user_layers import Root, Scaled

from singa_dask import check_layer
from singa_dask.errors import ConfigError
from singa_dask.job.job_pb2 import Phase
from singa_dask.layers import InnerProduct, LossLayer, RecordInput, SoftmaxLoss
from singa_dask.ops import Ops

DRAW = np.random.default_rng(3)
X, T = DRAW.normal(size=(4, 3)), DRAW.normal(size=(4, 3))
DOCS = Path(__file__).parents[3] / "docs"
OWN = (DOCS / "own-layers.md").read_text() + (DOCS / "own-code.md").read_text()
DOCUMENTED = {"__name__": "of_the_documentation"}
for block in re.findall(r"```python\n(.*?)```", OWN, re.DOTALL):
    exec(block, DOCUMENTED)  # one of them calls check_layer
Scale, Pinball = DOCUMENTED["Scale"], DOCUMENTED["Pinball"]


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.phase == Phase.kTrain])
def test_the_layers_of_the_package_pass(name):
    case = CASES[name]
    check_layer(case.layer, tuple(Bench(case.layer, case.sources, Ops(np.float64)).inputs))


@pytest.mark.parametrize("layer", [Root(), Scaled(), DOCUMENTED["Leaky"](unroll_len=2), InnerProduct(num_output=150)])
def test_layers_of_users_pass(layer):
    check_layer(layer, X)


class Doubled(Scale):
    """With a wrong gradient for its source."""

    def backward(self, ctx, dy):
        return 2 * super().backward(ctx, dy)


class Shared(Scale):
    """With a wrong gradient for its parameter."""

    def backward(self, ctx, dy):
        return super().backward(ctx, 2 * dy) / 2


class Unclaimed(Scale):
    def backward(self, ctx, dy):
        self.factor.grad[...] = (dy * ctx.x).sum()
        return dy * self.factor.value


class Adding(Scale):
    """Adds to whatever there is."""

    def backward(self, ctx, dy):
        self.factor.claim()
        self.factor.grad += (dy * ctx.x).sum()
        return dy * self.factor.value


class Replacing(Scale):
    """Forgets what there is."""

    def backward(self, ctx, dy):
        self.factor.claim()
        self.factor.grad[...] = (dy * ctx.x).sum()
        return dy * self.factor.value


class Idle(Scale):
    """Without a gradient for its parameter."""

    def backward(self, ctx, dy):
        return dy * self.factor.value


class Blind(Scale):
    """Without a gradient for its source."""

    def backward(self, ctx, dy):
        super().backward(ctx, dy)


class Narrow(Scale):
    def forward(self, ctx, *x):
        return super().forward(ctx, *x)[:, :1]


class Summed(Scale):
    def backward(self, ctx, dy):
        return super().backward(ctx, dy).sum(axis=0)


class Widened(Scale):
    def forward(self, ctx, *x):
        return super().forward(ctx, *x).astype(np.float64)


class WidenedBack(Scale):
    def backward(self, ctx, dy):
        return super().backward(ctx, dy).astype(np.float64)


class Overwriting(Scale):
    def forward(self, ctx, *x):
        x[0][...] *= 2
        return super().forward(ctx, *x)


class Noisy(Scale):
    def forward(self, ctx, *x):
        return super().forward(ctx, *x) + DRAW.normal(size=x[0].shape).astype(x[0].dtype)


class Centred(Scale):
    rowwise = True

    def forward(self, ctx, *x):
        return super().forward(ctx, x[0] - x[0].mean(axis=0))


class One(DOCUMENTED["Difference"]):
    def backward(self, ctx, dy):
        return dy


class Three(DOCUMENTED["Difference"]):
    def backward(self, ctx, dy):
        return dy, -dy, dy


class Undivided(Pinball):
    def backward(self, ctx, dy):
        return ctx.slope, None


class Locally(Pinball):
    def backward(self, ctx, dy):
        return ctx.slope / len(ctx.slope), None


class Halved(Pinball):
    def backward(self, ctx, dy):
        return ctx.slope / (2 * ctx.step.total_rows), None


class Mute(Pinball):
    metrics = LossLayer.metrics


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (Doubled, r"layer 'Doubled': wrong gradient of source 0: at \[0, 0\], backward gives .* \(12 of 12 elements"),
        (Shared, "wrong gradient of parameter 'Shared_factor'"),
        (Unclaimed, r"parameter 'Unclaimed_factor': backward wrote its gradient without calling claim\(\). Write"),
        (Adding, r"'Adding_factor': backward adds to the gradient of the step before, .* claim\(\) was False"),
        (Replacing, r"'Replacing_factor': backward does not add to the gradient where claim\(\) is True. Write"),
        (Idle, r"wrong gradient of parameter 'Idle_factor': at \[0\], backward gives 0 and"),
        (Blind, "wrong gradient of source 0"),
        (Narrow, r"forward returned rows of shape \(1,\), but setup returned \(3,\)"),
        (Summed, r"backward returned shape \(3,\) for source 0, whose output is \(4, 3\)"),
        (
            Widened,
            r"forward returned float64 for sources of float32. Compute in the type of the sources, ctx.ops.dtype",
        ),
        (WidenedBack, "backward returned float64 for source 0 of float32"),
        (Overwriting, "forward overwrites the output of source 0. Other layers read it: copy it first"),
        (Noisy, "other values for the same sources and step. Draw from .* ctx.step.seed"),
        (Centred, "is rowwise, but a row of its output depends on other rows. Leave out `rowwise`"),
        (One, "backward returned one gradient for 2 sources. Return a tuple"),
        (Three, "backward returned 3 gradients for 2 sources"),
        (
            Undivided,
            "wrong gradient of source 0.* It is not divided by the number of rows. Divide it by ctx.step.total",
        ),
        (Locally, "It is divided by the rows of this worker. Divide it by ctx.step.total_rows, the rows of the whole"),
        (Halved, r"It must be that of \(the sum of the metric `loss` over the rows\) / ctx.step.total_rows"),
        (Mute, r"`metrics` has no `loss`.* Return \{\"loss\": Metric"),
    ],
)
def test_a_fault_is_named(layer, words):
    with pytest.raises(ConfigError, match=words):
        check_layer(layer(), (X, T)[: layer.num_sources[0]])


@pytest.mark.parametrize(
    ("layer", "inputs", "words"),
    [
        (Scale, X, "expected a layer that reads others. Received: <class"),
        (RecordInput("data"), X, r"check_layer: expected a layer .* Received: RecordInput\('data'\)"),
        (Scale(), (X, T[:3]), r"needs the rows of each source. Received: \(4, 3\), \(3, 3\). Give an array of rows"),
        (Scale(), 2.0, r"needs the rows of each source. Received: \(\)"),
        (Scale(), (), "needs the rows of each source. Received: nothing"),
        (Scale(), (X, T), "takes 1 srclayers. Received: source0, source1"),
        (DOCUMENTED["Leaky"](unroll_len=3), X, r"Received: \(4, 3\). .*: 3 time steps of them"),
    ],
)
def test_what_cannot_be_checked_is_refused(layer, inputs, words):
    with pytest.raises(ConfigError, match=words):
        check_layer(layer, inputs)


class Blind(Scale):
    """Without the gradient of some elements."""

    without = np.s_[:, 7]

    def backward(self, ctx, dy):
        dx = super().backward(ctx, dy)
        dx[self.without] = 0
        return dx


@pytest.mark.parametrize("without", [np.s_[:, 77], np.s_[49]])
@pytest.mark.parametrize("shape", [(50, 100), (50, 80)])
def test_a_row_or_column_of_wide_inputs_is_not_overlooked(shape, without):
    layer = Blind()
    layer.without = without
    with pytest.raises(ConfigError, match="wrong gradient of source 0"):
        check_layer(layer, DRAW.normal(size=shape))


def test_a_loss_of_maps_passes():
    draw = np.random.default_rng(0)
    check_layer(SoftmaxLoss(), (draw.random((4, 3, 3, 5)), draw.integers(0, 5, (4, 3, 3))))
