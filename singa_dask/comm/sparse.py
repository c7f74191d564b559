"""Codecs by which only some elements of a vector travel: those of largest magnitude, or above a threshold."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from singa_dask.comm.codec import INDEX, Codec, is_number, kernels, share_of
from singa_dask.errors import ConfigError, Problem

_OFFSET = np.dtype(np.uint16)
# kTopK looks at every 61st of so many elements to know where about its limit is; a prime meets no width of a layer.
_SAMPLED, _STRIDE = 1 << 17, 61


class _Sparse(Codec):
    """Some elements: their own bytes, then their indices, ascending. The others are 0 where they arrive.

        count per block: uint32 each | values | offset in the block: uint16 each | zeros, up to 4 bytes

    Blocks are of 65,536 elements; there are no counts where one is enough. NaN counts as larger than infinity. An
    element that travels does so unchanged: its residual is 0.
    """

    settings = ("sparsity",)

    def __init__(self) -> None:
        super().__init__()
        self._indices = np.empty(0, INDEX)

    def settle(self, payload: np.ndarray, residual: np.ndarray) -> None:
        self._check_payload(payload, residual)
        kernels().scatter_zero(self._parts(payload, residual)[0], residual)

    def elements(self, nbytes: int, size: int, dtype: Any = np.float32) -> int:
        """How many of `size` values travel in a payload of `nbytes`."""
        return max(0, nbytes - _blocks(size) * INDEX.itemsize) // (np.dtype(dtype).itemsize + _OFFSET.itemsize)

    def _sized(self, count: int, size: int, dtype: Any) -> int:
        """Bytes of a payload of `count` of `size` values."""
        offsets = (count + count % 2) * _OFFSET.itemsize
        return _blocks(size) * INDEX.itemsize + count * np.dtype(dtype).itemsize + offsets

    def _places(self, count: int) -> np.ndarray:
        """Scratch for indices."""
        if self._indices.size < count:
            self._indices = np.empty(count, INDEX)
        return self._indices[:count]

    def _read(self, payload: np.ndarray, out: np.ndarray) -> None:
        parts = self._parts(payload, out)
        out[:] = 0
        kernels().scatter(*parts, out)

    def _add(self, payload: np.ndarray, out: np.ndarray, factor: int) -> None:
        kernels().scatter_add(*self._parts(payload, out), out)

    def _check_payload(self, payload: np.ndarray, out: np.ndarray) -> None:
        super()._check_payload(payload, out)
        count = self.elements(payload.size, out.size, out.dtype)
        if count > out.size or payload.size != (self._sized(count, out.size, out.dtype) if out.size else 0):
            what = f"as many bytes as some of {out.size} values of {out.dtype} have"
            raise ValueError(f"payload must have {what}. Received: {payload.size}.")

    def _fields(self, payload: np.ndarray, size: int, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Views of a payload: counts by block, values, offsets."""
        count, cut = self.elements(payload.size, size, dtype), _blocks(size) * INDEX.itemsize
        end = cut + count * dtype.itemsize
        offsets = payload[end : end + count * _OFFSET.itemsize]
        return payload[:cut].view(INDEX), payload[cut:end].view(dtype), offsets.view(_OFFSET)

    @staticmethod
    def _pack(indices: np.ndarray, payload: np.ndarray, counts: np.ndarray, offsets: np.ndarray) -> None:
        payload[payload.size - indices.size % 2 * _OFFSET.itemsize :] = 0
        kernels().pack(indices, counts, offsets)

    def _parts(self, payload: np.ndarray, out: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where the values of a payload belong, and what they are."""
        counts, kept, offsets = self._fields(payload, out.size, out.dtype)
        indices = self._places(kept.size)
        if not kernels().unpack(counts, offsets, indices):
            raise ValueError(f"payload must have the counts of {kept.size} values. Received: {counts.tolist()}.")
        # The kernels write where the indices point.
        if indices.size and indices.max() >= out.size:
            raise ValueError(f"payload must have indices below {out.size}. Received: {indices.max()}.")
        return indices, kept


class TopK(_Sparse):
    """The ceil(share * n) elements of largest magnitude; of equal magnitudes, those of lower index.

    share: 0 < share <= 1, read as the decimal number it is written as.
    """

    name = "kTopK"

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share_of(self.name, share)
        self._histogram = np.empty((4, 1 << kernels().DIGIT_BITS), np.int64)
        self._likely = np.empty(0, INDEX), np.empty(0, np.uint32)

    def count(self, size: int) -> int:
        """How many of `size` elements travel."""
        return math.ceil(self.share * size)

    def nbytes(self, size: int, dtype: Any = np.float32) -> int:
        return self._sized(self.count(size), size, dtype) if size else 0

    def _write(self, values: np.ndarray, payload: np.ndarray) -> None:
        if not values.size:
            return
        bits = _bits(values)
        counts, kept, offsets = self._fields(payload, bits.size, bits.dtype)
        indices = self._places(kept.size)
        places = self._candidates(bits) if bits.size >= _SAMPLED else None
        if places is None:
            self._find(bits, indices)
        else:
            candidates = self._likely[1][: places.size]
            kernels().pick(bits, places, candidates)
            self._find(candidates, indices)
            kernels().pick(places, indices, indices)
        kernels().pick(bits, indices, kept)
        self._pack(indices, payload, counts, offsets)

    def _find(self, bits: np.ndarray, indices: np.ndarray) -> None:
        """Where as many of the largest of `bits` are as there is room for."""
        least, equal = kernels().nth_largest(bits, indices.size, self._histogram)
        least = bits.dtype.type(least)
        if equal == bits.size:
            kernels().find(bits, least, indices)
        else:
            kernels().find_some(bits, least, equal, indices)

    def _candidates(self, bits: np.ndarray) -> np.ndarray | None:
        """Where few elements are, with those that travel among them; None where a sample does not find them.

        The exact selection reads its input four times, this reads all elements once.
        """
        sample, count = np.ascontiguousarray(bits[::_STRIDE]), self.count(bits.size)
        expected = sample.size * float(self.share)
        wanted = math.ceil(1.1 * expected + 4 * math.sqrt(expected)) + 1
        if wanted > sample.size // 2:
            return None
        room = 2 * count
        if self._likely[0].size < room or self._likely[1].dtype != bits.dtype:
            self._likely = np.empty(room, INDEX), np.empty(room, bits.dtype)
        places = self._likely[0][:room]
        least, _ = kernels().nth_largest(sample, wanted, self._histogram)
        found = kernels().find(bits, bits.dtype.type(least), places)
        return places[:found] if count <= found <= room else None


class Threshold(_Sparse):
    """All elements with |v| > threshold, compared in the values' own precision."""

    name = "kThreshold"

    def __init__(self, threshold: float) -> None:
        super().__init__()
        if not is_number(threshold) or not 0 <= threshold < math.inf:
            message = "must be a finite number of at least 0 for kThreshold: what the elements that travel exceed"
            raise ConfigError(Problem("cluster.sparsity", message, repr(threshold), "Use 0 for all that are not 0."))
        self.threshold = float(threshold)

    def nbytes(self, size: int, dtype: Any = np.float32) -> int | None:
        return None if size else 0

    def max_nbytes(self, size: int, dtype: Any = np.float32) -> int:
        return self._sized(size, size, dtype) if size else 0

    def exceeding(self, values: np.ndarray) -> int:
        """How many of the values travel."""
        return int(kernels().count_from(_bits(values), self._least(values)))

    def _nbytes_of(self, values: np.ndarray) -> int:
        return self._sized(self.exceeding(values), values.size, values.dtype) if values.size else 0

    def _write(self, values: np.ndarray, payload: np.ndarray) -> None:
        bits = _bits(values)
        counts, kept, offsets = self._fields(payload, bits.size, bits.dtype)
        indices = self._places(kept.size)
        kernels().find(bits, self._least(values), indices)
        kernels().pick(bits, indices, kept)
        self._pack(indices, payload, counts, offsets)

    def _least(self, values: np.ndarray) -> Any:
        """The bits of the least magnitude that travels."""
        threshold = np.array([min(self.threshold, float(np.finfo(values.dtype).max))], values.dtype)
        return (_bits(threshold) + _bits(threshold).dtype.type(1))[0]


def _bits(values: np.ndarray) -> np.ndarray:
    return values.view(np.uint32 if values.itemsize == 4 else np.uint64)


def _blocks(size: int) -> int:
    """Blocks whose counts travel with a sparse payload."""
    return -(-size // kernels().BLOCK) if size > kernels().BLOCK else 0
