"""CUDA kernels of the codecs of 16-bit floats: the arithmetic of singa_dask.ops.cpu.elementwise.codec_kernels.

They add to `overflows` how many finite values became the largest number.
"""

from __future__ import annotations

from typing import Any

import numpy as np

# The bits of float32(value), rounded to odd where that is inexact; those of its magnitude.
_BITS = """
    const float single = value;
    unsigned bits;
    memcpy(&bits, &single, 4);
    if (T(single) != value && value == value) bits = (bits - (abs(T(single)) > abs(value))) | 1u;
    const unsigned size = bits & 0x7fffffffu;
"""
_ENDS = {"half": "0x477ff000u", "bfloat16": "0x7f7f8000u"}  # the least magnitude that rounds to infinity
_SPECIAL = {"half": ("0x7e00u", "0x7c00u", "0x7bffu"), "bfloat16": ("0x7fc0u", "0x7f80u", "0x7f7fu")}
_ROUNDED = {
    "half": """
    float moved;
    memcpy(&moved, &size, 4);
    moved += 0.5f;  // which rounds the 10 bits of a subnormal into the end of the mantissa
    unsigned small;
    memcpy(&small, &moved, 4);
    unsigned rounded = size < (113u << 23) ? small - (126u << 23)
                                           : (size - ((112u << 23) - 0xfffu) + (size >> 13 & 1u)) >> 13;
    """,
    "bfloat16": "unsigned rounded = (size + 0x7fffu + (size >> 16 & 1u)) >> 16;",
}
_WIDENED = {
    "half": """
    const unsigned wide = (sent & 0x7fffu) << 13, lifted = wide + (113u << 23);
    float least;
    memcpy(&least, &lifted, 4);
    least -= 6.103515625e-05f;  // 2^-14
    unsigned tiny;
    memcpy(&tiny, &least, 4);
    unsigned full = wide < (1u << 23) ? tiny : (wide + (112u << 23)) | (wide >= (0x7c00u << 13) ? 0x7f800000u : 0u);
    full |= (sent & 0x8000u) << 16;
    """,
    "bfloat16": "const unsigned full = sent << 16;",
}
REST = "(full & 0x7fffffffu) >= 0x7f800000u ? T(0) : value - T(arrives)"


def encoding(kind: str) -> str:
    """From `value` to `sent`, its bits."""
    nan, infinity, largest = _SPECIAL[kind]
    return f"""{_BITS} {_ROUNDED[kind]}
    if (size >= {_ENDS[kind]}) {{
        rounded = size > 0x7f800000u ? {nan} : size == 0x7f800000u ? {infinity} : {largest};
        if (size < 0x7f800000u) atomicAdd(&overflows[0], 1ULL);
    }}
    const unsigned sent = rounded | (bits >> 16 & 0x8000u);
    """


def decoding(kind: str) -> str:
    """From `sent` to `arrives`, a float."""
    return f"{_WIDENED[kind]} float arrives; memcpy(&arrives, &full, 4);"


def _of(kind: str) -> dict[str, tuple[str, str, str]]:
    encoded, decoded, read = encoding(kind), decoding(kind), "const unsigned sent = code;"
    counted = "raw uint64 overflows"
    return {
        f"{kind}_encode": ("T value", f"uint16 code, {counted}", f"{encoded} code = sent;"),
        f"{kind}_encode_sum": (
            "T x",
            f"T residual, uint16 code, {counted}",
            f"const T value = residual + x; {encoded} {decoded} code = sent; residual = {REST};",
        ),
        f"{kind}_encode_change": (
            "T target",
            f"T known, uint16 code, {counted}",
            f"const T value = target - known; {encoded} {decoded} code = sent; known += T(arrives);",
        ),
        f"{kind}_decode": ("uint16 code", "T y", f"{read} {decoded} y = arrives;"),
        f"{kind}_add": ("uint16 code", "T y", f"{read} {decoded} y += T(arrives);"),
        f"{kind}_settle": (
            "uint16 code",
            "T residual",
            f"const T value = residual; {read} {decoded} residual = {REST};",
        ),
    }


KERNELS = _of("half") | _of("bfloat16")


class SixteenBitKernels:
    """The kernels of one kind of 16-bit floats, on arrays of a GPU; overflows: on the GPU, (1,) uint64."""

    def __init__(self, kernels: Any, kind: str, xp: Any) -> None:
        names = ("encode", "encode_sum", "encode_change", "decode", "add", "settle")
        self._of = {name: getattr(kernels, f"{kind}_{name}") for name in names}
        self.overflows = xp.zeros(1, np.uint64)

    def encode(self, values: Any, out: Any) -> None:
        self._of["encode"](values, out, self.overflows)

    def encode_sum(self, values: Any, residual: Any, out: Any) -> None:
        self._of["encode_sum"](values, residual, out, self.overflows)

    def encode_change(self, target: Any, known: Any, out: Any) -> None:
        self._of["encode_change"](target, known, out, self.overflows)

    def decode(self, payload: Any, out: Any) -> None:
        self._of["decode"](payload, out)

    def add(self, payload: Any, out: Any) -> None:
        self._of["add"](payload, out)

    def settle(self, payload: Any, residual: Any) -> None:
        self._of["settle"](payload, residual)
