"""Sums of matrix products over tables of offsets, by tiles of the micro-kernel side by side; and their panels."""

from singa_dask.ops.cpu.convolution.direct_tables import Gather, Scatter, WeightSums
from singa_dask.ops.cpu.convolution.micro_kernel import (
    FLOAT,
    OFFSET,
    PANEL,
    ROWS,
    TALL,
    WEIGHTS,
    GatheredMatrix,
    Panel,
    ScatteredRows,
    SumTerms,
    tall_tile_of_one,
    tall_weights_of_one,
    tile_of_one,
    tile_of_two,
    weights_of_one,
    weights_of_two,
)
from singa_dask.ops.cpu.convolution.padding_kernels import Images, clear, crop, pad
from singa_dask.ops.cpu.toolkit.copies import copy_lines
from singa_dask.ops.cpu.toolkit.numba_kernel import inlined, kernel, linked
from singa_dask.ops.cpu.toolkit.vectors import VECTOR

# Positions whose gradients, of a panel's filters, stay in the first-level cache from tile to tile.
_POSITIONS = {16: 128, 8: 256, 0: 1}[VECTOR]


@inlined
def _left(a, r):
    """The left matrix from row r / OFFSET on."""
    return GatheredMatrix(a.address, a.offsets + r, a.step)


@inlined
def _rows(c, column, r):
    """The rows from row r / OFFSET on, and their elements from `column` on."""
    return ScatteredRows(c.address + FLOAT * column, c.offsets + r)


@linked
def products(
    a: GatheredMatrix, count, runs: SumTerms, b: Panel, b_panel, start: ScatteredRows, c: ScatteredRows, columns
):
    """c[r, j] = start[r, j] + sum over n, q of a[r, n, q] b[j // PANEL, n, q, j % PANEL], r < count, j < columns

    Tables of rows have `count` entries, a multiple of ROWS; panels of b are b_panel elements apart. Where start is c,
    the rows of one tile must be disjoint or equal.
    """
    whole = OFFSET * count
    for j in range(0, columns, PANEL):
        width = columns - j
        panel = Panel(b.address + FLOAT * (j // PANEL) * b_panel, b.run, b.step)
        if width > VECTOR:
            lanes = min(width - VECTOR, VECTOR)
            for r in range(0, whole, OFFSET * ROWS):
                tile_of_two(_left(a, r), runs, panel, _rows(start, j, r), _rows(c, j, r), lanes)
        else:
            # Some of the rows of a tall tile may overlap (Scatter).
            tall = whole - whole % (2 * OFFSET * ROWS) if TALL and start.address != c.address else 0
            for r in range(0, tall, 2 * OFFSET * ROWS):
                tall_tile_of_one(_left(a, r), runs, panel, _rows(start, j, r), _rows(c, j, r), width)
            for r in range(tall, whole, OFFSET * ROWS):
                tile_of_one(_left(a, r), runs, panel, _rows(start, j, r), _rows(c, j, r), width)


@linked
def _add_products(a: GatheredMatrix, count, runs: SumTerms, b: Panel, c: ScatteredRows, columns):
    """c += `products`, of one panel in place, by tiles of WEIGHTS rows, of which tables have a multiple."""
    whole = OFFSET * count
    tall = whole - whole % (2 * OFFSET * WEIGHTS) if TALL and columns <= VECTOR else 0
    for r in range(0, tall, 2 * OFFSET * WEIGHTS):
        place = _rows(c, 0, r)
        tall_weights_of_one(_left(a, r), runs, b, place, place, columns)
    for r in range(tall, whole, OFFSET * WEIGHTS):
        place = _rows(c, 0, r)
        if columns > VECTOR:
            weights_of_two(_left(a, r), runs, b, place, place, columns - VECTOR)
        else:
            weights_of_one(_left(a, r), runs, b, place, place, columns)


@inlined
def _begin(j, columns, whole):
    """The first column of the panel that holds column j.

    Where `whole`, the last panel begins earlier if its last vector would need a mask, and some columns are computed
    twice; a single panel may need one.
    """
    width = min(PANEL, columns - j)
    return min(j, max(0, columns - width - -width % VECTOR)) if whole else j


@kernel
def pack(matrices, panels, whole):
    """panels[p, (n, q), i] = matrices[n, q, `_begin` of panel p + i].   matrices: (N, Q, J), any strides; flat.

    whole: for products that do not accumulate.
    """
    count, length, columns = matrices.shape
    for j in range(0, columns, PANEL):
        begin, panel = _begin(j, columns, whole), panels[j * count * length :]
        for n in range(count):
            for q in range(length):
                for i in range(min(PANEL, columns - begin)):
                    panel[(n * length + q) * PANEL + i] = matrices[n, q, begin + i]


@kernel
def convolve(x, span, tables, panels, start, out):
    """out = start + the convolution of the images in `span` (first, stop) of x with the packed filters.

    tables: a Gather, of at most stop - first images a block; the last block overlaps the one before. panels: whole.
    """
    (first, stop), tables = span, Gather(*tables)
    filters, lines = out.shape[3], panels.size // (-(-out.shape[3] // PANEL) * PANEL)
    image, result = x.size // x.shape[0], out.size // out.shape[0]
    run = lines // tables.runs.size * PANEL
    for begin in range(first, stop, tables.block):
        b = min(begin, stop - tables.block)
        for j in range(0, filters, PANEL):
            panel, k = panels.ctypes.data + FLOAT * j * lines, _begin(j, filters, True)
            for g in range(tables.regions.shape[0]):
                low, high, a, count, length, weight, c = tables.regions[g]
                at = OFFSET * low
                pixels = GatheredMatrix(x.ctypes.data + FLOAT * (b * image + a), tables.rows.ctypes.data + at, 1)
                runs = SumTerms(tables.runs.ctypes.data, count, length)
                right = Panel(panel + FLOAT * weight * PANEL, run, PANEL)
                bias = ScatteredRows(start.ctypes.data + FLOAT * k, tables.starts.ctypes.data + at)
                result_at = out.ctypes.data + FLOAT * (b * result + c + k)
                target = ScatteredRows(result_at, tables.targets.ctypes.data + at)
                products(pixels, high - low, runs, right, 0, bias, target, min(PANEL, filters - k))


@kernel
def convolve_backward_weight(x, dy, span, tables, padded, panel, accumulate, dweight):
    """dweight = sum over the images in `span` of x's pixels under each weight times dy, or dweight += it; flat.

    tables: a WeightSums. padded: a block of images between zeros, empty where nothing is padded. panel: for a copy of
    dy's columns of a tile, at all positions of a block, since lines a power of two apart would share few sets of the
    first-level cache; empty where they are read in place.
    """
    (first, stop), tables = span, WeightSums(*tables)
    _, height, width, channels = x.shape
    oh, ow, filters = dy.shape[1:]
    image, result = height * width * channels, oh * ow * filters
    lines = max(1, _POSITIONS // ow)
    if not accumulate:
        clear(dweight.ctypes.data, dweight.size)
    for b in range(first, stop, tables.block):
        count = min(tables.block, stop - b)
        a = x.ctypes.data + FLOAT * b * image
        if padded.size > 0:
            images, target = Images(a, height, width, channels), padded.ctypes.data
            top, left = tables.pad
            pad(images, count, top, left, Images(target, padded.shape[1], padded.shape[2], channels))
            a = target
        for j in range(0, filters, PANEL):
            gradient, line = dy.ctypes.data + FLOAT * (b * result + j), filters
            if panel.size > 0:
                for k in range(0, min(PANEL, filters - j), VECTOR):
                    to, lanes = panel.ctypes.data + FLOAT * k, min(VECTOR, filters - j - k)
                    copy_lines(gradient + FLOAT * k, filters, to, PANEL, count * oh * ow, lanes)
                gradient, line = panel.ctypes.data, PANEL
            for g in range(0, count * oh, lines):
                pixels = GatheredMatrix(a, tables.rows.ctypes.data, tables.step)
                runs = SumTerms(tables.runs.ctypes.data + OFFSET * g, min(lines, count * oh - g), ow)
                right = Panel(gradient + FLOAT * g * ow * line, ow * line, line)
                sums = ScatteredRows(dweight.ctypes.data + FLOAT * j, tables.targets.ctypes.data)
                _add_products(pixels, tables.rows.size, runs, right, sums, min(PANEL, filters - j))


@kernel
def scatter(dy, span, tables, panels, padded, dx):
    """dx = sum of the filters, each times its dy, at the windows of dy's positions, for the images in `span`.

    tables: a Scatter; blocks as in `convolve`. padded: as in `convolve_backward_weight`.
    """
    (first, stop), tables = span, Scatter(*tables)
    filters = dy.shape[3]
    _, height, width, channels = dx.shape
    image, result = height * width * channels, dy.size // dy.shape[0]
    count = tables.lines.size
    for begin in range(first, stop, tables.block):
        b = min(begin, stop - tables.block)
        images = dx.ctypes.data + FLOAT * b * image
        whole = padded.size == 0
        target, size = (images, tables.block * image) if whole else (padded.ctypes.data, padded.size)
        clear(target, size)
        # A product has one run here, and lines[0], its offset, is 0.
        runs = SumTerms(tables.lines.ctypes.data, 1, filters)
        a = GatheredMatrix(dy.ctypes.data + FLOAT * b * result, tables.rows.ctypes.data, 1)
        for i in range(count):
            c = ScatteredRows(target + FLOAT * tables.lines[i], tables.targets.ctypes.data)
            panel = Panel(panels.ctypes.data + FLOAT * i * filters * PANEL, 0, PANEL)
            products(a, tables.rows.size, runs, panel, count * filters * PANEL, c, c, tables.span)
        if not whole:
            source = Images(target, padded.shape[1], padded.shape[2], channels)
            top, left = tables.pad
            crop(source, top, left, Images(images, height, width, channels), tables.block)
