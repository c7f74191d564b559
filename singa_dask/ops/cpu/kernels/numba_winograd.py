"""The passes of Winograd's convolution over blocks of images, and the transforms of its filters.

Arrays of points have them first, (SIZE^2, tiles, C), (SIZE^2, tiles, O) or (SIZE^2, C, O); points and rows may lie
further apart than they are long. `images` (n, H', W', C) have a border of zeros, and zeros at the lower right until
whole tiles fit; `outputs` (n, H', W', O) are a multiple of `tile` wide and high. Tiles of images overlap, by the size
of a window less one; tiles of outputs do not.
"""

from singa_dask.ops.cpu.kernels.micro_kernel import PANEL, ROWS
from singa_dask.ops.cpu.kernels.numba_kernel import kernel
from singa_dask.ops.cpu.kernels.numba_padding import crop, pad
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
from singa_dask.ops.cpu.kernels.vectors import VECTOR
from singa_dask.ops.cpu.kernels.winograd import SIZE

_FLOAT = 4


@kernel
def _tiles(outputs, tile):
    """Of one image."""
    return outputs.shape[1] // tile * (outputs.shape[2] // tile)


@kernel
def _point(points, k):
    return points.ctypes.data + k * points.strides[0]


@kernel
def _corner(pixels, outputs, tile, t):
    """The address of tile `t` of `pixels`, images or outputs."""
    down, across = outputs.shape[1] // tile, outputs.shape[2] // tile
    b, y, x = t // (down * across), t // across % down, t % across
    image, row, column = pixels.strides[:3]
    return pixels.ctypes.data + b * image + y * tile * row + x * tile * column


@kernel
def _spread_images(images, outputs, tile, first, count, points):
    """points[:, t] = the transform of tile first + t of images, t < count."""
    row, column, step = images.strides[1] // _FLOAT, images.strides[2] // _FLOAT, points.strides[0] // _FLOAT
    for t in range(count):
        source, target = _corner(images, outputs, tile, first + t), points.ctypes.data + t * points.strides[1]
        for c in range(0, images.shape[3], VECTOR):
            at, to, lanes = source + _FLOAT * c, target + _FLOAT * c, min(VECTOR, images.shape[3] - c)
            spread_image(at, row, column, lanes, to, SIZE * step, step)


@kernel
def _spread_outputs(outputs, tile, first, count, points):
    """points[:, t] = the transform of tile first + t of outputs, t < count."""
    row, column, step = outputs.strides[1] // _FLOAT, outputs.strides[2] // _FLOAT, points.strides[0] // _FLOAT
    for t in range(count):
        source, target = _corner(outputs, outputs, tile, first + t), points.ctypes.data + t * points.strides[1]
        for c in range(0, outputs.shape[3], VECTOR):
            at, to, lanes = source + _FLOAT * c, target + _FLOAT * c, min(VECTOR, outputs.shape[3] - c)
            if tile == 4:
                spread_output_4(at, row, column, lanes, to, SIZE * step, step)
            else:
                spread_output_2(at, row, column, lanes, to, SIZE * step, step)


@kernel
def _fold_outputs(points, start, tile, first, count, outputs):
    """Tile first + t of outputs = start + the sums of points[:, t], t < count."""
    row, column, step = outputs.strides[1] // _FLOAT, outputs.strides[2] // _FLOAT, points.strides[0] // _FLOAT
    for t in range(count):
        source, target = points.ctypes.data + t * points.strides[1], _corner(outputs, outputs, tile, first + t)
        for c in range(0, outputs.shape[3], VECTOR):
            at, to, lanes = source + _FLOAT * c, target + _FLOAT * c, min(VECTOR, outputs.shape[3] - c)
            begin = start.ctypes.data + _FLOAT * c
            if tile == 4:
                fold_output_4(at, SIZE * step, step, lanes, begin, 0, 0, to, row, column)
            else:
                fold_output_2(at, SIZE * step, step, lanes, begin, 0, 0, to, row, column)


@kernel
def _fold_images(points, outputs, tile, first, count, images):
    """Tile first + t of images += the sums of points[:, t], t < count."""
    row, column, step = images.strides[1] // _FLOAT, images.strides[2] // _FLOAT, points.strides[0] // _FLOAT
    for t in range(count):
        source, target = points.ctypes.data + t * points.strides[1], _corner(images, outputs, tile, first + t)
        for c in range(0, images.shape[3], VECTOR):
            at, to, lanes = source + _FLOAT * c, target + _FLOAT * c, min(VECTOR, images.shape[3] - c)
            fold_image(at, SIZE * step, step, lanes, to, row, column, to, row, column)


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
    """turned[i, j, o, c] = weight[i, j, c, o], first <= o < stop, a few channels at a time."""
    size, _, channels, _ = weight.shape
    for i in range(size):
        for j in range(size):
            for begin in range(0, channels, VECTOR):
                for o in range(first, stop):
                    for c in range(begin, min(begin + VECTOR, channels)):
                        turned[i, j, o, c] = weight[i, j, c, o]


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
def _multiply(a, rows, panels, length, zeros, zero_rows, c, targets, columns):
    """c[k, t] = a[k, t] panels[k] at every point k, t of the tables `rows` and `targets`."""
    for k in range(SIZE * SIZE):
        products(
            _point(a, k), rows, 1, zero_rows, 1, length, _point(panels, k), 0, PANEL, length * PANEL,
            zeros.ctypes.data, zero_rows, _point(c, k), targets, columns,
        )  # fmt: skip


@kernel
def convolve(
    x, first, stop, top, left, tile, panels, bias, rows, targets, zeros, zero_rows, images, xs, ys, outputs, out
):
    """out = bias + the convolution of images [first, stop) of x, which lie at `top`, `left` in padded ones."""
    block, chunk = images.shape[0], xs.shape[1]
    for b in range(first, stop, block):
        end = min(b + block, stop)
        pad(x[b:end], top, left, images)
        tiles = (end - b) * _tiles(outputs, tile)
        for t in range(0, tiles, chunk):
            count = min(chunk, tiles - t)
            n = count + -count % ROWS
            _spread_images(images, outputs, tile, t, count, xs)
            _multiply(xs, rows[:n], panels, x.shape[3], zeros, zero_rows[:n], ys, targets[:n], out.shape[3])
            _fold_outputs(ys, bias, tile, t, count, outputs)
        crop(outputs, 0, 0, out[b:end])


@kernel
def convolve_backward_input(
    dy, first, stop, top, left, tile, panels, rows, targets, zeros, zero_rows, images, xs, ys, outputs, dx
):
    """dx = the gradient for images [first, stop); arrays as in `convolve`, C and O, rows and targets exchanged."""
    block, chunk = images.shape[0], xs.shape[1]
    pixels = images.reshape(images.size)
    for b in range(first, stop, block):
        end = min(b + block, stop)
        pad(dy[b:end], 0, 0, outputs)
        for k in range(pixels.size):
            pixels[k] = 0
        tiles = (end - b) * _tiles(outputs, tile)
        for t in range(0, tiles, chunk):
            count = min(chunk, tiles - t)
            n = count + -count % ROWS
            _spread_outputs(outputs, tile, t, count, ys)
            _multiply(ys, rows[:n], panels, dy.shape[3], zeros, zero_rows[:n], xs, targets[:n], dx.shape[3])
            _fold_images(xs, outputs, tile, t, count, images)
        crop(images, top, left, dx[b:end])


@kernel
def convolve_backward_weight(
    x, dy, first, stop, top, left, tile, rows, targets, zeros, zero_rows, images, xs, ys, outputs, sums
):
    """sums[k] = the sum over the tiles t of images [first, stop) of xs[k, t]' ys[k, t], at every point k.

    rows, targets: of each channel, in xs and in sums.
    """
    block, chunk = images.shape[0], xs.shape[1]
    for b in range(first, stop, block):
        end = min(b + block, stop)
        pad(x[b:end], top, left, images)
        pad(dy[b:end], 0, 0, outputs)
        tiles = (end - b) * _tiles(outputs, tile)
        for t in range(0, tiles, chunk):
            count = min(chunk, tiles - t)
            _spread_images(images, outputs, tile, t, count, xs)
            _spread_outputs(outputs, tile, t, count, ys)
            for k in range(SIZE * SIZE):
                c = _point(sums, k)
                begun = b > first or t > 0
                start, places = (c, targets) if begun else (zeros.ctypes.data, zero_rows)
                products(
                    _point(xs, k), rows, xs.strides[1] // _FLOAT, zero_rows, 1, count,
                    _point(ys, k), 0, ys.strides[1] // _FLOAT, PANEL, start, places, c, targets, dy.shape[3],
                )  # fmt: skip
