"""Our nets that are about training: what is frozen, averaged, dropped, normalised, or kept between steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from peers.drawn import initial
from peers.modules.formulas import MLP, dense
from peers.modules.parameters import parameter

from singa_dask import Module, autograd, layers
from singa_dask.layers import BatchNorm, Layer, MSELoss, SoftmaxLoss
from singa_dask.tensors.tensor import Tensor


def plain() -> MLP:
    return MLP(5, SoftmaxLoss)


def softened(own: Any, theirs: Any) -> Any:
    """4 KL(theirs, own) at temperature 2."""
    own, theirs = (x / 2 - autograd.logsumexp(x / 2, axis=1, keepdims=True) for x in (own, theirs))
    return 4 * autograd.sum(autograd.exp(theirs) * (theirs - own), axis=1)


class Distillation(Module):
    """The teacher does not learn."""

    def __init__(self) -> None:
        self.teacher, self.student = plain(), plain()
        self.loss, self.soft = SoftmaxLoss(), layers.Loss(softened)

    def forward(self, x: Any, y: Any) -> Any:
        own, theirs = self.student.scores(x), autograd.detach(self.teacher.scores(x))
        return self.loss(own, y), self.soft(own, theirs)


class FineTuning(Module):
    def __init__(self) -> None:
        self.body, self.head, self.loss = dense(8), dense(5), SoftmaxLoss()

    def forward(self, x: Any, y: Any) -> Any:
        return self.loss(self.head(autograd.tanh(self.body(x))), y)


class NormTwice(Module):
    """Called twice a step: one change of the running statistics after the other."""

    def __init__(self) -> None:
        self.first, self.norm, self.second, self.loss = dense(8), BatchNorm(), dense(5), SoftmaxLoss()

    def forward(self, a: Any, b: Any, y: Any) -> Any:
        h = autograd.relu(self.norm(self.first(a))) + autograd.relu(self.norm(self.first(b)))
        return self.loss(self.second(h), y)


class Dropout(MLP):
    """The mask is given: of each element."""

    def __init__(self) -> None:
        super().__init__(5, SoftmaxLoss)

    def forward(self, x: Any, kept: Any, y: Any) -> Any:
        h = autograd.tanh(self.first(x)) * kept * 2
        return self.loss(self.second(h), y)


class DropPath(Dropout):
    """Of the whole residual branch of a sample."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = dense(8)

    def forward(self, x: Any, kept: Any, y: Any) -> Any:
        h = autograd.tanh(self.first(x))
        h = h + autograd.tanh(self.branch(h)) * kept * 2
        return self.loss(self.second(h), y)


class WeightNorm(Module):
    """Each output's weights are a length times a direction (Salimans & Kingma 2016)."""

    def __init__(self) -> None:
        self.direction, self.factor = parameter(8, 6), parameter(8)
        self.second, self.loss = dense(5), SoftmaxLoss()

    def forward(self, x: Any, y: Any) -> Any:
        length = autograd.sqrt(autograd.sum(self.direction**2, axis=1))
        weight = autograd.transpose(self.direction) * (self.factor / length)
        return self.loss(self.second(autograd.tanh(x @ weight)), y)


class SpectralNorm(Module):
    """One power iteration a step; the vector stays for the next step (Miyato et al. 2018)."""

    def __init__(self) -> None:
        self.weight, self.second, self.loss = parameter(8, 6), dense(5), SoftmaxLoss()
        self.left = initial("spectral_norm", "left", (8, 1))

    def forward(self, x: Any, y: Any) -> Any:
        weight = self.weight.to_numpy()
        right = weight.T @ self.left
        right /= np.linalg.norm(right)
        if autograd.training:
            self.left = weight @ right
            self.left /= np.linalg.norm(self.left)
        size = autograd.sum(self.weight * Tensor.of(self.left @ right.T))
        return self.loss(self.second(autograd.tanh(x @ autograd.transpose(self.weight / size))), y)


class Codebook(Module):
    """The nearest of ten codes, which move to the mean of what they stand for (van den Oord et al. 2017)."""

    def __init__(self) -> None:
        self.first, self.second, self.loss, self.near = dense(3), dense(5), SoftmaxLoss(), MSELoss(scale=0.25)
        shapes = {"codes": (10, 3), "counts": (10, 1), "sums": (10, 3)}
        self.codes, self.counts, self.sums = (initial("codebook", *each) for each in shapes.items())

    def forward(self, x: Any, y: Any) -> Any:
        z = self.first(x)
        given = z.to_numpy()
        nearest = np.eye(10)[((given[:, None] - self.codes) ** 2).sum(-1).argmin(1)]
        code = nearest @ self.codes
        if autograd.training:
            self.counts = 0.9 * self.counts + 0.1 * nearest.sum(0)[:, None]
            self.sums = 0.9 * self.sums + 0.1 * nearest.T @ given
            self.codes = self.sums / (abs(self.counts) + 0.1)
        return self.loss(self.second(z + Tensor.of(code - given)), y), self.near(z, Tensor.of(code))


class Softsign(Layer):
    """factor x / (1 + |x|), with a backward pass by hand."""

    torch_axes: ClassVar = {"factor": "O -> O"}

    def setup(self, *src: Any) -> Any:
        (shape,) = self.sources(src)
        self.factor = self.declare("factor", (1,), 1, 1, value=1)
        return shape

    def forward(self, ctx: Any, *x: Any) -> Any:
        ctx.below = 1 + ctx.ops.xp.abs(x[0])
        ctx.y = x[0] / ctx.below
        return self.factor.value * ctx.y

    def backward(self, ctx: Any, dy: Any) -> Any:
        gradient = (dy * ctx.y).sum()
        self.factor.grad[...] = gradient + (self.factor.grad if self.factor.claim() else 0)
        return dy * self.factor.value / ctx.below**2


class OwnLayer(Module):
    def __init__(self) -> None:
        self.first, self.second, self.scaled, self.loss = dense(8), dense(5), Softsign(), SoftmaxLoss()

    def forward(self, x: Any, y: Any) -> Any:
        return self.loss(self.second(self.scaled(self.first(x))), y)


class GAN(Module):
    """`forward` gives the critic's loss; `generated` the generator's."""

    def __init__(self) -> None:
        self.first, self.second, self.judge, self.logit = dense(8), dense(6), dense(8), dense(1)

    def fake(self, noise: Any) -> Any:
        return self.second(autograd.tanh(self.first(noise)))

    def scores(self, x: Any) -> Any:
        return self.logit(autograd.tanh(self.judge(x)))

    def forward(self, x: Any, noise: Any) -> Any:
        right, wrong = self.scores(x), self.scores(autograd.detach(self.fake(noise)))
        return autograd.mean(autograd.softplus(-right) + autograd.softplus(wrong))

    def generated(self, noise: Any) -> Any:
        return autograd.mean(autograd.softplus(-self.scores(self.fake(noise))))


_PLAIN = (
    *("accumulation", "clipping", "freezing", "rate_per_layer", "averages", "weight_decay", "nesterov"),
    *("adam", "adamw", "adagrad", "adamax", "k_fold"),
)
NETS: dict[str, Callable[[], Module]] = {
    **dict.fromkeys(_PLAIN, plain),
    "distillation": Distillation,
    "fine_tuning": FineTuning,
    "batch_norm_twice": NormTwice,
    "dropout": Dropout,
    "drop_path": DropPath,
    "weight_norm": WeightNorm,
    "spectral_norm": SpectralNorm,
    "codebook": Codebook,
    "own_layer": OwnLayer,
    "gan": GAN,
}
