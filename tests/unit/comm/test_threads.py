"""How a group of threads fails."""

from __future__ import annotations

import time

import numpy as np
import pytest

from singa_dask.comm import run_threads
from singa_dask.errors import ClusterError, CommTimeout, DataError


def test_a_member_that_raises_breaks_the_others():
    seen = []

    def member(comm):
        if comm.rank == 1:
            raise DataError("no data")
        try:
            comm.barrier()
        except ClusterError as error:
            seen.append((comm.rank, str(error)))
            raise

    start = time.monotonic()
    with pytest.raises(DataError, match="no data"):
        run_threads(3, member)
    assert time.monotonic() - start < 5.0
    assert sorted(rank for rank, _ in seen) == [0, 2] and all("rank 1 failed: no data" in text for _, text in seen)


def test_a_member_that_never_comes_is_a_timeout():
    with pytest.raises(CommTimeout, match=r"all_reduce did not finish within"):
        run_threads(2, lambda comm: comm.rank or comm.all_reduce(np.ones(1)), timeout_s=0.1)


def test_different_operations_at_once_are_an_error():
    def member(comm):
        return comm.barrier() if comm.rank else comm.all_reduce(np.ones(1))

    with pytest.raises(ClusterError, match="different operations"):
        run_threads(2, member)


def test_after_an_abort_nothing_works():
    def member(comm):
        comm.abort("enough")
        with pytest.raises(ClusterError, match="enough"):
            comm.barrier()

    run_threads(2, member)


def test_the_root_cause_is_raised_though_its_consequence_came_first():
    def member(comm):
        if comm.rank == 0:
            return comm.all_reduce(np.ones(1))  # waits in vain
        while not comm.aborted:
            time.sleep(0.001)
        raise DataError("no data")

    with pytest.raises(DataError, match="no data"):
        run_threads(2, member, timeout_s=0.05)
