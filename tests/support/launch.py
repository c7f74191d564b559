"""Running programs under the mpiexec of this environment, MPICH's or Open MPI's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Open MPI's mpiexec refuses root, and more ranks than cores, unless it is told.
_PERMISSIONS = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_ALLOW_RUN_AS_ROOT": "1",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


def mpiexec(ranks: int) -> list[str]:
    """The command that starts so many ranks; skips the test where this environment has none of its own."""
    path = Path(sys.executable).with_name("mpiexec")
    if not path.exists():
        pytest.skip("this environment has no mpiexec of its own")
    return [str(path), "-n", str(ranks)]


def launched(environment: dict[str, str] | None = None) -> dict[str, str]:
    """The environment for mpiexec."""
    return {**(environment or os.environ), **_PERMISSIONS}


def is_open_mpi() -> bool:
    """Whether this environment's mpiexec is Open MPI's."""
    asked = subprocess.run([*mpiexec(1)[:1], "--version"], capture_output=True, text=True, timeout=20, env=launched())
    return "Open MPI" in asked.stdout
