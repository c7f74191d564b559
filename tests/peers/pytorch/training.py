"""Nets in PyTorch that are about training: what is frozen, averaged, dropped, normalised, or kept between steps."""

from __future__ import annotations

from collections.abc import Callable

import torch
from peers.pytorch.formulas import MLP
from torch import Tensor, nn
from torch.nn import functional as F


def plain() -> nn.Module:
    return MLP(5, F.cross_entropy)


class Distillation(nn.Module):
    """The teacher does not learn."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher, self.student = plain(), plain()
        self.teacher.requires_grad_(False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        own, theirs = self.student.scores(x), self.teacher.scores(x)
        kl = F.kl_div(F.log_softmax(own / 2, 1), F.log_softmax(theirs / 2, 1), reduction="batchmean", log_target=True)
        return F.cross_entropy(own, y) + 4 * kl


class FineTuning(nn.Module):
    """The body has the values of another net, and learns at another rate than the head."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.head(torch.tanh(self.body(x))), y)


class BatchNormTwice(nn.Module):
    """Called twice a step: one change of the running statistics after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 5)

    def forward(self, a: Tensor, b: Tensor, y: Tensor) -> Tensor:
        h = F.relu(self.norm(self.first(a))) + F.relu(self.norm(self.first(b)))
        return F.cross_entropy(self.second(h), y)


class Dropout(MLP):
    """The mask is given: of each element, or of the whole residual branch of a sample."""

    def __init__(self, path: bool) -> None:
        super().__init__(5, F.cross_entropy)
        self.branch = nn.Linear(8, 8) if path else None

    def forward(self, x: Tensor, kept: Tensor, y: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        h = h * kept * 2 if self.branch is None else h + torch.tanh(self.branch(h)) * kept * 2
        return self.loss(self.second(h), y)


class WeightNorm(nn.Module):
    """Each output's weights are a length times a direction (Salimans & Kingma 2016)."""

    def __init__(self) -> None:
        super().__init__()
        self.direction, self.factor = nn.Parameter(torch.empty(8, 6)), nn.Parameter(torch.empty(8))
        self.second = nn.Linear(8, 5)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        weight = self.factor[:, None] * self.direction / (self.direction**2).sum(1, keepdim=True).sqrt()
        return F.cross_entropy(self.second(torch.tanh(x @ weight.T)), y)


class SpectralNorm(nn.Module):
    """One power iteration a step; the vector stays for the next step (Miyato et al. 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.second = nn.Parameter(torch.empty(8, 6)), nn.Linear(8, 5)
        self.register_buffer("left", torch.empty(8, 1))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            right = F.normalize(self.weight.T @ self.left, dim=0)
            self.left.copy_(F.normalize(self.weight @ right, dim=0))
        weight = self.weight / (self.left.T @ self.weight @ right)
        return F.cross_entropy(self.second(torch.tanh(x @ weight.T)), y)


class Codebook(nn.Module):
    """The nearest of ten codes, which move to the mean of what they stand for (van den Oord et al. 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 3), nn.Linear(3, 5)
        self.register_buffer("codes", torch.empty(10, 3))
        self.register_buffer("counts", torch.empty(10, 1))
        self.register_buffer("sums", torch.empty(10, 3))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        z = self.first(x)
        with torch.no_grad():
            nearest = F.one_hot(((z[:, None] - self.codes) ** 2).sum(-1).argmin(1), 10).to(z.dtype)
            code = nearest @ self.codes
            self.counts.mul_(0.9).add_(0.1 * nearest.sum(0)[:, None])
            self.sums.mul_(0.9).add_(0.1 * nearest.T @ z)
            self.codes.copy_(self.sums / (self.counts.abs() + 0.1))
        scores = self.second(z + (code - z).detach())
        return F.cross_entropy(scores, y) + 0.25 * F.mse_loss(z, code)


class Softsign(nn.Module):
    """factor x / (1 + |x|)."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.empty(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * F.softsign(x)


class OwnLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.scaled = nn.Linear(6, 8), nn.Linear(8, 5), Softsign()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.second(self.scaled(self.first(x))), y)


class GAN(nn.Module):
    """`forward` gives the critic's loss; `generated` the generator's."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 8), nn.Linear(8, 6)
        self.judge, self.logit = nn.Linear(6, 8), nn.Linear(8, 1)

    def fake(self, noise: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(noise)))

    def scores(self, x: Tensor) -> Tensor:
        return self.logit(torch.tanh(self.judge(x)))

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        right, wrong = self.scores(x), self.scores(self.fake(noise).detach())
        return (F.softplus(-right) + F.softplus(wrong)).mean()

    def generated(self, noise: Tensor) -> Tensor:
        return F.softplus(-self.scores(self.fake(noise))).mean()


_PLAIN = (
    *("accumulation", "clipping", "freezing", "rate_per_layer", "averages", "weight_decay", "nesterov"),
    *("adam", "adamw", "adagrad", "adamax", "k_fold"),
)
NETS: dict[str, Callable[[], nn.Module]] = {
    **dict.fromkeys(_PLAIN, plain),
    "distillation": Distillation,
    "fine_tuning": FineTuning,
    "batch_norm_twice": BatchNormTwice,
    "dropout": lambda: Dropout(path=False),
    "drop_path": lambda: Dropout(path=True),
    "weight_norm": WeightNorm,
    "spectral_norm": SpectralNorm,
    "codebook": Codebook,
    "own_layer": OwnLayer,
    "gan": GAN,
}
