"""The passes of Winograd's convolution over blocks of images, and the transforms of its filters.

Arrays of points have them first, (SIZE^2, tiles, C), (SIZE^2, tiles, O) or (SIZE^2, C, O), and may be padded. `images`
(n, H', W', C) have a border of zeros, and zeros at the lower right that complete the last tiles; `outputs`
(n, H', W', O) are whole tiles. Tiles of images overlap by the size of a window less one; tiles of outputs do not.

Kernels take Tables and Buffers as plain tuples, because Numba takes several microseconds to type a NamedTuple that
Python passes.
"""

from typing import NamedTuple

from singa_dask.ops.arrays import Array
from singa_dask.ops.cpu.convolution.direct_kernels import products
from singa_dask.ops.cpu.convolution.micro_kernel import (
    FLOAT,
    PANEL,
    ROWS,
    GatheredMatrix,
    Panel,
    ScatteredRows,
    SumTerms,
)
from singa_dask.ops.cpu.convolution.padding_kernels import Images, clear, crop, pad
from singa_dask.ops.cpu.convolution.winograd_matrices import SIZE
from singa_dask.ops.cpu.convolution.winograd_transforms import (
    WinogradTile,
    fold_filter_3,
    fold_filter_5,
    fold_image,
    fold_output_2,
    fold_output_4,
    spread_filter_3,
    spread_filter_5,
    spread_image,
    spread_output_2,
    spread_output_4,
)
from singa_dask.ops.cpu.toolkit.numba_kernel import inlined, kernel, linked
from singa_dask.ops.cpu.toolkit.rows import StridedRows
from singa_dask.ops.cpu.toolkit.transpose import transpose
from singa_dask.ops.cpu.toolkit.vectors import VECTOR


class Tables(NamedTuple):
    """The constants of a convolution. corner: (top, left) of an image in a padded one. tile: outputs one way.

    x_rows, y_rows: rows of xs and ys for a block's tiles; x_channels, sums_channels: channels in a row of xs and in
    the sums. zero_rows: a table of zeros; zeros: a row of them.
    """

    corner: tuple[int, int]
    tile: int
    x_rows: Array
    y_rows: Array
    x_channels: Array
    sums_channels: Array
    zero_rows: Array
    zeros: Array


class Buffers(NamedTuple):
    """A thread's memory: a block of padded images and of outputs, and the points xs and ys of a chunk of tiles."""

    images: Array
    xs: Array
    ys: Array
    outputs: Array


class Tiles(NamedTuple):
    """Tiles first, ..., first + number - 1 of images that have down x across each, `step` rows and columns apart."""

    down: int
    across: int
    step: int
    first: int
    number: int


class Points(NamedTuple):
    """Transformed tiles: tile t at point k begins at address[k point + t line]."""

    address: int
    point: int
    line: int


@inlined
def _pixels(images, tiles, t, c):
    """Tile t of the images, from channel c on."""
    n = tiles.first + t
    image, y, x = n // (tiles.down * tiles.across), n // tiles.across % tiles.down, n % tiles.across
    corner = ((image * images.height + y * tiles.step) * images.width + x * tiles.step) * images.channels
    return WinogradTile(images.address + FLOAT * corner + FLOAT * c, images.width * images.channels, images.channels)


@inlined
def _points(points, t, c):
    """The points of tile t, from channel c on."""
    return WinogradTile(points.address + FLOAT * t * points.line + FLOAT * c, SIZE * points.point, points.point)


@linked
def _spread_images(images: Images, tiles: Tiles, points: Points):
    """points = the transforms of the tiles of images."""
    for t in range(tiles.number):
        for c in range(0, images.channels, VECTOR):
            lanes = min(VECTOR, images.channels - c)
            spread_image(_pixels(images, tiles, t, c), lanes, _points(points, t, c))


@linked
def _spread_outputs(outputs: Images, tiles: Tiles, points: Points):
    """points = the transforms of the tiles of outputs."""
    for t in range(tiles.number):
        for c in range(0, outputs.channels, VECTOR):
            lanes = min(VECTOR, outputs.channels - c)
            source, target = _pixels(outputs, tiles, t, c), _points(points, t, c)
            if tiles.step == 4:
                spread_output_4(source, lanes, target)
            else:
                spread_output_2(source, lanes, target)


@linked
def _fold_outputs(outputs: Images, tiles: Tiles, points: Points, start):
    """The tiles of outputs = start + the sums of their points.   start: the address of a bias."""
    for t in range(tiles.number):
        for c in range(0, outputs.channels, VECTOR):
            lanes = min(VECTOR, outputs.channels - c)
            source, target = _points(points, t, c), _pixels(outputs, tiles, t, c)
            begin = WinogradTile(start + FLOAT * c, 0, 0)
            if tiles.step == 4:
                fold_output_4(source, lanes, begin, target)
            else:
                fold_output_2(source, lanes, begin, target)


@linked
def _fold_images(images: Images, tiles: Tiles, points: Points):
    """The tiles of images += the sums of their points."""
    for t in range(tiles.number):
        for c in range(0, images.channels, VECTOR):
            target = _pixels(images, tiles, t, c)
            fold_image(_points(points, t, c), min(VECTOR, images.channels - c), target, target)


@inlined
def _in_vectors(columns):
    """The columns of a row of points, padded to whole vectors: products need no masks."""
    return columns + -columns % VECTOR


@inlined
def _images(array, b):
    """The images of an array, from image b on."""
    return Images(array.ctypes.data + b * array.strides[0], array.shape[1], array.shape[2], array.shape[3])


@inlined
def _opened(tables, buffers):
    """Images, outputs, xs and ys of the buffers, and the tiles down and across an image."""
    images, outputs = _images(buffers.images, 0), _images(buffers.outputs, 0)
    xs = Points(buffers.xs.ctypes.data, buffers.xs.strides[0] // FLOAT, buffers.xs.strides[1] // FLOAT)
    ys = Points(buffers.ys.ctypes.data, buffers.ys.strides[0] // FLOAT, buffers.ys.strides[1] // FLOAT)
    return images, outputs, xs, ys, outputs.height // tables.tile, outputs.width // tables.tile


@inlined
def _multiply(tables, count, left, rows, length, panels, target, places, columns):
    """target[t] = left[t] (the packed filters) for the points of `count` tiles t.

    rows, places: tables of the tiles' rows in left and target. length, columns: of the filters.
    """
    zero_rows = tables.zero_rows.ctypes.data
    for k in range(SIZE * SIZE):
        a = GatheredMatrix(left.address + FLOAT * k * left.point, rows.ctypes.data, 1)
        b = Panel(panels.ctypes.data + k * panels.strides[0], 0, PANEL)
        c = ScatteredRows(target.address + FLOAT * k * target.point, places.ctypes.data)
        start, runs = ScatteredRows(tables.zeros.ctypes.data, zero_rows), SumTerms(zero_rows, 1, length)
        products(a, count + -count % ROWS, runs, b, length * PANEL, start, c, _in_vectors(columns))


@kernel
def spread_filters(weight, first, stop, panels):
    """panels[:, o // PANEL, c, o % PANEL] = the transform of the filter weight[:, :, c, o], first <= c < stop."""
    size, _, channels, filters = weight.shape
    row, column, step = weight.strides[0] // FLOAT, weight.strides[1] // FLOAT, panels.strides[0] // FLOAT
    for c in range(first, stop):
        for o in range(0, filters, VECTOR):
            source = WinogradTile(weight.ctypes.data + FLOAT * (c * filters + o), row, column)
            to = panels.ctypes.data + FLOAT * ((o // PANEL * channels + c) * PANEL + o % PANEL)
            target, lanes = WinogradTile(to, SIZE * step, step), min(VECTOR, filters - o)
            if size == 3:
                spread_filter_3(source, lanes, target)
            else:
                spread_filter_5(source, lanes, target)


@kernel
def turn_filters(weight, first, stop, turned):
    """turned[i, j, o, c] = weight[i, j, c, o], first <= o < stop."""
    size, _, channels, filters = weight.shape
    for n in range(size * size):
        source = weight.ctypes.data + FLOAT * (n * channels * filters + first)
        target = turned.ctypes.data + FLOAT * (n * filters + first) * channels
        transpose(
            StridedRows(source, FLOAT * filters), channels, stop - first, StridedRows(target, FLOAT * channels), False
        )


@kernel
def fold_filters(points, accumulate, zeros, weight):
    """weight[:, :, c, o] = the sums of points[:, c, o], or weight += them."""
    size, _, channels, filters = weight.shape
    row, column, step = weight.strides[0] // FLOAT, weight.strides[1] // FLOAT, points.strides[0] // FLOAT
    for c in range(channels):
        for o in range(0, filters, VECTOR):
            at, lanes = points.ctypes.data + c * points.strides[1] + FLOAT * o, min(VECTOR, filters - o)
            source = WinogradTile(at, SIZE * step, step)
            to = weight.ctypes.data + FLOAT * (c * filters + o)
            begin, b_row, b_column = (to, row, column) if accumulate else (zeros.ctypes.data, 0, 0)
            start, target = WinogradTile(begin, b_row, b_column), WinogradTile(to, row, column)
            if size == 3:
                fold_filter_3(source, lanes, start, target)
            else:
                fold_filter_5(source, lanes, start, target)


@kernel
def convolve(x, span, tables, panels, bias, buffers, out):
    """out = bias + the convolution of the images in `span` (first, stop) of x.   tables: Tables; buffers: Buffers."""
    tables, buffers = Tables(*tables), Buffers(*buffers)
    images, outputs, xs, ys, down, across = _opened(tables, buffers)
    block, chunk, (top, left) = buffers.images.shape[0], buffers.xs.shape[1], tables.corner
    for b in range(span[0], span[1], block):
        n = min(block, span[1] - b)
        pad(_images(x, b), n, top, left, images)
        for t in range(0, n * down * across, chunk):
            count = min(chunk, n * down * across - t)
            tiles = Tiles(down, across, tables.tile, t, count)
            _spread_images(images, tiles, xs)
            _multiply(tables, count, xs, tables.x_rows, x.shape[3], panels, ys, tables.y_rows, out.shape[3])
            _fold_outputs(outputs, tiles, ys, bias.ctypes.data)
        crop(outputs, 0, 0, _images(out, b), n)


@kernel
def convolve_backward_input(dy, span, tables, panels, buffers, dx):
    """dx = the gradient for the images in `span`, as in `convolve`."""
    tables, buffers = Tables(*tables), Buffers(*buffers)
    images, outputs, xs, ys, down, across = _opened(tables, buffers)
    block, chunk, (top, left) = buffers.images.shape[0], buffers.xs.shape[1], tables.corner
    for b in range(span[0], span[1], block):
        n = min(block, span[1] - b)
        pad(_images(dy, b), n, 0, 0, outputs)
        clear(images.address, n * images.height * images.width * images.channels)
        for t in range(0, n * down * across, chunk):
            count = min(chunk, n * down * across - t)
            tiles = Tiles(down, across, tables.tile, t, count)
            _spread_outputs(outputs, tiles, ys)
            _multiply(tables, count, ys, tables.y_rows, dy.shape[3], panels, xs, tables.x_rows, dx.shape[3])
            _fold_images(images, tiles, xs)
        crop(images, top, left, _images(dx, b), n)


@kernel
def convolve_backward_weight(x, dy, span, tables, buffers, sums):
    """sums[k] = the sum over the tiles t of the images in `span` of xs[k, t]' ys[k, t], at every point k."""
    tables, buffers = Tables(*tables), Buffers(*buffers)
    images, outputs, xs, ys, down, across = _opened(tables, buffers)
    block, chunk, (top, left) = buffers.images.shape[0], buffers.xs.shape[1], tables.corner
    zero_rows, places = tables.zero_rows.ctypes.data, tables.sums_channels.ctypes.data
    # The first sum starts from zeros.
    start, step, starts = tables.zeros.ctypes.data, 0, zero_rows
    for b in range(span[0], span[1], block):
        n = min(block, span[1] - b)
        pad(_images(x, b), n, top, left, images)
        pad(_images(dy, b), n, 0, 0, outputs)
        for t in range(0, n * down * across, chunk):
            count = min(chunk, n * down * across - t)
            tiles = Tiles(down, across, tables.tile, t, count)
            _spread_images(images, tiles, xs)
            _spread_outputs(outputs, tiles, ys)
            for k in range(SIZE * SIZE):
                turned = GatheredMatrix(xs.address + FLOAT * k * xs.point, tables.x_channels.ctypes.data, xs.line)
                right = Panel(ys.address + FLOAT * k * ys.point, 0, ys.line)
                total = ScatteredRows(start + k * step, starts)
                target = ScatteredRows(sums.ctypes.data + k * sums.strides[0], places)
                rows, columns = tables.x_channels.size, _in_vectors(dy.shape[3])
                products(turned, rows, SumTerms(zero_rows, 1, count), right, PANEL, total, target, columns)
            start, step, starts = sums.ctypes.data, sums.strides[0], places
