"""The parts of Numba and llvmlite that the kernels rest on and that a new version may change.

No other module imports from `numba.core`. tests/unit/ops/test_numba_parts.py uses each part and names the missing one;
pyproject.toml admits the versions of Numba that it passes with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import binding, ir
from numba.core import cgutils
from numba.core.caching import FunctionCache
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target

__all__ = ["FunctionCache", "cgutils", "define_symbol", "global_compiler_lock"]

Compile = Callable[[Any], Any]


def cpu_features() -> set[str]:
    """The features of the CPU that Numba compiles for, such as "+avx2"; part of the key of its cache."""
    _, _, features = cpu_target.target_context.codegen().magic_tuple()
    return set(features.split(","))


def load_registries() -> None:
    """What Numba otherwise imports and registers before it loads its first kernel."""
    cpu_target.typing_context.refresh()
    cpu_target.target_context.refresh()


def stamp(cache: FunctionCache, digest: str) -> None:
    """Make a kernel's file in the cache valid only together with `digest`."""
    cache._cache_file._source_stamp = (cache._cache_file._source_stamp, digest)


def attach(dispatcher: Any, cache: FunctionCache, around: Callable[[Compile], Compile]) -> None:
    """Make a compiled function use `cache`, and wrap its compile method by `around`."""
    dispatcher._cache = cache
    dispatcher.compile = around(dispatcher.compile)


def address_of(dispatcher: Any, signature: Any) -> int:
    """The address of a function, compiled for this signature, with Numba's calling convention."""
    made = dispatcher.get_compile_result(signature)
    return int(made.library.get_pointer_to_function(made.fndesc.llvm_func_name))


def define_symbol(name: str, address: int) -> None:
    """Let LLVM resolve an external function of this name to an address."""
    binding.add_symbol(name, address)


def call(context: Any, builder: ir.IRBuilder, symbol: str, signature: Any, arguments: Sequence[Any]) -> None:
    """Call an external function with Numba's calling convention; its C entry copies arguments from stack to stack."""
    convention = context.call_conv
    kind = convention.get_function_type(signature.return_type, signature.args)
    entry = cgutils.get_or_insert_function(builder.module, kind, symbol)
    convention.call_function(builder, entry, signature.return_type, signature.args, arguments)
