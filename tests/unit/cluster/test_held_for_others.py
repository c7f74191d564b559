"""Workers are given up once they hold no tasks and no data of others."""

from types import SimpleNamespace

import pytest
from distributed.core import Status

from singa_dask.cluster import held_for_others
from singa_dask.cluster.held_for_others import without_tasks_and_data
from singa_dask.errors import SchedulerLost

SERVER = "server-0@digits/runs/digits#5e6f.1a2b"


class Cluster:
    """tasks, data: keys by address, also the scheduler; arrives: a task that comes while a worker is retired."""

    def __init__(self, monkeypatch, tasks, data=None, arrives=None, stuck=()):
        self.tasks, self.arrives, self.stuck, self.retired = tasks, arrives or {}, stuck, []
        self.data = dict.fromkeys(tasks, ()) | (data or {})
        self.workers = {a: SimpleNamespace(status=Status.running, state=SimpleNamespace(actors={})) for a in tasks}
        monkeypatch.setattr(held_for_others, "alive", lambda client, addresses: self.tasks.keys() & set(addresses))
        monkeypatch.setattr(held_for_others, "run_each", self.run_each)
        monkeypatch.setattr(held_for_others, "ask_scheduler", lambda client, question, timeout_s=None: question())
        self.scheduler = self

    def run_each(self, client, function, args, timeout_s):
        return {address: function(dask_worker=self.workers[address]) for address in args}

    def processing(self, workers):
        return {address: self.tasks[address] for address in workers}

    def has_what(self, workers):
        return {address: self.data[address] for address in workers}

    def retire_workers(self, workers, close_workers, remove):
        assert not close_workers and not remove
        self.retired.append(sorted(workers))
        for address in workers:
            self.workers[address].status = Status.closing_gracefully
        self.tasks |= self.arrives
        if set(workers) & set(self.stuck):
            raise SchedulerLost("no answer")
        return workers


@pytest.mark.parametrize(
    ("tasks", "data", "free", "held", "retired"),
    [
        ({"a": [], "b": []}, {}, {"a", "b"}, "", [["a", "b"]]),
        ({"a": [("load", 3)], "b": []}, {}, set(), "a runs load", []),
        ({"a": [], "b": []}, {"a": ["x-1"], "b": ["y-1", "y-2"]}, {"a"}, "a holds x; b holds y", [["a"]]),
        ({"a": [], "b": []}, {"a": ["x-1"]}, {"b"}, "a holds x", [["b"]]),
        ({"a": ["x-1"], "b": []}, {"a": [SERVER]}, {"a", "b"}, "", [["b"]]),
        ({"b": []}, {}, {"a", "b"}, "", [["b"]]),
        ({"a": ["k-1", "l-1", "m-1", "n-1", "k-2"], "b": []}, {}, set(), "a runs k, l, m and 1 more", []),
    ],
)
def test_they_are_given_up_in_order(monkeypatch, tasks, data, free, held, retired):
    cluster = Cluster(monkeypatch, tasks, data)
    found, words = without_tasks_and_data(cluster, {"a": 1, "b": 2})
    assert (found, words.replace("'", "").replace("(", "")) == (free, held) and cluster.retired == retired


@pytest.mark.parametrize("options", [{"arrives": {"a": ["x-1"]}}, {"stuck": "a"}])
def test_a_worker_that_got_a_task_or_keeps_its_data_takes_tasks_again(monkeypatch, options):
    cluster = Cluster(monkeypatch, {"a": []}, {"a": ["y-1"]}, **options)
    assert without_tasks_and_data(cluster, ["a"]) == (set(), "a holds y")
    assert cluster.workers["a"].status is Status.running


def test_workers_take_tasks_again_when_giving_them_up_is_interrupted(monkeypatch):
    cluster, asked = Cluster(monkeypatch, {"a": []}), []

    def interrupted(client, question, timeout_s=None):
        asked.append(question())
        if cluster.retired:
            raise KeyboardInterrupt
        return asked[-1]

    monkeypatch.setattr(held_for_others, "ask_scheduler", interrupted)
    with pytest.raises(KeyboardInterrupt):
        without_tasks_and_data(cluster, ["a"])
    assert cluster.retired == [["a"]] and cluster.workers["a"].status is Status.running


def test_actors_stay_and_nothing_is_taken_for_free_when_a_worker_has_just_left(monkeypatch):
    cluster = Cluster(monkeypatch, {"a": [], "b": []})
    cluster.workers["a"].state.actors["Count-1"] = None
    assert without_tasks_and_data(cluster, ["a"]) == (set(), "a runs Count")
    monkeypatch.setattr(cluster, "processing", lambda workers: {}["left"])
    assert without_tasks_and_data(cluster, ["b"]) == (set(), "b runs a task")
