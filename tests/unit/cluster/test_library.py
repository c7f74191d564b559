"""What the process that is asked for the MPI library answers, with processes that the test plays."""

import subprocess
from types import SimpleNamespace

import pytest

from singa_dask.cluster import bootstrap
from singa_dask.cluster.bootstrap import mpi_library
from singa_dask.errors import ClusterError


@pytest.fixture
def answer(monkeypatch):
    """Set what the process prints, or what running it raises; returns the calls."""
    calls: list = []

    def answer(stdout="", stderr="", raises=None):
        def run(command, **options):
            calls.append((command, options))
            if raises:
                raise raises
            return SimpleNamespace(stdout=stdout, stderr=stderr)

        monkeypatch.setattr(bootstrap.subprocess, "run", run)
        return calls

    return answer


def test_the_name_of_the_library_is_one_line(answer):
    calls = answer("found MPICH  Version:\t5.0\n")
    assert mpi_library(7.0) == "MPICH Version: 5.0"
    ((command, options),) = calls
    assert command[1:3] == ["-P", "-c"] and options == {"capture_output": True, "text": True, "timeout": 7.0}


def test_a_fault_of_the_library_is_raised(answer):
    answer("fault MPI cannot be loaded (no libmpi.so)\n", "some warning")
    with pytest.raises(ClusterError, match=r"^MPI cannot be loaded \(no libmpi\.so\)$"):
        mpi_library()


def test_a_process_that_dies_is_quoted_from_its_end(answer):
    answer(stderr="x" * 1000 + "undefined symbol\n")
    with pytest.raises(ClusterError, match=r"^MPI cannot be loaded: x+undefined symbol$") as caught:
        mpi_library()
    assert len(str(caught.value)) < 550


def test_a_library_that_hangs_is_given_up(answer):
    answer(raises=subprocess.TimeoutExpired("python", 3.0))
    with pytest.raises(ClusterError, match="did not load within 3 s"):
        mpi_library(3.0)
