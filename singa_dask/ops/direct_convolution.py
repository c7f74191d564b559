"""What convolution without a buffer of columns needs to know of its shapes: tables of offsets, and its workspace.

B images, H, W, C: height, width, channels; P = OH OW output positions; O filters; L = kw C, a line of the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from singa_dask.ops.micro_kernel import PANEL, ROWS
from singa_dask.ops.window import Window

Array = Any

# Elements that a block's images may take: about half of a core's cache.
_BLOCK_ELEMENTS = 1 << 17
# Positions of the same convolution as gather for each of the scatter, up to which gather is the faster one.
_GATHER_LIMIT = 1.3
# Weights of a filter, so tiles that read the same columns of dy, from which on a copy of these pays.
_WORTH_A_PANEL = 16 * ROWS
_CACHE_LINE = 16


def _table(offsets: Array) -> Array:
    """Offsets as the micro-kernel reads them: flat, and the last one repeated up to a multiple of ROWS."""
    flat = np.asarray(offsets, np.int64).reshape(-1)
    return np.concatenate([flat, np.repeat(flat[-1:], -flat.size % ROWS)])


def _grid(*axes: tuple[int, int]) -> Array:
    """Offsets of all index combinations of axes (count, step), the first axis slowest."""
    total = np.zeros((), np.int64)
    for count, step in axes:
        total = total[..., None] + np.arange(count, dtype=np.int64) * step
    return total


def _block(images: int, most: int, work: Callable[[int], float]) -> int:
    """How many images to compute together, so that little of the tiles is wasted. work: of a block of n images."""
    candidates = range(1, max(1, min(images, most, 2 * ROWS)) + 1)
    return min(candidates, key=lambda n: -(-images // n) * work(n))


def _in_tiles(rows: int) -> int:
    return rows + -rows % ROWS


@dataclass(frozen=True)
class _Part:
    """Neighbouring outputs along one axis below which the same part of the kernel lies on the image.

    first, count: outputs. source: pixel under the kernel's part at the first one. begin, size: of the kernel's part.
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


@dataclass(frozen=True)
class Gather:
    """Tables of a forward convolution, of `block` images at a time, in regions of outputs that the same part of the
    kernel makes, so that nothing is padded and no product with padding is computed.

    regions: rows from, to; offset of x; lines of the kernel; elements of a line; element of the kernel to begin with;
    offset of the result. rows: pixel under each position's first weight; runs: each line of the kernel; targets: each
    position's result; starts, zeros: where there is no bias.
    """

    block: int
    regions: Array
    rows: Array
    runs: Array
    targets: Array
    starts: Array
    zeros: Array
    padded: int = 0

    @classmethod
    def of(cls, shape: tuple[int, int, int], window: Window, filters: int, images: int) -> Gather:
        (height, width, channels), (kh, kw), (sh, sw) = shape, window.kernel, window.stride
        oh, ow = window.output_size(height, width)
        line, image = width * channels, height * width * channels
        vertical = _parts(oh, height, kh, sh, window.pad[0])
        horizontal = _parts(ow, width, kw, sw, window.pad[1])
        pairs = [(v, h) for v in vertical for h in horizontal]

        def work(n: int) -> float:
            return sum(_in_tiles(n * v.count * h.count) * (v.size * h.size * channels + 4) for v, h in pairs)

        block = _block(images, _BLOCK_ELEMENTS // image, work)
        rows, targets, regions, begin = [], [], [], 0
        for v, h in pairs:
            rows.append(_table(_grid((block, image), (v.count, sh * line), (h.count, sw * channels))))
            result = (block, oh * ow * filters), (v.count, ow * filters), (h.count, filters)
            targets.append(_table(_grid(*result)))
            end = begin + rows[-1].size
            source, element = v.source * line + h.source * channels, (v.begin * kw + h.begin) * channels
            place = (v.first * ow + h.first) * filters
            regions.append((begin, end, source, v.size, h.size * channels, element, place))
            begin = end
        return cls(
            block,
            np.array(regions, np.int64),
            np.concatenate(rows),
            _grid((kh, line)),
            np.concatenate(targets),
            np.zeros(begin, np.int64),
            np.zeros(filters, np.float32),
        )


@dataclass(frozen=True)
class WeightSums:
    """Tables of the gradient for the weight.

    rows: pixel under each weight at the first position; runs: each line of positions; targets: each weight's place;
    step: between pixels of neighbouring positions. padded, panel: elements of a block of padded images, and of a
    panel of dy, where there are such.
    """

    pad: tuple[int, int]
    block: int
    rows: Array
    runs: Array
    targets: Array
    step: int
    padded: int
    panel: int

    @classmethod
    def of(cls, shape: tuple[int, int, int], window: Window, filters: int, images: int) -> WeightSums:
        (height, width, channels), (kh, kw), (sh, sw) = shape, window.kernel, window.stride
        oh, ow = window.output_size(height, width)
        h, w = height + 2 * window.pad[0], width + 2 * window.pad[1]
        line, image = w * channels, h * w * channels
        block = max(1, min(images, _BLOCK_ELEMENTS // image))
        return cls(
            window.pad,
            block,
            _table(_grid((kh, line), (kw * channels, 1))),
            _grid((block, image), (oh, sh * line)).reshape(-1),
            _table(_grid((kh * kw * channels, filters))),
            sw * channels,
            block * image if any(window.pad) else 0,
            block * oh * ow * PANEL if filters > 2 * PANEL and kh * kw * channels >= _WORTH_A_PANEL else 0,
        )


@dataclass(frozen=True)
class Scatter:
    """Tables of the gradient for the input where it is not a gather.

    rows: dy of each position; targets: pixel under its first weight; lines: each line of the kernel. A tile never has
    two positions of the same row of an image, as their windows may overlap.
    """

    pad: tuple[int, int]
    block: int
    rows: Array
    lines: Array
    targets: Array
    span: int
    padded: int

    @classmethod
    def of(cls, shape: tuple[int, int, int], window: Window, filters: int, images: int) -> Scatter:
        (height, width, channels), (kh, kw), (sh, sw) = shape, window.kernel, window.stride
        oh, ow = window.output_size(height, width)
        h, w = height + 2 * window.pad[0], width + 2 * window.pad[1]
        line, image = w * channels, h * w * channels
        block = _block(images, max(_BLOCK_ELEMENTS // image, -(-ROWS // oh)), lambda n: _in_tiles(n * oh))
        rows = _grid((ow, filters), (block, oh * ow * filters), (oh, ow * filters)).reshape(ow, -1)
        targets = _grid((ow, sw * channels), (block, image), (oh, sh * line)).reshape(ow, -1)
        if block * oh < ROWS:
            rows, targets = (np.stack([_table(column) for column in table]) for table in (rows, targets))
        return cls(
            window.pad,
            block,
            _table(rows),
            _grid((kh, line)),
            _table(targets),
            kw * channels,
            block * image if any(window.pad) else 0,
        )


def _transposed(window: Window, height: int, width: int) -> Window | None:
    """The window over dy whose convolution with the turned weight gives dx; None where it would be slower, or none."""
    (kh, kw), (ph, pw) = window.kernel, window.pad
    oh, ow = window.output_size(height, width)
    if window.stride != (1, 1) or ph >= kh or pw >= kw or height * width > _GATHER_LIMIT * oh * ow:
        return None
    return Window(window.kernel, (1, 1), (kh - 1 - ph, kw - 1 - pw))


@dataclass(frozen=True)
class Parts:
    """A workspace's parts. panels: packed weights; per thread padded: a block of images, and behind it a panel of dy;
    sums: weight gradients."""

    panels: Array
    padded: Array
    sums: Array


@dataclass(frozen=True)
class Plan:
    """Everything about a convolution of given shapes that stays the same from step to step.

    spans: the images of each thread.
    """

    spans: tuple[tuple[int, int], ...]
    forward: Gather
    weight: WeightSums
    backward: Gather | Scatter
    panels: int
    padded: int
    sums: int

    @property
    def elements(self) -> int:
        """Of a workspace."""
        return _CACHE_LINE + self.panels + len(self.spans) * self.padded + (len(self.spans) - 1) * self.sums

    def parts(self, workspace: Array) -> Parts:
        """The parts of a workspace of at least `elements`; what is packed begins with a line of the cache."""
        begin = -(workspace.ctypes.data // workspace.itemsize) % _CACHE_LINE
        count = len(self.spans)
        shapes = (1, self.panels), (count, self.padded), (count - 1, self.sums)
        panels, padded, sums = _cut(workspace, begin, shapes)
        return Parts(panels[0], padded, sums)

    def panels_of(self, workspace: Array, columns: int, lines: int) -> Array:
        """The part of a workspace for so many lines of packed weights, in as many panels as the columns need."""
        return self.parts(workspace).panels[: _panels(columns, lines)]


def _cut(array: Array, begin: int, shapes: tuple[tuple[int, int], ...]) -> Iterator[Array]:
    for rows, size in shapes:
        yield array[begin : begin + rows * size].reshape(rows, size)
        begin += rows * size


@lru_cache(maxsize=512)
def plan(x_shape: tuple[int, ...], window: Window, filters: int, threads: int) -> Plan:
    """The plan for images of `x_shape` (B, H, W, C), shared by up to `threads` threads."""
    count, height, width, channels = x_shape
    sample, (kh, kw) = (height, width, channels), window.kernel
    members = max(1, min(threads, count))
    bounds = [count * t // members for t in range(members + 1)]
    images = count // members
    forward = Gather.of(sample, window, filters, images)
    weight = WeightSums.of(sample, window, filters, images)
    turned = _transposed(window, height, width)
    output = (*window.output_size(height, width), filters)
    backward: Gather | Scatter
    if turned:
        backward, columns, lines = Gather.of(output, turned, channels, images), channels, kh * kw * filters
    else:
        backward, columns, lines = Scatter.of(sample, window, filters, images), kw * channels, kh * filters
    panels = max(_panels(filters, kh * kw * channels), _panels(columns, lines))
    return Plan(
        tuple(pairwise(bounds)),
        forward,
        weight,
        backward,
        panels,
        max(weight.padded + weight.panel, backward.padded),
        kh * kw * channels * filters,
    )


def _panels(columns: int, lines: int) -> int:
    return -(-columns // PANEL) * PANEL * lines
