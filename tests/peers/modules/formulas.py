"""Our nets whose losses or layers are formulas: `forward` reads the data and gives the loss."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from singa_dask import Module, autograd, layers
from singa_dask.layers import BCELoss, Embedding, HuberLoss, InnerProduct, MAELoss, MSELoss, SoftmaxLoss


def dense(outputs: int) -> InnerProduct:
    return InnerProduct(num_output=outputs)


class MLP(Module):
    """Two layers, and a loss of their scores and the targets."""

    def __init__(self, outputs: int, loss: Callable[[], Any]) -> None:
        self.first, self.second, self.loss = dense(8), dense(outputs), loss()

    def scores(self, x: Any) -> Any:
        return self.second(autograd.tanh(self.first(x)))

    def forward(self, x: Any, *targets: Any) -> Any:
        return self.loss(self.scores(x), *targets)


def formula(function: Callable[..., Any]) -> Callable[[], Any]:
    """A loss of each row, as a function."""
    return lambda: layers.Loss(function)


def kl_to_normal(mean: Any, log_var: Any) -> Any:
    return autograd.sum(mean**2 + autograd.exp(log_var) - 1 - log_var, axis=1) / 2


class VAE(Module):
    """The noise of the reparametrisation is given."""

    def __init__(self) -> None:
        self.hidden, self.mean, self.log_var = dense(8), dense(3), dense(3)
        self.back, self.logits = dense(8), dense(12)
        self.likelihood, self.kl = BCELoss(reduction="SUM"), layers.Loss(kl_to_normal)

    def forward(self, x: Any, noise: Any) -> Any:
        h = autograd.tanh(self.hidden(x))
        mean, log_var = self.mean(h), self.log_var(h)
        logits = self.logits(autograd.tanh(self.back(mean + noise * autograd.exp(log_var / 2))))
        return self.likelihood(logits, x), self.kl(mean, log_var)


class Tower(Module):
    def __init__(self) -> None:
        self.first, self.second = dense(8), dense(4)

    def forward(self, x: Any) -> Any:
        return self.second(autograd.tanh(self.first(x)))


class Towers(Module):
    """An encoder for each of the first sources, or one for all; a loss of the codes and the other sources."""

    def __init__(self, loss: Callable[..., Any], codes: int, shared: bool) -> None:
        self.towers = [Tower() for _ in range(1 if shared else codes)]
        self.loss, self.codes = layers.Loss(loss, labels=()), codes

    def forward(self, *x: Any) -> Any:
        codes = [self.towers[i % len(self.towers)](x[i]) for i in range(self.codes)]
        return self.loss(*codes, *x[self.codes :])


def squares(x: Any) -> Any:
    return autograd.sum(x**2, axis=1, keepdims=True)


def contrastive(a: Any, b: Any, same: Any) -> Any:
    distance = autograd.sqrt(squares(a - b))
    return (same * distance**2 + (1 - same) * autograd.maximum(1.5 - distance, 0) ** 2)[:, 0]


def triplet(a: Any, p: Any, n: Any) -> Any:
    return autograd.maximum(squares(a - p) - squares(a - n) + 1, 0)[:, 0]


def in_batch(a: Any, b: Any) -> Any:
    """The other rows of the whole mini-batch are the negatives."""
    a, b = (x / autograd.sqrt(squares(x)) for x in (a, b))
    return autograd.logsumexp(a @ autograd.transpose(b) / 0.5, axis=1) - autograd.sum(a * b, axis=1) / 0.5


class DLRM(Module):
    def __init__(self) -> None:
        self.bottom, self.top, self.logit, self.loss = dense(6), dense(8), dense(1), BCELoss()
        self.of_a, self.of_b, self.of_c = (Embedding(vocab_size=size, feature_dim=6) for size in (9, 7, 5))

    def forward(self, x: Any, a: Any, b: Any, c: Any, y: Any) -> Any:
        low = autograd.relu(self.bottom(x))
        parts = [low, self.of_a(a), self.of_b(b), self.of_c(c)]
        pairs = [(parts[i], parts[j]) for i in range(4) for j in range(i)]
        products = [autograd.sum(one * other, axis=1, keepdims=True) for one, other in pairs]
        return self.loss(self.logit(autograd.relu(self.top(autograd.cat([low, *products])))), y)


class WideAndDeep(Module):
    def __init__(self) -> None:
        self.of_a, self.of_b = Embedding(vocab_size=9, feature_dim=4), Embedding(vocab_size=7, feature_dim=4)
        self.wide, self.hidden, self.deep, self.loss = dense(1), dense(8), dense(1), BCELoss()

    def forward(self, x: Any, a: Any, b: Any, y: Any) -> Any:
        deep = self.deep(autograd.relu(self.hidden(autograd.cat([x, self.of_a(a), self.of_b(b)]))))
        return self.loss(self.wide(x) + deep, y)


class Words(Module):
    def __init__(self) -> None:
        self.embed, self.scores, self.loss = Embedding(vocab_size=50_000, feature_dim=6), dense(5), SoftmaxLoss()

    def forward(self, x: Any, y: Any) -> Any:
        return self.loss(self.scores(autograd.tanh(self.embed(x))), y)


class BagOfWords(Words):
    """The mean of several words, of which 0 does not count."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = Embedding(vocab_size=50, feature_dim=6, pool="MEAN", padding_idx=0)


class MultiTask(Module):
    def __init__(self) -> None:
        self.trunk, self.classes, self.values = dense(8), dense(5), dense(3)
        self.of_classes, self.of_values = SoftmaxLoss(), MSELoss(scale=0.3)

    def forward(self, x: Any, y: Any, t: Any) -> Any:
        h = autograd.tanh(self.trunk(x))
        return self.of_classes(self.classes(h), y), self.of_values(self.values(h), t)


class Coupling(Module):
    def __init__(self) -> None:
        self.hidden, self.scale, self.shift = dense(8), dense(3), dense(3)

    def forward(self, a: Any, b: Any) -> Any:
        h = autograd.tanh(self.hidden(a))
        s = autograd.tanh(self.scale(h))
        return b * autograd.exp(s) + self.shift(h), s


def log_likelihood(a: Any, b: Any, s: Any, s2: Any) -> Any:
    return autograd.sum((a**2 + b**2) / 2 - s - s2, axis=1) + 3 * math.log(2 * math.pi)


class Flow(Module):
    """RealNVP: the negative log likelihood under a normal distribution."""

    def __init__(self) -> None:
        self.first, self.second, self.loss = Coupling(), Coupling(), layers.Loss(log_likelihood)

    def forward(self, x: Any) -> Any:
        a, b = autograd.split(x, 1, 2)
        b, s = self.first(a, b)
        a, s2 = self.second(b, a)
        return self.loss(a, b, s, s2)


def square(r: Any) -> Any:
    return r**2


def distance(u: Any, x: Any) -> Any:
    return squares(u - x)[:, 0]


class PINN(Module):
    """The heat equation u_t = 0.1 u_xx with u(x, 0) = sin(pi x)."""

    def __init__(self) -> None:
        self.first, self.second, self.last = dense(8), dense(8), dense(1)
        self.inside, self.start = layers.Loss(square), layers.Loss(distance)

    def u(self, x: Any) -> Any:
        return self.last(autograd.tanh(self.second(autograd.tanh(self.first(x)))))

    def forward(self, x: Any, edge: Any) -> Any:
        x.requires_grad = True
        slope = autograd.grad(self.u(x), x, create_graph=True)
        curve = autograd.grad(slope[:, 0], x, create_graph=True)
        start = self.u(autograd.cat([edge, edge * 0]))
        return self.inside(slope[:, 1] - 0.1 * curve[:, 0]), self.start(start, autograd.sin(math.pi * edge))


def difference(fake: Any, real: Any) -> Any:
    return (fake - real)[:, 0]


def penalty(slope: Any) -> Any:
    return 10 * (autograd.sqrt(squares(slope))[:, 0] - 1) ** 2


class GradientPenalty(Module):
    """The critic of a WGAN-GP."""

    def __init__(self) -> None:
        self.first, self.second = dense(8), dense(1)
        self.distance, self.penalty = layers.Loss(difference), layers.Loss(penalty)

    def critic(self, x: Any) -> Any:
        return self.second(autograd.tanh(self.first(x)))

    def forward(self, x: Any, fake: Any, share: Any) -> Any:
        share = autograd.reshape(share, (-1, 1))
        between = share * x + (1 - share) * fake
        between.requires_grad = True
        slope = autograd.grad(self.critic(between), between, create_graph=True)
        return self.distance(self.critic(fake), self.critic(x)), self.penalty(slope)


class GraphNet(Module):
    """A graph a sample: A X W twice, then the mean of the nodes."""

    def __init__(self) -> None:
        self.first, self.second, self.scores, self.loss = dense(8), dense(6), dense(5), SoftmaxLoss()

    def forward(self, adjacency: Any, x: Any, y: Any) -> Any:
        h = autograd.relu(adjacency @ self.first(x))
        return self.loss(self.scores(autograd.mean(adjacency @ self.second(h), axis=1)), y)


def focal(x: Any, y: Any) -> Any:
    """(1 - p)² times the cross-entropy, p the probability of the target; positive ones weigh 1/4."""
    signed = (2 * y - 1) * x
    weight = 0.25 * y + 0.75 * (1 - y)
    return autograd.mean(weight * autograd.sigmoid(-signed) ** 2 * autograd.softplus(-signed), axis=1)


def mixed(x: Any, y: Any, other: Any, share: Any) -> Any:
    """The cross-entropy with two labels that share the probability."""
    one, two = (autograd.one_hot(autograd.reshape(label, (-1,)), 5) for label in (y, other))
    share = autograd.reshape(share, (-1, 1))
    return -autograd.sum((share * one + (1 - share) * two) * autograd.log_softmax(x, axis=1), axis=1)


NETS: dict[str, Callable[[], Module]] = {
    "vae": VAE,
    "siamese": lambda: Towers(contrastive, 2, shared=True),
    "triplet": lambda: Towers(triplet, 3, shared=True),
    "two_towers": lambda: Towers(in_batch, 2, shared=False),
    "embedding": Words,
    "embedding_bag": BagOfWords,
    "dlrm": DLRM,
    "wide_and_deep": WideAndDeep,
    "multi_task": MultiTask,
    "flow": Flow,
    "pinn": PINN,
    "gradient_penalty": GradientPenalty,
    "graph_net": GraphNet,
    "focal": lambda: MLP(3, formula(focal)),
    "class_weights": lambda: MLP(5, lambda: SoftmaxLoss(class_weight=[1, 0.5, 2, 1, 3])),
    "label_smoothing": lambda: MLP(5, lambda: SoftmaxLoss(label_smoothing=0.1)),
    "pos_weight": lambda: MLP(3, lambda: BCELoss(pos_weight=[1, 2, 0.5])),
    "mse": lambda: MLP(3, MSELoss),
    "mse_sum": lambda: MLP(3, lambda: MSELoss(reduction="SUM")),
    "mae": lambda: MLP(3, MAELoss),
    "mae_sum": lambda: MLP(3, lambda: MAELoss(reduction="SUM")),
    "huber": lambda: MLP(3, lambda: HuberLoss(delta=0.5)),
    "huber_sum": lambda: MLP(3, lambda: HuberLoss(delta=0.5, reduction="SUM")),
    "mixup": lambda: MLP(5, lambda: layers.Loss(mixed, labels=1)),
}
