"""Plant mistakes in the GPU code, one at a time, and see `make gpu-check` fail for each.

    python tests/gpu_mistakes.py [NAME ...]

Each is planted in a copy of the project, where the tests run that are there for it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
COPIED = "singa_dask", "datasets", "examples", "benchmarks", "tests", "pyproject.toml"


@dataclass
class Mistake:
    """What is written in a file in place of what, and which tests must fail then: an expression of pytest."""

    path: str
    right: str
    wrong: str
    tests: str


MISTAKES = {
    "a wrong kernel": Mistake(
        "singa_dask/ops/gpu/kernels.py", "sqrt(second / correction2)", "sqrt(second)", "test_ops and adam"
    ),
    "an index beyond the end": Mistake(
        "singa_dask/ops/gpu/row_kernels.py",
        "k < columns; k += LANES) dx[start + k]",
        "k <= columns; k += LANES) dx[start + k]",
        "test_ops and losses",
    ),
    "a step over its budget": Mistake(
        "singa_dask/ops/gpu/normalisation_ops.py",
        "return self._kernels.add_bias(b, ",
        "return self._kernels.add_bias(b + 0, ",
        "test_budgets and mnist",
    ),
    "a missing wait": Mistake(
        "singa_dask/comm/nccl.py",
        "            self._stream.wait_event(self._before)\n",
        "",
        "test_an_operation_waits_for_the_work_of_the_callers_stream",
    ),
    "a collective in another order": Mistake(
        "singa_dask/comm/nccl.py",
        "for rank, count in enumerate(nbytes):",
        "for rank, count in list(enumerate(nbytes))[:: 1 if self.rank else -1]:",
        "test_arrays_on_gpus_are_not_staged",
    ),
    "an unlisted status": Mistake(
        "singa_dask/comm/nccl_library.py",
        "except KeyError as error:",
        "except ZeroDivisionError as error:",
        "test_a_status_that_cupy_does_not_know",
    ),
}


def copied(folder: Path) -> Path:
    """A copy of the project, with the packages and the compiled kernels of this one."""
    for name in COPIED:
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, folder / name)
    (folder / ".gpu").symlink_to(ROOT / ".gpu")
    return folder


def output_of_failure(folder: Path, tests: str) -> str:
    """What tests in a copy print if one fails; empty if all pass. Raises RuntimeError where there are none."""
    command = [sys.executable, str(folder / "tests" / "gpu_check.py"), "--", "-k", tests, "-q"]
    environment = os.environ | {"PYTHONPATH": str(folder)}
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=1800)
    if ran.returncode and " failed" not in ran.stdout:
        raise RuntimeError(f"the tests did not run:\n{ran.stdout}{ran.stderr}")
    return ran.stdout if ran.returncode else ""


def main() -> None:
    names = sys.argv[1:] or [*MISTAKES]
    unseen = []
    with tempfile.TemporaryDirectory(prefix="gpu-mistake-") as scratch:
        tests = " or ".join(f"({MISTAKES[name].tests})" for name in names)
        if output := output_of_failure(copied(Path(scratch)), tests):
            raise RuntimeError(f"the tests fail without a mistake:\n{output}")
    for name in names:
        mistake = MISTAKES[name]
        with tempfile.TemporaryDirectory(prefix="gpu-mistake-") as scratch:
            folder = copied(Path(scratch))
            file = folder / mistake.path
            text = file.read_text()
            if mistake.right not in text:
                raise RuntimeError(f"{mistake.path} does not have {mistake.right!r}; {name} needs another place")
            file.write_text(text.replace(mistake.right, mistake.wrong))
            seen = bool(output_of_failure(folder, mistake.tests))
        print(f"{name}: {'noticed' if seen else 'NOT noticed'}", flush=True)
        unseen += [] if seen else [name]
    sys.exit(bool(unseen))


if __name__ == "__main__":
    main()
