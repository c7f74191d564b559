"""Convolution by Winograd's algorithm: its workspace, its tables, and its passes with several threads.

B images, H, W, C: height, width, channels; O filters; r the window's size, m a tile's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import gcd

import numpy as np

from singa_dask.ops.arrays import Array
from singa_dask.ops.cpu.convolution import tables, winograd_kernels
from singa_dask.ops.cpu.convolution.micro_kernel import PANEL, ROWS
from singa_dask.ops.cpu.convolution.winograd_kernels import Buffers, Tables
from singa_dask.ops.cpu.convolution.winograd_matrices import SIZE, TILE
from singa_dask.ops.cpu.toolkit import workspace
from singa_dask.ops.cpu.toolkit.team import Team
from singa_dask.ops.cpu.toolkit.vectors import VECTOR
from singa_dask.ops.cpu.toolkit.workspace import LINE
from singa_dask.ops.window import Window

Shape = tuple[int, ...]

# The most elements of a chunk's points, which should stay in the cache from one kernel to the next.
_CHUNK_ELEMENTS = 1 << 18
# The fewest tiles of a chunk: starting and storing its sums costs too much of a smaller product.
_LEAST_TILES = 48
# The cost of a tile's transforms for a vector of channels, and of filters, in vector operations of a direct sum.
# Measured: equal costs by this count take equal time.
_IMAGE_WORK, _OUTPUT_WORK = 500, 250
# The cost of transforming a vector of filters in one channel.
_FILTER_WORK = 250


def suits(x_shape: Shape, window: Window, filters: int) -> bool:
    """Whether images (B, H, W, C) are convolved with less work by Winograd's algorithm than by direct sums."""
    (count, height, width, channels), size = x_shape, window.kernel[0]
    if window.kernel != (size, size) or size not in TILE or window.stride != (1, 1):
        return False
    oh, ow = window.output_size(height, width)
    tiles = -(-oh // TILE[size]) * -(-ow // TILE[size])
    sums = sum((h.stop - h.start) * (w.stop - w.start) for _, (h, w), _ in window.offsets(height, width))
    left, right = -(-channels // VECTOR), -(-filters // VECTOR)
    work = tiles * (SIZE**2 * channels * right + _IMAGE_WORK * left + _OUTPUT_WORK * right)
    return count * work + _FILTER_WORK * channels * right < count * sums * channels * right


def _row(channels: int) -> int:
    """Elements from row to row of points: whole cache lines, but not a multiple of eight of them, with which the rows
    of a column would share few sets of the cache."""
    lines = -(-channels // LINE)
    return (lines + (lines % 8 == 0)) * LINE


@dataclass(frozen=True)
class _Points:
    """An array (SIZE^2, rows, columns) in a buffer of this shape.

    Points are an odd number of cache lines apart, since those of a tile are written one after the other.
    """

    rows: int
    columns: int

    @property
    def shape(self) -> Shape:
        lines = self.rows * self.columns // LINE
        return SIZE**2, (lines + (lines % 2 == 0)) * LINE

    def of(self, buffer: Array) -> Array:
        return buffer[:, : self.rows * self.columns].reshape(SIZE**2, self.rows, self.columns)


def _packed(rows: int, columns: int) -> _Points:
    """Panels of matrices (rows, columns)."""
    return _Points(tables.panels(columns) * rows, PANEL)


@dataclass(frozen=True)
class _Block:
    """A thread's workspace: a block of padded images and outputs, and the points of a chunk of tiles."""

    images: Shape
    outputs: Shape
    xs: _Points
    ys: _Points

    @classmethod
    def of(cls, weight: Shape, images: int, down: int, across: int, tiles: int) -> _Block:
        """For at most `images`, each with down x across tiles, in chunks of at most `tiles` tiles."""
        size, _, channels, filters = weight
        tile, per_image = TILE[size], down * across
        # A multiple of images that fill whole tiles of the micro-kernel, where one image would waste some rows.
        step = ROWS // gcd(per_image, ROWS) if per_image < 8 * ROWS else 1
        count = min(images, -(-tiles // (per_image * step)) * step)
        rows = min(tiles // ROWS * ROWS, tables.in_tiles(count * per_image))
        return cls(
            (count, down * tile + size - 1, across * tile + size - 1, channels),
            (count, down * tile, across * tile, filters),
            _Points(rows, _row(channels)),
            _Points(rows, _row(filters)),
        )

    @property
    def shapes(self) -> list[Shape]:
        return [self.images, self.outputs, self.xs.shape, self.ys.shape]

    def buffers(self, parts: list[Array], t: int) -> Buffers:
        """The memory of thread t."""
        images, outputs, xs, ys = parts[4 * t : 4 * t + 4]
        return Buffers(images, self.xs.of(xs), self.ys.of(ys), outputs)


@dataclass(frozen=True)
class WinogradConvolution:
    """A convolution of given shapes, with one thread for each span of images.

    block: of the passes for output and input; weight_block: of the pass for the weight, which sums up in the points
    `sums`.
    """

    spans: tuple[tuple[int, int], ...]
    weight: Shape
    block: _Block
    weight_block: _Block
    sums: _Points
    tables: Tables

    @classmethod
    def of(cls, x_shape: Shape, window: Window, filters: int, threads: int) -> WinogradConvolution:
        count, height, width, channels = x_shape
        size = window.kernel[0]
        weight, tile = (size, size, channels, filters), TILE[size]
        (oh, ow), (ph, pw) = window.output_size(height, width), window.pad
        down, across = -(-oh // tile), -(-ow // tile)
        spans = tables.spans(count, threads)
        images = count // len(spans)
        tiles = max(_LEAST_TILES, _CHUNK_ELEMENTS // (SIZE**2 * (_row(channels) + _row(filters))))
        block = _Block.of(weight, images, down, across, tiles)
        # Sums are read and written once per chunk, whose points should not be smaller.
        tiles = max(tiles, channels * filters // (channels + filters))
        weight_block = _Block.of(weight, images, down, across, tiles)
        sums = _Points(channels, _row(filters))
        constants = Tables(
            corner=(ph, pw),
            tile=tile,
            x_rows=tables.grid((block.xs.rows, block.xs.columns)),
            y_rows=tables.grid((block.ys.rows, block.ys.columns)),
            x_channels=tables.table(tables.grid((channels, 1))),
            sums_channels=tables.table(tables.grid((channels, sums.columns))),
            zero_rows=np.zeros(max(block.xs.rows, tables.in_tiles(channels)), np.int64),
            zeros=np.zeros(max(block.xs.columns, block.ys.columns), np.float32),
        )
        return cls(spans, weight, block, weight_block, sums, constants)

    @cached_property
    def elements(self) -> int:
        """The size of a workspace."""
        passes = self._of_forward, self._of_weight, self._of_input
        return max(workspace.elements(*shapes) for shapes in passes)

    @property
    def _panels(self) -> _Points:
        """The points of the packed filters."""
        return _packed(*self.weight[2:])

    @property
    def _turned_panels(self) -> _Points:
        return _packed(*self.weight[:1:-1])

    @cached_property
    def _of_forward(self) -> list[Shape]:
        return [self._panels.shape, *self.block.shapes * len(self.spans)]

    @cached_property
    def _of_input(self) -> list[Shape]:
        size, _, channels, filters = self.weight
        return [self._turned_panels.shape, (size, size, filters, channels), *self.block.shapes * len(self.spans)]

    @cached_property
    def _of_weight(self) -> list[Shape]:
        """Every thread's sums, the gradients of all threads but the first, and blocks."""
        count = len(self.spans)
        return [self.sums.shape] * count + [self.weight] * (count - 1) + self.weight_block.shapes * count

    def forward(self, team: Team, x: Array, weight: Array, bias: Array | None, out: Array, buffer: Array) -> None:
        panels, *parts = workspace.cut(buffer, *self._of_forward)
        panels, start = self._panels.of(panels), self.tables.zeros if bias is None else bias
        self._share(team, weight.shape[2], lambda c: winograd_kernels.spread_filters(weight, c.start, c.stop, panels))

        def images(t: int) -> None:
            memory = tuple(self.block.buffers(parts, t))
            winograd_kernels.convolve(x, self.spans[t], tuple(self.tables), panels, start, memory, out)

        team.run(len(self.spans), images)

    def backward_input(self, team: Team, dy: Array, weight: Array, dx: Array, buffer: Array) -> None:
        panels, turned, *parts = workspace.cut(buffer, *self._of_input)
        panels = self._turned_panels.of(panels)

        def filters(run: slice) -> None:
            winograd_kernels.turn_filters(weight, run.start, run.stop, turned)
            winograd_kernels.spread_filters(turned, run.start, run.stop, panels)

        self._share(team, weight.shape[3], filters)

        def images(t: int) -> None:
            memory = tuple(self.block.buffers(parts, t))
            winograd_kernels.convolve_backward_input(dy, self.spans[t], tuple(self.tables), panels, memory, dx)

        team.run(len(self.spans), images)

    def backward_weight(
        self, team: Team, x: Array, dy: Array, dweight: Array, buffer: Array, accumulate: bool
    ) -> None:
        parts, count = workspace.cut(buffer, *self._of_weight), len(self.spans)
        targets, blocks = [dweight, *parts[count : 2 * count - 1]], parts[2 * count - 1 :]

        def images(t: int) -> None:
            sums, memory = self.sums.of(parts[t]), tuple(self.weight_block.buffers(blocks, t))
            winograd_kernels.convolve_backward_weight(x, dy, self.spans[t], tuple(self.tables), memory, sums)
            winograd_kernels.fold_filters(sums, accumulate and t == 0, self.tables.zeros, targets[t])

        team.run(count, images)
        for part in targets[1:]:
            dweight += part

    def _share(self, team: Team, size: int, task: Callable[[slice], None]) -> None:
        """Run task(share) on shares of 0 ... size, by the threads."""
        team.share(size, min(len(self.spans), size), task)
