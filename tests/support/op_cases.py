"""One call of every kernel, on arrays of any Ops: what the base computes, every other Ops must compute too.

A case is a function (ops, rng) -> arrays. It draws its inputs with `rng` in NumPy, so that every Ops gets the same.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import numpy as np

from singa_dask.ops import Ops, Window
from singa_dask.ops.pending import Pending, settled
from singa_dask.ops.random import Columns, stream_key

Case = Callable[[Ops, np.random.Generator], list[Any]]

# kernel, stride, pad; image height, width: odd sizes, strides beyond the kernel, padding, a kernel of the image's size
WINDOWS = [
    (Window((2, 2), (2, 2)), 8, 8),
    (Window((3, 3), (2, 2)), 7, 10),
    (Window((5, 3), (1, 2), (2, 1)), 9, 6),
    (Window((2, 3), (3, 4), (1, 2)), 8, 11),
    (Window((1, 1), (2, 1)), 5, 4),
    (Window((4, 4), (1, 1), (3, 0)), 1, 4),
]
# rows, and channels or units
SIZES = [(1, 1), (3, 5), (2, 33)]


def draw(ops: Ops, rng: np.random.Generator, *shape: int) -> Any:
    return ops.asarray(rng.standard_normal(shape), ops.dtype)


def labels_of(ops: Ops, rng: np.random.Generator, rows: int, classes: int) -> Any:
    return ops.asarray(rng.integers(0, classes, rows))


def _products(ops: Ops, rng: np.random.Generator) -> list[Any]:
    a, b, bias = draw(ops, rng, 7, 5), draw(ops, rng, 5, 3), draw(ops, rng, 3)
    out, sums = draw(ops, rng, 7, 3), draw(ops, rng, 3)
    few, many, thin = draw(ops, rng, 13, 290), draw(ops, rng, 270, 290), draw(ops, rng, 13, 270)
    return [
        ops.gemm(thin, many, out=ops.empty((13, 290))),
        ops.gemm(thin, many, out=few.copy(), accumulate=True),
        ops.gemm(few, many.T, out=ops.empty((13, 270))),
        ops.gemm(few, many.T, out=thin.copy(), accumulate=True),
        ops.gemm(thin.T, few, out=ops.empty((270, 290))),
        ops.gemm(thin.T, few, out=many.copy(), accumulate=True),
        ops.gemm(a, b),
        ops.gemm(a.T, ops.gemm(a, b), out=ops.empty((5, 3))),
        ops.gemm(b.T, a.T, out=ops.empty((3, 7))),
        ops.gemm(a, b, out=out.copy(), accumulate=True),
        ops.affine(a, b, bias),
        ops.affine(a, b, None, out=ops.empty((7, 3))),
        ops.column_sums(out, ops.empty((3,))),
        ops.column_sums(out, sums, accumulate=True),
        *_biases(ops, rng),
    ]


def _biases(ops: Ops, rng: np.random.Generator) -> list[Any]:
    results = []
    for rows, columns in ((7, 3), (0, 2), (70, 40)):
        y, bias, dy = draw(ops, rng, rows, columns), draw(ops, rng, columns), draw(ops, rng, rows, columns)
        results += [ops.add_bias(y.copy(), bias), ops.add_bias(y, bias, (0.0, 0.7))]
        for bounds, more in (((0.0, 0.7), False), ((0.0, inf), True)):
            total = draw(ops, rng, columns)
            results += [ops.add_bias_backward(y, dy, bounds, total, accumulate=more), dy.copy()]
        y = draw(ops, rng, rows, columns)
        results += [ops.add_bias_backward(y, dy, (-0.2, 0.7), draw(ops, rng, columns), b=bias), dy]
    return results


def _joined(ops: Ops, rng: np.random.Generator) -> list[Any]:
    """As many pieces as one launch takes, more, and a single one; of several types."""
    results = []
    for widths in ((3, 1, 5, 2), (2, 3, 1, 1, 4, 6), (3,), (1, 2)):
        pieces = [draw(ops, rng, 4, width) for width in widths]
        pieces[0] = ops.asarray(rng.integers(0, 256, (4, widths[0])), np.uint8)
        whole = ops.join(pieces, ops.empty((4, sum(widths))))
        back = [ops.empty(piece.shape, piece.dtype) for piece in pieces]
        ops.cut(whole, back)
        results += [whole, *back]
    return results


def _convolution(
    window: Window, size: tuple[int, ...], rows: int, channels: int, filters: int, groups: int = 1
) -> Case:
    def case(ops: Ops, rng: np.random.Generator) -> list[Any]:
        x = draw(ops, rng, rows, *size, channels)
        weight, bias = draw(ops, rng, *window.kernel, channels // groups, filters), draw(ops, rng, filters)
        own = draw(ops, rng, channels)
        dy = draw(ops, rng, rows, *window.output_size(*size), filters)
        one_image = int(np.prod(dy.shape[1:-1])) * window.area * channels * ops.dtype.itemsize
        results = []
        for limit_nbytes in (0, 2 * one_image, 1 << 30):
            columns = ops.empty(ops.workspace_shape(x.shape, window, filters, limit_nbytes, groups))
            total = draw(ops, np.random.default_rng(1), *weight.shape)
            results += [
                ops.convolve(x, weight, bias, window, ops.empty(dy.shape), columns),
                *_by_columns(ops, x, weight, dy, window, columns),
                *_of_pending(ops, x, own, weight, dy, window, columns),
                ops.convolve_transposed(dy, weight, None, window, ops.empty(x.shape), columns),
                ops.convolve_transposed(dy, weight, own, window, ops.empty(x.shape), columns),
                ops.convolve_transposed(dy, weight, own, window, ops.empty(x.shape), columns, (0.0, 2.0)),
                ops.convolve(x, weight, None, window, ops.empty(dy.shape), columns),
                ops.convolve_backward_weight(x, dy, window, ops.empty(weight.shape), columns),
                ops.convolve_backward_weight(x, dy, window, total, columns, accumulate=True),
                ops.convolve_backward_input(dy, weight, window, ops.empty(x.shape), columns),
                ops.add_input_gradient(dy, weight, window, x.copy(), columns),
            ]
        return results

    return case


def _by_columns(ops: Ops, x: Any, weight: Any, dy: Any, window: Window, workspace: Any) -> list[Any]:
    """Gradients for the weight, of the columns that `convolve` has just left, if it does so."""
    totals, groups = [ops.empty(weight.shape), ops.zeros(weight.shape) + 1], x.shape[-1] // weight.shape[-2]
    left = ops.leaves_columns(x.shape, weight.shape, window, workspace.shape)
    for more, total in enumerate(totals):
        if left:
            ops.columns_backward_weight(workspace, dy, groups, total, accumulate=bool(more))
        else:
            ops.convolve_backward_weight(x, dy, window, total, workspace, accumulate=bool(more))
    return totals


def pending(ops: Ops, x: Any, bias: Any, bounds: tuple[float, float]) -> Any:
    """An array whose bias is still to come, if kernels of the device read such ones."""
    each = Pending(x, bias, bounds)
    return each if ops.launches else settled(each, ops)


def _of_pending(ops: Ops, x: Any, bias: Any, weight: Any, dy: Any, window: Window, workspace: Any) -> list[Any]:
    """Convolutions of an array whose bias is still to come, but for those that need no columns."""
    if window.area == 1 and max(window.stride) == 1 and not any(window.pad):
        return []
    x = pending(ops, x, bias, (0.0, 0.9))
    return [
        ops.convolve(x, weight, None, window, ops.empty(dy.shape), workspace),
        ops.convolve_backward_weight(x, dy, window, ops.empty(weight.shape), workspace),
    ]


def _upsampling(ops: Ops, rng: np.random.Generator) -> list[Any]:
    x, rows, columns = draw(ops, rng, 2, 3, 4, 5), draw(ops, rng, 7, 3), draw(ops, rng, 6, 4)
    y = ops.upsample(x, rows, columns, ops.empty((2, 7, 6, 5)))
    return [y, ops.upsample(y, rows.T, columns.T, ops.empty(x.shape))]


def _pooling(window: Window, height: int, width: int, rows: int, channels: int) -> Case:
    def case(ops: Ops, rng: np.random.Generator) -> list[Any]:
        # Few distinct values: many windows have several largest elements.
        x = ops.asarray(rng.integers(-3, 3, (rows, height, width, channels)), ops.dtype)
        shape = (rows, *window.output_size(height, width), channels)
        argmax = ops.empty(shape, ops.argmax_dtype(window))
        dy = draw(ops, rng, *shape)
        # With a few that are no numbers, and as it is.
        broken = ops.xp.where(x == -3, ops.asarray(np.nan, ops.dtype), x)
        return [
            ops.max_pool(broken, window, ops.empty(shape), argmax),
            argmax.copy(),
            ops.max_pool(x, window, ops.empty(shape), argmax),
            argmax,
            ops.max_pool_backward(dy, argmax, window, ops.empty(x.shape)),
            ops.max_pool(pending(ops, broken, dy[0, 0, 0], (0.0, 2.0)), window, ops.empty(shape), argmax.copy()),
            ops.add_max_pool_backward(dy, argmax, window, x.copy()),
            ops.average_pool(x, window, ops.empty(shape)),
            ops.average_pool_backward(dy, window, ops.empty(x.shape)),
        ]

    return case


def _activations(ops: Ops, rng: np.random.Generator) -> list[Any]:
    x, dy = draw(ops, rng, 3, 37) * 3, draw(ops, rng, 3, 37)
    x[0, :2] = ops.asarray([1e4, -1e4], ops.dtype)
    results = []
    for slope, limit in ((0.0, np.inf), (0.25, np.inf), (0.25, 2.0)):
        y = ops.relu(x, slope, ops.empty(x.shape), limit)
        results += [y, ops.relu_backward(y, dy.copy(), slope, ops.empty(x.shape), limit)]
    for alpha in (1.0, 0.3):
        y = ops.elu(x, alpha, ops.empty(x.shape))
        results += [y, ops.elu_backward(y, dy.copy(), alpha, ops.empty(x.shape))]
    for name in ("silu", "gelu", "gelu_tanh"):
        slope = ops.empty(x.shape)
        results += [getattr(ops, name)(x, ops.empty(x.shape), slope), slope]
    for name in ("sigmoid", "tanh", "stanh"):
        y = getattr(ops, name)(x, ops.empty(x.shape))
        in_place = dy.copy()
        results += [y, getattr(ops, f"{name}_backward")(y, in_place, in_place)]
    return results


def _lrn(local_size: int, beta: float, channels: int) -> Case:
    def case(ops: Ops, rng: np.random.Generator) -> list[Any]:
        x, dy = draw(ops, rng, 2, 3, 4, channels), draw(ops, rng, 2, 3, 4, channels)
        scale = ops.empty(x.shape)
        y = ops.lrn(x, local_size, 0.3, beta, 1.5, ops.empty(x.shape), scale)
        return [y, scale, ops.lrn_backward(x, y, scale, dy, local_size, 0.3, beta, dy)]

    return case


def _group_norm(rows: int, positions: int, groups: int, size: int) -> Case:
    def case(ops: Ops, rng: np.random.Generator) -> list[Any]:
        x, d = draw(ops, rng, rows, positions, groups, size), draw(ops, rng, rows, positions, groups, size)
        scale, bias = draw(ops, rng, groups, size), draw(ops, rng, groups, size)
        mean, inverse = ops.empty((rows, groups)), ops.empty((rows, groups))
        grads = [(draw(ops, rng, groups * size), more) for more in (False, True)]
        y = ops.group_norm(x, scale, bias, 1e-3, ops.empty(x.shape), mean, inverse)
        dx = ops.group_norm_backward(x, scale, mean, inverse, d, grads)
        return [y, mean, inverse, dx, *(grad for grad, _ in grads)]

    return case


def _batch_norm(rows: int, channels: int) -> Case:
    def case(ops: Ops, rng: np.random.Generator) -> list[Any]:
        x, d = draw(ops, rng, rows, channels), draw(ops, rng, rows, channels)
        mean, factor, bias, slope = (draw(ops, rng, channels) for _ in range(4))
        moments, products = ops.channel_moments(x, mean), ops.channel_products(d, x, mean)
        y = ops.normalise_channels(x, mean, factor, bias, ops.empty(x.shape))
        bounded = ops.normalise_channels(x, mean, factor, bias, ops.empty(x.shape), (0.0, 0.7))
        clipped = draw(ops, rng, rows, channels)
        sums = ops.clipped_products(clipped, x, mean, factor, bias, (0.0, 0.7))
        results = [
            moments,
            products,
            y,
            ops.batch_norm_backward(d, x, mean, factor, slope, bias),
            bounded,
            clipped,
            sums,
        ]
        for more in (False, True) if rows else ():
            of, clip = ops.batch_statistics(x, factor, 1e-3), (bias, (0.0, inf)) if more else None
            grads, rows_d = [(draw(ops, rng, channels), more) for _ in range(4)], draw(ops, rng, rows, channels)
            ops.batch_norm_gradients(rows_d, x, of, (factor, mean, bias), grads, 0.3, clip=clip)
            results += [*of[1:], *(grad for grad, _ in grads), rows_d]
        return results

    return case


def _attention(rows: int, heads: int, length: int, size: int, *, causal: bool, mask: str = "") -> Case:
    """mask: "" for none, "lengths" if a row sees the first positions only, "some" for others."""

    def case(ops: Ops, rng: np.random.Generator) -> list[Any]:
        # As a folded net has them: ordered by time step, q, k and v side by side.
        qkv = draw(ops, rng, length, rows, 3, heads, size)
        q, k, v = (qkv[:, :, i].transpose(1, 2, 0, 3) for i in range(3))
        dout, out = draw(ops, rng, rows, heads, length, size), ops.empty((rows, heads, length, size))
        log_sums, dqkv = ops.empty((rows, heads, length)), ops.empty(qkv.shape)
        seen = None
        if mask:
            places = (
                rng.permuted(np.tile(np.arange(length), (rows, 1)), axis=1) if mask == "some" else np.arange(length)
            )
            seen = ops.asarray(places < rng.integers(1, length + 1, (rows, 1)))
        if mask == "some":
            seen[:, 0] = True
        ops.attention((q, k, v), out, log_sums, causal=causal, seen=seen)
        dq, dk, dv = (dqkv[:, :, i].transpose(1, 2, 0, 3) for i in range(3))
        ops.attention_backward((q, k, v), out, log_sums, dout, (dq, dk, dv), causal=causal, seen=seen)
        return [out, log_sums, dqkv]

    return case


def _cross_attention(length: int, others: int, *, masked: bool) -> Case:
    def case(ops: Ops, rng: np.random.Generator) -> list[Any]:
        q, k, v = draw(ops, rng, 3, 2, length, 5), *draw(ops, rng, 2, 3, 2, others, 5)
        dout, out, log_sums = draw(ops, rng, *q.shape), ops.empty(q.shape), ops.empty(q.shape[:3])
        seen = ops.asarray(np.arange(others) < rng.integers(1, others, (3, 1))) if masked else None
        ops.attention((q, k, v), out, log_sums, causal=False, seen=seen)
        grads = ops.empty(q.shape), ops.empty(k.shape), ops.empty(v.shape)
        ops.attention_backward((q, k, v), out, log_sums, dout, grads, causal=False, seen=seen)
        return [out, log_sums, *grads]

    return case


def _losses(ops: Ops, rng: np.random.Generator) -> list[Any]:
    results = []
    for rows, classes in ((1, 2), (9, 10)):
        x, dy = draw(ops, rng, rows, classes) * 5, draw(ops, rng, rows, classes)
        labels = labels_of(ops, rng, rows, classes)
        y = ops.softmax(x, ops.empty(x.shape))
        numbers = ops.softmax_cross_entropy(x, labels, 2, out := ops.empty(x.shape))
        results += [y, ops.softmax_backward(y, dy, dy), np.array(ops.floats(numbers)[:2]), out]
        results += [ops.softmax_cross_entropy_backward(y, labels, 0.1, ops.empty(x.shape))]
        numbers = ops.softmax_cross_entropy(x, labels, 1, out, 0.1)
        results += [
            np.array(ops.floats(numbers)[:2]),
            ops.softmax_cross_entropy_backward(y, labels, 0.1, ops.empty(x.shape), 0.1),
        ]
        t, positive = ops.asarray(rng.random((rows, classes)), ops.dtype), ops.asarray(rng.random(classes), ops.dtype)
        results += (three := [ops.empty(x.shape) for _ in range(3)])
        ops.binary_cross_entropy(x * 9, t, positive, three)
        squares = ops.half_squares(x, t, error := ops.empty(x.shape))
        results += [np.array([float(squares)]), error.copy()]
        squares = ops.half_squares(pending(ops, x, positive, (-inf, inf)), t, error)
        numbers = ops.softmax_cross_entropy(
            pending(ops, x, positive, (0.0, 3.0)), labels, 2, out := ops.empty(x.shape)
        )
        results += [np.array([float(squares), *ops.floats(numbers)[:2]]), error, out]
        ties = ops.asarray(rng.integers(0, 3, (rows, classes)), ops.dtype)
        results += [ops.asarray([ops.count_topk(ties, labels, 2)]), ops.argsort_topk(ties, 2)]
    return results


def _rnn(ops: Ops, rng: np.random.Generator) -> list[Any]:
    results = []
    for rows, units in SIZES:
        sums, dh = (draw(ops, rng, rows, units) * 3 for _ in range(2))
        h, da = ops.empty(dh.shape), ops.empty(dh.shape)
        ops.rnn_cell(sums, h)
        ops.rnn_cell_backward(dh, h, da)
        results += [h, da]
    return results


def _gru(ops: Ops, rng: np.random.Generator) -> list[Any]:
    results = []
    for rows, units in SIZES:
        gates, h = draw(ops, rng, rows, 3 * units) * 3, ops.empty((rows, units))
        ahc, before, dh, dbefore = (draw(ops, rng, rows, units) for _ in range(4))
        ops.gru_cell(gates, ahc, before, h)
        results += [gates.copy(), h]
        ops.gru_cell_backward(dh, gates, ahc, before, dbefore)
        results += [gates, ahc, dbefore]
    return results


def _lstm(ops: Ops, rng: np.random.Generator) -> list[Any]:
    results = []
    for rows, units in SIZES:
        gates = draw(ops, rng, rows, 4 * units) * 3
        before, dh, dcell = (draw(ops, rng, rows, units) for _ in range(3))
        cell, h = ops.empty(dh.shape), ops.empty(dh.shape)
        ops.lstm_cell(gates, before, cell, h)
        results += [gates.copy(), cell, h]
        ops.lstm_cell_backward(dh, dcell, gates, before, cell)
        results += [gates, dcell]
    return results


def _over_time(begun: bool, given: bool, batch: int, units: int, symbols: int = 0) -> Case:
    """The time loops: T steps of `batch` rows, whose inputs are of so many symbols, where there are any."""

    def case(ops: Ops, rng: np.random.Generator) -> list[Any]:
        steps, results = 3, []
        rows = steps * batch
        for name, gates in (("rnn", 1), ("gru", 3), ("lstm", 4)):
            width = gates * units
            sums, weight = draw(ops, rng, rows, width), draw(ops, rng, units, width)
            parts = [weight[:, : 2 * units], weight[:, 2 * units :]] if name == "gru" else [weight]
            packed = [(part[:, :3], part[:, 3:]) for part in parts]
            w = [
                ops.pack(both, ops.empty(ops.packed_shape(*p.shape, batch)))
                for both, p in zip(packed, parts, strict=True)
            ]
            back = [ops.pack([p.T], ops.empty(ops.packed_shape(*p.T.shape, batch))) for p in parts]
            h, cell = draw(ops, rng, rows + batch, units), draw(ops, rng, rows + batch, units)
            chosen = None
            if symbols:
                chosen = draw(ops, rng, symbols, sums.shape[1]), labels_of(ops, rng, rows, symbols)
            if not begun:
                h[:batch] = 0
            dh, dcell, dbefore = (
                draw(ops, rng, rows, units),
                draw(ops, rng, batch, units),
                draw(ops, rng, batch, units),
            )
            if name == "rnn":
                ops.rnn_steps(sums, *w, begun, h, chosen)
                da = ops.empty(sums.shape)
                ops.rnn_steps_backward(dh, *back, given, h, da, dbefore)
                results.append(da)
            elif name == "gru":
                ahc = ops.empty((rows, units))
                ops.gru_steps(sums, *w, begun, ahc, h, chosen)
                ops.gru_steps_backward(dh, *back, given, sums, ahc, h, dbefore)
                results += [sums, ahc]
            else:
                ops.lstm_steps(sums, *w, begun, cell, h, chosen)
                dcells = draw(ops, rng, *dh.shape) if given else None
                ops.lstm_steps_backward(dh, *back, given, dcell, sums, cell, dbefore, dcells)
                results += [sums, cell, dcell]
            results += [h, *([dbefore] if given else [])]
        return results

    return case


def _symbols(ops: Ops, rng: np.random.Generator) -> list[Any]:
    table, dy, total = draw(ops, rng, 6, 5), draw(ops, rng, 9, 5), draw(ops, rng, 6, 5)
    rows = labels_of(ops, rng, 9, 6)
    ops.embed_backward(dy, rows, total)
    return [ops.embed(table, rows, ops.empty((9, 5))), total]


def _dropout(ops: Ops, rng: np.random.Generator) -> list[Any]:
    x, dy = draw(ops, rng, 5, 13), draw(ops, rng, 5, 13)
    mask = ops.empty(x.shape, np.uint8)
    key = stream_key(2**63 + 5, 7, "drop")
    y = ops.dropout(x, 0.3, key, (1 << 40) + 3, ops.empty(x.shape), mask)
    return [y, mask, ops.dropout_backward(dy, mask, 0.3, dy)]


def _columns(ops: Ops, rng: np.random.Generator) -> list[Any]:
    """Columns of an array of 40 columns: five, one, all, none of them."""
    key, results = stream_key(3, 1, "columns"), []
    for width, rows in ((5, 6), (1, 4), (40, 2), (0, 3)):
        x, columns = draw(ops, rng, rows, width), Columns(width, 40)
        y, mask = ops.empty(x.shape), ops.empty(x.shape, np.uint8)
        results += [ops.dropout(x, 0.4, key, (1 << 40) + 7, y, mask, columns), mask]
        for draws in (ops.bernoulli, ops.normal):
            results.append(draws(x, key, 17, ops.empty(x.shape), columns))
    return results


def _crop(ops: Ops, rng: np.random.Generator) -> list[Any]:
    pixels = ops.asarray(rng.integers(0, 256, (3, 6, 7, 3)), np.uint8)
    mean = draw(ops, rng, 6, 7, 3)
    top, left, mirror = (ops.asarray(a) for a in ([0, 1, 2], [3, 0, 1], [0, 1, 1]))
    return [ops.crop(pixels, top, left, mirror, mean, 0.5, ops.empty((3, 4, 4, 3)))]


UPDATES: dict[str, tuple[int, dict[str, float]]] = {
    # rule -> number of states, hyperparameters beside weight decay and clipping
    "sgd": (1, {"lr": 0.1, "momentum": 0.9}),
    "nesterov": (1, {"lr": 0.1, "momentum": 0.9}),
    "adagrad": (1, {"lr": 0.1, "delta": 1e-8}),
    "rmsprop": (1, {"lr": 0.1, "rho": 0.95, "delta": 1e-8}),
    "adadelta": (2, {"lr": 1.0, "rho": 0.9, "delta": 1e-6}),
    "adam": (
        2,
        {"lr": 0.1, "beta1": 0.9, "beta2": 0.999, "delta": 1e-8}
        | {"correction1": 1 - 0.9**3, "correction2": 1 - 0.999**3},
    ),
    "adamw": (
        2,
        {"lr": 0.1, "shrinkage": 0.02, "beta1": 0.9, "beta2": 0.999, "delta": 1e-8}
        | {"correction1": 1 - 0.9**3, "correction2": 1 - 0.999**3},
    ),
    "adamax": (2, {"lr": 0.1, "beta1": 0.9, "beta2": 0.999, "delta": 1e-8, "correction1": 1 - 0.9**3}),
}


def _update(rule: str) -> Case:
    def case(ops: Ops, rng: np.random.Generator) -> list[Any]:
        count, hyperparameters = UPDATES[rule]
        results = []
        for size, limit in ((1, np.inf), (50, np.inf), (50, 0.4)):
            w, g = draw(ops, rng, size), draw(ops, rng, size)
            states = [ops.asarray(rng.random(size) + 0.1, ops.dtype) for _ in range(count)]
            given = {"weight_decay": 0.01, "clip_low": -limit, "clip_high": limit, **hyperparameters}
            ops.update(rule, w, g, states, **given)
            kinds = ops.asarray(rng.integers(0, 3, size), np.uint8)
            ops.update_where((kinds, 1), rule, w, g, states, **given)
            ops.subtract_where((kinds, 2), w, g)
            results += [w, g, *states]
        return results

    return case


def _clip_norm(ops: Ops, rng: np.random.Generator) -> list[Any]:
    results = []
    for size, limit in ((50, 1.0), (3000, 1e9)):
        g, where = draw(ops, rng, size), (ops.asarray(rng.integers(0, 2, size), np.uint8), 1)
        squares = ops.squared_norm_where(where, g)
        factor = ops.norm_factor(squares, limit)
        ops.scale_where(where, g, factor)
        results += [g, ops.asarray([squares]), ops.asarray([factor])]
    return results


def _moving_average(ops: Ops, rng: np.random.Generator) -> list[Any]:
    average, w = draw(ops, rng, 70_000), draw(ops, rng, 70_000)
    ops.moving_average(average, w, 0.999)
    return [average, w]


def _lamb(ops: Ops, rng: np.random.Generator) -> list[Any]:
    results = []
    for size, limit, factor in ((1, np.inf, 1), (70_000, 0.4, 1), (50, np.inf, 0)):
        w, g, m = (factor * draw(ops, rng, size), draw(ops, rng, size), draw(ops, rng, size))
        v = ops.asarray(rng.random(size) + 0.1, ops.dtype)
        numbers = {"lr": 0.1, "beta1": 0.9, "beta2": 0.999, "delta": 1e-8, "weight_decay": 0.01}
        corrections = {"correction1": 1 - 0.9**3, "correction2": 1 - 0.999**3}
        ops.lamb(w, g, m, v, **numbers, **corrections, clip_low=-limit, clip_high=limit)
        results += [w, g, m, v, ops.asarray([ops.squared_norm(g)])]
    return results


CASES: dict[str, Case] = {
    "products": _products,
    "activations": _activations,
    "joined": _joined,
    "losses": _losses,
    "rnn": _rnn,
    "gru": _gru,
    "lstm": _lstm,
    "symbols": _symbols,
    "time-zero": _over_time(False, False, 7, 70),
    "time-given": _over_time(True, True, 12, 33),
    "time-few-rows": _over_time(True, True, 2, 5),
    "time-symbols": _over_time(False, False, 11, 40, 6),
    "time-symbols-few-rows": _over_time(True, False, 2, 5, 6),
    "dropout": _dropout,
    "columns": _columns,
    "crop": _crop,
    **{
        f"lrn-{n}-{beta}-{c}": _lrn(n, beta, c)
        for n, beta, c in ((3, 0.75, 7), (5, 0.75, 2), (1, 0.5, 3), (3, 0.6, 16))
    },
    **{
        f"group-norm-{'x'.join(map(str, sizes))}": _group_norm(*sizes)
        for sizes in ((5, 1, 1, 7), (1, 1, 1, 1), (2, 6, 3, 4), (3, 2, 5, 1), (0, 2, 1, 3))
    },
    **{
        f"batch-norm-{rows}x{channels}": _batch_norm(rows, channels)
        for rows, channels in ((70, 16), (5, 3), (0, 4), (1, 2))
    },
    **{
        f"attention-{'x'.join(map(str, sizes))}-{causal}": _attention(*sizes, causal=causal)
        for sizes in ((2, 3, 5, 4), (1, 1, 1, 1), (3, 2, 300, 8), (1, 2, 85, 70), (0, 1, 3, 2))
        for causal in (False, True)
    },
    **{
        f"attention-{length}-{causal}-{mask}": _attention(3, 2, length, 5, causal=causal, mask=mask)
        for length in (7, 300)
        for causal in (False, True)
        for mask in ("lengths", "some")
    },
    **{
        f"cross-attention-{length}-{others}-{masked}": _cross_attention(length, others, masked=masked)
        for length, others in ((5, 90), (150, 6))
        for masked in (False, True)
    },
    **{
        f"convolution-{w}-{rows}": _convolution(window, (height, width), rows, channels, filters)
        for w, (window, height, width) in enumerate(WINDOWS)
        for rows, channels, filters in ((1, 1, 1), (3, 5, 4))
    },
    **{
        f"convolution-{name}": _convolution(*sizes)
        for name, sizes in {
            "of pixels": (Window((1, 1)), (5, 4), 2, 3, 7),
            "dilated": (Window((3, 2), (1, 2), (2, 1), (2, 3)), (7, 9), 2, 3, 4),
            "grouped": (Window((3, 3), (2, 1), (1, 1)), (6, 5), 3, 6, 4, 2),
            "depthwise": (Window((3, 3), (1, 1), (1, 1)), (5, 6), 2, 19, 19, 19),
            "depthwise, dilated and strided": (Window((3, 2), (2, 2), (2, 1), (2, 1)), (8, 7), 2, 4, 4, 4),
            "depthwise with two filters a channel": (Window((2, 2)), (4, 4), 2, 3, 6, 3),
            "of volumes": (Window((2, 3, 2), (1, 2, 1), (1, 1, 0), (1, 1, 2)), (4, 5, 6), 2, 2, 3),
            "of volumes, without gaps": (Window((3, 2, 3), (2, 1, 1), (1, 0, 2), (1, 1, 1)), (5, 4, 6), 2, 5, 7),
            "of volumes, by Winograd": (Window((2, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1)), (3, 8, 8), 1, 8, 16),
            "of volumes, grouped": (Window((2, 2, 1), (1, 1, 1), (0, 0, 0), (1, 1, 1)), (3, 4, 2), 2, 4, 2, 2),
            "grouped, without rows": (Window((3, 3), (1, 1), (1, 1)), (4, 4), 0, 4, 4, 2),
        }.items()
    },
    "upsampling": _upsampling,
    **{
        f"pooling-{w}-{rows}x{channels}": _pooling(window, height, width, rows, channels)
        for w, (window, height, width) in enumerate(WINDOWS)
        for rows, channels in SIZES
    },
    **{f"{rule}_update": _update(rule) for rule in UPDATES},
    "lamb_update": _lamb,
    "moving_average": _moving_average,
    "clip_norm": _clip_norm,
}


def compare(name: str, ops: Ops, seed: int = 0) -> None:
    """Assert that `ops` gets the base's numbers in case `name`."""
    expected = CASES[name](Ops(ops.dtype), np.random.default_rng(seed))
    received = CASES[name](ops, np.random.default_rng(seed))
    tolerance = 3e-5 if ops.dtype == np.float32 else 1e-12
    for i, (want, got) in enumerate(zip(expected, received, strict=True)):
        host = got if isinstance(got, np.ndarray) else ops.to_host(got)
        assert host.dtype == want.dtype, f"result {i} of {name}"
        np.testing.assert_allclose(host, want, rtol=tolerance, atol=tolerance, err_msg=f"result {i} of {name}")
