"""Codecs on a GPU: payloads are made and read there, of the same bytes as on the host."""

from __future__ import annotations

from typing import Any

import numpy as np

from singa_dask.comm.codecs.base import INDEX, Codec
from singa_dask.comm.codecs.dense import BFloat16, Half, Partial, SixteenBits
from singa_dask.comm.codecs.sparse import Sparse, Threshold, TopK, nbytes


class _SixteenBitsOnDevice(SixteenBits):
    def __init__(self, ops: Any) -> None:
        self._ops, self.xp = ops, ops.xp
        self._found = ops.sixteen_bits(self._kind.lower())

    def __deepcopy__(self, memo: Any) -> Codec:
        return type(self)(self._ops)

    @property
    def overflows(self) -> int:  # type: ignore[override]
        return int(self._found.overflows[0])

    @property
    def _kernels(self) -> Any:
        return self._found

    def _count(self, overflows: None) -> None:
        """They are counted on the GPU."""


class _HalfOnDevice(_SixteenBitsOnDevice, Half):
    pass


class _BFloat16OnDevice(_SixteenBitsOnDevice, BFloat16):
    pass


class _PartialOnDevice(Partial):
    def __init__(self, ops: Any, share: float) -> None:
        super().__init__(share)
        self._ops, self.xp = ops, ops.xp

    def __deepcopy__(self, memo: Any) -> Codec:
        return type(self)(self._ops, float(self.share))

    def _range(self, payload: Any, out: Any) -> tuple[slice, Any]:
        """As that of the host, which need not ask the GPU: all ranks are in the same step."""
        values = payload[INDEX.itemsize :].view(out.dtype)
        first = self._first(out.size) if out.size else 0
        return slice(first, first + values.size), values


class _SparseOnDevice(Sparse):
    """The host waits for nothing, except for the number of values that are above a threshold."""

    def __init__(self, ops: Any, setting: float) -> None:
        super().__init__(setting)  # type: ignore[call-arg]
        self._ops, self.xp, self._kernels = ops, ops.xp, ops.sparse

    @property
    def overflows(self) -> int:  # type: ignore[override]
        return int(self._kernels.overflows[0])

    def warm_up(self, dtype: Any = np.float32) -> None:
        Codec.warm_up(_TopKOnDevice(self._ops, 0.5), dtype)

    def _check_payload(self, payload: Any, out: Any) -> None:
        Codec._check_payload(self, payload, out)

    def _read(self, payload: Any, out: Any) -> None:
        out[:] = 0
        self._add(payload, out)

    def _add(self, payload: Any, out: Any) -> None:
        if payload.size:
            self._kernels.add(payload, out, self._most(payload, out))

    def _settle(self, payload: Any, residual: Any) -> None:
        if payload.size:
            self._kernels.settle(payload, residual, self._most(payload, residual))

    def _most(self, payload: Any, out: Any) -> int:
        """The most values that can travel in a payload: each takes three bytes or more."""
        return min(out.size, (payload.size - INDEX.itemsize) // 3 + 1)


class _TopKOnDevice(_SparseOnDevice, TopK):
    def __deepcopy__(self, memo: Any) -> Codec:
        return type(self)(self._ops, float(self.share))

    def _nbytes_of(self, values: Any) -> int:
        return self.nbytes(values.size)

    def _write(self, values: Any, payload: Any) -> None:
        if values.size:
            count = self.count(values.size)
            least = self._kernels.nth_largest(values, count)
            self._kernels.write(values, least, self._kernels.starts(values, least), count, payload)


class _ThresholdOnDevice(_SparseOnDevice, Threshold):
    def __init__(self, ops: Any, threshold: float) -> None:
        super().__init__(ops, threshold)
        least = self._least(np.empty(0, np.float32)) - np.uint32(1)
        self._limit = self.xp.asarray(np.array([least, 0], np.uint32))
        self._found: tuple[Any, int] | None = None

    def __deepcopy__(self, memo: Any) -> Codec:
        return type(self)(self._ops, self.threshold)

    def _nbytes_of(self, values: Any) -> int:
        if not values.size:
            return 0
        starts = self._kernels.starts(values, self._limit)
        self._found = starts, int(starts[0, -1])
        return nbytes(self._found[1], values.size)

    def _write(self, values: Any, payload: Any) -> None:
        if values.size:
            assert self._found is not None
            self._kernels.write(values, self._limit, *self._found, payload)


_SIXTEEN_BITS: dict[type[Codec], type[_SixteenBitsOnDevice]] = {Half: _HalfOnDevice, BFloat16: _BFloat16OnDevice}


def on_device(codec: Codec, ops: Any) -> Codec:
    """The codec for arrays of float32 on the GPU of `ops`."""
    assert ops.dtype == np.float32
    if isinstance(codec, Partial):
        return _PartialOnDevice(ops, float(codec.share))
    if isinstance(codec, TopK):
        return _TopKOnDevice(ops, float(codec.share))
    if isinstance(codec, Threshold):
        return _ThresholdOnDevice(ops, codec.threshold)
    return _SIXTEEN_BITS[type(codec)](ops)
