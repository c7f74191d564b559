"""What a plan measures, and what it keeps of that."""

from dataclasses import replace

import pytest

from singa_dask.cluster import WorkerInfo
from singa_dask.errors import ClusterError
from singa_dask.planning.profile import Curve, Point, Profile
from singa_dask.profiling import store
from singa_dask.profiling.cluster import Missing, missing
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


def test_what_is_measured_is_kept_and_serves_the_next_plan():
    said = []
    for _ in range(2):
        with Profiler("client", said.append) as profiler:
            assert profiler.profile.numbers("sum") == [1, 2]
    assert kept().numbers("sum") == [1, 2]
    assert [text[:9] for text in said] == ["measuring"]


def test_a_profile_of_fewer_workers_is_completed():
    store.save(store.key_of(MACHINES), replace(MACHINES, curves={"sum 1": CURVE, "loop 1": CURVE}))
    with Profiler("client", print) as profiler:
        assert profiler.profile.curves.keys() == {"sum 1", "sum 2", "loop 1", "loop 2"}
    assert kept().curves.keys() == {"sum 1", "sum 2", "loop 1", "loop 2"}


def test_what_is_measured_beside_a_run_serves_and_is_not_kept(monkeypatch):
    said = []
    monkeypatch.setattr(profiles, "busy_beside", lambda client: BUSY)
    with Profiler("client", said.append) as profiler:
        assert profiler.profile.numbers("sum") == [1, 2]
    assert kept() is None and "tcp://10.0.0.1:9" in said[-1]


def test_a_cache_that_cannot_be_written_is_a_note(cluster):
    said = []
    (cluster / "profiles").write_text("a file where the folder should be")
    with Profiler("client", said.append) as profiler:
        assert profiler.profile.numbers("sum") == [1, 2]
    assert said[-1].startswith("what was measured is not kept") and "SINGA_DASK_CACHE" in said[-1]


def test_a_failure_leaves_no_lock_and_no_workers(monkeypatch):
    ended = []

    class Local:
        def __enter__(self):
            return "client"

        def __exit__(self, *exc):
            ended.append(True)

    def failing(client, **settings):
        raise ClusterError("worker 1 was lost")

    monkeypatch.setattr(profiles, "facts_here", lambda: replace(MACHINES))
    monkeypatch.setattr(profiles, "local_workers", Local)
    monkeypatch.setattr(profiles, "profile_cluster", failing)
    with pytest.raises(ClusterError, match="was lost"), Profiler(None, print):
        pass
    assert ended and kept() is None
    said = []
    with store.locked(store.key_of(MACHINES), said.append, patience_s=0.0):
        assert not said


def test_missing_is_what_reaches_no_further_than_fewer_workers():
    names = ("sum 1", "sum 2", "loop 1", "loop 2", "all_reduce machine 2", "round_trip machine 1")
    two = dict.fromkeys(names, CURVE)
    known = Profile(curves=two | {"exchange_neighbours machine 2": CURVE})
    assert not missing(known, 2, {"machine": 2, "network": 1})
    assert missing(known, 4, {"machine": 5, "network": 2}) == Missing(
        [4], [4], [("machine", 4), ("machine", 5), ("network", 2)], [("machine", 2), ("network", 1)], ["network"]
    )
