"""Layers as users write them."""

import numpy as np

from singa_dask.layers import BatchNorm, InnerProduct, Layer, LossLayer, Metric, ReLU
from singa_dask.layers.partition import Sharding
from singa_dask.layers.recurrent_layer import RecurrentLayer


class Same(Layer):
    """y = x."""

    def setup(self, *src):
        return src[0]

    def forward(self, ctx, *x):
        return x[0]

    def backward(self, ctx, dy):
        return dy


class Centred(Same):
    """y = x - the mean of x over the rows, times a scale."""

    def setup(self, *src):
        self.scale = self.declare("scale", (1,), 1, 1, 1.5)
        return src[0]

    def forward(self, ctx, *x):
        ctx.y = x[0] - x[0].mean(axis=0)
        return self.scale.value * ctx.y

    def backward(self, ctx, dy):
        _add(self.scale, (dy * ctx.y).sum())
        return self.scale.value * (dy - dy.mean(axis=0))


class Running(Same):
    """The sum of the rows up to each."""

    def forward(self, ctx, *x):
        return np.cumsum(x[0], axis=0)

    def backward(self, ctx, dy):
        return np.cumsum(dy[::-1], axis=0)[::-1]


class FromFirst(ReLU):
    """y = x - the first row."""

    type = "kUserLayer"

    def forward(self, ctx, *x):
        return x[0] - x[0][:1]

    def backward(self, ctx, dy):
        return np.concatenate([dy[:1] - dy.sum(axis=0, keepdims=True), dy[1:]])


class Unlike(LossLayer):
    """The difference of x and the targets, of which each row is compared with the mean of all."""

    num_sources, target_sources = (2, 2), (1,)

    def setup(self, *src):
        return self.sources(src)[0]

    def forward(self, ctx, *x):
        ctx.error = x[0] - x[1].reshape(x[0].shape)
        ctx.error = ctx.error - ctx.error.mean(axis=0)
        return x[0]

    def backward(self, ctx, dy):
        return 2 * ctx.error / ctx.step.total_rows, None

    def metrics(self, ctx):
        return {"loss": Metric(float((ctx.error**2).sum()), len(ctx.error))}


class Root(Layer):
    """y = scale x / (1 + |x|), of whole samples."""

    def setup(self, *src):
        self.scale = self.declare("scale", (src[0][-1],), 1, 1, 1.5)
        return src[0]

    def forward(self, ctx, *x):
        ctx.x, ctx.norm = x[0], np.linalg.norm(x[0], axis=-1, keepdims=True) + 1
        return x[0] / ctx.norm * self.scale.value

    def backward(self, ctx, dy):
        _add(self.scale, (dy * ctx.x / ctx.norm).sum(axis=0))
        dz = dy * self.scale.value
        along = (dz * ctx.x).sum(axis=-1, keepdims=True) / ctx.norm**2
        return dz / ctx.norm - ctx.x * along / np.maximum(ctx.norm - 1, 1e-300)


class Scaled(Layer):
    """y = scale x^2 + shift, with a scale per feature and one shift."""

    takes = (Sharding.BATCH, Sharding.REPLICATED, Sharding.FEATURES)

    def setup(self, *src):
        features = self.partition.sources[0][-1] if self.partition.splits else src[0][-1]
        axis = 0 if self.partition.splits else None
        self.scale = self.declare("scale", (features,), 1, 1, 0.7, axis=axis)
        self.shift = self.declare("shift", (1,), 1, 1, 0.3)
        return src[0]

    def forward(self, ctx, *x):
        ctx.x = x[0]
        return x[0] * x[0] * self.scale.value + self.shift.value

    def backward(self, ctx, dy):
        _add(self.scale, (dy * ctx.x**2).reshape(-1, dy.shape[-1]).sum(axis=0))
        _add(self.shift, dy.sum())
        return 2 * ctx.x * dy * self.scale.value


class Weighted(Layer):
    """y = w x, with a weight per feature. Overwrites its dy, which a layer may do."""

    def setup(self, *src):
        self.w = self.declare("weight", src[0], 1, 1)
        return src[0]

    def forward(self, ctx, *x):
        ctx.x = x[0]
        return x[0] * self.w.value

    def backward(self, ctx, dy):
        _add(self.w, (dy * ctx.x).sum(axis=0))
        if not ctx.needs_input_grad:
            return None
        dy *= self.w.value
        return dy


class Reversed(Same):
    """y = x with the features in reverse order: gives strided views away and gets none itself."""

    def forward(self, ctx, *x):
        assert x[0].flags.c_contiguous
        return x[0][:, ::-1]

    def backward(self, ctx, dy):
        assert dy.flags.c_contiguous
        return dy[:, ::-1]


class Total(Same):
    """The sum of its sources. Gives one and the same gradient to all of them."""

    num_sources = (2, None)
    takes = (Sharding.BATCH, Sharding.REPLICATED, Sharding.FEATURES)

    def forward(self, ctx, *x):
        return sum(x)

    def backward(self, ctx, dy):
        return (dy,) * len(self.proto.srclayers)


class Halves(Layer):
    """The first features for one destination, the others for the second."""

    multiple_outputs = True

    def setup(self, *src):
        self.first = src[0][-1] // 2
        return (self.first,), (src[0][-1] - self.first,)

    def forward(self, ctx, *x):
        return x[0][:, : self.first], x[0][:, self.first :]

    def backward(self, ctx, dy):
        return np.concatenate(dy, axis=1)


class Labelled(Same):
    """y = x; the label is the number of positive features, at most 4."""

    def forward(self, ctx, *x):
        ctx.labels = np.minimum((x[0] > 0).sum(axis=-1), 4)
        return x[0]


class Everything(Same):
    """y = x, of all rows and features. Passes on labels."""

    passes_labels = True
    takes = (Sharding.REPLICATED,)


class SquaredError(LossLayer):
    """The squared distance of all features to the label."""

    num_sources = (2, 2)
    label_sources = (1,)

    def setup(self, *src):
        return src[0]

    def forward(self, ctx, *x):
        ctx.difference = x[0] - x[1].reshape(-1, 1)
        return x[0]

    def backward(self, ctx, dy):
        return 2 * ctx.difference / ctx.step.total_rows, None

    def metrics(self, ctx):
        return {"loss": Metric(float((ctx.difference**2).sum()), len(ctx.difference))}


class Cell(RecurrentLayer):
    """h_t = tanh(x_t W + h_(t-1) / 2)."""

    def setup_cell(self, x):
        self.weight = self.declare("weight", (x[-1], 5), 1, 1)
        return (5,)

    def cell(self, ctx, x, before):
        return np.tanh(x @ self.weight.value + 0.5 * before)

    def cell_backward(self, ctx, dy, x, before, y):
        da = dy * (1 - y * y)
        _add(self.weight, x.T @ da)
        return da @ self.weight.value.T, 0.5 * da


class Squashed(InnerProduct):
    """y = tanh(x W + b), of sums over all inputs."""

    type = "kUserLayer"

    def forward(self, ctx, *x):
        ctx.squashed = np.tanh(super().forward(ctx, *x))
        return ctx.squashed

    def backward(self, ctx, dy):
        return super().backward(ctx, dy * (1 - ctx.squashed**2))


class Damped(InnerProduct):
    """An InnerProduct that halves the gradient for its source."""

    type = "kUserLayer"

    def backward(self, ctx, dy):
        return super().backward(ctx, dy) / 2


class Shifted(BatchNorm):
    """y = 1 + what a BatchNorm makes."""

    type = "kUserLayer"

    def forward(self, ctx, *x):
        return 1 + super().forward(ctx, *x)


def _add(param, gradient):
    param.grad[...] = gradient + (param.grad if param.claim() else 0)
