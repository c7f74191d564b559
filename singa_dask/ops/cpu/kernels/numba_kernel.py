"""How every Numba kernel of this package is compiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, TypeVar, cast

from llvmlite import binding, ir
from numba import njit
from numba.core import cgutils, types
from numba.core.caching import FunctionCache
from numba.core.compiler_lock import global_compiler_lock
from numba.extending import intrinsic

from singa_dask.ops.cpu.kernels.turns import Turn

Function = TypeVar("Function", bound=Callable[..., Any])

FASTMATH = {"contract", "reassoc", "nsz", "arcp"}


def kernel(function: Function) -> Function:
    """Compile on first use and keep the result on disk; release the GIL.

    Sums may be reordered and multiplications fused, so that loops vectorise, but infinities and NaN keep their
    meaning: a diverging net must show.
    """
    return cast(Function, _compiled(function, no_cfunc_wrapper=True))


def inlined(function: Function) -> Function:
    """A few lines that Numba puts into the kernels that call them before it looks at those: compiled with them."""
    return cast(Function, njit(inline="always")(function))


def linked(function: Function) -> Function:
    """A function of int64 for kernels to call, compiled once: of a kernel that another one calls, Numba compiles a
    copy into that too. It returns nothing, and is known by its name at the top of its module."""
    link = _Link(function.__module__, function.__name__)
    taken, context = signature(function), Parameter("context", Parameter.POSITIONAL_OR_KEYWORD)
    of = types.void(*[types.int64] * len(taken.parameters))

    def emit(context: Any, builder: ir.IRBuilder, _: Any, arguments: Any) -> Any:
        link()
        kind = ir.FunctionType(ir.VoidType(), [argument.type for argument in arguments])
        builder.call(cgutils.get_or_insert_function(builder.module, kind, link.symbol), arguments)
        return context.get_dummy_value()

    def typed(context, *arguments):  # pragma: no cover - Numba calls it
        return of, emit

    cast(Any, typed).__signature__ = taken.replace(parameters=[context, *taken.parameters.values()])
    call: Any = intrinsic(typed)
    call.link, call.kernel, call.signature = link, _compiled(function, no_cpython_wrapper=True), of
    return cast(Function, call)


@dataclass(frozen=True)
class _Link:
    """Tells LLVM where a linked function is in this process."""

    module: str
    name: str

    @property
    def symbol(self) -> str:
        return f"{self.module}.{self.name}"

    def __call__(self) -> None:
        binding.add_symbol(self.symbol, _address(self.module, self.name))


@cache
def _address(module: str, name: str) -> int:
    function = getattr(import_module(module), name)
    made = function.kernel.get_compile_result(function.signature)
    return int(made.library.get_pointer_to_function(made.fndesc.llvm_cfunc_wrapper_name))


def _compiled(function: Callable[..., Any], **wrappers: Any) -> Any:
    made: Any = njit(nogil=True, error_model="numpy", fastmath=FASTMATH, **wrappers)(function)
    if made is not function:  # else Numba was told to compile nothing
        made._cache = _Cache(function)
        made.compile = _by_turns(made.compile)
    return made


def _links(function: Callable[..., Any]) -> set[_Link]:
    """Of the linked functions that a kernel calls, itself or by way of other kernels, which are compiled into it."""
    found: set[_Link] = set()
    for called in map(function.__globals__.get, function.__code__.co_names):
        if isinstance(link := getattr(called, "link", None), _Link):
            found.add(link)
        elif callable(inner := getattr(called, "py_func", None)):
            found |= _links(inner)
    return found


class _Cache(FunctionCache):
    """Kernels on disk, which other processes compile too.

    Numba looks at the kernel's own file alone, but intrinsics and sizes of tiles come from others: machine code made
    for tiles of another size would write beyond its arrays.
    """

    def __init__(self, function: Callable[..., Any]):
        super().__init__(function)
        self._cache_file._source_stamp = (self._cache_file._source_stamp, _sources())
        self._function = function

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        for link in _links(self._function):
            link()
        found = super().load_overload(sig, target_context)
        if found is None:
            _turn.take(Path(self.cache_path))
            found = super().load_overload(sig, target_context)
        return found


@cache
def _sources() -> str:
    """A digest of all that the package's kernels are made of."""
    found = sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()


_turn = Turn()


def _by_turns(compile_it: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def compile_in_turn(sig: Any) -> Any:
        with global_compiler_lock:  # Numba's own, of the threads of this process
            before = _turn.taken
            try:
                return compile_it(sig)
            finally:
                _turn.give_back(before)

    return compile_in_turn
