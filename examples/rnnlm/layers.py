"""User-defined layers of the RNNLM example.

R rows (words to predict), D features, H hidden units, C classes, V words.
"""

from __future__ import annotations

import numpy as np

from singa_dask.layers import LossLayer, Metric, RecurrentLayer
from singa_dask.layers.labels import class_labels


def class_starts(counts, classes):
    """The first word of each class: ranges of words, sorted by frequency, with about equal sums of sqrt(count).

    counts: (V,) occurrences of each word in the training text. Every class has at least one word.
    Raises ValueError if there are more classes than words.
    """
    if not 1 <= classes <= len(counts):
        raise ValueError(f"classes: must lie between 1 and {len(counts)}, the number of words. Received: {classes}.")
    mass = np.cumsum(np.sqrt(counts))
    starts = np.searchsorted(mass, mass[-1] * np.arange(classes) / classes, side="right")
    starts[0] = 0
    order = np.arange(classes)
    starts = np.maximum.accumulate(starts - order) + order
    return np.minimum(starts, len(counts) - classes + order).tolist()


class Hidden(RecurrentLayer):
    """h_t = sigmoid(h_(t-1) W + x_t).   x: (R, H), W: (H, H) -> h: (R, H)."""

    def setup_cell(self, x):
        (units,) = x
        self.weight = self.declare("weight", (units, units), units, units)
        return x

    def cell(self, ctx, x, before):
        h = before @ self.weight.value
        h += x
        return ctx.ops.sigmoid(h, h)

    def cell_backward(self, ctx, dy, x, before, y):
        da = dy * y * (1 - y)
        ctx.ops.gemm(before.T, da, out=self.weight.grad, accumulate=self.weight.claim())
        return da, da @ self.weight.value.T


class ClassFactoredLoss(LossLayer):
    """loss = -log P(w | h), P(w | h) = P(class(w) | h) P(w | class(w), h), both softmax   (Goodman 2001).

    Sources: h (R, H) and the labels. Parameters: class weight (C, H), word weight (V, H). Output: P(w | h), (R, 1).
    user_conf: words (V), starts: the first word of each of the C classes, which are ranges of words. Metric: loss.
    """

    label_sources = (1,)
    num_sources = (2, 2)
    rowwise = True

    def setup(self, *src):
        (units,) = self.sources(src)[0]
        words, starts = self.conf["words"], np.asarray(self.conf["starts"], dtype="int64")
        sizes = np.diff(starts, append=words)
        if starts[0] != 0 or sizes.min() < 1:
            raise self.problem("user_conf.starts must begin with 0 and rise to below user_conf.words", starts.tolist())
        self._starts, self._sizes, self._classes = starts, sizes, np.repeat(np.arange(len(starts)), sizes)
        self.class_weight = self.declare("class", (len(starts), units), units, len(starts))
        self.word_weight = self.declare("word", (words, units), units, words)
        return (1,)

    def forward(self, ctx, *x):
        h, labels = x[0], class_labels(self, ctx, x[0], x[1], self.conf["words"])
        classes, rows = self._classes[labels], np.arange(len(h))
        ctx.h, ctx.rows, ctx.classes = h, rows, classes
        ctx.class_probability = _softmax(h @ self.class_weight.value.T)
        # The words of each row's class, row after row: pair i is word ctx.word[i] of row ctx.row[i].
        sizes = self._sizes[classes]
        ctx.first = np.cumsum(sizes) - sizes
        ctx.row = np.repeat(rows, sizes)
        ctx.word = np.arange(sizes.sum()) - np.repeat(ctx.first - self._starts[classes], sizes)
        logits = np.einsum("ij,ij->i", h[ctx.row], self.word_weight.value[ctx.word])
        ctx.word_probability = _segment_softmax(logits, ctx.first, ctx.row)
        ctx.own = ctx.first + labels - self._starts[classes]
        y = ctx.class_probability[rows, classes] * ctx.word_probability[ctx.own]
        tiny = np.finfo(y.dtype).tiny
        ctx.loss = -np.log(np.maximum(y, tiny)).sum()
        return y[:, np.newaxis]

    def backward(self, ctx, dy):
        scale = ctx.h.dtype.type(1 / ctx.step.total_rows)
        dclass, dword = ctx.class_probability * scale, ctx.word_probability * scale
        dclass[ctx.rows, ctx.classes] -= scale
        dword[ctx.own] -= scale
        dword = dword[:, np.newaxis]
        ctx.ops.gemm(dclass.T, ctx.h, out=self.class_weight.grad, accumulate=self.class_weight.claim())
        if not self.word_weight.claim():
            self.word_weight.grad[...] = 0
        ctx.ops.embed_backward(dword * ctx.h[ctx.row], ctx.word, self.word_weight.grad)
        dh = np.add.reduceat(dword * self.word_weight.value[ctx.word], ctx.first)
        return dh + dclass @ self.class_weight.value, None

    def metrics(self, ctx):
        return {"loss": Metric(float(ctx.loss), len(ctx.rows))}


def _softmax(x):
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def _segment_softmax(x, first, segment):
    """Softmax within each segment of elements. first: the start of each; segment: that of each element."""
    e = np.exp(x - np.maximum.reduceat(x, first)[segment])
    return e / np.add.reduceat(e, first)[segment]
