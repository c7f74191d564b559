"""What a plan measures, and what it keeps of that."""

from contextlib import contextmanager
from dataclasses import replace

import pytest

from singa_dask.cluster import WorkerInfo
from singa_dask.errors import ClusterError
from singa_dask.planning.profile import Curve, Point, Profile
from singa_dask.profiling import store
from singa_dask.profiling.cluster import MissingMeasurements, missing
from singa_dask.supervision import profiles
from singa_dask.supervision.profiles import Profiler

MACHINES = Profile(host="a", cpu="AMD EPYC 7B13", cores=2, versions={"numpy": "2.4"})
BUSY = [WorkerInfo("tcp://10.0.0.1:9", group="worker-0", run="digits")]
CURVE = Curve((Point(0, 1.0),))


@pytest.fixture(autouse=True)
def cluster(monkeypatch, tmp_path):
    """Of a client whose 2 workers measure a curve in no time."""
    monkeypatch.setenv("SINGA_DASK_CACHE", str(tmp_path))
    measured = replace(MACHINES, curves=dict.fromkeys(("sum 1", "sum 2", "loop 1", "loop 2"), CURVE))
    monkeypatch.setattr(profiles, "machines_of", lambda client: replace(MACHINES))
    monkeypatch.setattr(profiles, "missing_of", lambda client, known: missing(known, 2, {"machine": 1, "network": 1}))
    monkeypatch.setattr(profiles, "busy_beside", lambda client: [])
    monkeypatch.setattr(profiles, "profile_cluster", lambda client, **settings: replace(measured))
    return tmp_path


def kept():
    return store.load(store.key_of(MACHINES))


@pytest.fixture
def said():
    return []


@pytest.fixture
def measure(said):
    """What a profiler knows once it has begun."""

    def measure(client="client"):
        with Profiler(client, said.append) as profiler:
            return profiler.profile.numbers("sum")

    return measure


def test_what_is_measured_is_kept_and_serves_the_next_plan(measure, said):
    assert measure() == measure() == [1, 2] == kept().numbers("sum")
    assert [text.split()[0] for text in said] == ["measuring"]


def test_a_profile_of_fewer_workers_is_completed(measure):
    store.save(store.key_of(MACHINES), replace(MACHINES, curves={"sum 1": CURVE, "loop 1": CURVE}))
    assert measure() == [1, 2]
    assert kept().curves.keys() == {"sum 1", "sum 2", "loop 1", "loop 2"}


def test_what_is_measured_beside_a_run_serves_and_is_not_kept(measure, said, monkeypatch):
    monkeypatch.setattr(profiles, "busy_beside", lambda client: BUSY)
    assert measure() == [1, 2] and kept() is None and "tcp://10.0.0.1:9" in said[-1]


def test_a_cache_that_cannot_be_written_is_a_note(measure, said, cluster):
    (cluster / "profiles").write_text("a file where the folder should be")
    assert measure() == [1, 2]
    assert said[-1].startswith("what was measured is not kept") and "SINGA_DASK_CACHE" in said[-1]


def test_a_failure_leaves_no_lock_and_no_workers(measure, monkeypatch):
    ended, said = [], []

    @contextmanager
    def local():
        try:
            yield "client"
        finally:
            ended.append(True)

    def failing(client, **settings):
        raise ClusterError("worker 1 was lost")

    monkeypatch.setattr(profiles, "facts_here", lambda: replace(MACHINES))
    monkeypatch.setattr(profiles, "local_workers", local)
    monkeypatch.setattr(profiles, "profile_cluster", failing)
    with pytest.raises(ClusterError):
        measure(None)
    assert ended and kept() is None
    with store.locked(store.key_of(MACHINES), said.append, patience_s=0.0):
        assert not said


def test_missing_is_what_reaches_no_further_than_fewer_workers():
    names = ("sum 1", "sum 2", "loop 1", "loop 2", "all_reduce machine 2", "round_trip machine 1")
    two = dict.fromkeys(names, CURVE)
    known = Profile(curves=two | {"exchange_neighbours machine 2": CURVE})
    assert not missing(known, 2, {"machine": 2, "network": 1})
    assert missing(known, 4, {"machine": 5, "network": 2}) == MissingMeasurements(
        [4], [4], [("machine", 4), ("machine", 5), ("network", 2)], [("machine", 2), ("network", 1)], ["network"]
    )
