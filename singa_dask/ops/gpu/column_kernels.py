"""Kernels for sums over the rows of an array (R, C), added up in float64.

Each of COLUMNS becomes three kernels. Of few rows, a warp adds up a column (`name`). Otherwise a thread adds up every
parts-th row of a column (`name_parts`), and a warp what these have found (`name_end`).
"""

from __future__ import annotations

from singa_dask.ops.gpu.warps import LANE

# name -> inputs, terms of element e = row * columns + c, outputs, and what lane 0 does with the column's sums s0, s1.
COLUMNS: dict[str, tuple[str, tuple[str, ...], str, str]] = {
    "column_sums": ("raw T x, bool more", ("x[e]",), "raw S out", "out[c] = s0 + (more ? out[c] : S(0));"),
    "squared_norm": ("raw T x", ("(double)x[e] * x[e]",), "raw float64 out", "out[c] = s0;"),
    "squared_norm_where": (
        "raw T x, raw uint8 kinds, uint8 kind",
        ("kinds[e] == kind ? (double)x[e] * x[e] : 0.0",),
        "raw float64 out",
        "out[c] = s0;",
    ),
    "channel_moments": (
        "raw T x, raw T mean",
        ("x[e] - mean[c]", "(x[e] - mean[c]) * (x[e] - mean[c])"),
        "raw float64 out",
        "out[c] = s0; out[columns + c] = s1;",
    ),
    "channel_products": (
        "raw T d, raw T x, raw T mean",
        ("d[e]", "d[e] * (x[e] - mean[c])"),
        "raw float64 out",
        "out[c] = s0; out[columns + c] = s1;",
    ),
    "batch_statistics": (
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
    # more: a bit for each of the four gradients that is added to.
    "batch_gradients": (
        "raw T d, raw T x, raw float64 batch_mean, raw float64 batch_var, raw float64 inverse, raw T about, "
        "raw T scale, raw T mean, raw T var, float64 share, int32 more",
        ("d[e]", "d[e] * (x[e] - about[c])"),
        "raw T of_scale, raw T of_bias, raw T of_mean, raw T of_var, raw T weights",
        """
        const double products = s1 * inverse[c], weight = scale[c] * inverse[c];
        const double unbiased = batch_var[c] * rows / (rows > 1 ? rows - 1 : 1);
        of_scale[c] = (more & 1 ? of_scale[c] : T(0)) + T(products);
        of_bias[c] = (more & 2 ? of_bias[c] : T(0)) + T(s0);
        of_mean[c] = (more & 4 ? of_mean[c] : T(0)) + T(share * (mean[c] - batch_mean[c]));
        of_var[c] = (more & 8 ? of_var[c] : T(0)) + T(share * (var[c] - unbiased));
        weights[c] = weight;
        weights[columns + c] = -weight * inverse[c] * products / rows;
        weights[2 * columns + c] = -weight * s0 / rows;
        """,
    ),
    # Of rows and groups: element e has channel c of group c / width.
    "group_norm_sums": (
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


def _kernels(name: str) -> dict[str, tuple[str, str, str]]:
    inputs, terms, outputs, end = COLUMNS[name]
    sums = range(len(terms))
    zeros = " ".join(f"double s{n} = 0;" for n in sums)
    add = " ".join(f"s{n} += {term};" for n, term in enumerate(terms))
    totals = " ".join(f"s{n} = total(s{n});" for n in sums)
    parts = " ".join(f"s{n} += found[({n} * parts + part) * columns + c];" for n in sums)
    keep = " ".join(f"found[({n} * parts + part) * columns + c] = s{n};" for n in sums)
    whole = f"{LANE} const long long c = warp; {zeros}"
    row = f"{{ const long long e = row * columns + c; {add} }}"
    return {
        name: (
            f"{inputs}, int64 rows, int64 columns",
            outputs,
            f"{whole} for (long long row = lane; row < rows; row += LANES) {row} {totals} if (lane == 0) {{ {end} }}",
        ),
        f"{name}_parts": (
            f"{inputs}, int64 rows, int64 columns, int64 parts",
            "raw float64 found",
            f"const long long c = i % columns, part = i / columns; {zeros}"
            f"for (long long row = part; row < rows; row += parts) {row} {keep}",
        ),
        f"{name}_end": (
            f"{inputs}, int64 rows, int64 columns, raw float64 found, int64 parts",
            outputs,
            f"{whole} for (long long part = lane; part < parts; part += LANES) {{ {parts} }} "
            f"{totals} if (lane == 0) {{ {end} }}",
        ),
    }


KERNELS = {key: kernel for name in COLUMNS for key, kernel in _kernels(name).items()}
