"""How every Numba kernel of this package is compiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any, TypeVar, cast, get_type_hints

from llvmlite import ir
from numba import njit, types

from singa_dask.ops.cpu.toolkit import numba_parts
from singa_dask.ops.cpu.toolkit.compile_lock import CompileLock
from singa_dask.ops.cpu.toolkit.intrinsics import intrinsic_like, numba_type, packed
from singa_dask.ops.cpu.toolkit.numba_parts import FunctionCache, global_compiler_lock

Function = TypeVar("Function", bound=Callable[..., Any])

FASTMATH = {"contract", "reassoc", "nsz", "arcp"}


def kernel(function: Function) -> Function:
    """Compile on first use, cache the result on disk, and release the GIL.

    LLVM may reorder sums and fuse multiplications with additions, so that loops vectorise. Infinities and NaN keep
    their meaning: divergence must show.
    """
    return cast(Function, _compiled(function, no_cfunc_wrapper=True))


def inlined(function: Function) -> Function:
    """A few lines that Numba copies into the kernels that call them before it types those."""
    return cast(Function, njit(inline="always")(function))


def linked(function: Function) -> Function:
    """A function for kernels to call, compiled once; Numba would compile a copy of a kernel into each caller.

    It takes int64 and, where annotated, NamedTuples of int64, and returns nothing. It must be a global of its module.
    """
    link = _Link(function.__module__, function.__name__)
    hints = get_type_hints(function)
    of = types.void(*[numba_type(hints.get(name)) for name in signature(function).parameters])

    def emit(context: Any, builder: ir.IRBuilder, given: Any, values: Any) -> None:
        link()
        arguments = [packed(context, builder, *each) for each in zip(given.args, values, of.args, strict=True)]
        numba_parts.call(context, builder, link.symbol, of, arguments)

    call: Any = intrinsic_like(function, emit)
    call.link, call.signature = link, of
    call.kernel = _compiled(function, no_cpython_wrapper=True, no_cfunc_wrapper=True)
    return cast(Function, call)


@dataclass(frozen=True)
class _Link:
    """Tells LLVM the address of a linked function in this process."""

    module: str
    name: str

    @property
    def symbol(self) -> str:
        return f"{self.module}.{self.name}"

    def __call__(self) -> None:
        numba_parts.define_symbol(self.symbol, _address(self.module, self.name))


@cache
def _address(module: str, name: str) -> int:
    function = getattr(import_module(module), name)
    return numba_parts.address_of(function.kernel, function.signature)


def _compiled(function: Callable[..., Any], **wrappers: Any) -> Any:
    made: Any = njit(nogil=True, error_model="numpy", fastmath=FASTMATH, **wrappers)(function)
    if made is not function:  # equal under NUMBA_DISABLE_JIT
        numba_parts.attach(made, _Cache(function), _releasing)
    return made


def _links(function: Callable[..., Any]) -> set[_Link]:
    """The linked functions that a kernel calls, directly or through the kernels compiled into it."""
    found: set[_Link] = set()
    for called in map(function.__globals__.get, function.__code__.co_names):
        if isinstance(link := getattr(called, "link", None), _Link):
            found.add(link)
        elif callable(inner := getattr(called, "py_func", None)):
            found |= _links(inner)
    return found


class _Cache(FunctionCache):
    """Kernels on disk, which several processes share.

    Numba checks the kernel's own file only, but intrinsics and tile sizes come from others: machine code for tiles of
    another size would write beyond its arrays.
    """

    def __init__(self, function: Callable[..., Any]):
        super().__init__(function)
        numba_parts.stamp(self, _sources())
        self._function = function

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        for link in _links(self._function):
            link()
        found = super().load_overload(sig, target_context)
        if found is None:
            _lock.acquire(Path(self.cache_path))
            found = super().load_overload(sig, target_context)
        return found


@cache
def _sources() -> str:
    """A digest of all sources of the package's kernels."""
    found = sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()


_lock = CompileLock()


def _releasing(compile_it: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def compile_and_release(sig: Any) -> Any:
        with global_compiler_lock:  # Numba's own, between the threads of this process
            before = _lock.depth
            try:
                return compile_it(sig)
            finally:
                _lock.release(before)

    return compile_and_release
