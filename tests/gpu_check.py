"""Run the GPU code without a GPU: its tests on emulated GPUs, its kernels through NVRTC. `make gpu-check` calls it.

    python tests/gpu_check.py [--all] [-- arguments of pytest]

--all: the long tests too; kernels of all types, with 64-bit indices too, for all architectures.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

from cuda_on_cpu import kernels
from cuda_on_cpu.build import KEPT, NotHere, libraries

TESTS = Path(__file__).parent
REPORT = TESTS.parent / ".reports" / "gpu.xml"
GPUS = "3"
PACKAGES, SOURCES = KEPT / "packages", KEPT / "sources"
ARCHITECTURES = ("80", "90", "100")
ALL_ARCHITECTURES = ("75", *ARCHITECTURES, "120")


def environment() -> dict[str, str]:
    """Of processes that emulate GPUs."""
    paths = TESTS / "cuda_on_cpu" / "start", TESTS, PACKAGES
    return os.environ | {
        "CUDA_ON_CPU": GPUS,
        "CUDA_ON_CPU_SOURCES": str(SOURCES),
        "CUPY_CACHE_DIR": str(KEPT / "kernels"),
        "LD_LIBRARY_PATH": os.pathsep.join([str(libraries()), os.environ.get("LD_LIBRARY_PATH", "")]).rstrip(
            os.pathsep
        ),
        "PYTHONPATH": os.pathsep.join([*map(str, paths), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
    }


def test(every: bool, arguments: list[str]) -> bool:
    """Whether the tests pass, and none is skipped."""
    chosen = ["-m", "not slow" if every else "not slow and not long", str(TESTS / "gpu")]
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "worksteal", *chosen]
    report = ["-rs", "--timeout", "300", "--junitxml", str(REPORT)]
    if subprocess.run([*command, *report, *arguments], env=environment(), check=False).returncode:
        return False
    skipped = sum(1 for _ in ElementTree.parse(REPORT).iter("skipped"))
    if skipped:
        print(f"{skipped} tests were skipped, for the reasons above: on emulated GPUs, all tests can run")
    return not skipped


def compile_kernels(every: bool) -> bool:
    """Whether NVRTC compiles the kernels without a spill or a warning."""
    faults = kernels.check(SOURCES, ALL_ARCHITECTURES if every else ARCHITECTURES, every)
    print(*faults, sep="\n")
    return not faults


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="the long tests too, and all kernels")
    parser.add_argument("pytest", nargs="*", help="arguments of pytest, after --")
    given = parser.parse_args()
    SOURCES.mkdir(parents=True, exist_ok=True)
    sys.path.insert(0, str(PACKAGES))
    try:
        libraries()
    except NotHere as missing:
        sys.exit(f"error: GPUs cannot be emulated here: {missing}")
    for name, passes in (
        ("tests", lambda: test(given.all, given.pytest)),
        ("kernels", lambda: compile_kernels(given.all)),
    ):
        began = time.monotonic()
        passed = passes()
        print(f"{name}: {time.monotonic() - began:.0f} s, {'passed' if passed else 'failed'}", flush=True)
        if not passed:
            sys.exit(1)


if __name__ == "__main__":
    main()
