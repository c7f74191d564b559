"""Kernels for sums over the rows of an array (R, C), added up in float64: one launch for each of COLUMNS."""

from __future__ import annotations

from typing import NamedTuple

from singa_dask.ops.gpu.warps import BIAS, LANE, bounded


class Sums(NamedTuple):
    """What is summed. terms: of element e = row * columns + c. end: what one lane does with the column's sums s0, s1.
    each: what precedes the terms, for every element once; written: the arrays that it writes to."""

    inputs: str
    terms: tuple[str, ...]
    outputs: str
    end: str
    each: str = ""
    written: str = ""


_OF_BATCH = (
    "raw T x, raw float64 batch_mean, raw float64 batch_var, raw float64 inverse, raw T about, raw T scale, "
    "raw T mean, raw T var, float64 share, int32 more"
)
_BATCH_GRADIENTS = "raw T of_scale, raw T of_bias, raw T of_mean, raw T of_var, raw T weights"
# more: a bit for each of the four gradients that is added to.
_END_BATCH = """
    const double products = s1 * inverse[c], weight = scale[c] * inverse[c];
    const double unbiased = batch_var[c] * rows / (rows > 1 ? rows - 1 : 1);
    of_scale[c] = (more & 1 ? of_scale[c] : T(0)) + T(products);
    of_bias[c] = (more & 2 ? of_bias[c] : T(0)) + T(s0);
    of_mean[c] = (more & 4 ? of_mean[c] : T(0)) + T(share * (mean[c] - batch_mean[c]));
    of_var[c] = (more & 8 ? of_var[c] : T(0)) + T(share * (var[c] - unbiased));
    weights[c] = weight;
    weights[columns + c] = -weight * inverse[c] * products / rows;
    weights[2 * columns + c] = -weight * s0 / rows;
"""
# The gradient of what is cut to bounds: 0 where y, or what becomes y, is none of the numbers between.
_CUT = "const T g = d[e] = low < z && z < high ? d[e] : T(0);"
_NORMALISED = "const T z = (x[e] - about[c]) * factor[c] + bias[c];"
_BOUNDED = "raw T factor, raw T bias, T low, T high"
_MOMENTS = "out[c] = s0; out[columns + c] = s1;"

COLUMNS: dict[str, Sums] = {
    "column_sums": Sums("raw T x, bool more", ("x[e]",), "raw S out", "out[c] = s0 + (more ? out[c] : S(0));"),
    "bounded_sums": Sums(
        f"raw T y, {BIAS}, bool more",
        ("g",),
        "raw S out",
        "out[c] = s0 + (more ? out[c] : S(0));",
        f"const T z = biased ? y[e] + bias[c] : y[e]; {_CUT}",
        "raw T d",
    ),
    "half_squares": Sums(
        f"raw T x, {BIAS}, int64 channels, raw S t",
        ("z * z",),
        "raw float64 out",
        "out[c] = s0 / 2;",
        f"{bounded('x[e]', 'e % channels')} const double z = error[e] = value - t[e];",
        "raw T error",
    ),
    "squared_norm": Sums("raw T x", ("(double)x[e] * x[e]",), "raw float64 out", "out[c] = s0;"),
    "squared_norm_where": Sums(
        "raw T x, raw uint8 kinds, uint8 kind",
        ("kinds[e] == kind ? (double)x[e] * x[e] : 0.0",),
        "raw float64 out",
        "out[c] = s0;",
    ),
    "channel_moments": Sums(
        "raw T x, raw T mean",
        ("x[e] - mean[c]", "(x[e] - mean[c]) * (x[e] - mean[c])"),
        "raw float64 out",
        _MOMENTS,
    ),
    "channel_products": Sums(
        "raw T d, raw T x, raw T mean", ("d[e]", "d[e] * (x[e] - mean[c])"), "raw float64 out", _MOMENTS
    ),
    "clipped_products": Sums(
        f"raw T x, raw T about, {_BOUNDED}",
        ("g", "g * (x[e] - about[c])"),
        "raw float64 out",
        _MOMENTS,
        f"{_NORMALISED} {_CUT}",
        "raw T d",
    ),
    "batch_statistics": Sums(
        "raw T x, raw T scale, float64 epsilon",
        ("x[e] - x[c]", "(x[e] - x[c]) * (x[e] - x[c])"),
        "raw float64 mean, raw float64 var, raw float64 inverse, raw T about, raw T factor",
        """
        about[c] = mean[c] = x[c] + s0 / rows;
        var[c] = (s1 - s0 * s0 / rows) / rows;
        inverse[c] = 1 / sqrt(var[c] + epsilon);
        factor[c] = scale[c] * inverse[c];
        """,
    ),
    "batch_gradients": Sums(
        f"raw T d, {_OF_BATCH}", ("d[e]", "d[e] * (x[e] - about[c])"), _BATCH_GRADIENTS, _END_BATCH
    ),
    "clipped_batch_gradients": Sums(
        f"{_OF_BATCH}, {_BOUNDED}",
        ("g", "g * (x[e] - about[c])"),
        _BATCH_GRADIENTS,
        _END_BATCH,
        f"{_NORMALISED} {_CUT}",
        "raw T d",
    ),
    # Of rows and groups: element e has channel c of group c / width.
    "group_norm_sums": Sums(
        "raw T x, raw T d, raw T mean, raw T inverse, int32 positions, int32 groups, int32 width, int32 more",
        (
            "d[e] * (x[e] - mean[row / positions * groups + c / width])"
            " * inverse[row / positions * groups + c / width]",
            "d[e]",
        ),
        "raw T of_scale, raw T of_bias",
        """
        of_scale[c] = (more & 1 ? of_scale[c] : T(0)) + T(s0);
        of_bias[c] = (more & 2 ? of_bias[c] : T(0)) + T(s1);
        """,
    ),
}


# A block adds up some of the rows of `across` columns: lanes side by side read elements side by side, those of a warp
# that have the same column add up what they have found, and each of the WARPS leaves a part of the sum. The last block
# of these columns to arrive adds up the parts, in their order.
_OWN = f"""{LANE}
    const long long block = i / THREADS, first = block / blocks * across, chunk = block % blocks;
    const long long part = chunk * WARPS + warp % WARPS, parts = blocks * WARPS, abreast = LANES / across;
"""
_LAST = """
    __threadfence();
    __syncthreads();
    __shared__ bool last;
    if (i % THREADS == 0) last = atomicAdd(&arrived[first / across], 1u) == blocks - 1;
    __syncthreads();
    if (last) {
        __threadfence();
        if (i % THREADS == 0) arrived[first / across] = 0;
"""


def _kernel(of: Sums) -> tuple[str, str, str]:
    sums = range(len(of.terms))
    zeros = " ".join(f"double s{n} = 0;" for n in sums)
    add = " ".join(f"s{n} += {term};" for n, term in enumerate(of.terms))
    of_lanes = " ".join(f"s{n} += __shfl_xor_sync(0xffffffffu, s{n}, k);" for n in sums)
    leave = " ".join(f"found[({n} * columns + c) * parts + part] = s{n};" for n in sums)
    take = " ".join(f"s{n} += __ldcg(&found[({n} * columns + c) * parts + k]);" for n in sums)
    totals = " ".join(f"s{n} = total(s{n});" for n in sums)
    return (
        f"{of.inputs}, int64 rows, int64 columns, int64 blocks, int32 across",
        f"{of.written}{', ' if of.written else ''}{of.outputs}, raw float64 found, raw uint32 arrived",
        f"""{_OWN} {{
        const long long c = first + lane % across;
        {zeros}
        if (c < columns)
            for (long long row = part * abreast + lane / across; row < rows; row += parts * abreast) {{
                const long long e = row * columns + c;
                {of.each} {add}
            }}
        for (int k = LANES / 2; k >= across; k >>= 1) {{ {of_lanes} }}
        if (lane < across && c < columns) {{ {leave} }}
    }}
    {_LAST}
        const long long beyond = first + across < columns ? first + across : columns;
        for (long long c = first + warp % WARPS; c < beyond; c += WARPS) {{
            {zeros}
            for (long long k = lane; k < parts; k += LANES) {{ {take} }}
            {totals}
            if (lane == 0) {{ {of.end} }}
        }}
    }}
    """,
    )


KERNELS = {name: _kernel(of) for name, of in COLUMNS.items()}
