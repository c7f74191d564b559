"""Functions in LLVM IR for kernels to call. They take numbers and NamedTuples of numbers, all as int64."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, signature
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from singa_dask.ops.cpu.toolkit.numba_parts import cgutils
from singa_dask.ops.cpu.toolkit.vectors import Vectors


def emitted(emit: Callable[..., None]) -> Any:
    """The function, without a result, whose LLVM IR `emit(v, *arguments)` builds.

    v: a Vectors. arguments: each an LLVM int64, or a NamedTuple of them.
    """

    def generate(context: Any, builder: ir.IRBuilder, given: Any, values: Any) -> None:
        emit(Vectors(builder), *(_named(context, builder, *each) for each in zip(given.args, values, strict=True)))

    return intrinsic_like(emit, generate, skipped=1)


def intrinsic_like(function: Callable[..., Any], generate: Callable[..., None], skipped: int = 0) -> Any:
    """An intrinsic without a result and with the parameters of `function` but the first `skipped`.

    generate(context, builder, signature, values) builds its LLVM IR.
    """
    taken, context = signature(function), Parameter("context", Parameter.POSITIONAL_OR_KEYWORD)

    def emit(context: Any, builder: ir.IRBuilder, given: Any, values: Any) -> Any:
        generate(context, builder, given, values)
        return context.get_dummy_value()

    def typed(context, *arguments):  # pragma: no cover - Numba calls it
        return types.void(*arguments), emit

    parameters = [context, *list(taken.parameters.values())[skipped:]]
    typed.__signature__ = taken.replace(parameters=parameters)  # type: ignore[attr-defined]
    typed.__name__, typed.__doc__ = function.__name__, function.__doc__
    return intrinsic(typed)


def numba_type(annotation: Any) -> Any:
    """int64, or for a NamedTuple class a tuple of as many."""
    if hasattr(annotation, "_fields"):
        return types.NamedUniTuple(types.int64, len(annotation._fields), annotation)
    return types.int64


def packed(context: Any, builder: ir.IRBuilder, kind: Any, value: Any, target: Any) -> Any:
    """An argument as `numba_type` has it."""
    if isinstance(target, types.NamedUniTuple):
        return context.make_tuple(builder, target, _leaves(context, builder, kind, value))
    return context.cast(builder, value, kind, target)


def _named(context: Any, builder: ir.IRBuilder, kind: Any, value: Any) -> Any:
    if isinstance(kind, (types.NamedTuple, types.NamedUniTuple)):
        return kind.instance_class(*_leaves(context, builder, kind, value))
    return context.cast(builder, value, kind, types.int64)


def _leaves(context: Any, builder: ir.IRBuilder, kind: Any, value: Any) -> list[Any]:
    parts = zip(kind.types, cgutils.unpack_tuple(builder, value), strict=True)
    return [context.cast(builder, part, of, types.int64) for of, part in parts]
