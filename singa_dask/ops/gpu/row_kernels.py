"""Kernels for rows whose sums one warp adds up: softmax and its losses, group normalisation."""

from __future__ import annotations

from singa_dask.ops.gpu.warps import BIAS, LANE, bounded

# Of row `warp`: the largest element, and what the sum of exp(x - top) needs.
_ROW = f"{LANE} const long long start = warp * columns;"
_TOP = """
    T top = at(0);
    for (int k = lane; k < columns; k += LANES) { const T z = at(k); top = z > top ? z : top; }
    top = largest(top);
"""
# Of row and group `warp`: element k is channel k % K of position k / K.
_GROUP = f"""{LANE}
    const long long g = warp % groups, start = warp / groups * positions * groups * width + g * width;
    const int count = positions * width;
"""
_PLACE = "const long long e = start + k / width * groups * width + k % width;"
_ELEMENT = f"const long long c = g * width + k % width; {_PLACE}"

_SEEN = "raw bool seen, bool masked, bool causal, int32 heads, int32 positions, int32 columns"
_POSITION = f"""{_ROW}
    const int t = warp % positions, visible = causal ? min(t + 1, columns) : columns;
    const long long b = warp / positions / heads;
"""

_TURNED = """
    const long long row = i / features, at = (row / positions * features + i % features) * positions + row % positions;
"""

KERNELS: dict[str, tuple[str, str, str]] = {
    "softmax": (
        "raw T x, int32 columns",
        "raw T y",
        f"""{_ROW}
    const auto at = [&](int k) -> T {{ return x[start + k]; }};
    {_TOP}
    T sum = 0;
    for (int k = lane; k < columns; k += LANES) {{ const T e = exp(at(k) - top); y[start + k] = e; sum += e; }}
    sum = total(sum);
    for (int k = lane; k < columns; k += LANES) y[start + k] /= sum;
    """,
    ),
    "softmax_backward": (
        "raw T y, raw T dy, int32 columns",
        "raw T dx",
        f"""{_ROW}
    T sum = 0;
    for (int k = lane; k < columns; k += LANES) sum += y[start + k] * dy[start + k];
    sum = total(sum);
    for (int k = lane; k < columns; k += LANES) dx[start + k] = (dy[start + k] - sum) * y[start + k];
    """,
    ),
    # numbers: of each row its loss, and whether its label is among the topk largest. NaN where the label is no class.
    "softmax_cross_entropy": (
        f"raw T x, {BIAS}, raw L labels, int32 columns, int32 topk, T smoothing",
        "raw T y, raw float64 numbers",
        f"""{_ROW}
    const auto at = [&](int k) -> T {{ {bounded("x[start + k]", "k")} return value; }};
    {_TOP}
    const L given = labels[warp];
    const bool outside = !(given >= 0 && given < columns);
    const int label = outside ? 0 : (int)given;
    const T of_label = at(label);
    T sum = 0, shifted = 0;
    int before = 0;
    for (int k = lane; k < columns; k += LANES) {{
        const T z = at(k), e = exp(z - top);
        y[start + k] = e;
        sum += e;
        shifted += z - top;
        before += z > of_label || (z == of_label && k < label);
    }}
    sum = outside ? T(nan("")) : total(sum);
    shifted = total(shifted);
    before = total(before);
    for (int k = lane; k < columns; k += LANES) y[start + k] /= sum;
    if (lane == 0) {{
        const T smoothed = smoothing > 0 ? smoothing * shifted / columns : T(0);
        numbers[2 * warp] = log(sum) - (T(1) - smoothing) * (of_label - top) - smoothed;
        numbers[2 * warp + 1] = before < topk && of_label == of_label;
    }}
    """,
    ),
    "group_norm": (
        "raw T x, raw T scale, raw T bias, T epsilon, int32 positions, int32 groups, int32 width",
        "raw T y, raw T mean, raw T inverse",
        f"""{_GROUP}
    T sum = 0, squares = 0;
    for (int k = lane; k < count; k += LANES) {{ {_PLACE} sum += x[e]; }}
    const T middle = total(sum) / count;
    for (int k = lane; k < count; k += LANES) {{ {_PLACE} const T z = x[e] - middle; squares += z * z; }}
    const T factor = T(1) / sqrt(total(squares) / count + epsilon);
    for (int k = lane; k < count; k += LANES) {{ {_ELEMENT} y[e] = (x[e] - middle) * factor * scale[c] + bias[c]; }}
    if (lane == 0) {{
        mean[warp] = middle;
        inverse[warp] = factor;
    }}
    """,
    ),
    "group_norm_backward": (
        "raw T x, raw T scale, raw T mean, raw T inverse, int32 positions, int32 groups, int32 width",
        "raw T d",
        f"""{_GROUP}
    const T middle = mean[warp], factor = inverse[warp];
    T sum = 0, products = 0;
    for (int k = lane; k < count; k += LANES) {{
        {_ELEMENT}
        const T s = d[e] * scale[c];
        sum += s;
        products += s * (x[e] - middle) * factor;
    }}
    sum = total(sum) / count;
    products = total(products) / count;
    for (int k = lane; k < count; k += LANES) {{
        {_ELEMENT}
        d[e] = (d[e] * scale[c] - sum - (x[e] - middle) * factor * products) * factor;
    }}
    """,
    ),
    # Copies of what lies apart, for products; those that are turned, (.., features, positions), for products from the
    # left.
    "attention_memory": (
        "T k, T v, int32 positions, int32 features",
        "raw T turned, T values",
        f"{_TURNED} turned[at] = k; values = v;",
    ),
    "attention_memory_backward": (
        "T k, T v, int32 positions, int32 features",
        "T keys, raw T turned_k, raw T turned_v",
        f"{_TURNED} keys = k; turned_k[at] = k; turned_v[at] = v;",
    ),
    "attention_queries": ("T q, T d, T factor", "T queries, T upper", "queries = q * factor; upper = d;"),
    "attention_gradients": ("T of_k, T of_v", "T dk, T dv", "dk = of_k; dv = of_v;"),
    # Of the scores of position t of q, which sees the first `visible` positions of k, or of these those that are seen.
    "attention_softmax": (
        f"{_SEEN}",
        "raw T scores, raw T log_sums",
        f"""{_POSITION}
    T top = T(-3e38), sum = 0;
    for (int k = lane; k < visible; k += LANES)
        if (!masked || seen[b * columns + k]) top = scores[start + k] > top ? scores[start + k] : top;
    top = largest(top);
    for (int k = lane; k < columns; k += LANES) {{
        const T e = k < visible && (!masked || seen[b * columns + k]) ? exp(scores[start + k] - top) : T(0);
        scores[start + k] = e;
        sum += e;
    }}
    sum = total(sum);
    for (int k = lane; k < visible; k += LANES) scores[start + k] /= sum;
    if (lane == 0) log_sums[warp] = top + log(sum);
    """,
    ),
    # upright: the gradients of the scores; weights and gradients are turned, (.., S, T).
    "attention_softmax_backward": (
        f"raw T scores, raw T dweights, raw T log_sums, {_SEEN}",
        "raw T upright, raw T weights, raw T gradients",
        f"""{_POSITION}
    T along = 0;
    for (int k = lane; k < visible; k += LANES)
        if (!masked || seen[b * columns + k]) along += exp(scores[start + k] - log_sums[warp]) * dweights[start + k];
    along = total(along);
    for (int k = lane; k < columns; k += LANES) {{
        const bool sees = k < visible && (!masked || seen[b * columns + k]);
        const T p = sees ? exp(scores[start + k] - log_sums[warp]) : T(0), d = p * (dweights[start + k] - along);
        const long long turned = (warp / positions * columns + k) * positions + t;
        upright[start + k] = d;
        weights[turned] = p;
        gradients[turned] = d;
    }}
    """,
    ),
}
