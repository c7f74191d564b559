"""How a vector of floats travels: in full, in 16 bits a value, a run of it, or its elements of largest magnitude."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np

from singa_dask.comm.buffers import check_flat
from singa_dask.errors import ConfigError, Problem, nearest

_INDEX, _OFFSET = np.dtype(np.uint32), np.dtype(np.uint16)
# kTopK looks at every 61st of so many elements to know where about its limit is; a prime meets no width of a layer.
_SAMPLED, _STRIDE = 1 << 17, 61


def _kernels() -> Any:
    """They bring Numba, which commands that only read a job, or send in full, can do without."""
    from singa_dask.ops.cpu.kernels import numba_codec

    return numba_codec


class Codec(ABC):
    """A vector of floats to bytes and back. One object per rank and thread: it counts and holds scratch.

    exact: nothing is lost. overflows: finite values so far that rounding would have made infinite; the largest finite
    number of their sign travelled instead. Infinities and NaN travel as they are, so that divergence shows.
    settings: what the function `codec` takes for it.
    """

    name: ClassVar[str]
    exact: ClassVar[bool] = False
    settings: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        self.overflows = 0

    def begin(self, step: int) -> None:  # noqa: B027 - most do the same at every step
        """What is encoded from now on is of this training step; the same on all ranks."""

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
        _check_values("values", values)
        nbytes = self._nbytes_of(values)
        if out is None:
            out = np.empty(nbytes, np.uint8)
        _check_bytes("out", out)
        if out.size < nbytes:
            raise ValueError(f"out must have at least {nbytes} bytes for {values.size} values. Received: {out.size}.")
        self._write(values, out[:nbytes])
        return out[:nbytes]

    def decode(self, payload: np.ndarray, out: np.ndarray, *, add: bool = False) -> None:
        """out = the values of `payload`, or out += them. payload: (nbytes,) uint8; out: (n,), of the encoded dtype.

        Raises ValueError where `payload` cannot be that of so many values.
        """
        self._check_payload(payload, out)
        if add:
            self._add(payload, out, 1)
        else:
            self._read(payload, out)

    def settle(self, payload: np.ndarray, residual: np.ndarray) -> None:
        """residual -= the values of `payload`, which `residual` was encoded to."""
        self._check_payload(payload, residual)
        self._add(payload, residual, -1)

    def _nbytes_of(self, values: np.ndarray) -> int:
        return self.max_nbytes(values.size, values.dtype)

    def _check_payload(self, payload: np.ndarray, out: np.ndarray) -> None:
        _check_bytes("payload", payload)
        _check_values("out", out)
        nbytes = self.nbytes(out.size, out.dtype)
        if nbytes is not None and payload.size != nbytes:
            what = f"{out.size} values of {out.dtype} by {self.name}"
            raise ValueError(f"payload must have {nbytes} bytes for {what}. Received: {payload.size}.")

    @abstractmethod
    def _write(self, values: np.ndarray, payload: np.ndarray) -> None: ...

    @abstractmethod
    def _read(self, payload: np.ndarray, out: np.ndarray) -> None: ...

    @abstractmethod
    def _add(self, payload: np.ndarray, out: np.ndarray, factor: int) -> None: ...


class Full(Codec):
    """The values' own bytes. Without `out`, the payload of `encode` is a view of the values."""

    name = "kFull"
    exact = True

    def nbytes(self, size: int, dtype: Any = np.float32) -> int:
        return size * np.dtype(dtype).itemsize

    def encode(self, values: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        _check_values("values", values)
        return values.view(np.uint8) if out is None else super().encode(values, out)

    def _write(self, values: np.ndarray, payload: np.ndarray) -> None:
        payload[:] = values.view(np.uint8)

    def _read(self, payload: np.ndarray, out: np.ndarray) -> None:
        out.view(np.uint8)[:] = payload

    def _add(self, payload: np.ndarray, out: np.ndarray, factor: int) -> None:
        (np.add if factor > 0 else np.subtract)(out, payload.view(out.dtype), out=out)


class _SixteenBits(Codec):
    """A 16-bit float per value, rounded to nearest, ties to even."""

    _kind: ClassVar[str]

    def nbytes(self, size: int, dtype: Any = np.float32) -> int:
        return 2 * size

    def _write(self, values: np.ndarray, payload: np.ndarray) -> None:
        self.overflows += self._kernel("encode")(values, payload.view(np.uint16))

    def _read(self, payload: np.ndarray, out: np.ndarray) -> None:
        self._kernel("decode")(payload.view(np.uint16), out)

    def _add(self, payload: np.ndarray, out: np.ndarray, factor: int) -> None:
        self._kernel("add")(payload.view(np.uint16), factor, out)

    def _kernel(self, does: str) -> Any:
        return getattr(_kernels(), f"{self._kind}_{does}")


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
        self.share = _share(self.name, share)
        self._step = 0

    def begin(self, step: int) -> None:
        self._step = step

    def nbytes(self, size: int, dtype: Any = np.float32) -> int:
        return _INDEX.itemsize + self._width(size) * np.dtype(dtype).itemsize if size else 0

    def settle(self, payload: np.ndarray, residual: np.ndarray) -> None:
        self._check_payload(payload, residual)
        residual[self._run(payload, residual)[0]] = 0

    def _width(self, size: int) -> int:
        return math.ceil(self.share * size)

    def _write(self, values: np.ndarray, payload: np.ndarray) -> None:
        if values.size:
            width = self._width(values.size)
            first = min(width * (self._step % -(-values.size // width)), values.size - width)
            payload[: _INDEX.itemsize].view(_INDEX)[0] = first
            payload[_INDEX.itemsize :] = values[first : first + width].view(np.uint8)

    def _read(self, payload: np.ndarray, out: np.ndarray) -> None:
        run, values = self._run(payload, out)
        out[:] = 0
        out[run] = values

    def _add(self, payload: np.ndarray, out: np.ndarray, factor: int) -> None:
        run, values = self._run(payload, out)
        out[run] += values

    def _run(self, payload: np.ndarray, out: np.ndarray) -> tuple[slice, np.ndarray]:
        """Where the elements of a payload belong, and what they are."""
        values = payload[_INDEX.itemsize :].view(out.dtype)
        first = int(payload[: _INDEX.itemsize].view(_INDEX)[0]) if payload.size else 0
        if first + values.size > out.size:
            raise ValueError(f"payload must begin at {out.size - values.size} at most. Received: {first}.")
        return slice(first, first + values.size), values


class _Sparse(Codec):
    """Some elements: their own bytes, then their indices, ascending. The others are 0 where they arrive.

        count per block: uint32 each | values | offset in the block: uint16 each | zeros, up to 4 bytes

    Blocks are of 65,536 elements; there are no counts where one is enough. NaN counts as larger than infinity. An
    element that travels does so unchanged: its residual is 0.
    """

    settings = ("sparsity",)

    def __init__(self) -> None:
        super().__init__()
        self._indices = np.empty(0, _INDEX)

    def settle(self, payload: np.ndarray, residual: np.ndarray) -> None:
        self._check_payload(payload, residual)
        _kernels().scatter_zero(self._parts(payload, residual)[0], residual)

    def elements(self, nbytes: int, size: int, dtype: Any = np.float32) -> int:
        """How many of `size` values travel in a payload of `nbytes`."""
        return max(0, nbytes - _blocks(size) * _INDEX.itemsize) // (np.dtype(dtype).itemsize + _OFFSET.itemsize)

    def _sized(self, count: int, size: int, dtype: Any) -> int:
        """Bytes of a payload of `count` of `size` values."""
        offsets = (count + count % 2) * _OFFSET.itemsize
        return _blocks(size) * _INDEX.itemsize + count * np.dtype(dtype).itemsize + offsets

    def _places(self, count: int) -> np.ndarray:
        """Scratch for indices."""
        if self._indices.size < count:
            self._indices = np.empty(count, _INDEX)
        return self._indices[:count]

    def _read(self, payload: np.ndarray, out: np.ndarray) -> None:
        parts = self._parts(payload, out)
        out[:] = 0
        _kernels().scatter(*parts, out)

    def _add(self, payload: np.ndarray, out: np.ndarray, factor: int) -> None:
        _kernels().scatter_add(*self._parts(payload, out), out)

    def _check_payload(self, payload: np.ndarray, out: np.ndarray) -> None:
        super()._check_payload(payload, out)
        count = self.elements(payload.size, out.size, out.dtype)
        if count > out.size or payload.size != (self._sized(count, out.size, out.dtype) if out.size else 0):
            what = f"as many bytes as some of {out.size} values of {out.dtype} have"
            raise ValueError(f"payload must have {what}. Received: {payload.size}.")

    def _fields(self, payload: np.ndarray, size: int, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Views of a payload: counts by block, values, offsets."""
        count, cut = self.elements(payload.size, size, dtype), _blocks(size) * _INDEX.itemsize
        end = cut + count * dtype.itemsize
        offsets = payload[end : end + count * _OFFSET.itemsize]
        return payload[:cut].view(_INDEX), payload[cut:end].view(dtype), offsets.view(_OFFSET)

    @staticmethod
    def _pack(indices: np.ndarray, payload: np.ndarray, counts: np.ndarray, offsets: np.ndarray) -> None:
        payload[payload.size - indices.size % 2 * _OFFSET.itemsize :] = 0
        _kernels().pack(indices, counts, offsets)

    def _parts(self, payload: np.ndarray, out: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where the values of a payload belong, and what they are."""
        counts, kept, offsets = self._fields(payload, out.size, out.dtype)
        indices = self._places(kept.size)
        if not _kernels().unpack(counts, offsets, indices):
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
        self.share = _share(self.name, share)
        self._histogram = np.empty((4, 1 << _kernels().DIGIT_BITS), np.int64)
        self._likely = np.empty(0, _INDEX), np.empty(0, np.uint32)

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
            _kernels().pick(bits, places, candidates)
            self._find(candidates, indices)
            _kernels().pick(places, indices, indices)
        _kernels().pick(bits, indices, kept)
        self._pack(indices, payload, counts, offsets)

    def _find(self, bits: np.ndarray, indices: np.ndarray) -> None:
        """Where as many of the largest of `bits` are as there is room for."""
        least, equal = _kernels().nth_largest(bits, indices.size, self._histogram)
        least = bits.dtype.type(least)
        if equal == bits.size:
            _kernels().find(bits, least, indices)
        else:
            _kernels().find_some(bits, least, equal, indices)

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
            self._likely = np.empty(room, _INDEX), np.empty(room, bits.dtype)
        places = self._likely[0][:room]
        least, _ = _kernels().nth_largest(sample, wanted, self._histogram)
        found = _kernels().find(bits, bits.dtype.type(least), places)
        return places[:found] if count <= found <= room else None


class Threshold(_Sparse):
    """All elements with |v| > threshold, compared in the values' own precision."""

    name = "kThreshold"

    def __init__(self, threshold: float) -> None:
        super().__init__()
        if not _is_number(threshold) or not 0 <= threshold < math.inf:
            message = "must be a finite number of at least 0 for kThreshold: what the elements that travel exceed"
            raise ConfigError(Problem("cluster.sparsity", message, repr(threshold), "Use 0 for all that are not 0."))
        self.threshold = float(threshold)

    def nbytes(self, size: int, dtype: Any = np.float32) -> int | None:
        return None if size else 0

    def max_nbytes(self, size: int, dtype: Any = np.float32) -> int:
        return self._sized(size, size, dtype) if size else 0

    def exceeding(self, values: np.ndarray) -> int:
        """How many of the values travel."""
        return int(_kernels().count_from(_bits(values), self._least(values)))

    def _nbytes_of(self, values: np.ndarray) -> int:
        return self._sized(self.exceeding(values), values.size, values.dtype) if values.size else 0

    def _write(self, values: np.ndarray, payload: np.ndarray) -> None:
        bits = _bits(values)
        counts, kept, offsets = self._fields(payload, bits.size, bits.dtype)
        indices = self._places(kept.size)
        _kernels().find(bits, self._least(values), indices)
        _kernels().pick(bits, indices, kept)
        self._pack(indices, payload, counts, offsets)

    def _least(self, values: np.ndarray) -> Any:
        """The bits of the least magnitude that travels."""
        threshold = np.array([min(self.threshold, float(np.finfo(values.dtype).max))], values.dtype)
        return (_bits(threshold) + _bits(threshold).dtype.type(1))[0]


class ErrorFeedback:
    """What a codec has not sent waits in `residual` and is sent with later values.

        residual += values;  payload = encode(residual);  residual -= decode(payload)

    residual: (size,) of `dtype`; None with an exact codec, which leaves nothing over. Seide et al. 2014; Stich,
    Cordonnier & Jaggi 2018.
    """

    def __init__(self, codec: Codec, size: int, dtype: Any = np.float32) -> None:
        self.codec = codec
        self.residual = None if codec.exact else np.zeros(size, dtype)
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
                self._place = np.empty(self.codec.max_nbytes(self._size, self._dtype), np.uint8)
            out = self._place
        self.residual += values
        payload = self.codec.encode(self.residual, out)
        self.codec.settle(payload, self.residual)
        return payload


CODECS: dict[str, type[Codec]] = {kind.name: kind for kind in (Full, Half, BFloat16, Partial, TopK, Threshold)}


def codec(name: str, **settings: Any) -> Codec:
    """The codec of that name. settings: sparsity, the share of kPartial and kTopK or the threshold of kThreshold,
    None where it is not given.

    Raises ConfigError for an unknown name, and a setting that is missing, out of range or without effect.

    >>> codec("kTopK", sparsity=0.01).nbytes(1000)
    60
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


def _share(name: str, share: Any) -> Fraction:
    if not _is_number(share) or not 0 < share <= 1:
        message = f"must be above 0 and at most 1 for {name}: the share of the elements that travel"
        raise ConfigError(Problem("cluster.sparsity", message, repr(share), "Use 0.01 for one in a hundred."))
    return Fraction(repr(float(share)))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def _check_values(name: str, array: np.ndarray) -> None:
    check_flat(name, array)
    if array.dtype not in (np.float32, np.float64):
        raise ValueError(f"{name} must be of float32 or float64. Received: {array.dtype}.")


def _check_bytes(name: str, array: np.ndarray) -> None:
    check_flat(name, array)
    if array.dtype != np.uint8:
        raise ValueError(f"{name} must be of uint8. Received: {array.dtype}.")


def _bits(values: np.ndarray) -> np.ndarray:
    return values.view(np.uint32 if values.itemsize == 4 else np.uint64)


def _blocks(size: int) -> int:
    """Blocks whose counts travel with a sparse payload."""
    return -(-size // _kernels().BLOCK) if size > _kernels().BLOCK else 0
