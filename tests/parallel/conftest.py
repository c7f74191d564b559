"""Clusters of real processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.leaks import leaks_forbidden

from singa_dask.cluster import local_cluster, rank, wait_workers
from singa_dask.cluster.workers import answering


@pytest.fixture(scope="module")
def cluster3() -> Iterator:
    """A client of a cluster of 3 processes that a module's tests share, and that leaves nothing behind."""
    # On a busy machine a process is silent for longer than usual, and not lost.
    with leaks_forbidden(), local_cluster(3, worker_ttl_s=60) as client:
        yield client


@pytest.fixture
def workers3(cluster3) -> list:
    """The 3 workers as they are now: a test before may have had some of them replaced."""
    wait_workers(cluster3, 3)
    return answering(cluster3, 10.0)[0]


_SECONDS = "from singa_dask.cluster import rank; rank.GRACE_S, rank._UNHEARD_S = {}, {}"


@pytest.fixture
def hurried(cluster3, workers3) -> Iterator[None]:
    """Ranks that do not leave, or whose driver is silent, lose their process after a second instead of several."""
    cluster3.run(exec, _SECONDS.format(1.0, 1.0))
    yield
    # Fresh processes, and those that are about to be replaced, have the usual ones.
    cluster3.run(exec, _SECONDS.format(rank.GRACE_S, rank._UNHEARD_S), on_error="ignore")


@pytest.fixture
def ranks3(workers3) -> list[str]:
    """Their addresses, as form_group wants them."""
    return [worker.address for worker in workers3]
