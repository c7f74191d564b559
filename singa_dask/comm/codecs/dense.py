"""Codecs that send values by their position: all of them, in full or in 16 bits, or one range of elements."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from singa_dask.comm.codecs.base import INDEX, Codec, check_alike, check_values, kernels, share_of


class Full(Codec):
    """The values' own bytes. Without `out`, the payload of `encode` is a view of the values."""

    name = "kFull"
    exact = True

    def nbytes(self, size: int, dtype: Any = np.float32) -> int:
        return size * np.dtype(dtype).itemsize

    def encode(self, values: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        check_values("values", values)
        return values.view(np.uint8) if out is None else super().encode(values, out)

    def _write(self, values: np.ndarray, payload: np.ndarray) -> None:
        payload[:] = values.view(np.uint8)

    def _read(self, payload: np.ndarray, out: np.ndarray) -> None:
        out.view(np.uint8)[:] = payload

    def _add(self, payload: np.ndarray, out: np.ndarray) -> None:
        np.add(out, payload.view(out.dtype), out=out)

    def _settle(self, payload: np.ndarray, residual: np.ndarray) -> None:
        residual[:] = 0


class SixteenBits(Codec):
    """A 16-bit float per value, rounded to nearest, ties to even."""

    _kind: ClassVar[str]

    def nbytes(self, size: int, dtype: Any = np.float32) -> int:
        return 2 * size

    def encode_sum(self, values: np.ndarray, residual: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        check_alike(values, residual)
        payload = self._room(residual, out)  # one pass, where the base takes three
        self._count(self._kernels.encode_sum(values, residual, payload.view(np.uint16)))
        return payload

    def encode_change(self, target: np.ndarray, known: np.ndarray, out: np.ndarray, scratch: np.ndarray) -> np.ndarray:
        check_alike(target, known)
        payload = self._room(known, out)
        self._count(self._kernels.encode_change(target, known, payload.view(np.uint16)))
        return payload

    def _write(self, values: np.ndarray, payload: np.ndarray) -> None:
        self._count(self._kernels.encode(values, payload.view(np.uint16)))

    def _count(self, overflows: Any) -> None:
        self.overflows += overflows

    def _read(self, payload: np.ndarray, out: np.ndarray) -> None:
        self._kernels.decode(payload.view(np.uint16), out)

    def _add(self, payload: np.ndarray, out: np.ndarray) -> None:
        self._kernels.add(payload.view(np.uint16), out)

    def _settle(self, payload: np.ndarray, residual: np.ndarray) -> None:
        self._kernels.settle(payload.view(np.uint16), residual)

    @property
    def _kernels(self) -> Any:
        return getattr(kernels(), self._kind)


class Half(SixteenBits):
    """IEEE 754 binary16: 11 significant bits, from 6.0e-8 to 65504."""

    name = "kHalf"
    _kind = "HALF"


class BFloat16(SixteenBits):
    """The upper half of a float32: 8 significant bits, the range of float32."""

    name = "kBFloat16"
    _kind = "BFLOAT16"


class Partial(Codec):
    """One range of elements, another one at every step: the index of the first as uint32, then their own bytes.

        width = ceil(share * n);   first = min(width * (step mod ceil(n / width)), n - width)

    share: 0 < share <= 1, read as the decimal number it is written as: 0.25 sends every element in each fourth step.
    """

    name = "kPartial"
    settings = ("sparsity",)

    def __init__(self, share: float) -> None:
        self.share = share_of(self.name, share)
        self._step = 0

    def begin(self, step: int) -> None:
        self._step = step

    def nbytes(self, size: int, dtype: Any = np.float32) -> int:
        return INDEX.itemsize + self._width(size) * np.dtype(dtype).itemsize if size else 0

    def _width(self, size: int) -> int:
        return math.ceil(self.share * size)

    def _first(self, size: int) -> int:
        width = self._width(size)
        return min(width * (self._step % -(-size // width)), size - width)

    def _write(self, values: np.ndarray, payload: np.ndarray) -> None:
        if values.size:
            first, width = self._first(values.size), self._width(values.size)
            payload[: INDEX.itemsize].view(INDEX)[0] = first
            payload[INDEX.itemsize :] = values[first : first + width].view(np.uint8)

    def _read(self, payload: np.ndarray, out: np.ndarray) -> None:
        where, values = self._range(payload, out)
        out[:] = 0
        out[where] = values

    def _add(self, payload: np.ndarray, out: np.ndarray) -> None:
        where, values = self._range(payload, out)
        out[where] += values

    def _settle(self, payload: np.ndarray, residual: np.ndarray) -> None:
        residual[self._range(payload, residual)[0]] = 0

    def _range(self, payload: np.ndarray, out: np.ndarray) -> tuple[slice, np.ndarray]:
        """Where the elements of a payload belong, and what they are."""
        values = payload[INDEX.itemsize :].view(out.dtype)
        first = int(payload[: INDEX.itemsize].view(INDEX)[0]) if payload.size else 0
        if first + values.size > out.size:
            raise ValueError(f"payload must begin at {out.size - values.size} at most. Received: {first}.")
        return slice(first, first + values.size), values
