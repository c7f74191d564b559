"""Events as worker groups and drivers send them."""

import pytest

from singa_dask.dashboard.history import LatestRuns


@pytest.fixture
def runs():
    return LatestRuns()


@pytest.fixture
def begin(runs):
    """Begin a run at 100 s; returns it."""

    def begin(topic="t", client="c", job="digits"):
        runs.begin(topic, 100.0, job=job, strategy="downpour", workspace="/runs/digits", steps=600, client=client)
        return runs[topic]

    return begin
