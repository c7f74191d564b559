"""CUDA kernels, one thread per element of the output: name -> inputs, outputs and body of a cupy.ElementwiseKernel.

T is the arrays' dtype, i the element's index.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from singa_dask.ops.activation import NORMAL, ROOT_HALF, STANH_INNER, STANH_OUTER
from singa_dask.ops.random import GAMMA, MIX1, MIX2

# Sliding windows. Lengths are int32, element counts long long: a buffer of columns may exceed 2^31 elements.
_WINDOW = "int32 kh, int32 kw, int32 sh, int32 sw, int32 ph, int32 pw"
_PIXEL = """
    const long long c = i % channels, b = i / channels / width / height;
    const int w = i / channels % width, h = i / channels / width % height;
"""
_OUTPUT = """
    const long long c = i % channels, b = i / channels / ow_count / oh_count;
    const int w0 = i / channels % ow_count * sw - pw, h0 = i / channels / ow_count % oh_count * sh - ph;
"""
# The windows that cover pixel (h, w): first and last output row and column.
_COVERED = """
    const int oh_first = h + ph < kh ? 0 : (h + ph - kh) / sh + 1, oh_last = min((h + ph) / sh, oh_count - 1);
    const int ow_first = w + pw < kw ? 0 : (w + pw - kw) / sw + 1, ow_last = min((w + pw) / sw, ow_count - 1);
"""
_SIZES = "int32 height, int32 width, int32 channels, int32 oh_count, int32 ow_count"
# Update rules; singa_dask.ops.update has the formulas, `update_numbers` the numbers.
_REGULARISED = "const T r = (g < low ? low : g > high ? high : g) + decay * w;"
_REST = "T decay, T low, T high"

KERNELS: dict[str, tuple[str, str, str]] = {
    "relu": ("T x, T slope", "T y", "y = x > 0 ? x : slope * x"),
    "relu_backward": ("T y, T dy, T slope", "T dx", "dx = y > 0 ? dy : slope * dy"),
    "elu": ("T x, T alpha", "T y", "y = x > 0 ? x : alpha * expm1(x)"),
    "elu_backward": ("T y, T dy, T alpha", "T dx", "dx = y > 0 ? dy : dy * (y + alpha)"),
    "silu": (
        "T x",
        "T y, T slope",
        "const T s = T(0.5) + T(0.5) * tanh(T(0.5) * x), t = x * s; y = t; slope = s + t * (T(1) - s);",
    ),
    "gelu": (
        "T x",
        "T y, T slope",
        f"const T area = T(0.5) + T(0.5) * erf(x * T({ROOT_HALF!r}));"
        f"y = x * area; slope = area + x * exp(T(-0.5) * x * x) * T({NORMAL!r});",
    ),
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
    "im2col": (
        f"raw T x, {_SIZES}, {_WINDOW}",
        "T column",
        """
    const long long c = i % channels, rest = i / channels / kw / kh, b = rest / ow_count / oh_count;
    const int w = rest % ow_count * sw - pw + i / channels % kw;
    const int h = rest / ow_count % oh_count * sh - ph + i / channels / kw % kh;
    const bool inside = h >= 0 && h < height && w >= 0 && w < width;
    column = inside ? x[((b * height + h) * width + w) * channels + c] : T(0);
    """,
    ),
    "col2im": (
        f"raw T columns, {_SIZES}, {_WINDOW}",
        "T pixel",
        f"""{_PIXEL}{_COVERED}
    T total = 0;
    for (int oh = oh_first; oh <= oh_last; ++oh)
        for (int ow = ow_first; ow <= ow_last; ++ow) {{
            const long long row = (b * oh_count + oh) * ow_count + ow;
            total += columns[((row * kh + h + ph - oh * sh) * kw + w + pw - ow * sw) * channels + c];
        }}
    pixel = total;
    """,
    ),
    "max_pool": (
        f"raw T x, {_SIZES}, {_WINDOW}",
        "T y, S argmax",
        f"""{_OUTPUT}
    bool any = false;
    T best = 0;
    int position = 0;
    for (int h = max(h0, 0); h < min(h0 + kh, height); ++h)
        for (int w = max(w0, 0); w < min(w0 + kw, width); ++w) {{
            const T value = x[((b * height + h) * width + w) * channels + c];
            if (any && value <= best) continue;
            if (any && best != best && value == value) continue;
            any = true;
            best = value;
            position = (h - h0) * kw + w - w0;
        }}
    y = best;
    argmax = position;
    """,
    ),
    "max_pool_backward": (
        f"raw T dy, raw S argmax, {_SIZES}, {_WINDOW}",
        "T dx",
        f"""{_PIXEL}{_COVERED}
    T total = 0;
    for (int oh = oh_first; oh <= oh_last; ++oh)
        for (int ow = ow_first; ow <= ow_last; ++ow) {{
            const long long k = ((b * oh_count + oh) * ow_count + ow) * channels + c;
            if ((int)argmax[k] == (h + ph - oh * sh) * kw + w + pw - ow * sw) total += dy[k];
        }}
    dx = total;
    """,
    ),
    "average_pool": (
        f"raw T x, {_SIZES}, {_WINDOW}",
        "T y",
        f"""{_OUTPUT}
    T total = 0;
    for (int h = max(h0, 0); h < min(h0 + kh, height); ++h)
        for (int w = max(w0, 0); w < min(w0 + kw, width); ++w)
            total += x[((b * height + h) * width + w) * channels + c];
    y = total / T(kh * kw);
    """,
    ),
    "average_pool_backward": (
        f"raw T dy, {_SIZES}, {_WINDOW}",
        "T dx",
        f"""{_PIXEL}{_COVERED}
    T total = 0;
    for (int oh = oh_first; oh <= oh_last; ++oh)
        for (int ow = ow_first; ow <= ow_last; ++ow)
            total += dy[((b * oh_count + oh) * ow_count + ow) * channels + c];
    dx = total / T(kh * kw);
    """,
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
        "T r, T lr, float64 of_w, float64 of_r",
        "T w",
        "w -= lr * (of_w > 0 && of_r > 0 ? T(sqrt(of_w / of_r)) : T(1)) * r;",
    ),
    "adamax": (
        f"T g, T rate, T beta1, T fresh1, T beta2, T delta, {_REST}",
        "T w, T m, T u",
        f"{_REGULARISED} const T first = beta1 * m + fresh1 * r, decayed = beta2 * u;"
        "const T largest = decayed > abs(r) ? decayed : abs(r);"
        "m = first; u = largest; w -= rate * first / (largest + delta);",
    ),
}


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
    kernels = {name: cupy.ElementwiseKernel(*parts, f"singa_dask_{name}") for name, parts in KERNELS.items()}
    return SimpleNamespace(**kernels)
