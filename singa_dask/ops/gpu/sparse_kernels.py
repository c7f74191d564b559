"""CUDA kernels of the codecs that send some elements: the payloads of singa_dask.comm.codecs.sparse, byte by byte.

The n-th largest magnitude is found digit by digit, from the highest on (radix selection). Then each warp counts what
travels of its chunk of the values, one warp adds these numbers up, and each warp writes its chunk in its place.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from singa_dask.ops.gpu.codec_kernels import REST, decoding, encoding
from singa_dask.ops.gpu.warps import LANE, LANES

_WIDTHS = (11, 10, 10)  # bits of the digits of a magnitude of 31 bits
_DIGITS = 1 << max(_WIDTHS)
_COPIES = 16  # of a histogram: threads that add to the same number wait for each other
_CHUNK = 2048  # whole blocks of 256, of which 65,536 are whole chunks
_SIZE = "0x7fffffffu"

# What is behind what in a payload, in bytes, of `count` of `size` values; see _Layout.
_LAYOUT = """
    const bool dense = 128 * count >= size;
    const int shift = dense ? 8 : 16;
    const long long blocks = size > 1LL << shift ? (size + (1LL << shift) - 1) >> shift : 0;
    const long long values = 4 + blocks * (dense ? 2 : 4), offsets = values + 2 * count;
    const long long end = offsets + count * (dense ? 1 : 2);
"""
_READ = f"""
    const unsigned char *bytes = &payload[0];
    const long long count = *(const unsigned *)bytes;
    {_LAYOUT}
"""
_OF_DIGIT = f"sum = 0; for (int c = 0; c < {_COPIES}; ++c) sum += histogram[c * {_DIGITS} + digit];"


def _starts(length: str, count: str) -> str:
    """The sums of the numbers before each, by one warp, and that of all."""
    return f"""
    unsigned sum = 0;
    for (long long first = 0; first < {length}; first += 8 * LANES) {{
        const long long begin = first + 8 * lane;
        unsigned own[8], mine = 0;
        for (int n = 0; n < 8; ++n) {{
            const long long k = begin + n;
            own[n] = k < {length} ? {count} : 0u;
            mine += own[n];
        }}
        unsigned at = sum + before(lane, mine);
        for (int n = 0; n < 8; ++n) {{
            if (begin + n < {length}) starts[warp * ({length} + 1) + begin + n] = at;
            at += own[n];
        }}
        sum += total(mine);
    }}
    if (lane == 0) starts[warp * ({length} + 1) + {length}] = sum;
    """


def _scatter(change: str) -> tuple[str, str, str]:
    """A thread for each value that may have arrived. What lies beyond `out` makes it NaN, so that it shows."""
    return (
        "raw uint8 payload, raw uint32 starts, int64 nbytes, int64 size",
        "raw T out",
        f"""{_READ}
    if (end > nbytes) {{
        out[0] = T(nan(""));
    }} else if (i < count) {{
        long long block = 0, beyond = blocks;
        while (beyond - block > 1) {{
            const long long middle = (block + beyond) / 2;
            if (starts[middle] <= i) block = middle; else beyond = middle;
        }}
        const long long offset = dense ? bytes[offsets + i] : ((const unsigned short *)(bytes + offsets))[i];
        const long long place = (block << shift) + offset;
        const unsigned sent = ((const unsigned short *)(bytes + values))[i];
        {decoding("bfloat16")}
        if (place < size) {{ const T value = out[place]; out[place] = {change}; }} else out[0] = T(nan(""));
    }}
    """,
    )


KERNELS: dict[str, tuple[str, str, str]] = {
    # found: by digit, the digits before and how many are wanted of the values that begin with them.
    "sparse_digits": (
        "uint32 word, raw uint32 found, int32 number, int32 above, int32 shift, uint32 mask",
        "raw uint32 histogram",
        f"""
    const unsigned size = word & {_SIZE};
    if (number == 0 || size >> above == found[2 * number])
        atomicAdd(&histogram[(i / {LANES} % {_COPIES}) * {_DIGITS} + (size >> shift & mask)], 1u);
    """,
    ),
    "sparse_digit": (
        "raw uint32 histogram, int32 number, int32 width, uint32 all",
        "raw uint32 found",
        f"""{LANE}
    const int each = (1 << width) / LANES, last = (LANES - lane) * each;
    const unsigned prefix = number ? found[2 * number] : 0u, wanted = number ? found[2 * number + 1] : all;
    unsigned sum, mine = 0;
    for (int digit = last - each; digit < last; ++digit) {{ {_OF_DIGIT} mine += sum; }}
    unsigned larger = before(lane, mine);
    if (warp == 0 && larger < wanted && wanted <= larger + mine) {{
        int digit = last - 1;
        for (; digit > last - each; --digit) {{ {_OF_DIGIT} if (larger + sum >= wanted) break; larger += sum; }}
        found[2 * number + 2] = prefix << width | digit;
        found[2 * number + 3] = wanted - larger;
    }}
    """,
    ),
    # least: a magnitude, and how many of those that equal it travel beside the larger ones.
    "sparse_counts": (
        "raw uint32 words, raw uint32 least, int64 size, int64 chunks",
        "raw uint32 counts",
        f"""{LANE}
    const long long begin = warp * {_CHUNK}, end = begin + {_CHUNK} < size ? begin + {_CHUNK} : size;
    unsigned larger = 0, equal = 0;
    for (long long k = begin + lane; k < end; k += LANES) {{
        const unsigned magnitude = words[k] & {_SIZE};
        larger += magnitude > least[0];
        equal += magnitude == least[0];
    }}
    larger = total(larger);
    equal = total(equal);
    if (lane == 0) {{ counts[warp] = larger; counts[chunks + warp] = equal; }}
    """,
    ),
    "sparse_starts": (
        "raw uint32 counts, int64 length",
        "raw uint32 starts",
        LANE + _starts("length", "counts[warp * length + k]"),
    ),
    "sparse_write": (
        "raw T x, raw uint32 least, raw uint32 starts, int64 size, int64 count, int64 nbytes",
        "raw uint8 payload, raw uint64 overflows",
        f"""{LANE} {_LAYOUT}
    const long long chunks = (size + {_CHUNK - 1}) / {_CHUNK}, per_block = (1LL << shift) / {_CHUNK};
    const unsigned smallest = least[0], wanted = least[1];
    unsigned char *bytes = &payload[0];
    unsigned short *kept = (unsigned short *)(bytes + values);
    unsigned equal = starts[chunks + 1 + warp];
    long long j = starts[warp] + min(equal, wanted), begun = j;
    for (long long first = warp * {_CHUNK}; first < size && first < (warp + 1) * {_CHUNK}; first += LANES) {{
        const long long k = first + lane;
        const T value = k < size ? x[k] : T(0);
        const float as_float = value;
        unsigned word;
        memcpy(&word, &as_float, 4);
        const bool same = k < size && (word & {_SIZE}) == smallest;
        const unsigned rank = equal + before(lane, unsigned(same));
        const bool goes = (k < size && (word & {_SIZE}) > smallest) || (same && rank < wanted);
        const long long at = j + before(lane, unsigned(goes));
        if (goes) {{
            {encoding("bfloat16")}
            kept[at] = sent;
            if (dense) bytes[offsets + at] = k & 0xff;
            else ((unsigned short *)(bytes + offsets))[at] = k & 0xffff;
        }}
        equal += total(unsigned(same));
        j += total(unsigned(goes));
        if (lane == 0 && dense && blocks && ((first + LANES) % 256 == 0 || first + LANES >= size)) {{
            ((unsigned short *)(bytes + 4))[first / 256] = j - begun;
            begun = j;
        }}
    }}
    if (lane == 0 && !dense && blocks && warp % per_block == 0) {{
        const long long next = warp + per_block < chunks ? warp + per_block : chunks;
        ((unsigned *)(bytes + 4))[warp / per_block] = starts[next] + min(starts[chunks + 1 + next], wanted) - begun;
    }}
    if (lane == 0 && warp == 0) {{
        *(unsigned *)bytes = count;
        for (long long k = end; k < nbytes; ++k) bytes[k] = 0;
    }}
    """,
    ),
    "sparse_block_starts": (
        "raw uint8 payload, int64 size, int64 nbytes",
        "raw uint32 starts",
        f"""{LANE} {_READ}
    const long long length = end > nbytes ? 0 : blocks;
    {_starts("length", "dense ? ((const unsigned short *)(bytes + 4))[k] : ((const unsigned *)(bytes + 4))[k]")}
    """,
    ),
    "sparse_add": _scatter("value + T(arrives)"),
    "sparse_settle": _scatter(REST),
}


class SparseKernels:
    """The kernels on arrays of a GPU, of float32; overflows: on the GPU, (1,) uint64."""

    def __init__(self, kernels: Any, xp: Any) -> None:
        self._kernels, self._xp = kernels, xp
        self.overflows = xp.zeros(1, np.uint64)

    def nth_largest(self, values: Any, n: int) -> Any:
        """(2,) uint32: the n-th largest magnitude, and how many of those that equal it are among the n largest."""
        words, above = values.view(np.uint32), 31
        histograms = self._xp.zeros((len(_WIDTHS), _COPIES * _DIGITS), np.uint32)
        found = self._xp.empty((len(_WIDTHS) + 1, 2), np.uint32)
        for number, (width, histogram) in enumerate(zip(_WIDTHS, histograms, strict=True)):
            shift = above - width
            mask = np.uint32((1 << width) - 1)
            self._kernels.sparse_digits(words, found, number, above, shift, mask, histogram)
            self._kernels.sparse_digit(histogram, number, width, np.uint32(n), found, size=LANES)
            above = shift
        return found[-1]

    def starts(self, values: Any, least: Any) -> Any:
        """How many values of magnitudes above `least`, and that equal it, are before each chunk.   (2, chunks + 1)"""
        chunks = -(-values.size // _CHUNK)
        counts = self._xp.empty((2, chunks), np.uint32)
        self._kernels.sparse_counts(values.view(np.uint32), least, values.size, chunks, counts, size=LANES * chunks)
        starts = self._xp.empty((2, chunks + 1), np.uint32)
        self._kernels.sparse_starts(counts, chunks, starts, size=2 * LANES)
        return starts

    def write(self, values: Any, least: Any, starts: Any, count: int, payload: Any) -> None:
        """payload = the values of magnitudes above least[0], and the first least[1] that equal it."""
        size = LANES * -(-values.size // _CHUNK)
        self._kernels.sparse_write(
            values, least, starts, values.size, count, payload.size, payload, self.overflows, size=size
        )

    def add(self, payload: Any, out: Any, most: int) -> None:
        """out += the values of `payload`, of which there are `most` or fewer."""
        self._scatter(self._kernels.sparse_add, payload, out, most)

    def settle(self, payload: Any, residual: Any, most: int) -> None:
        """residual -= the values of `payload`; zero where these are not finite."""
        self._scatter(self._kernels.sparse_settle, payload, residual, most)

    def _scatter(self, kernel: Any, payload: Any, out: Any, most: int) -> None:
        starts = self._xp.empty(-(-out.size // 256) + 1, np.uint32)
        self._kernels.sparse_block_starts(payload, out.size, payload.size, starts, size=LANES)
        kernel(payload, starts, payload.size, out.size, out, size=most)
