"""Convolution by Winograd's algorithm: its workspace, its tables, and its passes by several threads.

B images, H, W, C: height, width, channels; O filters; r the window's size, m a tile's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import gcd

import numpy as np

from singa_dask.ops.arrays import Array
from singa_dask.ops.cpu import tables, workspace
from singa_dask.ops.cpu.kernels import numba_winograd
from singa_dask.ops.cpu.kernels.micro_kernel import PANEL, ROWS
from singa_dask.ops.cpu.kernels.vectors import VECTOR
from singa_dask.ops.cpu.kernels.winograd import SIZE, TILE
from singa_dask.ops.cpu.team import Team
from singa_dask.ops.cpu.workspace import LINE
from singa_dask.ops.window import Window

Shape = tuple[int, ...]

# Elements of a chunk's points: they should stay in the cache from one kernel to the next.
_CHUNK_ELEMENTS = 1 << 18
# Tiles below which too much of a product is the beginning and the end of its sums.
_LEAST_TILES = 48
# What the transforms of a tile take for a vector of channels, and of filters, in vector operations of a plain sum;
# such that both ways were measured to take the same time where they are counted the same.
_IMAGE_WORK, _OUTPUT_WORK = 500, 250
# The same of a vector of filters, for one channel.
_FILTER_WORK = 250


def suits(x_shape: Shape, window: Window, filters: int) -> bool:
    """Whether images (B, H, W, C) are convolved with less work this way than by the sums as they are."""
    (count, height, width, channels), size = x_shape, window.kernel[0]
    if window.kernel != (size, size) or size not in TILE or window.stride != (1, 1):
        return False
    oh, ow = window.output_size(height, width)
    tiles = -(-oh // TILE[size]) * -(-ow // TILE[size])
    sums = sum((h.stop - h.start) * (w.stop - w.start) for _, _, (h, w), _ in window.offsets(height, width))
    left, right = -(-channels // VECTOR), -(-filters // VECTOR)
    work = tiles * (SIZE**2 * channels * right + _IMAGE_WORK * left + _OUTPUT_WORK * right)
    return count * work + _FILTER_WORK * channels * right < count * sums * channels * right


def _row(channels: int) -> int:
    """Elements from row to row of points: whole lines of the cache, but not a multiple of eight, as the rows of a
    column would share few of its sets."""
    lines = -(-channels // LINE)
    return (lines + (lines % 8 == 0)) * LINE


@dataclass(frozen=True)
class _Points:
    """An array (SIZE^2, rows, columns) in a buffer of this shape: points an odd number of lines of the cache apart, as
    a tile's are written one after the other."""

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
    """What a thread has in its workspace: a block of padded images and outputs, and the points of a chunk of tiles."""

    images: Shape
    outputs: Shape
    xs: _Points
    ys: _Points

    @classmethod
    def of(cls, weight: Shape, images: int, down: int, across: int, tiles: int) -> _Block:
        """Of at most `images`, each with down x across tiles, for chunks of so many tiles."""
        size, _, channels, filters = weight
        tile, per_image = TILE[size], down * across
        # Images that together are whole tiles of the micro-kernel, where one alone would waste some of them.
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

    def parts(self, buffers: list[Array], t: int) -> tuple[Array, Array, Array, Array]:
        """images, xs, ys and outputs of thread t."""
        images, outputs, xs, ys = buffers[4 * t : 4 * t + 4]
        return images, self.xs.of(xs), self.ys.of(ys), outputs


@dataclass(frozen=True)
class WinogradConvolution:
    """A convolution of given shapes, for as many threads as there are spans of images.

    corner: of an image in a padded one. block: of the passes for output and input; weight_block: of that for the
    weight, whose sums have `sums` as points. x_rows, y_rows: tables of a block's tiles; x_channels, sums_channels:
    tables of the channels in a row of xs and in the sums.
    """

    spans: tuple[tuple[int, int], ...]
    tile: int
    corner: tuple[int, int]
    weight: Shape
    block: _Block
    weight_block: _Block
    sums: _Points
    x_rows: Array
    y_rows: Array
    x_channels: Array
    sums_channels: Array
    zero_rows: Array
    zeros: Array

    @classmethod
    def of(cls, x_shape: Shape, window: Window, filters: int, threads: int) -> WinogradConvolution:
        count, height, width, channels = x_shape
        size = window.kernel[0]
        weight, tile = (size, size, channels, filters), TILE[size]
        oh, ow = window.output_size(height, width)
        down, across = -(-oh // tile), -(-ow // tile)
        spans = tables.spans(count, threads)
        images = count // len(spans)
        tiles = max(_LEAST_TILES, _CHUNK_ELEMENTS // (SIZE**2 * (_row(channels) + _row(filters))))
        block = _Block.of(weight, images, down, across, tiles)
        # Sums are read and written once for every chunk: its points should not be less.
        tiles = max(tiles, channels * filters // (channels + filters))
        weight_block = _Block.of(weight, images, down, across, tiles)
        sums = _Points(channels, _row(filters))
        return cls(
            spans,
            tile,
            window.pad,
            weight,
            block,
            weight_block,
            sums,
            tables.grid((block.xs.rows, block.xs.columns)),
            tables.grid((block.ys.rows, block.ys.columns)),
            tables.table(tables.grid((channels, 1))),
            tables.table(tables.grid((channels, sums.columns))),
            np.zeros(max(block.xs.rows, tables.in_tiles(channels)), np.int64),
            np.zeros(max(block.xs.columns, block.ys.columns), np.float32),
        )

    @cached_property
    def elements(self) -> int:
        """Of a workspace."""
        passes = self._of_forward, self._of_weight, self._of_input
        return max(workspace.elements(*shapes) for shapes in passes)

    @property
    def _panels(self) -> _Points:
        """The packed filters' points."""
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
        """Every thread's sums, the gradient of every thread but the first, and blocks."""
        count = len(self.spans)
        return [self.sums.shape] * count + [self.weight] * (count - 1) + self.weight_block.shapes * count

    def forward(self, team: Team, x: Array, weight: Array, bias: Array | None, out: Array, buffer: Array) -> None:
        panels, *buffers = workspace.cut(buffer, *self._of_forward)
        panels, start = self._panels.of(panels), self.zeros if bias is None else bias
        self._share(team, weight.shape[2], lambda c: numba_winograd.spread_filters(weight, c.start, c.stop, panels))

        def images(t: int) -> None:
            numba_winograd.convolve(
                x, *self.spans[t], *self.corner, self.tile, panels, start, self.x_rows, self.y_rows, self.zeros,
                self.zero_rows, *self.block.parts(buffers, t), out,
            )  # fmt: skip

        team.run(len(self.spans), images)

    def backward_input(self, team: Team, dy: Array, weight: Array, dx: Array, buffer: Array) -> None:
        panels, turned, *buffers = workspace.cut(buffer, *self._of_input)
        panels = self._turned_panels.of(panels)

        def filters(run: slice) -> None:
            numba_winograd.turn_filters(weight, run.start, run.stop, turned)
            numba_winograd.spread_filters(turned, run.start, run.stop, panels)

        self._share(team, weight.shape[3], filters)

        def images(t: int) -> None:
            numba_winograd.convolve_backward_input(
                dy, *self.spans[t], *self.corner, self.tile, panels, self.y_rows, self.x_rows, self.zeros,
                self.zero_rows, *self.block.parts(buffers, t), dx,
            )  # fmt: skip

        team.run(len(self.spans), images)

    def backward_weight(
        self, team: Team, x: Array, dy: Array, dweight: Array, buffer: Array, accumulate: bool
    ) -> None:
        parts, count = workspace.cut(buffer, *self._of_weight), len(self.spans)
        targets, buffers = [dweight, *parts[count : 2 * count - 1]], parts[2 * count - 1 :]

        def images(t: int) -> None:
            sums = self.sums.of(parts[t])
            numba_winograd.convolve_backward_weight(
                x, dy, *self.spans[t], *self.corner, self.tile, self.x_channels, self.sums_channels,
                self.zeros, self.zero_rows, *self.weight_block.parts(buffers, t), sums,
            )  # fmt: skip
            numba_winograd.fold_filters(sums, accumulate and t == 0, self.zeros, targets[t])

        team.run(count, images)
        for part in targets[1:]:
            dweight += part

    def _share(self, team: Team, size: int, task: Callable[[slice], None]) -> None:
        """task(run) of runs of 0 ... size, by the threads."""
        team.share(size, min(len(self.spans), size), task)
