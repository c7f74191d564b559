"""Kernels of the codecs (singa_dask.comm.codecs): 16-bit floats, and the elements of largest magnitude.

float64 values become 16-bit ones through float32 rounded to odd, so that the second rounding gives the same result as
a single one (Boldo & Melquiond 2008). A magnitude is the value's bits without the sign. These bits have the order of
the magnitudes, with infinity above every number and NaN above infinity.
"""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from singa_dask.ops.cpu.toolkit.numba_kernel import kernel

_INF = np.uint32(0x7F800000)
# The smallest float32 bits that round to infinity, and the value that replaces it.
_HALF_ENDS, _HALF_MAX = np.uint32(0x477FF000), np.uint32(0x7BFF)
_BFLOAT_ENDS, _BFLOAT_MAX = np.uint32(0x7F7F8000), np.uint32(0x7F7F)
# Bits of a digit in the radix selection: a histogram of digits fits into the first-level cache.
DIGIT_BITS = 11


# Numba widens uint32 to 64 bits, which halves the values per instruction; u32() around every step prevents it.
u32, f32 = np.uint32, np.float32
_SIGN, _SIZE = u32(0x8000), u32(0x7FFFFFFF)
_SMALL, _HALF_SHIFT, _MAGIC = u32(113 << 23), u32((112 << 23) - 0xFFF), u32(126 << 23)


@kernel
def _odd_bits(value):
    """The bits of float32(value), rounded to odd where that is inexact."""
    single = f32(value)
    bits = single.view(u32)
    if single != value and value == value:
        bits = u32(bits - u32(abs(single) > abs(value)))
        bits = u32(bits | u32(1))
    return bits


@kernel
def _half_bits(size):
    """float16 of a finite magnitude below 65520."""
    # Adding 0.5 rounds a subnormal's 10 bits into the end of the mantissa.
    small = u32(f32(u32(size).view(f32) + f32(0.5)).view(u32) - _MAGIC)
    odd = u32(u32(size >> u32(13)) & u32(1))
    normal = u32(u32(u32(size - _HALF_SHIFT) + odd) >> u32(13))
    return small if size < _SMALL else normal


@kernel
def _half_short(bits):
    """float16 of a float32's bits, rounded to nearest even, saturated; and whether it was."""
    size = u32(bits & _SIZE)
    short = _half_bits(size)
    if size >= _HALF_ENDS:
        short = u32(0x7E00) if size > _INF else u32(0x7C00) if size == _INF else _HALF_MAX
    saturated = size >= _HALF_ENDS and size < _INF
    return u32(short | u32(u32(bits >> u32(16)) & _SIGN)), saturated


@kernel
def _half_value(short):
    size = u32(u32(u32(short) & u32(0x7FFF)) << u32(13))
    # A subnormal's 10 bits at the end of 2^-14, minus 2^-14. No operand is subnormal: those are slow on Intel's CPUs.
    small = f32(u32(size + _SMALL).view(f32) - f32(2.0**-14)).view(u32)
    normal = u32(u32(size + u32(112 << 23)) | (_INF if size >= u32(0x7C00 << 13) else u32(0)))
    full = small if size < u32(1 << 23) else normal
    return u32(full | u32(u32(u32(short) & _SIGN) << u32(16))).view(f32)


@kernel
def _bfloat16_short(bits):
    """The upper half of a float32, rounded to nearest even, saturated; and whether it was."""
    size = u32(bits & _SIZE)
    odd = u32(u32(size >> u32(16)) & u32(1))
    short = u32(u32(u32(size + u32(0x7FFF)) + odd) >> u32(16))
    if size >= _BFLOAT_ENDS:
        short = u32(0x7FC0) if size > _INF else u32(0x7F80) if size == _INF else _BFLOAT_MAX
    saturated = size >= _BFLOAT_ENDS and size < _INF
    return u32(short | u32(u32(bits >> u32(16)) & _SIGN)), saturated


@kernel
def _bfloat16_value(short):
    return u32(u32(short) << u32(16)).view(f32)


@kernel
def _short(bits, half):
    return _half_short(bits) if half else _bfloat16_short(bits)


@kernel
def _value(short, half):
    return _half_value(short) if half else _bfloat16_value(short)


@kernel
def _rest(value, sent):
    """The part of a value that was not sent; zero where `sent` is not finite.   sent: float32."""
    left = value - sent
    if u32(f32(sent).view(u32) & _SIZE) >= _INF:
        left = type(left)(0)
    return left


def _encoders(half: bool) -> tuple[Any, ...]:
    """The kernels that make float16 if `half`, else bfloat16. Numba's cache tells them apart by this constant."""

    @kernel
    def encode(values, out):
        """out = the bits of `values`, saturated. Returns how many were.   values: (n,); out: (n,) uint16."""
        overflows = u32(0)
        for k in range(values.size):
            out[k], saturated = _short(_odd_bits(values[k]), half)
            overflows = u32(overflows + u32(saturated))
        return overflows

    @kernel
    def encode_sum(values, residual, out):
        """encode of residual + values; residual = the part that is not in `out`."""
        overflows = u32(0)
        for k in range(out.size):
            value = residual[k] + values[k]
            short, saturated = _short(_odd_bits(value), half)
            out[k] = short
            residual[k] = _rest(value, _value(short, half))
            overflows = u32(overflows + u32(saturated))
        return overflows

    @kernel
    def encode_change(target, known, out):
        """encode of target - known; known += the values of `out`."""
        overflows = u32(0)
        for k in range(out.size):
            short, saturated = _short(_odd_bits(target[k] - known[k]), half)
            out[k] = short
            known[k] += _value(short, half)
            overflows = u32(overflows + u32(saturated))
        return overflows

    @kernel
    def encode_at(values, indices, out):
        """encode of values[indices]."""
        overflows = u32(0)
        for j in range(indices.size):
            out[j], saturated = _short(_odd_bits(values[indices[j]]), half)
            overflows = u32(overflows + u32(saturated))
        return overflows

    return encode, encode_sum, encode_change, encode_at


def _decoders(half: bool) -> tuple[Any, ...]:
    """The kernels that read what `_encoders` make."""

    @kernel
    def decode(payload, out):
        """out = the values of `payload`.   payload: (n,) uint16; out: (n,)."""
        for k in range(out.size):
            out[k] = _value(payload[k], half)

    @kernel
    def add(payload, out):
        """out += the values of `payload`."""
        for k in range(out.size):
            out[k] += _value(payload[k], half)

    @kernel
    def settle(payload, residual):
        """residual -= the values of `payload`; zero where these are not finite."""
        for k in range(residual.size):
            residual[k] = _rest(residual[k], _value(payload[k], half))

    return decode, add, settle


HALF, BFLOAT16 = (
    SimpleNamespace(**{kernel.__name__: kernel for kernel in (*_encoders(half), *_decoders(half))})
    for half in (True, False)
)


@kernel
def nth_largest(bits, n, histogram):
    """(least, equal): the n largest magnitudes are those beyond `least`, and `equal` of those that equal it.

    bits: (size,) unsigned; 0 < n <= size; histogram: (4, 2^DIGIT_BITS) int64, overwritten. A radix selection from the
    highest digit on. It ends once all remaining candidates are selected; `equal` is then `size`.
    """
    word = bits.dtype.type
    shift = word(8 * bits.itemsize - 1)
    mask = word(word(word(1) << shift) - word(1))
    prefix = word(0)
    while shift > 0:
        above, width = shift, min(word(DIGIT_BITS), shift)
        shift = word(shift - width)
        digits = word(word(word(1) << width) - word(1))
        histogram[:] = 0
        # Four histograms in rotation: similar magnitudes would make one counter wait for itself.
        for k in range(bits.size):
            size = word(bits[k] & mask)
            histogram[k & 3, word(word(size >> shift) & digits)] += word(size >> above) == prefix
        digit = np.int64(digits)
        while histogram[:, digit].sum() < n:
            n -= histogram[:, digit].sum()
            digit -= 1
        prefix = word(word(prefix << width) | word(digit))
        if histogram[:, digit].sum() == n:
            return word(prefix << shift), bits.size
    return prefix, n


@cast(Any, intrinsic)
def _first_bit(typingctx, marks):
    """The position of the lowest bit that is set in a uint64, which must not be 0."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), emit


@cast(Any, intrinsic)
def _marks(typingctx, address, least):  # pragma: no cover - Numba calls it
    """A bit for each of the 64 elements from an address on: whether its magnitude is at least `least`."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        address, least = arguments
        word, size = least.type, least.type.width
        vector = ir.VectorType(word, 64)
        bits = builder.load(builder.inttoptr(address, vector.as_pointer()), align=size // 8)
        magnitudes = builder.and_(bits, ir.Constant(vector, [(1 << (size - 1)) - 1] * 64))
        first = builder.insert_element(ir.Constant(vector, ir.Undefined), least, ir.Constant(ir.IntType(32), 0))
        every = builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(ir.IntType(32), 64), [0] * 64))
        return builder.bitcast(builder.icmp_signed(">=", magnitudes, every), ir.IntType(64))

    return types.uint64(types.int64, least), emit


@kernel
def find(bits, least, indices):
    """indices = the positions of magnitudes of at least `least`, as many as fit. Returns the number of all of them.

    bits: contiguous.
    """
    word = bits.dtype.type
    mask = word(word(~word(0)) >> word(1))
    j = 0
    for block in range(bits.size // 64):
        # Compared as vectors: a branch per element would be mispredicted too often.
        marks = _marks(bits.ctypes.data + 64 * block * bits.itemsize, word(least))
        while marks:
            if j < indices.size:
                indices[j] = 64 * block + _first_bit(marks)
            j += 1
            marks &= marks - np.uint64(1)
    for k in range(bits.size - bits.size % 64, bits.size):
        if word(bits[k] & mask) >= least:
            if j < indices.size:
                indices[j] = k
            j += 1
    return j


@kernel
def find_some(bits, least, equal, indices):
    """indices = the positions of magnitudes above `least`, and of the first `equal` ones that equal it."""
    word = bits.dtype.type
    mask = word(word(~word(0)) >> word(1))
    j = 0
    for k in range(bits.size):
        size = word(bits[k] & mask)
        if size >= least:
            if size == least:
                if equal == 0:
                    continue
                equal -= 1
            indices[j] = k
            j += 1


@kernel
def pick(values, indices, out):
    """out = values[indices]."""
    for j in range(indices.size):
        out[j] = values[indices[j]]


@kernel
def pack(indices, counts, offsets):
    """indices = 2^bits b + offsets, ascending, for offsets of `bits` bits; counts: indices per block b."""
    bits = 8 * offsets.itemsize
    mask = u32(u32(u32(1) << u32(bits)) - u32(1))
    for j in range(indices.size):
        offsets[j] = u32(indices[j] & mask)
    j = 0
    for b in range(counts.size):
        begin, end = j, (b + 1) << bits
        while j < indices.size and indices[j] < end:
            j += 1
        counts[b] = j - begin


def _scatter(settling: bool) -> Any:
    """out[indices] += kept, or -= as BFLOAT16.settle does.

    kept: bfloat16; counts and offsets: of `pack`, which must lie within `out`.
    """

    @kernel
    def scatter(counts, kept, offsets, out):
        bits, begin = 8 * offsets.itemsize, np.int64(0)
        for b in range(max(1, counts.size)):
            end = begin + np.int64(counts[b]) if counts.size else offsets.size
            block = out[b << bits :]
            for j in range(begin, end):
                place, value = offsets[j], _bfloat16_value(kept[j])
                block[place] = _rest(block[place], value) if settling else block[place] + value
            begin = end

    return scatter


scatter_add, scatter_settle = _scatter(False), _scatter(True)
