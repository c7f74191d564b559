"""What a worker gets from its Dask worker, without Dask."""

import threading
from types import SimpleNamespace

import distributed
import pytest

import singa_dask.cluster
import singa_dask.data
from singa_dask.comm import run_threads
from singa_dask.training import dask_task
from singa_dask.training.dask_task import train_on_dask_worker
from singa_dask.training.rank_plan import GroupPlan, WorkerPlan


@pytest.fixture
def played(monkeypatch):
    """What each worker was given, by rank: (communicator, plan, services)."""
    told = {"servers": ("address 0", "address 1")}
    task = SimpleNamespace(
        stop_requested=False,
        stop_told=False,
        told=told,
        wait_told=lambda name, timeout_s: told[name],
        abort_event=threading.Event(),
    )
    played = SimpleNamespace(given={}, task=task, logged=[])
    worker = SimpleNamespace(
        log_event=lambda topic, event: played.logged.append((topic, event)),
        memory_manager=SimpleNamespace(memory_limit=10**9, memory_pause_fraction=0.5),
        nanny="",
        address="tcp://worker",
    )
    monkeypatch.setattr(distributed, "get_worker", lambda: worker)
    monkeypatch.setattr(distributed, "get_client", lambda: None)
    monkeypatch.setattr(singa_dask.cluster, "current_task", lambda: task, raising=False)
    monkeypatch.setattr(singa_dask.data, "dask_submit", lambda client, worker: "submit")
    monkeypatch.setattr(
        dask_task, "ActorLink", lambda where, worker, timeout_s: f"link to {where()} for {timeout_s:g} s"
    )

    def train_rank(comm, plan, services):
        played.given[comm.rank] = comm, plan, services
        return {"rank": comm.rank}

    monkeypatch.setattr(dask_task, "train_rank", train_rank)
    return played


def test_each_worker_has_the_cores_of_its_process_and_returns_its_report(played, tmp_path):
    plan = WorkerPlan(b"", tmp_path, group=GroupPlan(3, in_process_servers=False, cores=(4, 2)))
    assert run_threads(2, train_on_dask_worker, plan, "topic") == [{"rank": 0}, {"rank": 1}]
    assert [played.given[rank][2].cores for rank in range(2)] == [4, 2]
    assert [played.given[rank][2].memory_limit for rank in range(2)] == [5 * 10**8] * 2
    for rank, (comm, its, services) in played.given.items():
        assert comm.rank == rank and its is plan and services.submit == "submit"
        assert services.links() == {0: "link to address 0 for 90 s", 1: "link to address 1 for 90 s"}


def test_a_worker_hears_the_driver_and_is_heard(played, tmp_path):
    (report,) = run_threads(1, train_on_dask_worker, WorkerPlan(b"", tmp_path, group=GroupPlan(cores=(1,))), "topic")
    _, _, services = played.given[0]
    assert report == {"rank": 0} and services.links is None and services.memory_limit == 5 * 10**8
    assert not services.stop_requested() and not services.others_ended()
    played.task.stop_requested, played.task.told["others ended"] = True, True
    assert services.stop_requested() and services.others_ended()
    assert not services.deposits.leaves(), "that is for its own thread: the rank's looks count"
    played.task.stop_told = True
    assert services.deposits.leaves()
    services.emit({"kind": "end"})
    assert played.logged == [("topic", {"kind": "end"})]


@pytest.mark.parametrize(
    ("limit", "pause", "bound"), [(None, 0.8, None), (10**9, 0.8, 8 * 10**8), (10**9, False, 10**9)]
)
def test_a_worker_may_use_the_memory_below_which_dask_does_not_pause_it(played, tmp_path, limit, pause, bound):
    manager = distributed.get_worker().memory_manager
    manager.memory_limit, manager.memory_pause_fraction = limit, pause
    run_threads(1, train_on_dask_worker, WorkerPlan(b"", tmp_path, group=GroupPlan(cores=(1,))), "topic")
    assert played.given[0][2].memory_limit == bound
