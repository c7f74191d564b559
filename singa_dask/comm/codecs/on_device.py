"""Codecs on a GPU: payloads are made and read there, of the same bytes as on the host."""

from __future__ import annotations

from typing import Any

import numpy as np

from singa_dask.comm.codecs.base import INDEX, Codec
from singa_dask.comm.codecs.dense import BFloat16, Half, Partial, SixteenBits


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


_SIXTEEN_BITS: dict[type[Codec], type[_SixteenBitsOnDevice]] = {Half: _HalfOnDevice, BFloat16: _BFloat16OnDevice}
ON_DEVICE = frozenset({*(kind.name for kind in _SIXTEEN_BITS), Partial.name})


def on_device(codec: Codec, ops: Any) -> Codec:
    """The codec for arrays of float32 on the GPU of `ops`. Raises KeyError unless its name is in ON_DEVICE."""
    assert ops.dtype == np.float32
    if isinstance(codec, Partial):
        return _PartialOnDevice(ops, float(codec.share))
    return _SIXTEEN_BITS[type(codec)](ops)
