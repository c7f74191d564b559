"""The libraries of the emulation, compiled from `device/`."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import PathFinder
from pathlib import Path

SOURCES = Path(__file__).parent / "device"
KEPT = (Path(__file__).parents[2] / ".gpu").resolve()  # packages, libraries, compiled kernels
# In the order in which they are loaded.
LIBRARIES = {
    "libcuda.so.1": ("counts", "memory", "streams", "copies", "fibres", "driver"),
    "libcublas.so.13": ("blas",),
    "libcublasLt.so.13": (),  # looked for together with cuBLAS
    "libnccl.so.2": ("nccl",),
    "libnvrtc.so.13": ("nvrtc",),
    "emulated_runtime.so": ("runtime",),
}
ON_THE_DEVICE = ("libcublas.so.13", "libnccl.so.2", "emulated_runtime.so")  # which use the emulated devices
FLAGS = ("-std=gnu++20", "-O1", "-fPIC", "-w", "-fno-strict-aliasing", "-ffp-contract=off")
# Kernels of one name are several: with other types, and in other objects.
KERNEL_FLAGS = ("-fno-gnu-unique", "-fvisibility=hidden")


class NotHere(Exception):
    """Why there can be no emulation."""


def folder_of(package: str) -> Path:
    """Where a package is installed. Raises NotHere."""
    found = PathFinder.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise NotHere(f"{package} is not installed; `make gpu-check` installs it")
    return Path(next(iter(found.submodule_search_locations)))


def libraries() -> Path:
    """The folder with the libraries, compiled where they are not yet. Raises NotHere."""
    compiler, cupy = shutil.which("g++"), folder_of("cupy")
    if compiler is None:
        raise NotHere("g++ is not installed")
    python_headers = sysconfig.get_path("include")
    if not Path(python_headers, "Python.h").exists():
        raise NotHere(f"there is no Python.h in {python_headers}; Debian's python3-dev has it")
    headers = cupy / "_core" / "include", folder_of("nvidia") / "cu13" / "include"
    texts = [each.read_bytes() for each in (*sorted(SOURCES.iterdir()), Path(__file__))]
    version = (cupy / "_version.py").read_bytes()
    made = KEPT / f"libraries-{hashlib.sha256(b''.join([*texts, version])).hexdigest()[:16]}"
    if made.exists():
        return made
    part = made.with_name(f"{made.name}-{os.getpid()}")
    part.mkdir(parents=True)
    command = [compiler, *FLAGS]
    (part / "absent.hpp").write_text("".join(f"ABSENT({name})\n" for name in absent(cupy.parent)))
    own = [f"-I{folder}" for folder in (part, python_headers)]
    for name in ("prelude.hpp", "kernel.hpp"):
        shutil.copy(SOURCES / name, part)
    for_kernels = [*command, *KERNEL_FLAGS, *(f"-I{folder}" for folder in headers)]

    def link(name: str) -> None:
        parts = LIBRARIES[name]
        needs = [f"-L{part}", "-l:libcuda.so.1", f"-Wl,-rpath,{made}"] if name in ON_THE_DEVICE else []
        if name == "libcublas.so.13":
            (part / "versions").write_text("libcublas.so.13 { global: *; };")
            needs.append(f"-Wl,--version-script={part / 'versions'}")
        units = [str(SOURCES / f"{each}.cpp") for each in parts] or ["-x", "c++", os.devnull]
        _run([*command, *own, "-shared", *units, "-o", str(part / name), f"-Wl,-soname,{name}", *needs, "-ldl"])

    with ThreadPoolExecutor(2) as pool:
        prelude = str(part / "prelude.hpp")
        compiled = pool.submit(_run, [*for_kernels, "-x", "c++-header", prelude, "-o", f"{prelude}.gch"])
        first, *others = LIBRARIES  # to which the others are linked
        link(first)
        list(pool.map(link, others))
        compiled.result()
    (part / "g++-command").write_text(shlex.join(for_kernels))
    try:
        part.rename(made)
    except OSError:  # another process was first
        shutil.rmtree(part)
    return made


def absent(site: Path) -> list[str]:
    """The functions of cuBLAS to which CuPy is linked, without those that the emulation has."""
    module = next((site / "cupy_backends" / "cuda" / "libs").glob("cublas.*.so"))
    listed = _run(["nm", "-D", "--undefined-only", str(module)]).split()
    wanted = {name.split("@")[0] for name in listed if name.startswith("cublas")}
    return sorted(wanted - set(re.findall(r"\bcublas\w+", (SOURCES / "blas.cpp").read_text())))


def _run(command: list[str]) -> str:
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if ran.returncode:
        raise RuntimeError(f"{shlex.join(command)} failed:\n{ran.stderr[:4000]}")
    return ran.stdout
