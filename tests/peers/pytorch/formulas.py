"""Nets in PyTorch whose losses or layers are formulas. `forward` gives the loss."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class MLP(nn.Module):
    """Two layers, and a loss of their scores and the targets."""

    def __init__(self, outputs: int, loss: Callable[..., Tensor]) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, outputs)
        self.loss = loss

    def scores(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))

    def forward(self, x: Tensor, *targets: Tensor) -> Tensor:
        return self.loss(self.scores(x), *targets)


class VAE(nn.Module):
    """The noise of the reparametrisation is given."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.mean, self.log_var = nn.Linear(12, 8), nn.Linear(8, 3), nn.Linear(8, 3)
        self.back, self.logits = nn.Linear(3, 8), nn.Linear(8, 12)

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        h = torch.tanh(self.hidden(x))
        mean, log_var = self.mean(h), self.log_var(h)
        logits = self.logits(torch.tanh(self.back(mean + noise * torch.exp(log_var / 2))))
        kl = (mean**2 + torch.exp(log_var) - 1 - log_var).sum(1) / 2
        return F.binary_cross_entropy_with_logits(logits, x, reduction="none").sum(1).mean() + kl.mean()


class Towers(nn.Module):
    """An encoder for each of the first sources, or one for all; a loss of the codes and the other sources."""

    def __init__(self, loss: Callable[..., Tensor], codes: int, shared: bool) -> None:
        super().__init__()
        made = nn.ModuleList([Tower() for _ in range(1 if shared else codes)])
        self.towers, self.loss, self.codes = made, loss, codes

    def forward(self, *x: Tensor) -> Tensor:
        codes = [self.towers[i % len(self.towers)](x[i]) for i in range(self.codes)]
        return self.loss(*codes, *x[self.codes :])


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))


def contrastive(a: Tensor, b: Tensor, same: Tensor) -> Tensor:
    distance = ((a - b) ** 2).sum(1, keepdim=True).sqrt()
    return (same * distance**2 + (1 - same) * F.relu(1.5 - distance) ** 2).mean()


def triplet(a: Tensor, p: Tensor, n: Tensor) -> Tensor:
    return F.relu(((a - p) ** 2).sum(1) - ((a - n) ** 2).sum(1) + 1).mean()


def in_batch(a: Tensor, b: Tensor) -> Tensor:
    """The other rows of the whole mini-batch are the negatives."""
    scores = F.normalize(a) @ F.normalize(b).T / 0.5
    return F.cross_entropy(scores, torch.arange(len(a)))


class DLRM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bottom = nn.Linear(4, 6)
        self.of_a, self.of_b, self.of_c = (nn.Embedding(size, 6) for size in (9, 7, 5))
        self.top, self.logit = nn.Linear(6 + 6, 8), nn.Linear(8, 1)

    def forward(self, x: Tensor, a: Tensor, b: Tensor, c: Tensor, y: Tensor) -> Tensor:
        dense = F.relu(self.bottom(x))
        parts = torch.stack([dense, self.of_a(a), self.of_b(b), self.of_c(c)], 1)
        products = parts @ parts.transpose(1, 2)
        i, j = torch.tril_indices(4, 4, -1)
        top = F.relu(self.top(torch.cat([dense, products[:, i, j]], 1)))
        return F.binary_cross_entropy_with_logits(self.logit(top), y)


class WideAndDeep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.of_a, self.of_b = nn.Embedding(9, 4), nn.Embedding(7, 4)
        self.wide, self.hidden, self.deep = nn.Linear(4, 1), nn.Linear(12, 8), nn.Linear(8, 1)

    def forward(self, x: Tensor, a: Tensor, b: Tensor, y: Tensor) -> Tensor:
        deep = self.deep(F.relu(self.hidden(torch.cat([x, self.of_a(a), self.of_b(b)], 1))))
        return F.binary_cross_entropy_with_logits(self.wide(x) + deep, y)


class Words(nn.Module):
    """One index a sample, or the mean of several, of which 0 does not count."""

    def __init__(self, size: int, several: bool) -> None:
        super().__init__()
        kind: Any = nn.EmbeddingBag(size, 6, mode="mean", padding_idx=0) if several else nn.Embedding(size, 6)
        self.embed, self.scores = kind, nn.Linear(6, 5)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.scores(torch.tanh(self.embed(x))), y)


class MultiTask(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.classes, self.values = nn.Linear(6, 8), nn.Linear(8, 5), nn.Linear(8, 3)

    def forward(self, x: Tensor, y: Tensor, t: Tensor) -> Tensor:
        h = torch.tanh(self.trunk(x))
        return F.cross_entropy(self.classes(h), y) + 0.3 * F.mse_loss(self.values(h), t)


class Coupling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.scale, self.shift = nn.Linear(3, 8), nn.Linear(8, 3), nn.Linear(8, 3)

    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(self.hidden(a))
        s = torch.tanh(self.scale(h))
        return b * torch.exp(s) + self.shift(h), s.sum(1)


class Flow(nn.Module):
    """RealNVP: the negative log likelihood under a normal distribution."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Coupling(), Coupling()

    def forward(self, x: Tensor) -> Tensor:
        a, b = x[:, :3], x[:, 3:]
        b, grown = self.first(a, b)
        a, grown2 = self.second(b, a)
        z = torch.cat([a, b], 1)
        return (0.5 * (z**2).sum(1) + 3 * math.log(2 * math.pi) - grown - grown2).mean()


class PINN(nn.Module):
    """The heat equation u_t = 0.1 u_xx with u(x, 0) = sin(pi x)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(2, 8), nn.Linear(8, 8), nn.Linear(8, 1)

    def u(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.second(torch.tanh(self.first(x)))))

    def forward(self, x: Tensor, edge: Tensor) -> Tensor:
        x = x.requires_grad_()
        (slope,) = torch.autograd.grad(self.u(x).sum(), x, create_graph=True)
        (curve,) = torch.autograd.grad(slope[:, 0].sum(), x, create_graph=True)
        residual = slope[:, 1] - 0.1 * curve[:, 0]
        start = self.u(torch.cat([edge, torch.zeros_like(edge)], 1)) - torch.sin(math.pi * edge)
        return (residual**2).mean() + (start**2).mean()


class GradientPenalty(nn.Module):
    """The critic of a WGAN-GP."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 1)

    def critic(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))

    def forward(self, x: Tensor, fake: Tensor, share: Tensor) -> Tensor:
        between = (share * x + (1 - share) * fake).requires_grad_()
        (slope,) = torch.autograd.grad(self.critic(between).sum(), between, create_graph=True)
        penalty = ((slope**2).sum(1).sqrt() - 1) ** 2
        return (self.critic(fake) - self.critic(x)).mean() + 10 * penalty.mean()


class GraphNet(nn.Module):
    """A graph a sample: A X W twice, then the mean of the nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.scores = nn.Linear(4, 8), nn.Linear(8, 6), nn.Linear(6, 5)

    def forward(self, adjacency: Tensor, x: Tensor, y: Tensor) -> Tensor:
        h = F.relu(adjacency @ self.first(x))
        return F.cross_entropy(self.scores((adjacency @ self.second(h)).mean(1)), y)


def focal(x: Tensor, y: Tensor) -> Tensor:
    """(1 - p)² times the cross-entropy, p the probability of the target; positive ones weigh 1/4."""
    bce = F.binary_cross_entropy_with_logits(x, y, reduction="none")
    p = torch.sigmoid(x)
    right, weight = y * p + (1 - y) * (1 - p), 0.25 * y + 0.75 * (1 - y)
    return (weight * (1 - right) ** 2 * bce).mean()


def summed(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda x, y: loss(x, y, reduction="sum") / len(x)


def weighted(x: Tensor, y: Tensor) -> Tensor:
    """Divided by the number of rows, not by their weights."""
    weights = torch.tensor([1, 0.5, 2, 1, 3], dtype=x.dtype)
    return F.cross_entropy(x, y, weights, reduction="none").mean()


def with_pos_weight(x: Tensor, y: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(x, y, pos_weight=torch.tensor([1, 2, 0.5], dtype=x.dtype))


def mixup(x: Tensor, y: Tensor, other: Tensor, share: Tensor) -> Tensor:
    target = share * F.one_hot(y, 5) + (1 - share) * F.one_hot(other, 5)
    return F.cross_entropy(x, target)


NETS: dict[str, Callable[[], nn.Module]] = {
    "vae": VAE,
    "siamese": lambda: Towers(contrastive, 2, shared=True),
    "triplet": lambda: Towers(triplet, 3, shared=True),
    "two_towers": lambda: Towers(in_batch, 2, shared=False),
    "embedding": lambda: Words(50_000, several=False),
    "embedding_bag": lambda: Words(50, several=True),
    "dlrm": DLRM,
    "wide_and_deep": WideAndDeep,
    "multi_task": MultiTask,
    "flow": Flow,
    "pinn": PINN,
    "gradient_penalty": GradientPenalty,
    "graph_net": GraphNet,
    "focal": lambda: MLP(3, focal),
    "class_weights": lambda: MLP(5, weighted),
    "label_smoothing": lambda: MLP(5, lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1)),
    "pos_weight": lambda: MLP(3, with_pos_weight),
    "mse": lambda: MLP(3, F.mse_loss),
    "mse_sum": lambda: MLP(3, summed(F.mse_loss)),
    "mae": lambda: MLP(3, F.l1_loss),
    "mae_sum": lambda: MLP(3, summed(F.l1_loss)),
    "huber": lambda: MLP(3, lambda x, y: F.huber_loss(x, y, delta=0.5)),
    "huber_sum": lambda: MLP(3, summed(lambda x, y, reduction: F.huber_loss(x, y, delta=0.5, reduction=reduction))),
    "mixup": lambda: MLP(5, mixup),
}
