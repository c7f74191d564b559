"""Wheels in a folder, for the running Python: needs no network, no root."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def install(folder: Path, wheels: Path, timeout_s: float) -> dict[str, str]:
    """Install these wheels, unless the folder has them; returns the environment variables with which they are used.

    They come before what Python has, which stays as it is. mpi4py looks for MPI's library in Python's own folders, so
    a variable says where it is. Raises RuntimeError if pip fails, TimeoutExpired after `timeout_s`.
    """
    ready = folder / "ready"
    if not ready.exists():
        found = sorted(map(str, wheels.glob("*.whl")))
        if not found:
            raise RuntimeError(f"{wheels} has no file *.whl")
        # Not --target, which leaves libraries out.
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--prefix", str(folder), "--ignore-installed"]
        command += ["--no-index", "--no-deps", "--no-compile", "--no-cache-dir", "--no-warn-script-location", *found]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
        if ran.returncode:
            raise RuntimeError(f"pip cannot install the wheels: {ran.stderr.strip()[-500:]}")
        ready.touch()
    packages = [str(path) for path in sorted(folder.glob("**/*-packages"))]
    variables = {"PYTHONPATH": os.pathsep.join(packages + _inherited("PYTHONPATH"))}
    variables["PATH"] = os.pathsep.join([str(folder / "bin"), *_inherited("PATH")])
    libraries = sorted(map(str, folder.glob("lib/libmpi.so.*")))
    return {**variables, **({"MPI4PY_LIBMPI": libraries[0]} if libraries else {})}


def _inherited(variable: str) -> list[str]:
    return [os.environ[variable]] if os.environ.get(variable) else []
