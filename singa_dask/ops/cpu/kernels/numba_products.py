"""Sums of matrix products over tables of offsets: the micro-kernel's tiles, set side by side; and panels for them."""

from singa_dask.ops.cpu.kernels.micro_kernel import (
    PANEL,
    ROWS,
    TALL,
    WEIGHTS,
    copy_lines,
    tall_tile_of_one,
    tall_weights_of_one,
    tile_of_one,
    tile_of_two,
    weights_of_one,
    weights_of_two,
)
from singa_dask.ops.cpu.kernels.numba_kernel import inlined, kernel, linked
from singa_dask.ops.cpu.kernels.numba_padding import clear, crop, pad
from singa_dask.ops.cpu.kernels.vectors import VECTOR

_FLOAT, _OFFSET = 4, 8
# Positions whose gradients, of a panel's filters, stay in the first cache from tile to tile.
_POSITIONS = {16: 128, 8: 256, 0: 1}[VECTOR]


@linked
def products(
    a, rows, count, a_step, runs, run_count, length, b, b_run, b_step, b_panel, start, starts, c, targets, columns
):
    """c[targets[r] + j] = start[starts[r] + j]
    + sum over n < run_count, q < length of a[rows[r] + runs[n] + q a_step] b[j // PANEL, n, q, j % PANEL], r < count

    a, b, start, c: addresses of float32 elements; rows, starts, targets: of tables of `count` offsets, a multiple of
    ROWS; runs: of a table too. Where start is c, the targets of one tile must not overlap, unless they are the same.
    b's panels are b_panel elements apart, their runs b_run, their lines b_step.
    """
    whole = _OFFSET * count
    for j in range(0, columns, PANEL):
        width, first, to = columns - j, start + _FLOAT * j, c + _FLOAT * j
        panel = b + _FLOAT * (j // PANEL) * b_panel
        if width > VECTOR:
            lanes = min(width - VECTOR, VECTOR)
            for r in range(0, whole, _OFFSET * ROWS):
                tile_of_two(
                    a, rows + r, a_step, runs, run_count, length, panel, b_run, b_step, first, starts + r, to,
                    targets + r, lanes,
                )  # fmt: skip
        else:
            # Of twice the rows that one tile adds to, some may lie on each other (Scatter).
            tall = whole - whole % (2 * _OFFSET * ROWS) if TALL and start != c else 0
            for r in range(0, tall, 2 * _OFFSET * ROWS):
                tall_tile_of_one(
                    a, rows + r, a_step, runs, run_count, length, panel, b_run, b_step, first, starts + r, to,
                    targets + r, width,
                )  # fmt: skip
            for r in range(tall, whole, _OFFSET * ROWS):
                tile_of_one(
                    a, rows + r, a_step, runs, run_count, length, panel, b_run, b_step, first, starts + r, to,
                    targets + r, width,
                )  # fmt: skip


@linked
def _add_products(a, rows, count, a_step, runs, run_count, length, b, b_run, b_step, c, targets, columns):
    """c += `products`, of one panel where b lies, by tiles of WEIGHTS rows, of which tables have a multiple."""
    whole = _OFFSET * count
    tall = whole - whole % (2 * _OFFSET * WEIGHTS) if TALL and columns <= VECTOR else 0
    for r in range(0, tall, 2 * _OFFSET * WEIGHTS):
        left, place = rows + r, targets + r
        tall_weights_of_one(a, left, a_step, runs, run_count, length, b, b_run, b_step, c, place, c, place, columns)
    for r in range(tall, whole, _OFFSET * WEIGHTS):
        left, place = rows + r, targets + r
        if columns > VECTOR:
            lanes = columns - VECTOR
            weights_of_two(a, left, a_step, runs, run_count, length, b, b_run, b_step, c, place, c, place, lanes)
        else:
            weights_of_one(a, left, a_step, runs, run_count, length, b, b_run, b_step, c, place, c, place, columns)


@inlined
def _begin(j, columns, whole):
    """The first column of the panel that has column j. Of `whole` panels the last one begins earlier where its last
    vector would need a mask, so that some columns are computed twice; a single panel may need one."""
    width = min(PANEL, columns - j)
    return min(j, max(0, columns - width - -width % VECTOR)) if whole else j


@kernel
def pack(matrices, panels, whole):
    """panels[p, (n, q), i] = matrices[n, q, `_begin` of panel p + i].   matrices: (N, Q, J), any strides; flat.

    `whole` ones are for products that do not add to what is there.
    """
    count, length, columns = matrices.shape
    for j in range(0, columns, PANEL):
        begin, panel = _begin(j, columns, whole), panels[j * count * length :]
        for n in range(count):
            for q in range(length):
                for i in range(min(PANEL, columns - begin)):
                    panel[(n * length + q) * PANEL + i] = matrices[n, q, begin + i]


@kernel
def convolve(x, first, stop, block, regions, rows, runs, panels, start, starts, targets, out):
    """out = start + convolution of the images [first, stop) of x with the packed filters, stop - first >= block.

    regions: as Gather has them. panels: whole ones. Blocks of `block` images are computed together; the last one
    overlaps the one before.
    """
    filters, lines = out.shape[3], panels.size // (-(-out.shape[3] // PANEL) * PANEL)
    image, result = x.size // x.shape[0], out.size // out.shape[0]
    run = lines // runs.size * PANEL
    for begin in range(first, stop, block):
        b = min(begin, stop - block)
        for j in range(0, filters, PANEL):
            panel, k = panels.ctypes.data + _FLOAT * j * lines, _begin(j, filters, True)
            for g in range(regions.shape[0]):
                low, high, a, count, length, weight, c = regions[g]
                at = _OFFSET * low
                products(
                    x.ctypes.data + _FLOAT * (b * image + a), rows.ctypes.data + at, high - low, 1, runs.ctypes.data,
                    count, length, panel + _FLOAT * weight * PANEL, run, PANEL, 0, start.ctypes.data + _FLOAT * k,
                    starts.ctypes.data + at, out.ctypes.data + _FLOAT * (b * result + c + k),
                    targets.ctypes.data + at, min(PANEL, filters - k),
                )  # fmt: skip


@kernel
def convolve_backward_weight(
    x, dy, first, stop, block, ph, pw, rows, step, runs, targets, padded, panel, accumulate, dweight
):
    """dweight = sum over images [first, stop) of x's pixels under each weight times dy, or dweight += it; flat.

    padded: `block` images between zeros, empty where nothing is padded. panel: where dy's columns of a tile are copied
    to, all positions of a block; empty where they are read in place. Lines a power of two apart would share few sets
    of the first cache.
    """
    _, height, width, channels = x.shape
    oh, ow, filters = dy.shape[1:]
    image, result = height * width * channels, oh * ow * filters
    lines = max(1, _POSITIONS // ow)
    if not accumulate:
        clear(dweight.ctypes.data, dweight.size)
    for b in range(first, stop, block):
        count = min(block, stop - b)
        a = x.ctypes.data + _FLOAT * b * image
        if padded.size > 0:
            pad(a, count, height, width, channels, ph, pw, padded.ctypes.data, padded.shape[1], padded.shape[2])
            a = padded.ctypes.data
        for j in range(0, filters, PANEL):
            gradient, line = dy.ctypes.data + _FLOAT * (b * result + j), filters
            if panel.size > 0:
                for k in range(0, min(PANEL, filters - j), VECTOR):
                    to, lanes = panel.ctypes.data + _FLOAT * k, min(VECTOR, filters - j - k)
                    copy_lines(gradient + _FLOAT * k, filters, to, PANEL, count * oh * ow, lanes)
                gradient, line = panel.ctypes.data, PANEL
            for g in range(0, count * oh, lines):
                _add_products(
                    a, rows.ctypes.data, rows.size, step, runs.ctypes.data + _OFFSET * g, min(lines, count * oh - g),
                    ow, gradient + _FLOAT * g * ow * line, ow * line, line, dweight.ctypes.data + _FLOAT * j,
                    targets.ctypes.data, min(PANEL, filters - j),
                )  # fmt: skip


@kernel
def scatter(dy, first, stop, block, ph, pw, rows, lines, span, panels, targets, padded, dx):
    """dx = sum of the filters, each dy times, where the windows of dy's positions lie; stop - first >= block.

    lines: offsets of the kernel's rows in a padded image; span: elements of each. Blocks as in `convolve`.
    """
    filters = dy.shape[3]
    _, height, width, channels = dx.shape
    image, result = height * width * channels, dy.size // dy.shape[0]
    for begin in range(first, stop, block):
        b = min(begin, stop - block)
        images = dx.ctypes.data + _FLOAT * b * image
        whole = padded.size == 0
        target, size = (images, block * image) if whole else (padded.ctypes.data, padded.size)
        clear(target, size)
        a, places = dy.ctypes.data + _FLOAT * b * result, targets.ctypes.data
        # A product has one run here, and lines[0], where it begins, is 0.
        for i in range(lines.size):
            c = target + _FLOAT * lines[i]
            panel = panels.ctypes.data + _FLOAT * i * filters * PANEL
            step = lines.size * filters * PANEL
            products(
                a, rows.ctypes.data, rows.size, 1, lines.ctypes.data, 1, filters, panel, 0, PANEL, step,
                c, places, c, places, span,
            )  # fmt: skip
        if not whole:
            crop(target, padded.shape[1], padded.shape[2], ph, pw, images, block, height, width, channels)
