"""CUDA kernels, one thread per element of the output: name -> inputs, outputs and body of a cupy.ElementwiseKernel.

T is the arrays' dtype, i the element's index.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from singa_dask.ops.activation import NORMAL, ROOT_HALF, STANH_INNER, STANH_OUTER, TANH_CUBE, TANH_SLOPE
from singa_dask.ops.gpu import (
    codec_kernels,
    column_kernels,
    recurrent_kernels,
    row_kernels,
    sparse_kernels,
    window_kernels,
)
from singa_dask.ops.gpu.recurrent_kernels import sigmoid
from singa_dask.ops.gpu.warps import LANE, PREAMBLE
from singa_dask.ops.random import GAMMA, MIX1, MIX2
from singa_dask.ops.update import RULES

# Update rules; singa_dask.ops.update has the formulas, `update_numbers` the numbers.
_REGULARISED = "const T r = (g < low ? low : g > high ? high : g) + decay * w;"
_REST = "T decay, T low, T high"

_PIECES = "raw A p0, raw B p1, raw C p2, raw D p3"
_WIDTHS = "int64 w0, int64 w1, int64 w2, int64 w3, int64 first, int64 whole"
_COLUMN = """
    const long long n0 = w0, n1 = n0 + w1, n2 = n1 + w2, row = i / (n2 + w3), k = i % (n2 + w3);
"""
_AROUND = """
    const int c = i % channels, first = -min(c, around), last = min(around, channels - 1 - c);
"""

KERNELS: dict[str, tuple[str, str, str]] = {
    **codec_kernels.KERNELS,
    **column_kernels.KERNELS,
    **recurrent_kernels.KERNELS,
    **row_kernels.KERNELS,
    **sparse_kernels.KERNELS,
    **window_kernels.KERNELS,
    "relu": ("T x, T slope, T limit", "T y", "y = x > 0 ? (x > limit ? limit : x) : slope * x"),
    "relu_backward": (
        "T y, T dy, T slope, T limit",
        "T dx",
        "dx = y > 0 ? (y < limit ? dy : T(0)) : slope * dy",
    ),
    # The bits of the nearest bfloat16, of two the even one; of what is no number, one that is none.
    "bfloat16": (
        "T x",
        "uint16 y",
        "const float value = x; unsigned bits; memcpy(&bits, &value, 4);"
        "y = value == value ? (bits + 0x7fffu + (bits >> 16 & 1)) >> 16 : bits >> 16 | 0x40;",
    ),
    "elu": ("T x, T alpha", "T y", "y = x > 0 ? x : alpha * expm1(x)"),
    "elu_backward": ("T y, T dy, T alpha", "T dx", "dx = y > 0 ? dy : dy * (y + alpha)"),
    "silu": (
        "T x",
        "T y, T slope",
        # exp(x) as a product of two: their product may have fewer digits than x times it.
        "const T w = x < T(-1500) ? T(-1500) : x, root = exp(T(-0.5) * abs(w)), part = w < 0 ? root : T(1);"
        "const T s = part * part / (T(1) + root * root), t = w * part / (T(1) + root * root) * part;"
        "y = t; slope = s + t * (T(1) - s);",
    ),
    "gelu": (
        "T x",
        "T y, T slope",
        f"const T area = T(0.5) + T(0.5) * erf(x * T({ROOT_HALF!r}));"
        f"y = x * area; slope = area + x * exp(T(-0.5) * x * x) * T({NORMAL!r});",
    ),
    "gelu_tanh": (
        "T x",
        "T y, T slope",
        f"const T square = x * x, u = T({2 * TANH_SLOPE!r}) * x * (T(1) + T({TANH_CUBE!r}) * square);"
        f"const T s = {sigmoid('u')}, t = x * s;"
        f"y = t; slope = s + t * (T(1) - s) * T({2 * TANH_SLOPE!r}) * (T(1) + T({3 * TANH_CUBE!r}) * square);",
    ),
    "sigmoid": ("T x", "T y", f"y = {sigmoid('x')}"),
    "stanh": ("T x", "T y", f"y = T({STANH_OUTER!r}) * tanh(T({STANH_INNER!r}) * x)"),
    "sigmoid_backward": ("T y, T dy", "T dx", "dx = dy * y * (T(1) - y)"),
    "tanh_backward": ("T y, T dy", "T dx", "dx = dy * (T(1) - y * y)"),
    "stanh_backward": (
        "T y, T dy",
        "T dx",
        f"dx = dy * (T({STANH_INNER * STANH_OUTER!r}) - T({STANH_INNER / STANH_OUTER!r}) * y * y)",
    ),
    "dropout": (
        "T x, uint64 threshold, T factor, uint64 key, uint64 first, uint64 width, uint64 stride",
        "T y, uint8 mask",
        # Division is slow: only what has columns does it.
        f"""
    const unsigned long long k = width == stride ? i : i / width * stride + i % width;
    unsigned long long z = key + (first + k + 1ULL) * {GAMMA}ULL;
    z = (z ^ (z >> 30)) * {MIX1}ULL;
    z = (z ^ (z >> 27)) * {MIX2}ULL;
    z = z ^ (z >> 31);
    mask = (z >> 32) >= threshold;
    y = mask ? x * factor : T(0);
    """,
    ),
    "dropout_backward": ("T dy, uint8 mask, T factor", "T dx", "dx = mask ? dy * factor : T(0)"),
    "binary_cross_entropy": (
        "T x, T t, raw T p, int32 columns",
        "T y, T slope, T loss",
        "const T rest = exp(-abs(x)), positives = p[i % columns] * t, both = T(1) - t + positives;"
        "const T above = x > 0 ? x : T(0);"
        "y = (x >= 0 ? T(1) : rest) / (T(1) + rest);"
        "slope = both * y - positives;"
        "loss = both * log1p(rest) + positives * (above - x) + (T(1) - t) * above;",
    ),
    "softmax_cross_entropy_backward": (
        "T y, raw L labels, int32 columns, T scale, T smoothing",
        "T dx",
        "const T hit = i % columns == labels[i / columns] ? T(1) - smoothing : T(0);"
        "dx = (y - smoothing / columns - hit) * scale;",
    ),
    "add_bias": (
        "raw T bias, int64 columns, T low, T high",
        "T y",
        "const T z = y + bias[i % columns]; y = z < low ? low : z > high ? high : z;",
    ),
    # Up to four pieces side by side, those of widths of 0 unused: columns `first` ... of rows of `whole` elements.
    "join": (
        f"{_PIECES}, {_WIDTHS}",
        "raw T y",
        f"{_COLUMN} y[row * whole + first + k] = k < n0 ? T(p0[row * n0 + k]) : k < n1 ? T(p1[row * w1 + k - n0]) :"
        "k < n2 ? T(p2[row * w2 + k - n1]) : T(p3[row * w3 + k - n2]);",
    ),
    "cut": (
        f"raw T x, {_WIDTHS}",
        _PIECES,
        f"{_COLUMN} const T value = x[row * whole + first + k];"
        "if (k < n0) p0[row * n0 + k] = value; else if (k < n1) p1[row * w1 + k - n0] = value;"
        "else if (k < n2) p2[row * w2 + k - n1] = value; else p3[row * w3 + k - n2] = value;",
    ),
    # -1: a symbol that is no row of the table.
    "table_rows": ("T x, int32 size", "int64 row", "row = x >= 0 && x < size && x == (int)x ? (int)x : -1"),
    "one_hot": (
        "raw L rows, int32 columns",
        "T y",
        'const L row = rows[i / columns]; y = row < 0 ? T(nan("")) : T(row == i % columns);',
    ),
    "embed": (
        "raw T table, raw L rows, int32 columns",
        "T y",
        'const L row = rows[i / columns]; y = row < 0 ? T(nan("")) : table[(long long)row * columns + i % columns];',
    ),
    "normalise_channels": (
        "T x, raw T mean, raw T factor, raw T bias, int32 channels, T low, T high",
        "T y",
        "const int c = i % channels; const T z = (x - mean[c]) * factor[c] + bias[c];"
        "y = z < low ? low : z > high ? high : z;",
    ),
    "batch_norm_backward": (
        "T x, raw T mean, raw T factor, raw T slope, raw T shift, int32 channels",
        "T d",
        "const int c = i % channels; d = d * factor[c] + (x - mean[c]) * slope[c] + shift[c];",
    ),
    # Of the channels around channel c, from `first` to `last` in distance.
    "lrn": (
        "T x, raw T whole, int32 channels, int32 around, T alpha, T beta, T knorm",
        "T y, T scale",
        f"{_AROUND} T sum = 0; for (int k = first; k <= last; ++k) sum += whole[i + k] * whole[i + k];"
        "const T s = knorm + alpha * sum; scale = s; y = x * pow(s, -beta);",
    ),
    "lrn_quotient": ("T y, T scale, T dy", "T q", "q = dy * y / scale"),
    "lrn_backward": (
        "T x, T scale, T dy, raw T quotients, int32 channels, int32 around, T factor, T beta",
        "T dx",
        f"{_AROUND} T sum = 0; for (int k = first; k <= last; ++k) sum += quotients[i + k];"
        "dx = dy * pow(scale, -beta) - factor * x * sum;",
    ),
    "norm_factor": (
        "float64 squares, float64 limit",
        "float64 factor",
        "const double norm = sqrt(squares); factor = norm > limit ? limit / norm : 1;",
    ),
    "sgd": (
        f"T g, T lr, T momentum, {_REST}",
        "T w, T v",
        f"{_REGULARISED} const T step = momentum * v - lr * r; v = step; w += step;",
    ),
    "nesterov": (
        f"T g, T lr, T momentum, {_REST}",
        "T w, T v",
        f"{_REGULARISED} const T old = v, step = momentum * old + lr * r; "
        "v = step; w -= (T(1) + momentum) * step - momentum * old;",
    ),
    "adagrad": (
        f"T g, T lr, T delta, {_REST}",
        "T w, T h",
        f"{_REGULARISED} const T sum = h + r * r; h = sum; w -= lr * r / sqrt(sum + delta);",
    ),
    "rmsprop": (
        f"T g, T lr, T rho, T fresh, T delta, {_REST}",
        "T w, T h",
        f"{_REGULARISED} const T mean = rho * h + fresh * r * r; h = mean; w -= lr * r / sqrt(mean + delta);",
    ),
    "adadelta": (
        f"T g, T lr, T rho, T fresh, T delta, {_REST}",
        "T w, T h, T u",
        f"{_REGULARISED} const T mean = rho * h + fresh * r * r;"
        "const T step = r * sqrt(u + delta) / sqrt(mean + delta);"
        "h = mean; u = rho * u + fresh * step * step; w -= lr * step;",
    ),
    "adam": (
        f"T g, T rate, T beta1, T fresh1, T beta2, T fresh2, T correction2, T delta, {_REST}",
        "T w, T m, T v",
        f"{_REGULARISED} const T first = beta1 * m + fresh1 * r, second = beta2 * v + fresh2 * r * r;"
        "m = first; v = second; w -= rate * first / (sqrt(second / correction2) + delta);",
    ),
    "adamw": (
        f"T g, T rate, T kept, T beta1, T fresh1, T beta2, T fresh2, T correction2, T delta, {_REST}",
        "T w, T m, T v",
        f"{_REGULARISED} const T first = beta1 * m + fresh1 * r, second = beta2 * v + fresh2 * r * r;"
        "m = first; v = second; w = kept * w - rate * first / (sqrt(second / correction2) + delta);",
    ),
    "moving_average": ("T w, T decay, T fresh", "T average", "average = decay * average + fresh * w;"),
    "lamb_moments": (
        f"T w, T g, T beta1, T fresh1, T beta2, T fresh2, T correction1, T correction2, T delta, {_REST}",
        "T m, T v, T r",
        "const T clipped = g < low ? low : g > high ? high : g;"
        "const T first = beta1 * m + fresh1 * clipped, second = beta2 * v + fresh2 * clipped * clipped;"
        "m = first; v = second; r = first / correction1 / (sqrt(second / correction2) + delta) + decay * w;",
    ),
    "lamb_step": (
        "T r, T lr, raw float64 of_w, raw float64 of_r",
        "T w",
        "w -= lr * (of_w[0] > 0 && of_r[0] > 0 ? T(sqrt(of_w[0] / of_r[0])) : T(1)) * r;",
    ),
    "adamax": (
        f"T g, T rate, T beta1, T fresh1, T beta2, T delta, {_REST}",
        "T w, T m, T u",
        f"{_REGULARISED} const T first = beta1 * m + fresh1 * r, decayed = beta2 * u;"
        "const T largest = decayed > abs(r) ? decayed : abs(r);"
        "m = first; u = largest; w -= rate * first / (largest + delta);",
    ),
}

for _rule in RULES:
    _inputs, _outputs, _body = KERNELS[_rule]
    KERNELS[f"{_rule}_where"] = f"uint8 kind, uint8 own, {_inputs}", _outputs, f"if (kind == own) {{ {_body} }}"
KERNELS["scale_where"] = "uint8 kind, uint8 own, float64 factor", "T x", "if (kind == own) x *= T(factor);"
KERNELS["subtract_where"] = "uint8 kind, uint8 own, T g", "T w", "if (kind == own) w -= g;"


def update_numbers(rule: str, *given: float) -> tuple[float, ...]:
    """The numbers that the rule's kernel takes, from its hyperparameters (singa_dask.ops.update).

    Rates and complements (fresh = 1 - rho) are computed in double precision, since float32 would round them too early.
    """
    *own, decay, low, high = given
    match rule:
        case "rmsprop" | "adadelta":
            lr, rho, delta = own
            own = [lr, rho, 1 - rho, delta]
        case "adam":
            lr, beta1, beta2, correction1, correction2, delta = own
            own = [lr / correction1, beta1, 1 - beta1, beta2, 1 - beta2, correction2, delta]
        case "adamw":
            lr, shrinkage, beta1, beta2, correction1, correction2, delta = own
            own = [lr / correction1, 1 - shrinkage, beta1, 1 - beta1, beta2, 1 - beta2, correction2, delta]
        case "adamax":
            lr, beta1, beta2, correction1, delta = own
            own = [lr / correction1, beta1, 1 - beta1, beta2, delta]
    return (*own, decay, low, high)


def build(cupy: Any) -> SimpleNamespace:
    """All kernels by name; CUDA compiles each at its first call."""
    made = {}
    for name, parts in KERNELS.items():
        made[name] = cupy.ElementwiseKernel(
            *parts, f"singa_dask_{name}", preamble=PREAMBLE if LANE in parts[2] else ""
        )
    return SimpleNamespace(**made)
