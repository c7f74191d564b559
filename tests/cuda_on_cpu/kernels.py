"""Compile with the real NVRTC what the tests have compiled with g++: for each architecture, the registers of a kernel,
and whether it spills or NVRTC warns."""

from __future__ import annotations

import ctypes
import io
import re
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path

from cuda_on_cpu import build

_NAME = re.compile(r"__global__\s+void\s+(\w+)")
_OURS = "singa_dask_"
_USED = re.compile(r"Used (\d+) registers")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")


def sources(folder: Path, every: bool) -> Iterator[tuple[str, str]]:
    """The name and the source of each kernel: our own for float32 with 32-bit indices, or every one, and its variant
    with 64-bit indices."""
    for path in sorted(folder.glob("*.cu")):
        source = path.read_text()
        found = _NAME.search(source)
        if found is None or (not every and (not found[1].startswith(_OURS) or "typedef double T" in source)):
            continue
        yield found[1], source
        wide = re.sub(r"(C(?:Array|Indexer)<[^<>]*, )1>", r"\g<1>0>", source)
        if every and wide != source:
            yield f"{found[1]} of 64 bits", wide


def compiled(kernel: tuple[str, str, str]) -> tuple[str, int, str]:
    """name, source, architecture -> name, registers, what is wrong with it."""
    cuda = build.folder_of("nvidia") / "cu13"
    ctypes.CDLL(str(cuda / "lib" / "libnvrtc.so.13"), mode=ctypes.RTLD_GLOBAL)  # it is not where CuPy looks for it
    from cupy._core import core
    from cupy.cuda import compiler

    name, source, architecture = kernel
    log = io.StringIO()
    options = (
        f"-I{cuda / 'include'}",
        *core.assemble_cupy_compiler_options(()),
        "-ftz=true",
        "--device-as-default-execution-space",
    )
    program = compiler._NVRTCProgram(source, "kernel.cu", method="cubin")
    try:
        program.compile((*options, f"-arch=sm_{architecture}", "--ptxas-options=-v"), log)
    except compiler.CompileException as error:
        return name, 0, f"{name} for sm_{architecture}: {str(error)[:1000]}"
    text = log.getvalue()
    warnings = [line for line in text.splitlines() if "warning" in line.lower()]
    spills = sum(int(stored) + int(loaded) for stored, loaded in _SPILLS.findall(text))
    faults = [*warnings, *([f"spills {spills} bytes"] if spills else [])]
    registers = max(map(int, _USED.findall(text)), default=0)
    return name, registers, f"{name} for sm_{architecture}: {'; '.join(faults)}" if faults else ""


def check(folder: Path, architectures: tuple[str, ...], every: bool) -> list[str]:
    """What is wrong with the kernels. Prints the registers of each. Raises RuntimeError where there is none."""
    kernels = [(*kernel, each) for kernel in sources(folder, every) for each in architectures]
    if not kernels:
        raise RuntimeError(f"the tests have left no kernel in {folder}")
    with get_context("spawn").Pool(2) as pool:
        found = pool.map(compiled, kernels, chunksize=8)
    registers = {name: max(used for each, used, _ in found if each == name) for name, *_ in found}
    print(f"{len(kernels)} kernels for sm_{', sm_'.join(architectures)}; registers:")
    print(", ".join(f"{name.removeprefix(_OURS)} {most}" for name, most in sorted(registers.items())))
    return [fault for *_, fault in found if fault]
