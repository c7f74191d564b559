from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def test_generated_code_is_that_of_the_schema(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="the compiler of job.proto is a development tool")
    command = [
        sys.executable,
        "-m",
        "grpc_tools.protoc",
        "-I",
        ".",
        f"--python_out={tmp_path}",
        f"--pyi_out={tmp_path}",
    ]
    subprocess.run([*command, "singa_dask/job/job.proto"], cwd=ROOT, check=True, timeout=50)
    for name in ("job_pb2.py", "job_pb2.pyi"):
        written = (tmp_path / "singa_dask" / "job" / name).read_text()
        assert written == (ROOT / "singa_dask" / "job" / name).read_text(), "run `make proto`"


def test_importing_the_job_needs_no_numpy_dask_mpi_or_gpu() -> None:
    heavy = ("numpy", "dask", "mpi4py", "cupy", "h5py")
    code = f"import sys, singa_dask.job; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True, timeout=50
    )
    assert done.stdout.strip() == "[]"
