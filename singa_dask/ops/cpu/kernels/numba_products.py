"""Sums of matrix products over tables of offsets: the micro-kernel's tiles, set side by side; and panels for them."""

from singa_dask.ops.cpu.kernels.micro_kernel import (
    PANEL,
    ROWS,
    WEIGHTS,
    copy_lines,
    tile_of_one,
    tile_of_two,
    weights_of_one,
    weights_of_two,
)
from singa_dask.ops.cpu.kernels.numba_kernel import kernel
from singa_dask.ops.cpu.kernels.numba_padding import crop, pad
from singa_dask.ops.cpu.kernels.vectors import VECTOR

_FLOAT, _OFFSET = 4, 8


@kernel
def products(a, rows, a_step, runs, count, length, b, b_run, b_step, b_panel, start, starts, c, targets, columns):
    """c[targets[r] + j] = start[starts[r] + j]
    + sum over n < count, q < length of a[rows[r] + runs[n] + q a_step] b[j // PANEL, n, q, j % PANEL]

    a, b, start, c: addresses of float32 elements. rows, starts, targets: tables of a multiple of ROWS offsets; where
    start is c, the targets of one tile must not overlap, unless they are the same. b's panels are b_panel elements
    apart, their runs b_run, their lines b_step.
    """
    table = runs.ctypes.data
    for j in range(0, columns, PANEL):
        width = columns - j
        panel = b + _FLOAT * (j // PANEL) * b_panel
        for r in range(0, rows.size, ROWS):
            left, begin = rows.ctypes.data + _OFFSET * r, starts.ctypes.data + _OFFSET * r
            place, first, to = targets.ctypes.data + _OFFSET * r, start + _FLOAT * j, c + _FLOAT * j
            if width > VECTOR:
                lanes = min(width - VECTOR, VECTOR)
                tile_of_two(
                    a, left, a_step, table, count, length, panel, b_run, b_step, first, begin, to, place, lanes
                )
            else:
                tile_of_one(
                    a, left, a_step, table, count, length, panel, b_run, b_step, first, begin, to, place, width
                )


@kernel
def _add_products(a, rows, a_step, runs, count, length, b, b_run, b_step, c, targets, columns):
    """c += `products`, of one panel where b lies, by tiles of WEIGHTS rows, of which tables have a multiple."""
    table = runs.ctypes.data
    for r in range(0, rows.size, WEIGHTS):
        left, place = rows.ctypes.data + _OFFSET * r, targets.ctypes.data + _OFFSET * r
        if columns > VECTOR:
            lanes = columns - VECTOR
            weights_of_two(a, left, a_step, table, count, length, b, b_run, b_step, c, place, c, place, lanes)
        else:
            weights_of_one(a, left, a_step, table, count, length, b, b_run, b_step, c, place, c, place, columns)


@kernel
def pack(matrices, panels):
    """panels[j // PANEL, (n, q), j % PANEL] = matrices[n, q, j].   matrices: (N, Q, J), any strides; panels: flat."""
    count, length, columns = matrices.shape
    for n in range(count):
        for q in range(length):
            for j in range(columns):
                panels[((j // PANEL * count + n) * length + q) * PANEL + j % PANEL] = matrices[n, q, j]


@kernel
def convolve(x, first, stop, block, regions, rows, runs, panels, start, starts, targets, out):
    """out = start + convolution of the images [first, stop) of x with the packed filters, stop - first >= block.

    regions: as Gather has them. Blocks of `block` images are computed together; the last one overlaps the one before.
    """
    filters, lines = out.shape[3], panels.size // (-(-out.shape[3] // PANEL) * PANEL)
    image, result = x.size // x.shape[0], out.size // out.shape[0]
    run = lines // runs.size * PANEL
    for begin in range(first, stop, block):
        b = min(begin, stop - block)
        for j in range(0, filters, PANEL):
            panel = panels.ctypes.data + _FLOAT * j * lines
            for g in range(regions.shape[0]):
                low, high, a, count, length, weight, c = regions[g]
                products(
                    x.ctypes.data + _FLOAT * (b * image + a), rows[low:high], 1, runs, count, length,
                    panel + _FLOAT * weight * PANEL, run, PANEL, 0, start.ctypes.data + _FLOAT * j, starts[low:high],
                    out.ctypes.data + _FLOAT * (b * result + c + j), targets[low:high], min(PANEL, filters - j),
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
    oh, ow, filters = dy.shape[1:]
    image, result = x.size // x.shape[0], oh * ow * filters
    if not accumulate:
        for k in range(dweight.size):
            dweight[k] = 0
    for b in range(first, stop, block):
        count = min(block, stop - b)
        a = x.ctypes.data + _FLOAT * b * image
        if padded.size > 0:
            pad(x[b : b + count], ph, pw, padded)
            a = padded.ctypes.data
        for j in range(0, filters, PANEL):
            gradient, line = dy.ctypes.data + _FLOAT * (b * result + j), filters
            if panel.size > 0:
                for k in range(0, min(PANEL, filters - j), VECTOR):
                    to, lanes = panel.ctypes.data + _FLOAT * k, min(VECTOR, filters - j - k)
                    copy_lines(gradient + _FLOAT * k, filters, to, PANEL, count * oh * ow, lanes)
                gradient, line = panel.ctypes.data, PANEL
            c, width = dweight.ctypes.data + _FLOAT * j, min(PANEL, filters - j)
            _add_products(a, rows, step, runs, count * oh, ow, gradient, ow * line, line, c, targets, width)


@kernel
def scatter(dy, first, stop, block, ph, pw, rows, lines, span, panels, targets, padded, dx):
    """dx = sum of the filters, each dy times, where the windows of dy's positions lie; stop - first >= block.

    lines: offsets of the kernel's rows in a padded image; span: elements of each. Blocks as in `convolve`.
    """
    filters = dy.shape[3]
    image, result = dx.size // dx.shape[0], dy.size // dy.shape[0]
    pixels = dx.reshape(dx.size)
    for begin in range(first, stop, block):
        b = min(begin, stop - block)
        whole = padded.size == 0
        target = pixels[b * image : (b + block) * image] if whole else padded.reshape(padded.size)
        for k in range(target.size):
            target[k] = 0
        a = dy.ctypes.data + _FLOAT * b * result
        # A product has one run here, and lines[0], where it begins, is 0.
        for i in range(lines.size):
            c = target.ctypes.data + _FLOAT * lines[i]
            panel = panels.ctypes.data + _FLOAT * i * filters * PANEL
            step = lines.size * filters * PANEL
            products(a, rows, 1, lines, 1, filters, panel, 0, PANEL, step, c, targets, c, targets, span)
        if not whole:
            crop(padded, ph, pw, dx[b : b + block])
