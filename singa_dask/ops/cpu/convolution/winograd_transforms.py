"""The transforms of Winograd's convolution, as LLVM IR for Numba: L X L', of tiles X with a vector of channels each.

`spread_*` take tiles to points, `fold_*` are their transposes: of images, of outputs (tiles of 2 or 4) and of filters
(3 or 5). The matrices are known at compile time: zeros cost nothing, ones no multiplication, and rows or columns that
differ in signs only share their sums. A tile stays in registers and on the stack.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir

from singa_dask.ops.arrays import Array
from singa_dask.ops.cpu.convolution.winograd_matrices import evaluation, interpolation, scaled_evaluation
from singa_dask.ops.cpu.toolkit.intrinsics import emitted
from singa_dask.ops.cpu.toolkit.vectors import F32, I64, Vectors


class WinogradTile(NamedTuple):
    """A square of elements, [i, j] = address[i row + j column]; row, column: in elements."""

    address: int
    row: int
    column: int


def factors(matrix: Array) -> list[Array]:
    """Factors of `matrix`, to be applied in this order, that need fewer operations than it.

    Rows u + v and u - v, where u and v have no column in common, are computed from u and v.
    """
    found = _paired_rows(matrix)
    return found or [part.T for part in reversed(_paired_rows(matrix.T))] or [matrix]


def _paired_rows(matrix: Array) -> list[Array]:
    parts, signs = matrix.copy(), np.eye(len(matrix))
    for i in range(len(matrix) - 1):
        u, v = (matrix[i] + matrix[i + 1]) / 2, (matrix[i] - matrix[i + 1]) / 2
        if u.any() and v.any() and not (u * v).any():
            parts[i : i + 2] = u, v
            signs[i : i + 2, i : i + 2] = (1, 1), (1, -1)
    return [] if np.array_equal(parts, matrix) else [parts, signs]


def _row(v: Vectors, numbers: Array, values: list[Any]) -> Any:
    """The sum of numbers times values, ones first."""
    terms = sorted(((n, x) for n, x in zip(numbers, values, strict=True) if n), key=lambda term: abs(term[0] - 1))
    (number, total), *others = terms
    if number != 1:
        total = v.builder.fmul(v.splat(ir.Constant(F32, number)), total)
    for number, value in others:
        if abs(number) == 1:
            total = (v.builder.fadd if number > 0 else v.builder.fsub)(total, value)
        else:
            total = v.fma(v.splat(ir.Constant(F32, number)), value, total)
    return total


def _apply(v: Vectors, parts: list[Array], values: list[Any]) -> list[Any]:
    for part in parts:
        values = [_row(v, numbers, values) for numbers in part]
    return values


def _transformed(v: Vectors, matrix: Array, tile: list[list[Any]]) -> list[list[Any]]:
    """L X L' for a tile X of vectors."""
    parts = factors(matrix)
    columns = [_apply(v, parts, list(column)) for column in zip(*tile, strict=True)]
    return [_apply(v, parts, list(row)) for row in zip(*columns, strict=True)]


def _places(v: Vectors, tile: WinogradTile, size: int) -> list[list[Any]]:
    pointer, mul = v.address(tile.address), v.builder.mul
    return [
        [v.at(pointer, v.builder.add(mul(I64(i), tile.row), mul(I64(j), tile.column))) for j in range(size)]
        for i in range(size)
    ]


def _spread(matrix: Array) -> Any:
    """The intrinsic target[i, j] = (L X L')[i, j] of a tile X = source, of `lanes` channels."""
    outputs, inputs = matrix.shape

    def spread(v: Vectors, source: WinogradTile, lanes: Any, target: WinogradTile) -> None:
        pixels, points = _places(v, source, inputs), _places(v, target, outputs)
        for mask in v.by_lanes(lanes):
            tile = [[v.load(pixel, mask) for pixel in line] for line in pixels]
            for line, values in zip(points, _transformed(v, matrix, tile), strict=True):
                for point, value in zip(line, values, strict=True):
                    v.store(value, point)

    return emitted(spread)


def _fold(matrix: Array) -> Any:
    """The intrinsic target[i, j] = start[i, j] + (L X L')[i, j] of points X = source, of `lanes` channels."""
    outputs, inputs = matrix.shape

    def fold(v: Vectors, source: WinogradTile, lanes: Any, start: WinogradTile, target: WinogradTile) -> None:
        points = _places(v, source, inputs)
        starts, pixels = _places(v, start, outputs), _places(v, target, outputs)
        for mask in v.by_lanes(lanes):
            tile = [[v.load(point, mask) for point in line] for line in points]
            for i, values in enumerate(_transformed(v, matrix, tile)):
                for begin, pixel, value in zip(starts[i], pixels[i], values, strict=True):
                    v.store(v.builder.fadd(v.load(begin, mask), value), pixel, mask)

    return emitted(fold)


spread_image, fold_image = _spread(interpolation()), _fold(interpolation().T)
spread_output_2, fold_output_2 = _spread(evaluation(2)), _fold(evaluation(2).T)
spread_output_4, fold_output_4 = _spread(evaluation(4)), _fold(evaluation(4).T)
spread_filter_3, fold_filter_3 = _spread(scaled_evaluation(3)), _fold(scaled_evaluation(3).T)
spread_filter_5, fold_filter_5 = _spread(scaled_evaluation(5)), _fold(scaled_evaluation(5).T)
