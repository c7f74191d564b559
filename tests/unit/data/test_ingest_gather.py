"""Tasks of a pass on a cluster whose workers pause."""

from __future__ import annotations

import pytest

from singa_dask.data.ingest import run
from singa_dask.errors import ClusterError


class Future:
    """A future that ends when the test says so. key: of the task."""

    def __init__(self, key):
        self.key, self.cancelled, self._ended, self._heard = key, False, False, []

    def add_done_callback(self, heard):
        self._heard.append(heard)
        if self._ended:
            heard(self)

    def end(self):
        self._ended = True
        for heard in self._heard:
            heard(self)

    def result(self):
        return f"result of {self.key}"


class Cluster:
    """Three workers, of which two have paused: "b" waits with the first task, "c" is at the second one."""

    def __init__(self, status="running", gone=False):
        self.futures, self.status, self.gone = [], status, gone

    def scheduler_info(self, n_workers):
        def worker(status, **counts):
            return {"status": status, "metrics": {"memory": 9 << 20, "task_counts": counts}, "memory_limit": 10 << 20}

        busy = worker("paused", executing=1) if self.status == "running" else worker("paused")
        return {"workers": {"a": worker(self.status), "b": worker("paused", ready=1), "c": busy}}

    def processing(self, workers):
        for future in self.futures[1:]:
            future.end()
        assert workers == ["b"]
        if self.gone:
            self.futures[0].end()
            raise KeyError("b")
        return {"b": ("task 0",)}

    def submit(self, indices):
        made = [Future(f"task {len(self.futures) + i}") for i in range(len(indices))]
        self.futures += made
        if len(self.futures) > 3:
            made[0].end()
        return made

    def cancel(self, futures):
        for future in futures:
            future.cancelled = True
            future.end()


def test_tasks_that_wait_for_a_paused_worker_are_submitted_again(monkeypatch):
    monkeypatch.setattr(run, "STATUS_SECONDS", 0.01)
    cluster, reported = Cluster(), []
    names = {0: "first", 1: "second", 2: "third"}
    done = run.gather(cluster, cluster.submit, lambda index, _: reported.append(index), names)
    assert done == {0: "result of task 3", 1: "result of task 1", 2: "result of task 2"}
    assert sorted(reported) == [0, 1, 2] and [f.cancelled for f in cluster.futures] == [True, False, False, False]


def test_a_paused_worker_may_go_meanwhile(monkeypatch):
    monkeypatch.setattr(run, "STATUS_SECONDS", 0.01)
    cluster = Cluster(gone=True)
    done = run.gather(cluster, cluster.submit, lambda *_: None, {0: "first", 1: "second"})
    assert done == {0: "result of task 0", 1: "result of task 1"}


def test_without_a_worker_that_goes_on_it_ends(monkeypatch):
    monkeypatch.setattr(run, "STATUS_SECONDS", 0.01)
    with pytest.raises(ClusterError, match=r"all Dask workers have paused, .* \(9 of 10 MiB\); 0 of 1 tasks"):
        run.gather(cluster := Cluster("paused"), cluster.submit, print, {0: "first"})
    assert cluster.futures[0].cancelled
