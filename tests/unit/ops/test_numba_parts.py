"""The parts of Numba and llvmlite that a new version may change: a failure names the part and its user."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import llvmlite
import numba
import pytest
from packaging.requirements import Requirement

import singa_dask

PACKAGE = Path(singa_dask.__file__).parent
TOOLKIT = "singa_dask/ops/cpu/toolkit"


class Part(NamedTuple):
    """name: of the part; user: where the package uses it; check: raises an error where it is missing."""

    name: str
    user: str
    check: Callable[[], object]


def found(module: str, *names: str) -> Callable[[], object]:
    return lambda: [getattr(import_module(module), name) for name in names]


def add_one(x):
    return x + 1


def cache_stamp():
    cache = import_module("numba.core.caching").FunctionCache(add_one)
    stamp = cache._cache_file._source_stamp
    cache._cache_file._source_stamp = (stamp, "more")
    assert callable(cache.load_overload) and Path(cache.cache_path).is_absolute()


def compiler_lock():
    with import_module("numba.core.compiler_lock").global_compiler_lock:
        pass


def cpu_features():
    context = import_module("numba.core.registry").cpu_target.target_context
    _, _, features = context.codegen().magic_tuple()
    assert isinstance(features, str)


def compiled(**wrappers: bool) -> Any:
    return numba.njit(nogil=True, error_model="numpy", fastmath={"contract", "nsz"}, **wrappers)(add_one)


def dispatcher():
    made = compiled(no_cfunc_wrapper=True)
    made._cache  # noqa: B018
    assert callable(made.compile) and made(1) == 2


def own_entry():
    """A function is called by its address, with the convention that the context has for its signature."""
    from numba.core import cgutils
    from numba.extending import intrinsic

    made, of = compiled(no_cpython_wrapper=True, no_cfunc_wrapper=True), numba.int64(numba.int64)
    result = made.get_compile_result(of)
    address = result.library.get_pointer_to_function(result.fndesc.llvm_func_name)
    llvmlite.binding.add_symbol("singa_dask.entry", address)

    @intrinsic
    def call(context, x):
        def emit(context, builder, signature, values):
            convention = context.call_conv
            kind = convention.get_function_type(of.return_type, of.args)
            entry = cgutils.get_or_insert_function(builder.module, kind, "singa_dask.entry")
            return convention.call_function(builder, entry, of.return_type, of.args, values)[1]

        return of, emit

    assert numba.njit(lambda x: call(x))(4) == 5


def symbol():
    llvmlite.binding.add_symbol("singa_dask.test", 1)
    assert llvmlite.binding.address_of_symbol("singa_dask.test") == 1


class Pair(NamedTuple):
    first: int
    second: int


def intrinsic_of_named_tuples():
    """What toolkit/intrinsics.py does: a signature of its own, leaves of a NamedTuple, casts, and no result."""
    from inspect import Parameter, Signature

    from numba.core import cgutils
    from numba.extending import intrinsic

    seen = []

    def emit(context, builder, signature, values):
        (kind,) = signature.args
        leaves = cgutils.unpack_tuple(builder, values[0])
        leaves = [context.cast(builder, leaf, of, numba.int64) for of, leaf in zip(kind.types, leaves, strict=True)]
        target = numba.types.NamedUniTuple(numba.int64, 2, Pair)
        context.make_tuple(builder, target, leaves)
        seen.append((kind.instance_class, len(leaves)))
        return context.get_dummy_value()

    def typed(context, *arguments):
        return numba.types.void(*arguments), emit

    names = (Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in ("context", "pair"))
    typed.__signature__ = Signature(list(names))  # type: ignore[attr-defined]
    call = intrinsic(typed)

    @numba.njit
    def caller(x):
        call(Pair(x, 2))

    caller(1)
    assert seen == [(Pair, 2)]


def overload_options():
    from numba.extending import overload

    def half(x):
        raise NotImplementedError

    @overload(half, jit_options={"fastmath": {"contract"}, "error_model": "numpy"})
    def _half(x):
        return lambda x: x / 2

    assert numba.njit(lambda x: half(x))(3.0) == 1.5


def inlining():
    inner = numba.njit(inline="always")(add_one)
    assert numba.njit(lambda x: inner(x))(1) == 2


def self_referring_metadata():
    from llvmlite import ir

    module = ir.Module()
    unroll = module.add_metadata(["llvm.loop.unroll.disable"])
    loop = module.add_metadata([ir.IntType(64)(len(module.metadata))])
    loop.operands = (loop, unroll)
    builder = ir.IRBuilder(ir.Function(module, ir.FunctionType(ir.VoidType(), []), "f").append_basic_block())
    builder.branch(builder.block).set_metadata("llvm.loop", loop)
    assert f"!{{ {loop.get_reference()}, {unroll.get_reference()} }}" in str(module)


def typed_pointers():
    from llvmlite import ir

    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(ir.FloatType(), [ir.IntType(64)]), "f")
    builder = ir.IRBuilder(function.append_basic_block())
    pointer = builder.inttoptr(function.args[0], ir.FloatType().as_pointer())
    builder.ret(builder.load(builder.gep(pointer, [ir.IntType(64)(1)]), align=4))
    llvmlite.binding.parse_assembly(str(module)).verify()


CGUTILS = ("alloca_once", "for_range", "get_or_insert_function", "memset", "raw_memcpy", "unpack_tuple")
PARTS = [
    Part("numba.core.caching.FunctionCache", f"{TOOLKIT}/numba_kernel.py (_Cache)", cache_stamp),
    Part("numba.core.compiler_lock", f"{TOOLKIT}/numba_kernel.py (_releasing)", compiler_lock),
    Part("cpu_target's magic_tuple", f"{TOOLKIT}/numba_parts.py (cpu_features)", cpu_features),
    Part("a dispatcher's _cache and compile", f"{TOOLKIT}/numba_parts.py (attach)", dispatcher),
    Part("a function's entry and call_conv", f"{TOOLKIT}/numba_parts.py (address_of, call)", own_entry),
    Part("llvmlite.binding.add_symbol", f"{TOOLKIT}/numba_parts.py (define_symbol)", symbol),
    *(
        Part(
            f"numba.core.cgutils.{name}",
            f"{TOOLKIT} and the modules that import cgutils",
            found("numba.core.cgutils", name),
        )
        for name in CGUTILS
    ),
    Part("intrinsics that take NamedTuples", f"{TOOLKIT}/intrinsics.py", intrinsic_of_named_tuples),
    Part("overload(jit_options=...)", f"{TOOLKIT}/exponentials.py, recurrent_kernels.py", overload_options),
    Part('njit(inline="always")', f"{TOOLKIT}/numba_kernel.py (inlined)", inlining),
    Part("metadata that refers to itself", f"{TOOLKIT}/vectors.py (_never_unrolled)", self_referring_metadata),
    Part("typed pointers of llvmlite.ir", f"{TOOLKIT}/vectors.py (Vectors)", typed_pointers),
]


def use(part: Part) -> None:
    try:
        part.check()
    except Exception as error:
        versions = f"Numba {numba.__version__} with llvmlite {llvmlite.__version__}"
        way_out = "Adapt that place, or exclude this version of numba in pyproject.toml."
        pytest.fail(f"{versions} lacks {part.name}, which {part.user} needs: {error!r}. {way_out}")


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_numba_has_the_part(part):
    use(part)


def test_a_missing_part_is_named_with_its_user(monkeypatch):
    monkeypatch.delattr("numba.core.caching.FunctionCache")
    with pytest.raises(
        pytest.fail.Exception, match=r"lacks numba\.core\.caching\.FunctionCache, which .*numba_kernel\.py"
    ):
        use(PARTS[0])


def test_only_one_module_imports_from_the_core_of_numba():
    importing = set()
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "numba.core" in text else ():
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if any(module.startswith("numba.core") for module in modules):
                importing.add(path.name)
    assert importing == {"numba_parts.py"}


def test_the_bound_of_numba_admits_the_version_that_was_tried_and_no_untried_minor_version():
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["project"]
    (bound,) = [Requirement(each).specifier for each in project["dependencies"] if each.startswith("numba")]
    locked = (PACKAGE.parent / "requirements.lock").read_text().partition("\nnumba==")[2].split()[0]
    major, minor, *_ = map(int, locked.split("."))
    assert locked in bound and f"{major}.{minor + 1}.0" not in bound
