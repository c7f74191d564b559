"""A stand-in for CuPy on machines without a GPU: NumPy's arrays, and CUDA kernels compiled for the processor.

The body of an ElementwiseKernel is plain C++ in terms of its parameters and `i`; around it goes a loop instead of a
grid of threads, and a warp is one thread. That checks the kernels' arithmetic and indexing and the calls into them,
not CuPy itself.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from singa_dask.ops.gpu.warps import LANES

C_TYPES = {
    "T": None,
    "S": None,
    "L": None,
    "int32": "int",
    "int64": "long long",
    "bool": "bool",
    "uint8": "unsigned char",
    "uint64": "unsigned long long",
    "float32": "float",
    "float64": "double",
    "uint16": "unsigned short",
}

ONE_LANE = """
#define LANES 1
template <typename V> V total(V x) { return x; }
template <typename V> V largest(V x) { return x; }
"""


class ElementwiseKernel:
    """cupy.ElementwiseKernel for C-contiguous arrays without broadcasting; T, S and L are type variables."""

    def __init__(self, inputs: str, outputs: str, body: str, name: str, preamble: str = ""):
        self.inputs = [p.split() for p in inputs.split(",")]
        self.outputs = [p.split() for p in outputs.split(",")]
        self.body, self.name = body, name
        self.lanes = LANES if preamble else 1
        self.compiled: dict[tuple[str, ...], Any] = {}

    def __call__(self, *args: Any, size: int | None = None) -> Any:
        params = self.inputs + self.outputs
        if len(args) != len(params):
            raise TypeError(f"{self.name} takes {len(params)} arguments, got {len(args)}")
        types = self._bind(params, args)
        if (size is None) == all(param[0] == "raw" for param in self.outputs):
            raise ValueError(f"{self.name}: its size is given if and only if its outputs are raw")
        size = args[len(self.inputs)].size if size is None else size // self.lanes
        values: list[Any] = []
        for param, arg, ctype in zip(params, args, types, strict=True):
            if isinstance(arg, np.ndarray):
                if not arg.flags.c_contiguous or (param[0] != "raw" and arg.size != size):
                    raise ValueError(
                        f"{self.name}: {param[-1]} is not contiguous or has {arg.size} elements, not {size}"
                    )
                values.append(ctypes.c_void_p(arg.ctypes.data))
            else:
                values.append(np.array(arg, self._dtype(ctype)).ctypes.data_as(ctypes.c_void_p))
        scalars = [not isinstance(arg, np.ndarray) for arg in args]
        self._compile(params, types, scalars)(ctypes.c_longlong(size), *values)
        results = args[len(self.inputs) :]
        return results[0] if len(results) == 1 else results

    def _bind(self, params: list[list[str]], args: tuple[Any, ...]) -> list[str]:
        variables: dict[str, str] = {}
        for param, arg in zip(params, args, strict=True):
            kind = param[-2]
            if isinstance(arg, np.ndarray) and C_TYPES[kind] is None:
                if variables.setdefault(kind, arg.dtype.name) != arg.dtype.name:
                    raise TypeError(f"{self.name}: {param[-1]} is {arg.dtype}, but {kind} is {variables[kind]}")
            elif isinstance(arg, np.ndarray) and arg.dtype.name != kind:
                raise TypeError(f"{self.name}: {param[-1]} is {arg.dtype}, not {kind}")
        return [variables.get(param[-2], param[-2]) for param in params]

    @staticmethod
    def _dtype(name: str) -> np.dtype:
        return np.dtype(name)

    def _compile(self, params: list[list[str]], types: list[str], scalars: list[bool]) -> Any:
        key = (*types, *map(str, scalars))
        if key not in self.compiled:
            names = [p[-1] for p in params]
            typedefs = {p[-2]: C_TYPES[t] for p, t in zip(params, types, strict=True) if C_TYPES[p[-2]] is None}
            lines = [f"typedef {c} {variable};" for variable, c in typedefs.items()]
            signature = ", ".join(f"void* p_{name}" for name in names)
            lines.append(f'extern "C" void run(long long n, {signature}) {{ for (long long i = 0; i < n; ++i) {{')
            for param, ctype, scalar in zip(params, types, scalars, strict=True):
                pointer = f"(({C_TYPES[ctype]}*)p_{param[-1]})"
                if param[0] == "raw":
                    const = "" if param in self.outputs else "const "
                    lines.append(f"{const}{C_TYPES[ctype]}* {param[-1]} = {pointer};")
                elif scalar:
                    lines.append(f"const {C_TYPES[ctype]} {param[-1]} = *{pointer};")
                else:
                    const = "" if param in self.outputs else "const "
                    lines.append(f"{const}{C_TYPES[ctype]}& {param[-1]} = {pointer}[i];")
            lines.append(f"{self.body}; }} }}")
            self.compiled[key] = _build(
                "\n".join(["#include <algorithm>", "#include <cmath>", "using namespace std;", ONE_LANE, *lines])
            )
        return self.compiled[key].run


_FOLDER = tempfile.TemporaryDirectory(prefix="cupy_on_cpu")


def _build(source: str) -> ctypes.CDLL:
    """Compiled in a folder of its own: threads may ask for the same one at a time."""
    folder = Path(tempfile.mkdtemp(dir=_FOLDER.name))
    (folder / "kernel.cpp").write_text(source)
    library = folder / "kernel.so"
    options = ["-shared", "-fPIC", "-O0", "-ffp-contract=off"]
    subprocess.run(["g++", *options, "-o", str(library), str(folder / "kernel.cpp")], check=True)
    return ctypes.CDLL(str(library))


class _Device:
    """The only one there is."""

    def __init__(self, device_id: int = 0):
        self.device_id = device_id

    def use(self) -> None:
        """Make it the current one."""

    def synchronize(self) -> None:
        """NumPy has computed everything."""


def module() -> ModuleType:
    """A module to stand in sys.modules["cupy"]."""
    cupy = ModuleType("cupy")
    cupy.__dict__.update({name: getattr(np, name) for name in dir(np) if not name.startswith("_")})
    failure = type("CUDARuntimeError", (Exception,), {"status": 0})
    versions = dict.fromkeys(("runtimeGetVersion", "driverGetVersion"), lambda: 13000)
    runtime = SimpleNamespace(getDeviceCount=lambda: 1, CUDARuntimeError=failure, **versions)
    cuda = SimpleNamespace(
        runtime=runtime,
        driver=SimpleNamespace(CUDADriverError=failure),
        Device=_Device,
        device=SimpleNamespace(get_cublas_handle=lambda: 0),
        nvrtc=SimpleNamespace(getVersion=lambda: (13, 0)),
    )
    cupy.__dict__.update(__version__="14.2.0", ElementwiseKernel=ElementwiseKernel, asnumpy=np.asarray, cuda=cuda)
    return cupy
