"""What the process that is asked for the MPI library answers, with processes that the test plays."""

import subprocess
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from singa_dask.cluster import bootstrap
from singa_dask.cluster.bootstrap import mpi_library
from singa_dask.errors import ClusterError


@pytest.fixture
def run(monkeypatch):
    """The run of the process."""
    run = Mock()
    monkeypatch.setattr(bootstrap.subprocess, "run", run)
    return run


def test_the_name_of_the_library_is_one_line(run):
    run.return_value.stdout = "found MPICH  Version:\t5.0\n"
    assert mpi_library(7.0) == "MPICH Version: 5.0"
    ((command,), options) = run.call_args
    assert command[1:3] == ["-P", "-c"] and options == {"capture_output": True, "text": True, "timeout": 7.0}


@pytest.mark.parametrize(
    ("stdout", "stderr", "raises", "match"),
    [
        (
            "fault MPI cannot be loaded (no libmpi.so)\n",
            "a warning",
            None,
            r"^MPI cannot be loaded \(no libmpi\.so\)$",
        ),
        ("", "x" * 1000 + "undefined symbol\n", None, "^MPI cannot be loaded: x{484}undefined symbol$"),
        ("", "", subprocess.TimeoutExpired("python", 3.0), "did not load within 3 s"),
    ],
    ids=["fault", "died", "hangs"],
)
def test_a_library_that_does_not_load_is_an_error(run, stdout, stderr, raises, match):
    run.return_value, run.side_effect = SimpleNamespace(stdout=stdout, stderr=stderr), raises
    with pytest.raises(ClusterError, match=match):
        mpi_library(3.0)
