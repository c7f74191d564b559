"""What a codec is: a vector of floats to bytes and back. What it has not sent can be kept for later."""

from __future__ import annotations

from abc import ABC, abstractmethod
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np

from singa_dask.comm.checks import check_flat
from singa_dask.errors import ConfigError, Problem

INDEX = np.dtype(np.uint32)


def kernels() -> Any:
    """The kernels of all codecs. They import Numba, which jobs without a codec need not."""
    from singa_dask.ops.cpu.elementwise import codec_kernels

    return codec_kernels


class Codec(ABC):
    """A vector of floats to bytes and back. One object per rank and thread: it counts and holds scratch.

    exact: nothing is lost. overflows: finite values so far that rounding would have made infinite; the largest finite
    number of their sign was sent instead. Infinities and NaN are sent as they are, so that divergence shows.
    settings: the arguments of `codec` that it has. xp: whose arrays it takes.
    """

    name: ClassVar[str]
    exact: ClassVar[bool] = False
    settings: ClassVar[tuple[str, ...]] = ()
    overflows: int = 0
    xp: Any = np

    def begin(self, step: int) -> None:  # noqa: B027 - most do the same at every step
        """Begin a training step, the same on all ranks."""

    @abstractmethod
    def nbytes(self, size: int, dtype: Any = np.float32) -> int | None:
        """Bytes of the payload of `size` values of `dtype`; None where that depends on the values."""

    def max_nbytes(self, size: int, dtype: Any = np.float32) -> int:
        """The most bytes that a payload of `size` values of `dtype` can have."""
        nbytes = self.nbytes(size, dtype)
        assert nbytes is not None
        return nbytes

    def encode(self, values: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """The payload: (nbytes,) uint8, the first bytes of `out` where that is given. values: (n,) of floats.

        Allocates nothing of the size of the values if `out` is given. Raises ValueError if it is too small.
        """
        payload = self._room(values, out)
        self._write(values, payload)
        return payload

    def encode_sum(self, values: np.ndarray, residual: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """The payload of residual + values, in `out`; what it does not hold stays in `residual`.

        residual += values;  payload = encode(residual);  residual -= decode(payload)
        """
        check_alike(values, residual)
        residual += values
        payload = self.encode(residual, out)
        self.settle(payload, residual)
        return payload

    def encode_change(self, target: np.ndarray, known: np.ndarray, out: np.ndarray, scratch: np.ndarray) -> np.ndarray:
        """The payload of target - known, in `out`, which `known` follows.   scratch: as long as they are, or longer.

        payload = encode(target - known);  known += decode(payload)
        """
        check_alike(target, known)
        payload = self.encode(self.xp.subtract(target, known, out=scratch[: target.size]), out)
        self.decode(payload, known, add=True)
        return payload

    def decode(self, payload: np.ndarray, out: np.ndarray, *, add: bool = False) -> None:
        """out = the values of `payload`, or out += them. payload: (nbytes,) uint8; out: (n,), of the encoded dtype.

        Raises ValueError where `payload` cannot be that of so many values.
        """
        self._check_payload(payload, out)
        if add:
            self._add(payload, out)
        else:
            self._read(payload, out)

    def settle(self, payload: np.ndarray, residual: np.ndarray) -> None:
        """residual -= the values of `payload`, which it was encoded to; of infinities and NaN nothing is left."""
        self._check_payload(payload, residual)
        self._settle(payload, residual)

    def warm_up(self, dtype: Any = np.float32) -> None:
        """Compile what vectors of this dtype need."""
        xp = self.xp
        for values in (xp.zeros(16, dtype), xp.arange(16, dtype=dtype)):  # all the same, all different
            payload = ErrorFeedback(self, 16, dtype).encode(values)
            for add in (False, True):
                self.decode(payload, values, add=add)
            self.encode_change(values, xp.zeros_like(values), payload.copy(), xp.empty_like(values))

    def _room(self, values: np.ndarray, out: np.ndarray | None) -> np.ndarray:
        """Where the payload of these values is to be written."""
        check_values("values", values)
        nbytes = self._nbytes_of(values)
        if out is None:
            out = self.xp.empty(nbytes, np.uint8)
        _check_bytes("out", out)
        if out.size < nbytes:
            raise ValueError(f"out must have at least {nbytes} bytes for {values.size} values. Received: {out.size}.")
        return out[:nbytes]

    def _nbytes_of(self, values: np.ndarray) -> int:
        return self.max_nbytes(values.size, values.dtype)

    def _check_payload(self, payload: np.ndarray, out: np.ndarray) -> None:
        _check_bytes("payload", payload)
        check_values("out", out)
        nbytes = self.nbytes(out.size, out.dtype)
        if nbytes is not None and payload.size != nbytes:
            what = f"{out.size} values of {out.dtype} by {self.name}"
            raise ValueError(f"payload must have {nbytes} bytes for {what}. Received: {payload.size}.")

    @abstractmethod
    def _write(self, values: np.ndarray, payload: np.ndarray) -> None: ...

    @abstractmethod
    def _read(self, payload: np.ndarray, out: np.ndarray) -> None: ...

    @abstractmethod
    def _add(self, payload: np.ndarray, out: np.ndarray) -> None: ...

    @abstractmethod
    def _settle(self, payload: np.ndarray, residual: np.ndarray) -> None: ...


class ErrorFeedback:
    """What a codec has not sent waits in `residual` and is sent with later values.

        payload = encode_sum(values, residual)

    residual: (size,) of `dtype`; None with an exact codec, which leaves nothing over. Seide et al. 2014; Stich,
    Cordonnier & Jaggi 2018.
    """

    def __init__(self, codec: Codec, size: int, dtype: Any = np.float32) -> None:
        self.codec = codec
        self.residual = None if codec.exact else codec.xp.zeros(size, dtype)
        self._size, self._dtype = size, np.dtype(dtype)
        self._place: np.ndarray | None = None

    def encode(self, values: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """The payload of `values` and of what is due: in `out`, or in a buffer that the next call overwrites.

        values: (size,) of the residual's dtype, unchanged. An exact codec may return a view of them.
        """
        check_flat("values", values, self._size)
        if values.dtype != self._dtype:
            raise ValueError(f"values must be of {self._dtype}. Received: {values.dtype}.")
        if self.residual is None:
            return self.codec.encode(values, out)
        if out is None:
            if self._place is None:
                self._place = self.codec.xp.empty(self.codec.max_nbytes(self._size, self._dtype), np.uint8)
            out = self._place
        return self.codec.encode_sum(values, self.residual, out)


def share_of(name: str, share: Any) -> Fraction:
    """A share of elements as the decimal number it is written as. Raises ConfigError where it is none.

    >>> share_of("kTopK", 0.1)
    Fraction(1, 10)
    """
    if not is_number(share) or not 0 < share <= 1:
        message = f"must be above 0 and at most 1 for {name}: the share of the elements that travel"
        raise ConfigError(Problem("cluster.sparsity", message, repr(share), "Use 0.01 for one in a hundred."))
    return Fraction(repr(float(share)))


def is_number(value: Any) -> bool:
    """Whether a setting is a number; True and False are none."""
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def check_values(name: str, array: np.ndarray) -> None:
    """Raise ValueError unless `array` is a vector that a codec takes."""
    check_flat(name, array)
    if array.dtype not in (np.float32, np.float64):
        raise ValueError(f"{name} must be of float32 or float64. Received: {array.dtype}.")


def check_alike(values: np.ndarray, others: np.ndarray) -> None:
    """Raise ValueError unless both are vectors that a codec takes, of the same size and dtype."""
    check_values("values", values)
    if (values.size, values.dtype) != (others.size, others.dtype):
        what = f"{others.size} values of {others.dtype}"
        raise ValueError(f"both must have {what}. Received: {values.size} of {values.dtype}.")


def _check_bytes(name: str, array: np.ndarray) -> None:
    check_flat(name, array)
    if array.dtype != np.uint8:
        raise ValueError(f"{name} must be of uint8. Received: {array.dtype}.")
