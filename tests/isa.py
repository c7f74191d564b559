"""Run the tests that compile kernels with each instruction set of this CPU: `make test-isa`.

Numba compiles for the CPU that NUMBA_CPU_NAME and NUMBA_CPU_FEATURES name. Each instruction set has its own cache of
compiled kernels in .pytest_cache/isa. Arguments are passed on to pytest.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
TESTS = [
    "tests/unit/ops",
    "tests/unit/comm/test_codecs.py",
    "tests/unit/data/test_normalise.py",
    "tests/unit/net/test_gradients.py",
    "tests/unit/updaters/test_rules.py",
]


class InstructionSet(NamedTuple):
    """cpu: a CPU of LLVM that has it; features: of it that kernels use; vector: float32 elements in a vector."""

    name: str
    cpu: str
    features: tuple[str, ...]
    vector: int


_AVX2 = ("avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "popcnt", "sse4_2")
_AVX512 = ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
INSTRUCTION_SETS = [
    InstructionSet("AVX-512", "skylake-avx512", (*_AVX2, *_AVX512), 16),
    InstructionSet("AVX2", "haswell", _AVX2, 8),
    InstructionSet("no vectors", "generic", ("sse2",), 0),
]
# Names of LLVM where they differ from those of /proc/cpuinfo.
_LLVM_NAMES = {"bmi1": "bmi", "sse4_2": "sse4.2"}


def features_of_this_cpu() -> set[str]:
    """The CPU's features as Linux names them; none where it is no x86-64."""
    if platform.machine() != "x86_64":
        return set()
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return set(next(line for line in lines if line.startswith("flags")).partition(":")[2].split())


def environment(chosen: InstructionSet) -> dict[str, str]:
    """The variables with which Numba compiles for an instruction set."""
    return {
        "NUMBA_CPU_NAME": chosen.cpu,
        "NUMBA_CPU_FEATURES": ",".join(f"+{_LLVM_NAMES.get(name, name)}" for name in chosen.features),
        "NUMBA_CACHE_DIR": str(ROOT / ".pytest_cache" / "isa" / chosen.name.replace(" ", "-")),
    }


def run(chosen: InstructionSet, arguments: list[str]) -> str:
    """What came of the tests with an instruction set, in a word or two."""
    variables = {**os.environ, **environment(chosen)}
    width = "from singa_dask.ops.cpu.toolkit.vectors import VECTOR; print(VECTOR)"
    seen = subprocess.run([sys.executable, "-c", width], cwd=ROOT, env=variables, capture_output=True, text=True)
    if seen.stdout.strip() != str(chosen.vector):
        return f"FAILED: vectors must have {chosen.vector} elements. Received: {seen.stdout.strip() or seen.stderr}"
    command = [sys.executable, "-m", "pytest", "-q", *TESTS, *arguments]
    return "FAILED" if subprocess.run(command, cwd=ROOT, env=variables).returncode else "passed"


def main(arguments: list[str]) -> int:
    has, results = features_of_this_cpu(), {}
    for each in INSTRUCTION_SETS:
        lacking = [name for name in each.features if name not in has]
        if lacking:
            results[each.name] = f"skipped: this CPU lacks {', '.join(lacking)}"
        else:
            print(f"\n== {each.name}", flush=True)
            results[each.name] = run(each, arguments)
    print()
    for name, result in results.items():
        print(f"{name:<12} {result}")
    return int(any(result.startswith("FAILED") for result in results.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
