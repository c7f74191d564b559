"""Kernels for sums over the rows of an array (R, C), added up in float64.

Each of COLUMNS becomes three kernels. Of few rows, a warp adds up a column (`name`). Otherwise a thread adds up every
parts-th row of a column (`name_parts`), and a warp what these have found (`name_end`).
"""

from __future__ import annotations

from singa_dask.ops.gpu.warps import LANE

_BATCH = "raw T scale, raw T bias"

# name -> inputs, terms of element e = row * columns + c, outputs, and what lane 0 does with the column's sums s0, s1.
COLUMNS: dict[str, tuple[str, tuple[str, ...], str, str]] = {
    "column_sums": ("raw T x, bool more", ("x[e]",), "raw S out", "out[c] = s0 + (more ? out[c] : S(0));"),
    "squared_norm": ("raw T x", ("(double)x[e] * x[e]",), "raw float64 out", "out[c] = s0;"),
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
    # Of rows and groups: element e has channel c of group c / width.
    "group_norm_sums": (
        "raw T x, raw T d, raw T mean, raw T inverse, int32 positions, int32 groups, int32 width",
        (
            "d[e] * (x[e] - mean[row / positions * groups + c / width])"
            " * inverse[row / positions * groups + c / width]",
            "d[e]",
        ),
        "raw T out",
        "out[c] = s0; out[columns + c] = s1;",
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
