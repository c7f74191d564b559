"""How a vector of floats travels: in full, in 16 bits a value, a run of it, or its elements of largest magnitude."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from singa_dask.comm.codec import INDEX, Codec, check_alike, check_values, kernels, share_of
from singa_dask.comm.sparse import Threshold, TopK
from singa_dask.errors import ConfigError, Problem, nearest


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


class _SixteenBits(Codec):
    """A 16-bit float per value, rounded to nearest, ties to even."""

    _kind: ClassVar[str]

    def nbytes(self, size: int, dtype: Any = np.float32) -> int:
        return 2 * size

    def encode_sum(self, values: np.ndarray, residual: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        check_alike(values, residual)
        payload = self._room(residual, out)  # one pass, where the base takes three
        self.overflows += self._kernel("encode_sum")(values, residual, payload.view(np.uint16))
        return payload

    def encode_change(self, target: np.ndarray, known: np.ndarray, out: np.ndarray, scratch: np.ndarray) -> np.ndarray:
        check_alike(target, known)
        payload = self._room(known, out)
        self.overflows += self._kernel("encode_change")(target, known, payload.view(np.uint16))
        return payload

    def _write(self, values: np.ndarray, payload: np.ndarray) -> None:
        self.overflows += self._kernel("encode")(values, payload.view(np.uint16))

    def _read(self, payload: np.ndarray, out: np.ndarray) -> None:
        self._kernel("decode")(payload.view(np.uint16), out)

    def _add(self, payload: np.ndarray, out: np.ndarray) -> None:
        self._kernel("add")(payload.view(np.uint16), out)

    def _settle(self, payload: np.ndarray, residual: np.ndarray) -> None:
        self._kernel("settle")(payload.view(np.uint16), residual)

    def _kernel(self, does: str) -> Any:
        return getattr(kernels(), f"{self._kind}_{does}")


class Half(_SixteenBits):
    """IEEE 754 binary16: 11 significant bits, from 6.0e-8 to 65504."""

    name = "kHalf"
    _kind = "half"


class BFloat16(_SixteenBits):
    """The upper half of a float32: 8 significant bits, the range of float32."""

    name = "kBFloat16"
    _kind = "bfloat16"


class Partial(Codec):
    """A run of elements, another one at every step: the number of the first as uint32, then their own bytes.

        width = ceil(share * n);   first = min(width * (step mod ceil(n / width)), n - width)

    share: 0 < share <= 1, read as the decimal number it is written as: 0.25 sends every element in each fourth step.
    """

    name = "kPartial"
    settings = ("sparsity",)

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share_of(self.name, share)
        self._step = 0

    def begin(self, step: int) -> None:
        self._step = step

    def nbytes(self, size: int, dtype: Any = np.float32) -> int:
        return INDEX.itemsize + self._width(size) * np.dtype(dtype).itemsize if size else 0

    def _width(self, size: int) -> int:
        return math.ceil(self.share * size)

    def _write(self, values: np.ndarray, payload: np.ndarray) -> None:
        if values.size:
            width = self._width(values.size)
            first = min(width * (self._step % -(-values.size // width)), values.size - width)
            payload[: INDEX.itemsize].view(INDEX)[0] = first
            payload[INDEX.itemsize :] = values[first : first + width].view(np.uint8)

    def _read(self, payload: np.ndarray, out: np.ndarray) -> None:
        run, values = self._run(payload, out)
        out[:] = 0
        out[run] = values

    def _add(self, payload: np.ndarray, out: np.ndarray) -> None:
        run, values = self._run(payload, out)
        out[run] += values

    def _settle(self, payload: np.ndarray, residual: np.ndarray) -> None:
        residual[self._run(payload, residual)[0]] = 0

    def _run(self, payload: np.ndarray, out: np.ndarray) -> tuple[slice, np.ndarray]:
        """Where the elements of a payload belong, and what they are."""
        values = payload[INDEX.itemsize :].view(out.dtype)
        first = int(payload[: INDEX.itemsize].view(INDEX)[0]) if payload.size else 0
        if first + values.size > out.size:
            raise ValueError(f"payload must begin at {out.size - values.size} at most. Received: {first}.")
        return slice(first, first + values.size), values


CODECS: dict[str, type[Codec]] = {kind.name: kind for kind in (Full, Half, BFloat16, Partial, TopK, Threshold)}


def codec(name: str, **settings: Any) -> Codec:
    """The codec of that name. settings: sparsity, the share of kPartial and kTopK or the threshold of kThreshold,
    None where it is not given.

    Raises ConfigError for an unknown name, and a setting that is missing, out of range or without effect.

    >>> codec("kTopK", sparsity=0.01).nbytes(1000)
    44
    """
    if name not in CODECS:
        raise ConfigError(Problem("cluster.codec", "there is no such codec", str(name), nearest(str(name), CODECS)))
    kind = CODECS[name]
    given = {key: value for key, value in settings.items() if value is not None}
    problems = [Problem(f"cluster.{key}", f"must be given for {name}") for key in kind.settings if key not in given]
    for key, value in given.items():
        if key not in kind.settings:
            problems.append(Problem(f"cluster.{key}", f"has no meaning for {name}", repr(value), "Leave it out."))
    if problems:
        raise ConfigError(problems)
    return kind(*(given[key] for key in kind.settings))
