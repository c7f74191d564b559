"""Attention of float32, head by head, in blocks of scores that stay in a core's first-level cache.

singa_dask.ops.attention has the formulas. q, out and their gradients: (B, N, T, D), k, v and theirs: (B, N, S, D), of
which the last axis is contiguous. ends: (B,), the number of positions of k and v that count. Scores are transposed, a
row for each position that is seen and a column for each that sees: sums and maxima then add up whole rows. Where a
causal mask hides half of a block, on the diagonal, products of a few rows compute the other half only. Scratch arrays
have rows of BLOCK or D elements.
"""

import numpy as np

from singa_dask.ops.cpu.attention.softmax_lanes import BLOCK, LINE, dot_lanes, softmax_lanes, softmax_lanes_backward
from singa_dask.ops.cpu.gemm.row_tile import PANEL, ROWS, Prefetch, tiles_by_columns, tiles_by_rows
from singa_dask.ops.cpu.toolkit.copies import copy_lines
from singa_dask.ops.cpu.toolkit.numba_kernel import inlined, kernel
from singa_dask.ops.cpu.toolkit.rows import StridedRows
from singa_dask.ops.cpu.toolkit.transpose import transpose
from singa_dask.ops.cpu.toolkit.vectors import VECTOR

# Rows of a product on the diagonal.
GROUP = 2 * ROWS

_FLOAT = 4


@kernel
def attention(q, k, v, out, log_sums, causal, ends, first, last, turned, scores, values, mixed):
    """As AttentionOps.attention, for the heads [first, last) of all rows.

    turned: (D, BLOCK), scores: (BLOCK, BLOCK), values: (S, D), mixed: (BLOCK, D).
    """
    heads, length, size = q.shape[1:]
    scale = np.full(1, 1 / np.sqrt(size), q.dtype)
    largest, total, kept = np.empty(BLOCK, q.dtype), np.empty(BLOCK, q.dtype), np.empty(BLOCK, q.dtype)
    for n in range(first, last):
        b, h = divmod(n, heads)
        queries, keys, result, stop = _head(q, b, h), _head(k, b, h), _head(out, b, h), ends[b]
        _copy(_head(v, b, h), stop, size, _rows(values))
        for begin in range(0, length, BLOCK):
            count = min(BLOCK, length - begin)
            _turn(_below(queries, begin), count, turned)
            largest[:], total[:] = -np.inf, 0
            for start in range(0, min(begin + 1, stop) if causal else stop, BLOCK):
                seen, diagonal = min(BLOCK, stop - start), causal and start == begin
                _scores(_below(keys, start), seen, turned, count, diagonal, scores)
                _softmax(scores, seen, _whole(count), diagonal, scale, largest, total, kept)
                if start > 0:
                    _scale_rows(mixed, count, kept)
                step = GROUP if diagonal else BLOCK
                for i in range(0, count, step):
                    terms, rows = min(i + step, seen) if diagonal else seen, min(step, count - i)
                    left, target = _at(scores, 0, i), _below(_rows(mixed), i)
                    _add_columns(left, terms, _below(_rows(values), start), target, rows, size, start > 0)
            for i in range(count):
                log_sums[b, h, begin + i] = largest[i] + np.log(total[i])
                kept[i] = np.float32(1) / total[i]
            _scale_rows(mixed, count, kept)
            _copy(_rows(mixed), count, size, _below(result, begin))


@kernel
def attention_backward(
    q, k, v, out, log_sums, dout, dq, dk, dv, causal, ends, first, last, turned, scores, dscores, keys, blocks
):
    """As AttentionOps.attention_backward, for the heads [first, last) of all rows.

    turned: (3, D, BLOCK), scores, dscores: (BLOCK, BLOCK), keys: (S, D), blocks: (2, BLOCK, D).
    """
    heads, length, size = q.shape[1:]
    scale = np.full(1, 1 / np.sqrt(size), q.dtype)
    logs, along = np.zeros(BLOCK, q.dtype), np.zeros(BLOCK, q.dtype)
    queries, upper = blocks
    turned_queries, turned_upper, turned_out = turned
    for n in range(first, last):
        b, h = divmod(n, heads)
        stop = ends[b]
        _copy(_head(k, b, h), stop, size, _rows(keys))
        dk[b, h, stop:], dv[b, h, stop:] = 0, 0
        for begin in range(0, length, BLOCK):
            count = min(BLOCK, length - begin)
            _copy(_below(_head(q, b, h), begin), count, size, _rows(queries))
            _copy(_below(_head(dout, b, h), begin), count, size, _rows(upper))
            _turn(_rows(queries), count, turned_queries)
            _turn(_rows(upper), count, turned_upper)
            _turn(_below(_head(out, b, h), begin), count, turned_out)
            for i in range(0, count, VECTOR):
                dot_lanes(_lane(turned_upper, i), _lane(turned_out, i), size, _lane(along, i))
            for i in range(count):
                logs[i] = log_sums[b, h, begin + i]
            for start in range(0, min(begin + 1, stop) if causal else stop, BLOCK):
                seen, diagonal = min(BLOCK, stop - start), causal and start == begin
                _scores(_below(_rows(keys), start), seen, turned_queries, count, diagonal, scores)
                _scores(_below(_head(v, b, h), start), seen, turned_upper, count, diagonal, dscores)
                _softmax_backward(scores, dscores, seen, _whole(count), diagonal, scale, logs, along)
                step = GROUP if diagonal else BLOCK
                adding = begin > start if causal else begin > 0
                for j in range(0, seen, step):
                    skipped, rows = j if diagonal else 0, min(step, seen - j)
                    terms = count - skipped
                    left, right = _at(scores, j, skipped), _below(_rows(upper), skipped)
                    _add_rows(left, terms, right, _below(_head(dv, b, h), start + j), rows, size, adding)
                    left, right = _at(dscores, j, skipped), _below(_rows(queries), skipped)
                    _add_rows(left, terms, right, _below(_head(dk, b, h), start + j), rows, size, adding)
                for i in range(0, count, step):
                    terms, rows = min(i + step, seen) if diagonal else seen, min(step, count - i)
                    left, target = _at(dscores, 0, i), _below(_head(dq, b, h), begin + i)
                    _add_columns(left, terms, _below(_rows(keys), start), target, rows, size, start > 0)


@inlined
def _rows(matrix):
    return StridedRows(matrix.ctypes.data, matrix.strides[0])


@inlined
def _head(array, b, h):
    return StridedRows(array.ctypes.data + b * array.strides[0] + h * array.strides[1], array.strides[2])


@inlined
def _at(matrix, row, column):
    """What is below and to the right, in a matrix with rows of BLOCK elements."""
    return StridedRows(matrix.ctypes.data + row * LINE + _FLOAT * column, LINE)


@inlined
def _lane(array, i):
    return array.ctypes.data + _FLOAT * i


@inlined
def _below(rows, count):
    """Without the first `count`."""
    return StridedRows(rows.address + count * rows.step, rows.step)


@inlined
def _whole(count):
    """Rounded up to whole vectors."""
    return -(-count // VECTOR) * VECTOR


@inlined
def _first_lane(j, diagonal):
    """The first vector's, of the lanes that are computed for row j of the scores."""
    first = j // GROUP * GROUP if diagonal else 0
    return first // VECTOR * VECTOR


@kernel
def _copy(source, count, width, target):
    for j in range(0, width, VECTOR):
        line, place = source.address + _FLOAT * j, target.address + _FLOAT * j
        copy_lines(line, source.step // _FLOAT, place, target.step // _FLOAT, count, min(VECTOR, width - j))


@kernel
def _turn(source, count, target):
    """Rows become columns, with zeros behind them up to whole vectors."""
    transpose(source, count, target.shape[0], StridedRows(target.ctypes.data, LINE), False)
    for d in range(target.shape[0]):
        for i in range(count, _whole(count)):
            target[d, i] = 0


@kernel
def _add_rows(a, length, b, c, rows, width, accumulate):
    """c[r, :width] = sum over q < length of a[r, q] b[q, :width] for r < rows, or c += it."""
    for j in range(0, width, PANEL):
        right, target = StridedRows(b.address + _FLOAT * j, b.step), StridedRows(c.address + _FLOAT * j, c.step)
        tiles_by_rows(a, length, right, target, rows, min(PANEL, width - j), accumulate, Prefetch(a.address, 0, 0, 0))


@kernel
def _add_columns(a, length, b, c, rows, width, accumulate):
    """As `_add_rows`, with sums of a[q, r] b[q, :width]."""
    for j in range(0, width, PANEL):
        right, target = StridedRows(b.address + _FLOAT * j, b.step), StridedRows(c.address + _FLOAT * j, c.step)
        ahead = Prefetch(a.address, 0, 0, 0)
        tiles_by_columns(a, length, right, target, rows, min(PANEL, width - j), accumulate, ahead)


@kernel
def _scores(left, seen, turned, count, diagonal, scores):
    """scores[j, i] = left[j] . turned[:, i]; on the diagonal only where i >= j, and for some others."""
    step = GROUP if diagonal else BLOCK
    for j in range(0, seen, step):
        lane = _first_lane(j, diagonal)
        right, target, width = _at(turned, 0, lane), _at(scores, j, lane), _whole(count) - lane
        _add_rows(_below(left, j), turned.shape[0], right, target, min(step, seen - j), width, False)


@kernel
def _softmax(scores, seen, lanes, diagonal, scale, largest, total, kept):
    """softmax_lanes for all lanes; on the diagonal lane i sees the rows up to its own."""
    for i in range(0, lanes, VECTOR):
        whole, end = (min(i, seen), min(i + VECTOR, seen)) if diagonal else (seen, seen)
        state = _lane(largest, i), _lane(total, i), _lane(kept, i)
        softmax_lanes(_lane(scores, i), whole, end, scale.ctypes.data, *state)
        _clear_hidden(scores, i, end, seen)


@kernel
def _softmax_backward(scores, dscores, seen, lanes, diagonal, scale, log_sums, along):
    """softmax_lanes_backward for all lanes."""
    for i in range(0, lanes, VECTOR):
        whole, end = (min(i, seen), min(i + VECTOR, seen)) if diagonal else (seen, seen)
        given = _lane(log_sums, i), _lane(along, i)
        softmax_lanes_backward(_lane(scores, i), _lane(dscores, i), whole, end, scale.ctypes.data, *given)
        _clear_hidden(scores, i, end, seen)
        _clear_hidden(dscores, i, end, seen)


@kernel
def _clear_hidden(scores, lane, end, seen):
    """The rows that no lane of a vector sees are 0 as far as products of a group read them."""
    for j in range(end, min(end + GROUP, seen)):
        for i in range(lane, lane + VECTOR):
            scores[j, i] = 0


@kernel
def _scale_rows(matrix, count, factors):
    for i in range(count):
        factor = factors[i]
        for d in range(matrix.shape[1]):
            matrix[i, d] *= factor
