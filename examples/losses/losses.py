"""Losses as formulas, for `layers.Loss`: Loss(focal)(scores, data) in a net, a Module, or a loop of your own.

Each gives one number for each row. B rows, C classes or features.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from singa_dask import autograd as F

# The logarithm of a probability of 0, which has a gradient of 0.
NEVER = -1e30


def focal(x: Any, y: Any, gamma: float = 2.0, share: float = 0.25) -> Any:
    """-w (1 - p)^gamma log p, p the probability of the target, w = share for targets of 1, else 1 - share; the mean
    over the outputs   (Lin et al. 2017).   x: (B, C) logits, y: (B, C) targets of 0 or 1."""
    right = (2 * y - 1) * x
    weight = share * y + (1 - share) * (1 - y)
    return F.mean(weight * F.sigmoid(-right) ** gamma * F.softplus(-right), axis=1)


def dice(x: Any, y: Any, smooth: float = 1.0) -> Any:
    """1 - (2 sum p y + smooth) / (sum p + sum y + smooth), p = sigmoid(x)   (Milletari, Navab & Ahmadi 2016).
    x, y: (B, ...), masks of 0 or 1."""
    p, y = F.reshape(F.sigmoid(x), (len(x), -1)), F.reshape(y, (len(x), -1))
    return 1 - (2 * F.sum(p * y, axis=1) + smooth) / (F.sum(p, axis=1) + F.sum(y, axis=1) + smooth)


def distillation(x: Any, teacher: Any, temperature: float = 2.0) -> Any:
    """temperature^2 KL(softmax(teacher / temperature) || softmax(x / temperature))   (Hinton, Vinyals & Dean 2015).
    x, teacher: (B, C) logits."""
    theirs, own = (F.log_softmax(each / temperature, axis=1) for each in (teacher, x))
    return temperature**2 * F.sum(F.exp(theirs) * (theirs - own), axis=1)


def normal_kl(mean: Any, log_variance: Any) -> Any:
    """KL(N(mean, variance) || N(0, 1)), of a variational autoencoder   (Kingma & Welling 2014).   Both: (B, C)."""
    return F.sum(mean**2 + F.exp(log_variance) - log_variance - 1, axis=1) / 2


def contrastive(a: Any, b: Any, same: Any, margin: float = 1.0) -> Any:
    """d^2 for pairs that are the same, max(margin - d, 0)^2 for others, d = |a - b|   (Hadsell, Chopra & LeCun 2006).
    a, b: (B, C), same: (B, 1), 0 or 1."""
    square = F.sum((a - b) ** 2, axis=1, keepdims=True)
    apart = F.maximum(margin - F.sqrt(square + 1e-12), 0) ** 2
    return F.squeeze(same * square + (1 - same) * apart, axis=1)


def triplet(anchor: Any, positive: Any, negative: Any, margin: float = 1.0) -> Any:
    """max(|anchor - positive|^2 - |anchor - negative|^2 + margin, 0)   (Schroff, Kalenichenko & Philbin 2015).
    All: (B, C)."""
    near, far = (F.sum((anchor - each) ** 2, axis=1) for each in (positive, negative))
    return F.maximum(near - far + margin, 0)


def ctc(x: Any, y: Any) -> Any:
    """-log of the probability of all paths that become the labels when repeated classes and blanks are dropped
    (Graves et al. 2006).   x: (B, T, C) scores, class 0 blank; y: (B, L) labels, 0 behind the last."""
    logs, (rows, count) = F.log_softmax(x, axis=2), y.shape
    labels = F.expand_dims(y, 2)
    path = F.reshape(F.concatenate([0 * labels, labels], axis=2), (rows, 2 * count))
    path = F.concatenate([path, 0 * y[:, :1]], axis=1)  # a blank before, between and behind the labels
    here = F.matmul(logs, F.swapaxes(F.one_hot(path, x.shape[2]), 1, 2))  # (B, T, 2 L + 1)
    # From one label to the next without the blank between them, if they differ.
    skips = F.pad(F.where(F.equal(path[:, 2:], path[:, :-2]), 0, path[:, 2:]), ((0, 0), (2, 0)))
    reached = F.pad(here[:, 0, :2], ((0, 0), (0, 2 * count - 1)), NEVER)
    for t in range(1, x.shape[1]):
        one = F.pad(reached[:, :-1], ((0, 0), (1, 0)), NEVER)
        two = F.where(F.equal(skips, 0), NEVER, F.pad(reached[:, :-2], ((0, 0), (2, 0)), NEVER))
        reached = F.logsumexp(F.stack([reached, one, two], axis=2), axis=2) + here[:, t]
    # The last label, and the blank behind it.
    last, places = 2 * F.sum(F.not_equal(y, 0), axis=1, keepdims=True), np.arange(2.0 * count + 1)
    ends = F.equal((places - last) * (places - last + 1), 0)
    return -F.logsumexp(F.where(ends, reached, NEVER), axis=1)
