"""Codecs by which only some elements of a vector travel: those of largest magnitude, or above a threshold."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, NamedTuple

import numpy as np

from singa_dask.comm.codecs.base import INDEX, Codec, ErrorFeedback, is_number, kernels, share_of
from singa_dask.errors import ConfigError, Problem

# kTopK looks at every 61st of so many elements to know where about its limit is; a prime meets no width of a layer.
_SAMPLED, _STRIDE = 1 << 17, 61
_VALUE = np.dtype(np.uint16)
# A count of 16 bits for each block of 256 costs less than 8 more bits an offset where one in so many elements travels.
_DENSE = 128


class Sparse(Codec):
    """Some elements, as bfloat16, and where they belong, ascending. The others are 0 where they arrive.

        count: uint32 | count per block | values: bfloat16 each | offset in the block each | zeros, up to 4 bytes

    Where at least one in 128 elements travels, blocks are of 256 elements, offsets of 8 bits and counts of 16; else of
    65,536, 16 and 32. There are no counts where one block is enough. NaN counts as larger than infinity. What bfloat16
    cannot hold, of float64, travels as its largest number, and counts as an overflow.
    """

    def __init__(self) -> None:
        super().__init__()
        self._scratch = np.empty(0, INDEX)
        self._chosen = self._scratch

    def elements(self, payload: np.ndarray) -> int:
        """How many values travel in a payload."""
        return int(payload[: INDEX.itemsize].view(INDEX)[0]) if payload.size else 0

    @abstractmethod
    def _choose(self, bits: np.ndarray) -> np.ndarray:
        """Where the values are that travel, ascending, in scratch. bits: of all values, at least one."""

    def _places(self, count: int) -> np.ndarray:
        """Scratch for indices."""
        if self._scratch.size < count:
            self._scratch = np.empty(count, INDEX)
        return self._scratch[:count]

    def _nbytes_of(self, values: np.ndarray) -> int:
        self._chosen = self._choose(_bits(values)) if values.size else self._scratch[:0]
        return nbytes(self._chosen.size, values.size)

    def _write(self, values: np.ndarray, payload: np.ndarray) -> None:
        if not values.size:
            return
        payload[: INDEX.itemsize].view(INDEX)[0] = self._chosen.size
        counts, kept, offsets = self._fields(payload, values.size)
        self.overflows += kernels().BFLOAT16.encode_at(values, self._chosen, kept)
        kernels().pack(self._chosen, counts, offsets)
        payload[_Layout.of(self._chosen.size, values.size).end :] = 0

    def _read(self, payload: np.ndarray, out: np.ndarray) -> None:
        fields = self._checked(payload, out)
        out[:] = 0
        kernels().scatter_add(*fields, out)

    def _add(self, payload: np.ndarray, out: np.ndarray) -> None:
        kernels().scatter_add(*self._checked(payload, out), out)

    def _settle(self, payload: np.ndarray, residual: np.ndarray) -> None:
        kernels().scatter_settle(*self._checked(payload, residual), residual)

    def warm_up(self, dtype: Any = np.float32) -> None:
        super().warm_up(dtype)
        # Short offsets and long ones, and candidates found by a sample.
        for share, size in ((0.3, 16), (1e-3, 1 << 12), (0.05, _SAMPLED)):
            for values in (np.zeros(size, dtype), np.arange(size, dtype=dtype)):
                TopK(share).decode(ErrorFeedback(TopK(share), size, dtype).encode(values), values)

    def _check_payload(self, payload: np.ndarray, out: np.ndarray) -> None:
        super()._check_payload(payload, out)
        count = self.elements(payload) if payload.size >= INDEX.itemsize else 0
        if count > out.size or payload.size != nbytes(count, out.size):
            what = f"as many bytes as some of {out.size} values have"
            raise ValueError(f"payload must have {what}. Received: {payload.size}.")

    def _fields(self, payload: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Views of a payload: counts by block, values, offsets."""
        layout = _Layout.of(self.elements(payload), size)
        counts = payload[INDEX.itemsize : layout.values].view(layout.counter)
        kept = payload[layout.values : layout.offsets].view(_VALUE)
        return counts, kept, payload[layout.offsets : layout.end].view(layout.offset)

    def _checked(self, payload: np.ndarray, out: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The fields of a payload, none of which points beyond `out`: the kernel writes there."""
        counts, kept, offsets = fields = self._fields(payload, out.size)
        counted = counts.sum(dtype=np.uint64)
        if counts.size and counted != kept.size:
            raise ValueError(f"payload must have the counts of {kept.size} values. Received: {counted}.")
        last = offsets[offsets.size - int(counts[-1]) :] if counts.size else offsets
        if last.size:
            largest = max(counts.size - 1, 0) * _Layout.of(kept.size, out.size).block + int(last.max())
            if largest >= out.size:
                raise ValueError(f"payload must have indices below {out.size}. Received: {largest}.")
        return fields


class _Layout(NamedTuple):
    """Where the fields of a payload begin, in bytes, and what they consist of."""

    block: int
    counter: np.dtype
    offset: np.dtype
    values: int
    offsets: int
    end: int

    @classmethod
    def of(cls, count: int, size: int) -> _Layout:
        """Of `count` of `size` values: the one of fewer bytes."""
        dense = _DENSE * count >= size
        offset, counter = (np.dtype(kind) for kind in ((np.uint8, np.uint16) if dense else (np.uint16, np.uint32)))
        block = 1 << 8 * offset.itemsize
        blocks = -(-size // block) if size > block else 0
        values = INDEX.itemsize + blocks * counter.itemsize
        offsets = values + count * _VALUE.itemsize
        return cls(block, counter, offset, values, offsets, offsets + count * offset.itemsize)


def nbytes(count: int, size: int) -> int:
    """Bytes of a payload of `count` of `size` values: whole words, so that those behind one another are aligned."""
    return -(-_Layout.of(count, size).end // INDEX.itemsize) * INDEX.itemsize if size else 0


class TopK(Sparse):
    """The ceil(share * n) elements of largest magnitude; of equal magnitudes, those of lower index.

    share: 0 < share <= 1, read as the decimal number it is written as.
    """

    name = "kTopK"
    settings = ("sparsity",)

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share_of(self.name, share)
        self._histogram = np.empty((4, 1 << kernels().DIGIT_BITS), np.int64)
        self._likely = np.empty(0, INDEX), np.empty(0, np.uint32)

    def count(self, size: int) -> int:
        """How many of `size` elements travel."""
        return math.ceil(self.share * size)

    def nbytes(self, size: int, dtype: Any = np.float32) -> int:
        return nbytes(self.count(size), size)

    def _choose(self, bits: np.ndarray) -> np.ndarray:
        indices = self._places(self.count(bits.size))
        places = self._candidates(bits) if bits.size >= _SAMPLED else None
        if places is None:
            self._find(bits, indices)
        else:
            candidates = self._likely[1][: places.size]
            kernels().pick(bits, places, candidates)
            self._find(candidates, indices)
            kernels().pick(places, indices, indices)
        return indices

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


class Threshold(Sparse):
    """All elements with |v| > threshold, compared in the values' own precision."""

    name = "kThreshold"

    def __init__(self, threshold: float) -> None:
        super().__init__()
        if not is_number(threshold) or not 0 <= threshold < math.inf:
            message = "must be a finite number of at least 0: elements of larger magnitude travel"
            raise ConfigError(Problem("spars", message, repr(threshold), "Use 0 for all elements that are not 0."))
        self.threshold = float(threshold)

    def nbytes(self, size: int, dtype: Any = np.float32) -> int | None:
        return None if size else 0

    def max_nbytes(self, size: int, dtype: Any = np.float32) -> int:
        return nbytes(size, size)

    def _choose(self, bits: np.ndarray) -> np.ndarray:
        least = self._least(bits.view(f"f{bits.itemsize}"))
        found = kernels().find(bits, least, self._scratch)
        if found > self._scratch.size:
            kernels().find(bits, least, self._places(found + found // 2))
        return self._scratch[:found]

    def _least(self, values: np.ndarray) -> Any:
        """The bits of the least magnitude that travels."""
        threshold = np.array([min(self.threshold, float(np.finfo(values.dtype).max))], values.dtype)
        return (_bits(threshold) + _bits(threshold).dtype.type(1))[0]


def _bits(values: np.ndarray) -> np.ndarray:
    return values.view(np.uint32 if values.itemsize == 4 else np.uint64)
