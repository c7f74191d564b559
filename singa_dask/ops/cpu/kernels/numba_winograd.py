"""The passes of Winograd's convolution over blocks of images, and the transforms of its filters.

Arrays of points have them first, (SIZE^2, tiles, C), (SIZE^2, tiles, O) or (SIZE^2, C, O); points and rows may lie
further apart than they are long. `images` (n, H', W', C) have a border of zeros, and zeros at the lower right until
whole tiles fit; `outputs` (n, H', W', O) are a multiple of `tile` wide and high. Tiles of images overlap, by the size
of a window less one; tiles of outputs do not.
"""

from singa_dask.ops.cpu.kernels.micro_kernel import PANEL, ROWS
from singa_dask.ops.cpu.kernels.numba_kernel import inlined, kernel, linked
from singa_dask.ops.cpu.kernels.numba_padding import clear, crop, pad
from singa_dask.ops.cpu.kernels.numba_products import products
from singa_dask.ops.cpu.kernels.tile_transform import (
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
from singa_dask.ops.cpu.kernels.transpose import transpose
from singa_dask.ops.cpu.kernels.vectors import VECTOR
from singa_dask.ops.cpu.kernels.winograd import SIZE

_FLOAT = 4


# Linked functions take addresses of pixels, images or outputs (n, height, width, channels), whose tiles, down x across
# in each, begin `step` rows and columns apart; and of points, `point` elements apart, two tiles' `line` apart.


@inlined
def _corner(t, height, width, channels, down, across, step):
    """Elements from the first pixel to tile t."""
    image, y, x = t // (down * across), t // across % down, t % across
    return ((image * height + y * step) * width + x * step) * channels


@linked
def _spread_images(pixels, height, width, channels, down, across, step, first, count, points, point, line):
    """points[:, t] = the transform of tile first + t of images, t < count."""
    row, column = width * channels, channels
    for t in range(count):
        tile = _corner(first + t, height, width, channels, down, across, step)
        source, target = pixels + _FLOAT * tile, points + _FLOAT * t * line
        for c in range(0, channels, VECTOR):
            at, to, lanes = source + _FLOAT * c, target + _FLOAT * c, min(VECTOR, channels - c)
            spread_image(at, row, column, lanes, to, SIZE * point, point)


@linked
def _spread_outputs(pixels, height, width, channels, down, across, step, first, count, points, point, line):
    """points[:, t] = the transform of tile first + t of outputs, t < count."""
    row, column = width * channels, channels
    for t in range(count):
        tile = _corner(first + t, height, width, channels, down, across, step)
        source, target = pixels + _FLOAT * tile, points + _FLOAT * t * line
        for c in range(0, channels, VECTOR):
            at, to, lanes = source + _FLOAT * c, target + _FLOAT * c, min(VECTOR, channels - c)
            if step == 4:
                spread_output_4(at, row, column, lanes, to, SIZE * point, point)
            else:
                spread_output_2(at, row, column, lanes, to, SIZE * point, point)


@linked
def _fold_outputs(pixels, height, width, channels, down, across, step, first, count, points, point, line, start):
    """Tile first + t of outputs = start + the sums of points[:, t], t < count.   start: the address of a bias."""
    row, column = width * channels, channels
    for t in range(count):
        tile = _corner(first + t, height, width, channels, down, across, step)
        source, target = points + _FLOAT * t * line, pixels + _FLOAT * tile
        for c in range(0, channels, VECTOR):
            at, to, lanes = source + _FLOAT * c, target + _FLOAT * c, min(VECTOR, channels - c)
            if step == 4:
                fold_output_4(at, SIZE * point, point, lanes, start + _FLOAT * c, 0, 0, to, row, column)
            else:
                fold_output_2(at, SIZE * point, point, lanes, start + _FLOAT * c, 0, 0, to, row, column)


@linked
def _fold_images(pixels, height, width, channels, down, across, step, first, count, points, point, line):
    """Tile first + t of images += the sums of points[:, t], t < count."""
    row, column = width * channels, channels
    for t in range(count):
        tile = _corner(first + t, height, width, channels, down, across, step)
        source, target = points + _FLOAT * t * line, pixels + _FLOAT * tile
        for c in range(0, channels, VECTOR):
            at, to, lanes = source + _FLOAT * c, target + _FLOAT * c, min(VECTOR, channels - c)
            fold_image(at, SIZE * point, point, lanes, to, row, column, to, row, column)


@inlined
def _in_vectors(columns):
    """Rows of points have so many columns, those past their last one too: products need no masks."""
    return columns + -columns % VECTOR


@kernel
def spread_filters(weight, first, stop, panels):
    """panels[:, o // PANEL, c, o % PANEL] = the transform of the filter weight[:, :, c, o], first <= c < stop."""
    size, _, channels, filters = weight.shape
    row, column, step = weight.strides[0] // _FLOAT, weight.strides[1] // _FLOAT, panels.strides[0] // _FLOAT
    for c in range(first, stop):
        for o in range(0, filters, VECTOR):
            at, lanes = weight.ctypes.data + _FLOAT * (c * filters + o), min(VECTOR, filters - o)
            to = panels.ctypes.data + _FLOAT * ((o // PANEL * channels + c) * PANEL + o % PANEL)
            if size == 3:
                spread_filter_3(at, row, column, lanes, to, SIZE * step, step)
            else:
                spread_filter_5(at, row, column, lanes, to, SIZE * step, step)


@kernel
def turn_filters(weight, first, stop, turned):
    """turned[i, j, o, c] = weight[i, j, c, o], first <= o < stop."""
    size, _, channels, filters = weight.shape
    for n in range(size * size):
        source = weight.ctypes.data + _FLOAT * (n * channels * filters + first)
        target = turned.ctypes.data + _FLOAT * (n * filters + first) * channels
        transpose(source, _FLOAT * filters, channels, stop - first, target, _FLOAT * channels, False)


@kernel
def fold_filters(points, accumulate, zeros, weight):
    """weight[:, :, c, o] = the sums of points[:, c, o], or weight += them."""
    size, _, channels, filters = weight.shape
    row, column, step = weight.strides[0] // _FLOAT, weight.strides[1] // _FLOAT, points.strides[0] // _FLOAT
    for c in range(channels):
        for o in range(0, filters, VECTOR):
            at, lanes = points.ctypes.data + c * points.strides[1] + _FLOAT * o, min(VECTOR, filters - o)
            to = weight.ctypes.data + _FLOAT * (c * filters + o)
            begin, b_row, b_column = (to, row, column) if accumulate else (zeros.ctypes.data, 0, 0)
            if size == 3:
                fold_filter_3(at, SIZE * step, step, lanes, begin, b_row, b_column, to, row, column)
            else:
                fold_filter_5(at, SIZE * step, step, lanes, begin, b_row, b_column, to, row, column)


@kernel
def convolve(
    x, first, stop, top, left, tile, panels, bias, rows, targets, zeros, zero_rows, images, xs, ys, outputs, out
):
    """out = bias + the convolution of images [first, stop) of x, which lie at `top`, `left` in padded ones."""
    _, height, width, channels = x.shape
    _, out_height, out_width, filters = out.shape
    block, padded_height, padded_width, _ = images.shape
    _, tiled_height, tiled_width, _ = outputs.shape
    down, across = tiled_height // tile, tiled_width // tile
    x_point, x_line = xs.strides[0] // _FLOAT, xs.strides[1] // _FLOAT
    y_point, y_line = ys.strides[0] // _FLOAT, ys.strides[1] // _FLOAT
    panel, chunk = panels.strides[0] // _FLOAT, xs.shape[1]
    for b in range(first, stop, block):
        n = min(block, stop - b)
        source = x.ctypes.data + _FLOAT * b * height * width * channels
        pad(source, n, height, width, channels, top, left, images.ctypes.data, padded_height, padded_width)
        for t in range(0, n * down * across, chunk):
            count = min(chunk, n * down * across - t)
            _spread_images(
                images.ctypes.data, padded_height, padded_width, channels, down, across, tile, t, count,
                xs.ctypes.data, x_point, x_line,
            )  # fmt: skip
            for k in range(SIZE * SIZE):
                products(
                    xs.ctypes.data + _FLOAT * k * x_point, rows.ctypes.data, count + -count % ROWS, 1,
                    zero_rows.ctypes.data, 1, channels, panels.ctypes.data + _FLOAT * k * panel, 0, PANEL,
                    channels * PANEL, zeros.ctypes.data, zero_rows.ctypes.data,
                    ys.ctypes.data + _FLOAT * k * y_point, targets.ctypes.data, _in_vectors(filters),
                )  # fmt: skip
            _fold_outputs(
                outputs.ctypes.data, tiled_height, tiled_width, filters, down, across, tile, t, count,
                ys.ctypes.data, y_point, y_line, bias.ctypes.data,
            )  # fmt: skip
        target = out.ctypes.data + _FLOAT * b * out_height * out_width * filters
        crop(outputs.ctypes.data, tiled_height, tiled_width, 0, 0, target, n, out_height, out_width, filters)


@kernel
def convolve_backward_input(
    dy, first, stop, top, left, tile, panels, rows, targets, zeros, zero_rows, images, xs, ys, outputs, dx
):
    """dx = the gradient for images [first, stop); arrays as in `convolve`, C and O, rows and targets exchanged."""
    _, height, width, channels = dx.shape
    _, out_height, out_width, filters = dy.shape
    block, padded_height, padded_width, _ = images.shape
    _, tiled_height, tiled_width, _ = outputs.shape
    down, across = tiled_height // tile, tiled_width // tile
    x_point, x_line = xs.strides[0] // _FLOAT, xs.strides[1] // _FLOAT
    y_point, y_line = ys.strides[0] // _FLOAT, ys.strides[1] // _FLOAT
    panel, chunk = panels.strides[0] // _FLOAT, xs.shape[1]
    for b in range(first, stop, block):
        n = min(block, stop - b)
        source = dy.ctypes.data + _FLOAT * b * out_height * out_width * filters
        pad(source, n, out_height, out_width, filters, 0, 0, outputs.ctypes.data, tiled_height, tiled_width)
        clear(images.ctypes.data, n * padded_height * padded_width * channels)
        for t in range(0, n * down * across, chunk):
            count = min(chunk, n * down * across - t)
            _spread_outputs(
                outputs.ctypes.data, tiled_height, tiled_width, filters, down, across, tile, t, count,
                ys.ctypes.data, y_point, y_line,
            )  # fmt: skip
            for k in range(SIZE * SIZE):
                products(
                    ys.ctypes.data + _FLOAT * k * y_point, rows.ctypes.data, count + -count % ROWS, 1,
                    zero_rows.ctypes.data, 1, filters, panels.ctypes.data + _FLOAT * k * panel, 0, PANEL,
                    filters * PANEL, zeros.ctypes.data, zero_rows.ctypes.data,
                    xs.ctypes.data + _FLOAT * k * x_point, targets.ctypes.data, _in_vectors(channels),
                )  # fmt: skip
            _fold_images(
                images.ctypes.data, padded_height, padded_width, channels, down, across, tile, t, count,
                xs.ctypes.data, x_point, x_line,
            )  # fmt: skip
        target = dx.ctypes.data + _FLOAT * b * height * width * channels
        crop(images.ctypes.data, padded_height, padded_width, top, left, target, n, height, width, channels)


@kernel
def convolve_backward_weight(
    x, dy, first, stop, top, left, tile, rows, targets, zeros, zero_rows, images, xs, ys, outputs, sums
):
    """sums[k] = the sum over the tiles t of images [first, stop) of xs[k, t]' ys[k, t], at every point k.

    rows, targets: of each channel, in xs and in sums.
    """
    _, height, width, channels = x.shape
    _, out_height, out_width, filters = dy.shape
    block, padded_height, padded_width, _ = images.shape
    _, tiled_height, tiled_width, _ = outputs.shape
    down, across = tiled_height // tile, tiled_width // tile
    x_point, x_line = xs.strides[0] // _FLOAT, xs.strides[1] // _FLOAT
    y_point, y_line = ys.strides[0] // _FLOAT, ys.strides[1] // _FLOAT
    point, chunk = sums.strides[0] // _FLOAT, xs.shape[1]
    # Of the first sum nothing is there yet to go on from.
    start, step, places = zeros.ctypes.data, 0, zero_rows.ctypes.data
    for b in range(first, stop, block):
        n = min(block, stop - b)
        source = x.ctypes.data + _FLOAT * b * height * width * channels
        pad(source, n, height, width, channels, top, left, images.ctypes.data, padded_height, padded_width)
        source = dy.ctypes.data + _FLOAT * b * out_height * out_width * filters
        pad(source, n, out_height, out_width, filters, 0, 0, outputs.ctypes.data, tiled_height, tiled_width)
        for t in range(0, n * down * across, chunk):
            count = min(chunk, n * down * across - t)
            _spread_images(
                images.ctypes.data, padded_height, padded_width, channels, down, across, tile, t, count,
                xs.ctypes.data, x_point, x_line,
            )  # fmt: skip
            _spread_outputs(
                outputs.ctypes.data, tiled_height, tiled_width, filters, down, across, tile, t, count,
                ys.ctypes.data, y_point, y_line,
            )  # fmt: skip
            for k in range(SIZE * SIZE):
                products(
                    xs.ctypes.data + _FLOAT * k * x_point, rows.ctypes.data, rows.size, x_line, zero_rows.ctypes.data,
                    1, count, ys.ctypes.data + _FLOAT * k * y_point, 0, y_line, PANEL, start + _FLOAT * k * step,
                    places, sums.ctypes.data + _FLOAT * k * point, targets.ctypes.data, _in_vectors(filters),
                )  # fmt: skip
            start, step, places = sums.ctypes.data, point, targets.ctypes.data
