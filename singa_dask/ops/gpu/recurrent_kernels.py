"""Time steps of recurrent cells, one thread per row and unit; singa_dask.ops.recurrent has the formulas.

Arrays have the rows of all steps: those of this step begin at row `first`, the states after it at row `after`.
products: (B, columns) of the state and the weights, side by side as the gates are; columns: 0 where they have been
added before.
"""

from __future__ import annotations

_PLACE = """
    const long long row = i / units, u = i % units, p = row * columns + u;
    const long long own = (first + row) * units + u, next = (after + row) * units + u;
"""
_SIZES = "int32 columns, int32 units, int64 first, int64 after"


def _more(gate: int) -> str:
    return f"(columns ? products[p + {gate} * units] : T(0))"


def sigmoid(x: str) -> str:
    """1 / (1 + exp(-x)), which does not overflow."""
    return f"exp(min({x}, T(0))) / (T(1) + exp(-abs({x})))"


KERNELS: dict[str, tuple[str, str, str]] = {
    "rnn_cell": (
        f"raw T sums, raw T products, {_SIZES}",
        "raw T h",
        f"{_PLACE} h[next] = tanh(sums[own] + {_more(0)});",
    ),
    # products, in the backward pass: the gradients for the state from the step after this one.
    "rnn_cell_backward": (
        f"raw T dh, raw T h, raw T products, {_SIZES}",
        "raw T da",
        f"{_PLACE} const T y = h[next]; da[own] = (dh[own] + {_more(0)}) * (T(1) - y * y);",
    ),
    # Of products with 3 units columns, those of c go to ahc; otherwise they are there.
    "gru_cell": (
        f"raw T before, raw T products, {_SIZES}",
        "raw T gates, raw T ahc, raw T h",
        f"""{_PLACE}
    const long long g = 3 * (first + row) * units + u;
    const T of_c = columns ? products[p + 2 * units] : ahc[own];
    const T z = {sigmoid(f"gates[g] + {_more(0)}")}, r = {sigmoid(f"gates[g + units] + {_more(1)}")};
    const T c = tanh(gates[g + 2 * units] + r * of_c);
    gates[g] = z;
    gates[g + units] = r;
    gates[g + 2 * units] = c;
    ahc[own] = of_c;
    h[next] = (before[own] - c) * z + c;
    """,
    ),
    # dah: the gradients for the three products, side by side, for the product with the weights.
    "gru_cell_backward": (
        f"raw T dh, raw T before, raw T products, {_SIZES}",
        "raw T gates, raw T ahc, raw T earlier, raw T dah",
        f"""{_PLACE}
    const long long g = 3 * (first + row) * units + u, d = 3 * row * units + u;
    const T z = gates[g], r = gates[g + units], c = gates[g + 2 * units], total = dh[own] + {_more(0)};
    earlier[next] += z * total;
    const T rest = total * (T(1) - z), dz = z * (before[own] - c) * rest, dc = (T(1) - c * c) * rest;
    const T dr = (T(1) - r) * ahc[own] * dc * r;
    gates[g] = dah[d] = dz;
    gates[g + units] = dah[d + units] = dr;
    gates[g + 2 * units] = dc;
    ahc[own] = dah[d + 2 * units] = dc * r;
    """,
    ),
    "lstm_cell": (
        f"raw T before, raw T products, {_SIZES}",
        "raw T gates, raw T cell, raw T h",
        f"""{_PLACE}
    const long long g = 4 * (first + row) * units + u;
    const T in = {sigmoid(f"gates[g] + {_more(0)}")}, f = {sigmoid(f"gates[g + units] + {_more(1)}")};
    const T o = {sigmoid(f"gates[g + 2 * units] + {_more(2)}")}, s = tanh(gates[g + 3 * units] + {_more(3)});
    const T c = f * before[own] + in * s;
    gates[g] = in;
    gates[g + units] = f;
    gates[g + 2 * units] = o;
    gates[g + 3 * units] = s;
    cell[next] = c;
    h[next] = o * tanh(c);
    """,
    ),
    "lstm_cell_backward": (
        f"raw T dh, raw T before, raw T cell, raw T products, {_SIZES}",
        "raw T gates, raw T dcell",
        f"""{_PLACE}
    const long long g = 4 * (first + row) * units + u, d = row * units + u;
    const T in = gates[g], f = gates[g + units], o = gates[g + 2 * units], s = gates[g + 3 * units];
    const T squashed = tanh(cell[next]), total = dh[own] + {_more(0)};
    const T through = dcell[d] + total * o * (T(1) - squashed * squashed);
    gates[g] = through * in * s * (T(1) - in);
    gates[g + units] = through * f * before[own] * (T(1) - f);
    gates[g + 2 * units] = total * o * squashed * (T(1) - o);
    gates[g + 3 * units] = through * in * (T(1) - s * s);
    dcell[d] = through * f;
    """,
    ),
}
