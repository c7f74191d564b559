"""The register tile under matrix products, in LLVM IR for Numba: ROWS rows of PANEL columns, one tile below the other.

A tile stays in registers for the whole sum: 6 x 4 vectors of AVX-512 or 6 x 2 of AVX2, beside them the vectors of b of
one step, and one element of a in all lanes. There are two, for a whose rows are contiguous and for a that is packed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from numba.core import cgutils, types
from numba.extending import intrinsic

from singa_dask.ops.cpu.kernels.micro_kernel import copy, copy_lines
from singa_dask.ops.cpu.kernels.numba_kernel import inlined, kernel, linked
from singa_dask.ops.cpu.kernels.transpose import transpose
from singa_dask.ops.cpu.kernels.vectors import I1, I64, VECTOR, Vectors

ROWS = 6
_VECTORS = 4 if VECTOR == 16 else 2
PANEL = max(VECTOR, 1) * _VECTORS
_FLOAT = 4
# Steps of the sum from one test of the loop to the next.
_UNROLLED = 4
# Bytes from column to column of a packed tile.
TILE_LINE = _FLOAT * ROWS
# Columns of all tiles that are packed before the next ones: lines of the cache are read once.
_STEPS = 16

_copy_whole = copy(_VECTORS)


def _emit(packed: bool) -> Any:
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        a, a_row, length, b, b_row, c, c_row, rows, width, accumulate, ahead, ahead_row, ahead_tile, most = arguments
        a_row, a_step = (I64(_FLOAT), I64(TILE_LINE)) if packed else (a_row, I64(_FLOAT))

        def tile(number: Any, row: Any, places: Sequence[Any], lanes: Any, vectors: int) -> None:
            before = builder.mul(number, builder.mul(length, a_step)) if packed else builder.mul(row, a_row)
            fetched = builder.add(ahead, builder.mul(minimum(number, most), ahead_tile))
            _emit_sums(
                Vectors(builder), places, lanes, vectors, builder.add(a, before), a_row, a_step, length, b, b_row,
                builder.add(c, builder.mul(row, c_row)), c_row, accumulate, fetched, ahead_row,
            )  # fmt: skip

        def minimum(left: Any, right: Any) -> Any:
            return builder.select(builder.icmp_signed("<", left, right), left, right)

        tiles = builder.sdiv(builder.add(rows, I64(ROWS - 1)), I64(ROWS))
        # The first tiles, so many, have ROWS rows, the others one less.
        high = builder.sub(rows, builder.mul(tiles, I64(ROWS - 1)))
        usual = builder.and_(builder.icmp_signed("==", width, I64(PANEL)), builder.icmp_signed(">=", high, I64(0)))
        before_lower = builder.select(builder.icmp_signed(">=", high, I64(0)), high, tiles)
        with builder.if_then(usual):
            with cgutils.for_range(builder, high) as loop:
                row = builder.mul(loop.index, I64(ROWS))
                tile(loop.index, row, [I64(r) for r in range(ROWS)], None, _VECTORS)
            with cgutils.for_range(builder, tiles, start=high) as loop:
                row = builder.add(high, builder.mul(loop.index, I64(ROWS - 1)))
                tile(loop.index, row, [I64(r) for r in range(ROWS - 1)], None, _VECTORS)
        for vectors in range(1, _VECTORS + 1):
            least = I64((vectors - 1) * VECTOR)
            lanes = builder.sub(width, least)
            fits = builder.and_(builder.icmp_signed(">", lanes, I64(0)), builder.icmp_signed("<=", lanes, I64(VECTOR)))
            unusual = builder.and_(fits, builder.not_(usual))
            with builder.if_then(unusual), cgutils.for_range(builder, tiles) as loop:
                lower = builder.icmp_signed(">=", loop.index, before_lower)
                past = builder.select(lower, builder.sub(loop.index, before_lower), I64(0))
                row = builder.sub(builder.mul(loop.index, I64(ROWS)), past)
                height = minimum(builder.sub(rows, row), builder.select(lower, I64(ROWS - 1), I64(ROWS)))
                last = builder.sub(height, I64(1))
                tile(loop.index, row, [minimum(I64(r), last) for r in range(ROWS)], lanes, vectors)
        return context.get_dummy_value()

    return emit


def _emit_sums(
    v: Vectors,
    places: Sequence[Any],
    lanes: Any,
    vectors: int,
    a: Any,
    a_row: Any,
    a_step: Any,
    length: Any,
    b: Any,
    b_row: Any,
    c: Any,
    c_row: Any,
    accumulate: Any,
    ahead: Any,
    ahead_row: Any,
) -> None:
    """The rows `places` of a tile of so many vectors, of the last of which `lanes` elements count, or all."""
    builder = v.builder
    masks = [None] * (vectors - 1) + [None if lanes is None else v.first_lanes(lanes)]
    left = [builder.add(a, builder.mul(place, a_row)) for place in places]
    lines = [v.address(builder.add(c, builder.mul(place, c_row))) for place in places]
    total = [[v.variable(v.zero) for _ in masks] for _ in places]

    def add_step(step: Any) -> None:
        v.prefetch(v.address(builder.add(ahead, builder.mul(step, ahead_row))))
        line = v.address(builder.add(b, builder.mul(step, b_row)))
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
    # Not before: the sums would wait for c, which may come from far away.
    with builder.if_then(builder.trunc(accumulate, I1)):
        for target, place, mask in targets:
            builder.store(builder.fadd(builder.load(place), v.load(target, mask)), place)
    for target, place, mask in targets:
        v.store(builder.load(place), target, mask)


def _tiles(packed: bool) -> Any:
    @intrinsic
    def tiles(
        typingctx, a, a_row, length, b, b_row, c, c_row, rows, width, accumulate, ahead, ahead_row, ahead_tile, most
    ):  # pragma: no cover - Numba calls it
        return types.void(*[types.int64] * 14), _emit(packed)

    return tiles


_by_rows, _of_packed = cast(Any, _tiles(False)), cast(Any, _tiles(True))


@linked
def tiles_by_rows(a, a_row, length, b, b_row, c, c_row, rows, width, accumulate, ahead, ahead_row, ahead_tile, most):
    """c[r, :width] = sum over q < length of a[r, q] b[q, :width] for r < rows, or c += it, width <= PANEL.

    a, b, c: addresses of float32 elements; a_row, b_row, c_row: bytes from row to row; rows of a are contiguous.
    The first tiles have ROWS rows, the others one less; where rows do not divide so (1 to 4, 7 to 9, 13, 14, 19) all
    but the last have ROWS. There, and where width is less than PANEL, the last row of a lower tile is computed, and
    written, more than once. At each q tile i fetches what lies at the address
    ahead + q ahead_row + min(i, most) ahead_tile.
    """
    _by_rows(a, a_row, length, b, b_row, c, c_row, rows, width, accumulate, ahead, ahead_row, ahead_tile, most)


@linked
def tiles_of_packed(a, length, b, b_row, c, c_row, rows, width, accumulate, ahead, ahead_row, ahead_tile, most):
    """As `tiles_by_rows`, with a from `pack_left`."""
    _of_packed(a, 0, length, b, b_row, c, c_row, rows, width, accumulate, ahead, ahead_row, ahead_tile, most)


@cast(Any, intrinsic)
def _copy_columns(typingctx, source, step, target, count, height):  # pragma: no cover - Numba calls it
    """`count` columns of a tile, of `height` elements, `step` bytes apart, to lines TILE_LINE bytes apart. A whole
    vector is stored where the lines behind, which come next, have room for it: masks are slow on some CPUs."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, step, target, count, height = arguments
        v = Vectors(builder)
        mask, room = v.first_lanes(height), builder.mul(count, I64(ROWS))
        with cgutils.for_range(builder, count) as column:
            part = v.load(v.address(builder.add(source, builder.mul(column.index, step))), mask)
            begin = builder.mul(column.index, I64(ROWS))
            place = v.at(v.address(target), begin)
            with builder.if_else(builder.icmp_signed("<=", builder.add(begin, I64(VECTOR)), room)) as (fits, last):
                with fits:
                    v.store(part, place)
                with last:
                    v.store(part, place, mask)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), emit


@kernel
def pack_left(source, step, rows, length, target):
    """The matrix (rows, length) at an address, whose columns are contiguous and `step` bytes apart, tile by tile to
    another, where there are ROWS length elements for each tile: a tile's columns one behind the other, TILE_LINE bytes
    apart."""
    high = rows - (ROWS - 1) * tiles_of(rows)
    for k in range(0, length, _STEPS):
        row = 0
        for i in range(tiles_of(rows)):
            count = min(ROWS if high < 0 or i < high else ROWS - 1, rows - row)
            place = target + TILE_LINE * (i * length + k)
            _copy_columns(source + k * step + _FLOAT * row, step, place, min(_STEPS, length - k), count)
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
            copy_panel(source, row, length, width, target)
        else:
            transpose(source, step, width, length, target, _FLOAT * PANEL, False)
        begin += width


@kernel
def copy_panel(source, step, lines, width, target):
    """`lines` rows of `width` elements, at most PANEL, `step` bytes apart, to rows of PANEL elements."""
    if width == PANEL:  # a line of the cache is read once
        _copy_whole(source, step // _FLOAT, target, PANEL, lines, VECTOR)
        return
    for j in range(0, width, VECTOR):
        lanes = min(VECTOR, width - j)
        copy_lines(source + _FLOAT * j, step // _FLOAT, target + _FLOAT * j, PANEL, lines, lanes)


@inlined
def tiles_of(rows):
    """As few tiles as hold so many rows."""
    return -(-rows // ROWS)
