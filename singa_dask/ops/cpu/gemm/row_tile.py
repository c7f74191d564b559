"""The register tile of matrix products, in LLVM IR for Numba: ROWS rows of PANEL columns, one tile below the other.

A tile stays in registers for the whole sum: 6 x 4 vectors of AVX-512 or 6 x 2 of AVX2, beside them the vectors of b of
one step, and one element of a in all lanes. There are three: for a with contiguous rows, with contiguous columns, and
packed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from llvmlite import ir

from singa_dask.ops.cpu.toolkit.copies import copy, copy_lines
from singa_dask.ops.cpu.toolkit.intrinsics import emitted
from singa_dask.ops.cpu.toolkit.numba_kernel import inlined, kernel, linked
from singa_dask.ops.cpu.toolkit.numba_parts import cgutils
from singa_dask.ops.cpu.toolkit.rows import StridedRows
from singa_dask.ops.cpu.toolkit.transpose import transpose
from singa_dask.ops.cpu.toolkit.vectors import I1, I64, VECTOR, Vectors

ROWS = 6
_VECTORS = 4 if VECTOR == 16 else 2
PANEL = max(VECTOR, 1) * _VECTORS
_FLOAT = 4
# Steps of the sum per test of the loop.
_UNROLLED = 4
# Bytes from column to column of a packed tile.
TILE_LINE = _FLOAT * ROWS
# Columns of all tiles that are packed before the next ones: cache lines are read once.
_STEPS = 16

_copy_whole = copy(_VECTORS)


class Prefetch(NamedTuple):
    """What tile i loads into the cache at step q of its sum: address + q step + min(i, last) tile, in bytes."""

    address: int
    step: int
    tile: int
    last: int


class _Left(NamedTuple):
    """Where a tile finds a: from row to row, from step to step of the sum, and before it, all in bytes."""

    row: Any
    step: Any
    before: Any


def _left_by_rows(builder: ir.IRBuilder, a: StridedRows, length: Any, number: Any, row: Any) -> _Left:
    return _Left(a.step, I64(_FLOAT), builder.mul(row, a.step))


def _left_by_columns(builder: ir.IRBuilder, a: StridedRows, length: Any, number: Any, row: Any) -> _Left:
    return _Left(I64(_FLOAT), a.step, builder.mul(row, I64(_FLOAT)))


def _left_packed(builder: ir.IRBuilder, a: StridedRows, length: Any, number: Any, row: Any) -> _Left:
    return _Left(I64(_FLOAT), I64(TILE_LINE), builder.mul(number, builder.mul(length, I64(TILE_LINE))))


def _tiles(left_of: Callable[[ir.IRBuilder, StridedRows, Any, Any, Any], _Left]) -> Any:
    def tiles(
        v: Vectors,
        a: StridedRows,
        length: Any,
        b: StridedRows,
        c: StridedRows,
        rows: Any,
        width: Any,
        accumulate: Any,
        ahead: Prefetch,
    ) -> None:
        builder = v.builder

        def tile(number: Any, row: Any, places: Sequence[Any], lanes: Any, vectors: int) -> None:
            a_row, a_step, before = left_of(builder, a, length, number, row)
            fetched = StridedRows(
                builder.add(ahead.address, builder.mul(minimum(number, ahead.last), ahead.tile)), ahead.step
            )
            left = StridedRows(builder.add(a.address, before), a_row)
            target = StridedRows(builder.add(c.address, builder.mul(row, c.step)), c.step)
            _emit_sums(v, places, lanes, vectors, left, a_step, length, b, target, accumulate, fetched)

        def minimum(left: Any, right: Any) -> Any:
            return builder.select(builder.icmp_signed("<", left, right), left, right)

        count = builder.sdiv(builder.add(rows, I64(ROWS - 1)), I64(ROWS))
        # The first `high` tiles have ROWS rows, the others one less.
        high = builder.sub(rows, builder.mul(count, I64(ROWS - 1)))
        usual = builder.and_(builder.icmp_signed("==", width, I64(PANEL)), builder.icmp_signed(">=", high, I64(0)))
        before_lower = builder.select(builder.icmp_signed(">=", high, I64(0)), high, count)
        with builder.if_then(usual):
            with cgutils.for_range(builder, high) as loop:
                row = builder.mul(loop.index, I64(ROWS))
                tile(loop.index, row, [I64(r) for r in range(ROWS)], None, _VECTORS)
            with cgutils.for_range(builder, count, start=high) as loop:
                row = builder.add(high, builder.mul(loop.index, I64(ROWS - 1)))
                tile(loop.index, row, [I64(r) for r in range(ROWS - 1)], None, _VECTORS)
        for vectors in range(1, _VECTORS + 1):
            least = I64((vectors - 1) * VECTOR)
            lanes = builder.sub(width, least)
            fits = builder.and_(builder.icmp_signed(">", lanes, I64(0)), builder.icmp_signed("<=", lanes, I64(VECTOR)))
            unusual = builder.and_(fits, builder.not_(usual))
            with builder.if_then(unusual), cgutils.for_range(builder, count) as loop:
                lower = builder.icmp_signed(">=", loop.index, before_lower)
                past = builder.select(lower, builder.sub(loop.index, before_lower), I64(0))
                row = builder.sub(builder.mul(loop.index, I64(ROWS)), past)
                height = minimum(builder.sub(rows, row), builder.select(lower, I64(ROWS - 1), I64(ROWS)))
                last = builder.sub(height, I64(1))
                tile(loop.index, row, [minimum(I64(r), last) for r in range(ROWS)], lanes, vectors)

    return emitted(tiles)


def _emit_sums(
    v: Vectors,
    places: Sequence[Any],
    lanes: Any,
    vectors: int,
    a: StridedRows,
    a_step: Any,
    length: Any,
    b: StridedRows,
    c: StridedRows,
    accumulate: Any,
    ahead: StridedRows,
) -> None:
    """The rows `places` of a tile of so many vectors; the last vector has `lanes` elements, or all."""
    builder = v.builder
    masks = [None] * (vectors - 1) + [None if lanes is None else v.first_lanes(lanes)]
    left = [builder.add(a.address, builder.mul(place, a.step)) for place in places]
    lines = [v.address(builder.add(c.address, builder.mul(place, c.step))) for place in places]
    total = [[v.variable(v.zero) for _ in masks] for _ in places]

    def add_step(step: Any) -> None:
        v.prefetch(v.address(builder.add(ahead.address, builder.mul(step, ahead.step))))
        line = v.address(builder.add(b.address, builder.mul(step, b.step)))
        right = v.row(line, masks)
        column = builder.mul(step, a_step)
        for start, sums in zip(left, total, strict=True):
            element = v.splat(builder.load(v.address(builder.add(start, column)), align=_FLOAT))
            for place, part in zip(sums, right, strict=True):
                builder.store(v.fma(element, part, builder.load(place)), place)

    rounds = builder.sdiv(length, I64(_UNROLLED))
    with cgutils.for_range(builder, rounds) as loop:
        first = builder.mul(loop.index, I64(_UNROLLED))
        for n in range(_UNROLLED):
            add_step(builder.add(first, I64(n)))
    with cgutils.for_range(builder, length, start=builder.mul(rounds, I64(_UNROLLED))) as loop:
        add_step(loop.index)
    targets = [
        (v.at(line, I64(i * VECTOR)), place, masks[i])
        for line, sums in zip(lines, total, strict=True)
        for i, place in enumerate(sums)
    ]
    # Loaded after the sums, which would wait for c where it is not in the cache.
    with builder.if_then(builder.trunc(accumulate, I1)):
        for target, place, mask in targets:
            builder.store(builder.fadd(builder.load(place), v.load(target, mask)), place)
    for target, place, mask in targets:
        v.store(builder.load(place), target, mask)


_by_rows, _by_columns, _of_packed = map(_tiles, (_left_by_rows, _left_by_columns, _left_packed))


@linked
def tiles_by_rows(a: StridedRows, length, b: StridedRows, c: StridedRows, rows, width, accumulate, ahead: Prefetch):
    """c[r, :width] = sum over q < length of a[r, q] b[q, :width] for r < rows, or c += it, width <= PANEL.

    The first tiles have ROWS rows, the others one less. Row counts that do not divide so (1 to 4, 7 to 9, 13, 14, 19)
    have ROWS in all tiles but the last. There, and where width is less than PANEL, the last row of a lower tile is
    computed, and written, more than once.
    """
    _by_rows(a, length, b, c, rows, width, accumulate, ahead)


@linked
def tiles_by_columns(a: StridedRows, length, b: StridedRows, c: StridedRows, rows, width, accumulate, ahead: Prefetch):
    """As `tiles_by_rows`, with the columns of a as contiguous Rows."""
    _by_columns(a, length, b, c, rows, width, accumulate, ahead)


@linked
def tiles_of_packed(a, length, b: StridedRows, c: StridedRows, rows, width, accumulate, ahead: Prefetch):
    """As `tiles_by_rows`, with a from `pack_left`, at an address."""
    _of_packed(StridedRows(a, 0), length, b, c, rows, width, accumulate, ahead)


@emitted
def _copy_columns(v: Vectors, source: StridedRows, target: Any, count: Any, height: Any) -> None:
    """`count` columns of a tile, of `height` elements, to lines TILE_LINE bytes apart.

    A whole vector is stored where the following lines, which come next, have room for it: masks are slow on some CPUs.
    """
    builder = v.builder
    mask, room = v.first_lanes(height), builder.mul(count, I64(ROWS))
    with cgutils.for_range(builder, count) as column:
        part = v.load(v.address(builder.add(source.address, builder.mul(column.index, source.step))), mask)
        begin = builder.mul(column.index, I64(ROWS))
        place = v.at(v.address(target), begin)
        with builder.if_else(builder.icmp_signed("<=", builder.add(begin, I64(VECTOR)), room)) as (fits, last):
            with fits:
                v.store(part, place)
            with last:
                v.store(part, place, mask)


@kernel
def pack_left(source, rows, length, target):
    """The matrix (rows, length), whose columns are the contiguous Rows `source`, tile by tile to an address.

    A tile takes ROWS length elements: its columns one behind the other, TILE_LINE bytes apart.
    """
    high = rows - (ROWS - 1) * tiles_of(rows)
    for k in range(0, length, _STEPS):
        row = 0
        for i in range(tiles_of(rows)):
            count = min(ROWS if high < 0 or i < high else ROWS - 1, rows - row)
            place = target + TILE_LINE * (i * length + k)
            columns = StridedRows(source.address + k * source.step + _FLOAT * row, source.step)
            _copy_columns(columns, place, min(_STEPS, length - k), count)
            row += count


@kernel
def pack_right(matrix, column, panels):
    """panels[(column + j) // PANEL, q, (column + j) % PANEL] = matrix[q, j].   Rows or columns of the matrix, and rows
    of the panels, are contiguous."""
    length, columns = matrix.shape
    row, step = matrix.strides
    begin = 0
    while begin < columns:
        panel, place = divmod(column + begin, PANEL)
        width = min(PANEL - place, columns - begin)
        source, target = matrix.ctypes.data + begin * step, panels[panel].ctypes.data + _FLOAT * place
        if step == _FLOAT:
            copy_panel(StridedRows(source, row), length, width, target)
        else:
            transpose(StridedRows(source, step), width, length, StridedRows(target, _FLOAT * PANEL), False)
        begin += width


@kernel
def copy_panel(source, lines, width, target):
    """The first `lines` of the Rows `source`, `width` elements each, at most PANEL, to rows of PANEL elements."""
    step = source.step // _FLOAT
    if width == PANEL:  # a cache line is read once
        _copy_whole(source.address, step, target, PANEL, lines, VECTOR)
        return
    for j in range(0, width, VECTOR):
        lanes = min(VECTOR, width - j)
        copy_lines(source.address + _FLOAT * j, step, target + _FLOAT * j, PANEL, lines, lanes)


@inlined
def tiles_of(rows):
    """The smallest number of tiles that hold so many rows."""
    return -(-rows // ROWS)
