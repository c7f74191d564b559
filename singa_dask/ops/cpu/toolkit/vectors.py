"""Vectors of float32 in LLVM IR, of the CPU that Numba compiles for.

VECTOR depends on the CPU, which is part of the key of Numba's cache on disk, so machines with different CPUs can share
a cache. NUMBA_CPU_NAME and NUMBA_CPU_FEATURES select another CPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

from singa_dask.ops.cpu.toolkit.numba_parts import cgutils, cpu_features


def _vector() -> int:
    """float32 elements in a vector of that CPU; 0 where intrinsics are not worthwhile."""
    has = cpu_features()
    if "+avx512f" in has:
        return 16
    return 8 if {"+avx2", "+fma"} <= has else 0


VECTOR = _vector()

I64, I32, I8, I1, F32 = ir.IntType(64), ir.IntType(32), ir.IntType(8), ir.IntType(1), ir.FloatType()


class Vectors:
    """Operations on vectors of VECTOR elements in a function under construction. Pointers are unaligned."""

    def __init__(self, builder: ir.IRBuilder):
        self.builder = builder
        self.floats = ir.VectorType(F32, VECTOR)
        self.zero = ir.Constant(self.floats, None)

    def call(self, name: str, result: ir.Type, arguments: list[Any]) -> Any:
        signature = ir.FunctionType(result, [a.type for a in arguments])
        function = cgutils.get_or_insert_function(self.builder.module, signature, name)
        return self.builder.call(function, arguments)

    def splat(self, scalar: Any) -> Any:
        """A vector of one scalar, of any type."""
        undefined = ir.Constant(ir.VectorType(scalar.type, VECTOR), ir.Undefined)
        first = self.builder.insert_element(undefined, scalar, I32(0))
        return self.builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(I32, VECTOR), [0] * VECTOR))

    def first_lanes(self, count: Any) -> Any:
        """The mask of the first `count` lanes."""
        lanes = ir.Constant(ir.VectorType(I64, VECTOR), list(range(VECTOR)))
        return self.builder.icmp_signed("<", lanes, self.splat(count))

    def by_lanes(self, count: Any) -> Iterator[Any]:
        """Emit the loop's body twice: without a mask for `count` == VECTOR, and with the mask of `count` lanes.

        Masks are slow: AVX2 has none for bytes, its masked store takes a dozen cycles on AMD's CPUs, and a load must
        wait for a masked store before it.
        """
        with self.builder.if_else(self.builder.icmp_signed("==", count, I64(VECTOR))) as (whole, part):
            with whole:
                yield None
            with part:
                yield self.first_lanes(count)

    def address(self, address: Any, element: ir.Type = F32) -> Any:
        """A pointer to elements at an int64 address."""
        return self.builder.inttoptr(address, element.as_pointer())

    def at(self, pointer: Any, offset: Any) -> Any:
        """The pointer `offset` elements on."""
        return self.builder.gep(pointer, [offset])

    def load(self, pointer: Any, mask: Any = None, element: ir.Type = F32) -> Any:
        """A vector from memory; lanes outside the mask are not read, and zero."""
        vector = ir.VectorType(element, VECTOR)
        pointer = self.builder.bitcast(pointer, vector.as_pointer())
        if mask is None:
            return self.builder.load(pointer, align=_SIZE[element])
        name = f"llvm.masked.load.v{VECTOR}{_NAME[element]}.p0"
        return self.call(name, vector, [pointer, I32(_SIZE[element]), mask, ir.Constant(vector, None)])

    def row(self, pointer: Any, masks: Sequence[Any]) -> list[Any]:
        """Vectors side by side from memory."""
        return [self.load(self.at(pointer, I64(n * VECTOR)), mask) for n, mask in enumerate(masks)]

    def store(self, vector: Any, pointer: Any, mask: Any = None, element: ir.Type = F32) -> None:
        """The vector, or its lanes inside the mask, to memory."""
        pointer = self.builder.bitcast(pointer, vector.type.as_pointer())
        if mask is None:
            self.builder.store(vector, pointer, align=_SIZE[element])
            return
        name = f"llvm.masked.store.v{VECTOR}{_NAME[element]}.p0"
        self.call(name, ir.VoidType(), [vector, pointer, I32(_SIZE[element]), mask])

    def prefetch(self, pointer: Any) -> None:
        """Start to load an element into the first-level cache; any address is allowed."""
        pointer = self.builder.bitcast(pointer, I8.as_pointer())
        self.call("llvm.prefetch.p0", ir.VoidType(), [pointer, I32(0), I32(3), I32(1)])

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """a b + c, rounded once."""
        return self.call(f"llvm.fma.v{VECTOR}f32", self.floats, [a, b, c])

    @contextmanager
    def rounds(self, count: Any) -> Iterator[None]:
        """A loop of `count` rounds that LLVM does not unroll.

        Unrolled, a loop along several rows would need a pointer for each row of each round: more than the registers.
        """
        builder = self.builder
        left = self.variable(count)
        body, after = builder.append_basic_block("rounds"), builder.append_basic_block("after")
        builder.cbranch(builder.icmp_signed(">", count, I64(0)), body, after)
        builder.position_at_end(body)
        yield
        rest = builder.sub(builder.load(left), I64(1))
        builder.store(rest, left)
        again = builder.cbranch(builder.icmp_signed(">", rest, I64(0)), body, after)
        again.set_metadata("llvm.loop", self._never_unrolled())
        builder.position_at_end(after)

    def _never_unrolled(self) -> Any:
        """A loop's metadata, whose first operand is itself.

        It is set afterwards: llvmlite compares operands on creation, which would not end.
        """
        module = self.builder.module
        unroll = module.add_metadata(["llvm.loop.unroll.disable"])
        loop = module.add_metadata([I64(len(module.metadata))])
        loop.operands = (loop, unroll)
        return loop

    def variable(self, value: Any) -> Any:
        """A stack slot with an initial value; LLVM turns it into a register."""
        place = cgutils.alloca_once(self.builder, value.type)
        self.builder.store(value, place)
        return place


_SIZE = {F32: 4, I8: 1}
_NAME = {F32: "f32", I8: "i8"}
