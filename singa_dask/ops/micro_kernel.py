"""The micro-kernel under convolution: one register tile of a sum of matrix products, as LLVM IR for Numba.

    c[targets[r] + j] = start[starts[r] + j]
                        + sum over n, q of a[rows[r] + runs[n] + q a_step] b[(n length + q) b_step + j]

for the ROWS rows r and up to two vectors of columns j. Rows and runs are found through tables of offsets, so that a
product runs over pixels of padded images where they lie: nothing is gathered into a matrix first ("batch-reduce GEMM",
Georganas et al. 2020). The tile stays in registers for the whole sum: ROWS x 2 accumulators, two vectors of b and one
broadcast element of a fill the 32 registers of AVX-512 (12 x 2) or the 16 of AVX2 (6 x 2). To change a tile's size,
change `_ROWS`; every table must be padded to a multiple of it.

VECTOR follows the CPU that Numba compiles for, which is part of the key of Numba's cache on disk, so that machines
with different CPUs can share a cache. NUMBA_CPU_NAME and NUMBA_CPU_FEATURES change both.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.registry import cpu_target
from numba.extending import intrinsic


def _vector() -> int:
    """float32 elements in a vector of the CPU that Numba compiles for; 0 where the kernel is not worth while."""
    _, _, features = cpu_target.target_context.codegen().magic_tuple()
    has = set(features.split(","))
    if "+avx512f" in has:
        return 16
    return 8 if {"+avx2", "+fma"} <= has else 0


_ROWS = {16: 12, 8: 6, 0: 1}
VECTOR = _vector()
ROWS = _ROWS[VECTOR]
# Columns of the wider tile, and so of a packed panel of b.
PANEL = 2 * VECTOR

_i64, _i32, _i1, _f32 = ir.IntType(64), ir.IntType(32), ir.IntType(1), ir.FloatType()


class _Emitter:
    """Vectors of `VECTOR` floats in one function under construction. Pointers to floats are unaligned."""

    def __init__(self, builder: ir.IRBuilder):
        self.builder = builder
        self.vector = ir.VectorType(_f32, VECTOR)
        self.mask = ir.VectorType(_i1, VECTOR)
        self.zero = ir.Constant(self.vector, None)
        pointer, align = self.vector.as_pointer(), _i32
        self._fma = self._declare("llvm.fma.v{}f32", self.vector, [self.vector] * 3)
        self._load = self._declare("llvm.masked.load.v{}f32.p0", self.vector, [pointer, align, self.mask, self.vector])
        self._store = self._declare(
            "llvm.masked.store.v{}f32.p0", ir.VoidType(), [self.vector, pointer, align, self.mask]
        )

    def _declare(self, name: str, result: ir.Type, arguments: list[ir.Type]) -> Any:
        signature = ir.FunctionType(result, arguments)
        return cgutils.get_or_insert_function(self.builder.module, signature, name.format(VECTOR))

    def splat(self, scalar: Any) -> Any:
        """A vector of one scalar, of any type."""
        undefined = ir.Constant(ir.VectorType(scalar.type, VECTOR), ir.Undefined)
        first = self.builder.insert_element(undefined, scalar, _i32(0))
        return self.builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(_i32, VECTOR), [0] * VECTOR))

    def first_lanes(self, count: Any) -> Any:
        """The mask of the first `count` lanes."""
        lanes = ir.Constant(ir.VectorType(_i64, VECTOR), list(range(VECTOR)))
        return self.builder.icmp_signed("<", lanes, self.splat(count))

    def element(self, pointer: Any, offset: Any) -> Any:
        return self.builder.gep(pointer, [offset])

    def load(self, pointer: Any, mask: Any = None) -> Any:
        """A vector from memory; lanes outside the mask are not read, and zero."""
        pointer = self.builder.bitcast(pointer, self.vector.as_pointer())
        if mask is None:
            return self.builder.load(pointer, align=4)
        return self.builder.call(self._load, [pointer, _i32(4), mask, self.zero])

    def store(self, vector: Any, pointer: Any, mask: Any = None) -> None:
        pointer = self.builder.bitcast(pointer, self.vector.as_pointer())
        if mask is None:
            self.builder.store(vector, pointer, align=4)
        else:
            self.builder.call(self._store, [vector, pointer, _i32(4), mask])

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        return self.builder.call(self._fma, [a, b, c])


def _tile(vectors: int) -> Any:
    """The intrinsic of a tile of ROWS rows and so many vectors, of the last of which `lanes` elements count.

    Its arguments are int64: addresses of float32 (a, b, start, c) and of int64 (rows, runs, starts, targets) elements,
    and counts and steps in elements.
    """

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        a, rows, a_step, runs, count, length, b, b_step, start, starts, c, targets, lanes = arguments
        e = _Emitter(builder)
        a, b, start, c = (builder.inttoptr(address, _f32.as_pointer()) for address in (a, b, start, c))
        rows, runs, starts, targets = (builder.inttoptr(t, _i64.as_pointer()) for t in (rows, runs, starts, targets))
        mask = e.first_lanes(lanes)
        masks = [None] * (vectors - 1) + [mask]

        def entry(pointer: Any, table: Any, index: Any) -> Any:
            return e.element(pointer, builder.load(e.element(table, index)))

        pixels = [entry(a, rows, _i64(r)) for r in range(ROWS)]
        total = [[cgutils.alloca_once(builder, e.vector) for _ in masks] for _ in range(ROWS)]
        for r in range(ROWS):
            first = entry(start, starts, _i64(r))
            for v, part in enumerate(masks):
                builder.store(e.load(e.element(first, _i64(v * VECTOR)), part), total[r][v])
        b_run = builder.mul(length, b_step)
        with cgutils.for_range(builder, count) as outer:
            run = builder.load(e.element(runs, outer.index))
            panel = e.element(b, builder.mul(outer.index, b_run))
            with cgutils.for_range(builder, length) as inner:
                offset = builder.add(run, builder.mul(inner.index, a_step))
                line = e.element(panel, builder.mul(inner.index, b_step))
                right = [e.load(e.element(line, _i64(v * VECTOR)), part) for v, part in enumerate(masks)]
                for r in range(ROWS):
                    left = e.splat(builder.load(e.element(pixels[r], offset)))
                    for v in range(vectors):
                        builder.store(e.fma(left, right[v], builder.load(total[r][v])), total[r][v])
        for r in range(ROWS):
            place = entry(c, targets, _i64(r))
            for v, part in enumerate(masks):
                e.store(builder.load(total[r][v]), e.element(place, _i64(v * VECTOR)), part)
        return context.get_dummy_value()

    @intrinsic
    def tile(
        typingctx, a, rows, a_step, runs, count, length, b, b_step, start, starts, c, targets, lanes
    ):  # pragma: no cover - Numba calls it
        return types.void(*[types.int64] * 13), emit

    return tile


tile_of_one, tile_of_two = _tile(1), _tile(2)
