"""Tables of offsets with which the micro-kernel convolves images in place.

Kernels take them as plain tuples, because Numba takes several microseconds to type a NamedTuple that Python passes.

B images, H, W, C: height, width, channels; P = OH OW output positions; O filters; L = kw C, a line of the kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from singa_dask.ops.arrays import Array
from singa_dask.ops.cpu.convolution.micro_kernel import PANEL, ROWS, WEIGHTS
from singa_dask.ops.cpu.convolution.tables import best_block, grid, in_tiles, table
from singa_dask.ops.window import Window

# The most elements of a block of images: about half of a core's cache.
_BLOCK_ELEMENTS = 1 << 17
# Weights of a filter, and so tiles that read the same columns of dy, that make a copy of these worthwhile.
_WORTH_A_PANEL = 16 * WEIGHTS


@dataclass(frozen=True)
class _Part:
    """Neighbouring outputs along one axis for which the same part of the kernel lies on the image.

    first, count: outputs. source: pixel under the part of the kernel at the first one. begin, size: of that part.
    """

    first: int
    count: int
    source: int
    begin: int
    size: int


def _parts(output: int, size: int, kernel: int, stride: int, pad: int) -> list[_Part]:
    found: list[_Part] = []
    for o in range(output):
        low = min(kernel, max(0, pad - o * stride))
        high = max(low, min(kernel, size + pad - o * stride))
        if found and (low, high) == (found[-1].begin, found[-1].begin + found[-1].size) == (0, kernel):
            found[-1] = replace(found[-1], count=found[-1].count + 1)
        else:
            found.append(_Part(o, 1, o * stride + low - pad if high > low else 0, low, high - low))
    return found


class Gather(NamedTuple):
    """Tables of a forward convolution of `block` images at a time.

    Outputs are divided into regions that the same part of the kernel computes, so that nothing is padded and no
    product with padding is computed. regions: rows from, to; offset of x; lines of the kernel; elements of a line;
    first element of the kernel; offset of the result. rows: pixel under each position's first weight; runs: each line
    of the kernel; targets: each position's result; starts: the bias of each position; zeros: where there is no bias.
    """

    block: int
    regions: Array
    rows: Array
    runs: Array
    targets: Array
    starts: Array
    zeros: Array

    @classmethod
    def of(cls, shape: tuple[int, int, int], window: Window, filters: int, images: int) -> Gather:
        (height, width, channels), (kh, kw), (sh, sw) = shape, window.kernel, window.stride
        oh, ow = window.output_size(height, width)
        line, image = width * channels, height * width * channels
        vertical = _parts(oh, height, kh, sh, window.pad[0])
        horizontal = _parts(ow, width, kw, sw, window.pad[1])
        pairs = [(v, h) for v in vertical for h in horizontal]

        def work(n: int) -> float:
            return sum(in_tiles(n * v.count * h.count) * (v.size * h.size * channels + 4) for v, h in pairs)

        block = best_block(images, _BLOCK_ELEMENTS // image, work)
        rows, targets, regions, begin = [], [], [], 0
        for v, h in pairs:
            rows.append(table(grid((block, image), (v.count, sh * line), (h.count, sw * channels))))
            result = (block, oh * ow * filters), (v.count, ow * filters), (h.count, filters)
            targets.append(table(grid(*result)))
            end = begin + rows[-1].size
            source, element = v.source * line + h.source * channels, (v.begin * kw + h.begin) * channels
            place = (v.first * ow + h.first) * filters
            regions.append((begin, end, source, v.size, h.size * channels, element, place))
            begin = end
        return cls(
            block,
            np.array(regions, np.int64),
            np.concatenate(rows),
            grid((kh, line)),
            np.concatenate(targets),
            np.zeros(begin, np.int64),
            np.zeros(filters, np.float32),
        )


class WeightSums(NamedTuple):
    """Tables of the gradient for the weight.

    rows: pixel under each weight at the first position; runs: each line of positions; targets: offset of each weight;
    step: elements between pixels of neighbouring positions. padded, panel: the shapes of a block of padded images and
    of a panel of dy; empty where there are none.
    """

    pad: tuple[int, int]
    block: int
    rows: Array
    runs: Array
    targets: Array
    step: int
    padded: tuple[int, int, int, int]
    panel: tuple[int]

    @classmethod
    def of(cls, shape: tuple[int, int, int], window: Window, filters: int, images: int) -> WeightSums:
        (height, width, channels), (kh, kw), (sh, sw) = shape, window.kernel, window.stride
        oh, ow = window.output_size(height, width)
        ph, pw = window.pad
        h, w = height + 2 * ph, width + 2 * pw
        line, image = w * channels, h * w * channels
        block = max(1, min(images, _BLOCK_ELEMENTS // image))
        return cls(
            (ph, pw),
            block,
            table(grid((kh, line), (kw * channels, 1)), WEIGHTS),
            grid((block, image), (oh, sh * line)).reshape(-1),
            table(grid((kh * kw * channels, filters)), WEIGHTS),
            sw * channels,
            (block if any(window.pad) else 0, h, w, channels),
            (block * oh * ow * PANEL if filters > 2 * PANEL and kh * kw * channels >= _WORTH_A_PANEL else 0,),
        )


class Scatter(NamedTuple):
    """Tables of the gradient for the input where it is not a Gather.

    rows: dy of each position; targets: pixel under its first weight; lines: each line of the kernel, of `span`
    elements. A tile never has two positions in one row of an image, since their windows may overlap.
    """

    pad: tuple[int, int]
    block: int
    rows: Array
    lines: Array
    targets: Array
    span: int
    padded: tuple[int, int, int, int]

    @classmethod
    def of(cls, shape: tuple[int, int, int], window: Window, filters: int, images: int) -> Scatter:
        (height, width, channels), (kh, kw), (sh, sw) = shape, window.kernel, window.stride
        oh, ow = window.output_size(height, width)
        ph, pw = window.pad
        h, w = height + 2 * ph, width + 2 * pw
        line, image = w * channels, h * w * channels
        block = best_block(images, max(_BLOCK_ELEMENTS // image, -(-ROWS // oh)), lambda n: in_tiles(n * oh))
        rows = grid((ow, filters), (block, oh * ow * filters), (oh, ow * filters)).reshape(ow, -1)
        targets = grid((ow, sw * channels), (block, image), (oh, sh * line)).reshape(ow, -1)
        if block * oh < ROWS:
            rows, targets = (np.stack([table(column) for column in columns]) for columns in (rows, targets))
        return cls(
            (ph, pw),
            block,
            table(rows),
            grid((kh, line)),
            table(targets),
            kw * channels,
            (block if any(window.pad) else 0, h, w, channels),
        )
