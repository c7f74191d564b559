"""Which workers of a job run in one process, what they get, and whose error is raised, without Dask."""

import threading
from dataclasses import dataclass
from types import SimpleNamespace

import distributed
import pytest

import singa_dask.cluster
import singa_dask.data
from singa_dask.comm import SoloCommunicator
from singa_dask.errors import ClusterError
from singa_dask.training import gang
from singa_dask.training.gang import GangPlan, on_dask_worker
from singa_dask.training.worker import GroupPlan


@dataclass(frozen=True)
class Plan:
    threads: int = 0
    group: GroupPlan | None = None


@pytest.fixture
def played(monkeypatch):
    """What each worker was given: (communicator, plan, services). fail: what workers raise, by number of the group."""
    told = {"servers": {0: ["address 0"], 1: ["address 1"]}}
    task = SimpleNamespace(stop_requested=False, told=told, wait_told=lambda name, timeout_s: told[name])
    worker = SimpleNamespace(log_event=lambda topic, event: None)
    monkeypatch.setattr(distributed, "get_worker", lambda: worker)
    monkeypatch.setattr(distributed, "get_client", lambda: None)
    monkeypatch.setattr(singa_dask.cluster, "current_task", lambda: task, raising=False)
    monkeypatch.setattr(singa_dask.data, "dask_submit", lambda client, worker: None)
    monkeypatch.setattr(gang, "link_to", lambda address, worker, timeout_s: f"link to {address}")
    played = SimpleNamespace(given=[], fail={}, task=task, lock=threading.Lock())

    def train_rank(comm, plan, services):
        with played.lock:
            played.given.append((comm, plan, services))
        if plan.group.number in played.fail:
            raise played.fail[plan.group.number]
        comm.barrier()
        return {"rank": comm.rank, "group": plan.group.number}

    monkeypatch.setattr(gang, "train_rank", train_rank)
    return played


def plan_of(groups, cores, **options):
    return GangPlan(Plan(), tuple(GroupPlan(number) for number in groups), (cores,), **options)


def test_one_worker_has_all_cores_of_its_process(played):
    comm = SoloCommunicator(9.0)
    assert on_dask_worker(comm, plan_of([3], 4, server_groups=(1,)), "topic") == {3: {"rank": 0, "group": 3}}
    ((own, plan, services),) = played.given
    assert own is comm and plan.threads == 4 and plan.group.number == 3
    assert services.links() == {0: "link to address 1"}
    assert not services.stop_requested() and not services.others_ended()
    played.task.stop_requested, played.task.told["others ended"] = True, True
    assert services.stop_requested() and services.others_ended()


def test_workers_of_a_group_in_one_process_share_its_cores(played):
    reports = on_dask_worker(SoloCommunicator(), plan_of([0], 5, nworkers_per_group=2, per_process=2), "topic")
    assert reports == {0: {"rank": 0, "group": 0}}, "the report of the first of them"
    assert sorted(comm.rank for comm, _, _ in played.given) == [0, 1]
    assert {(plan.threads, services.links) for _, plan, services in played.given} == {(2, None)}


def test_groups_in_one_process_report_each(played):
    plan = plan_of([4, 5], 1, per_process=2, server_groups=(0, 1))
    assert on_dask_worker(SoloCommunicator(), plan, "topic").keys() == {4, 5}
    links = {plan.group.number: services.links() for _, plan, services in played.given}
    assert links == {4: {0: "link to address 0"}, 5: {0: "link to address 1"}}
    assert {plan.threads for _, plan, _ in played.given} == {1}


def test_of_several_errors_the_root_cause_is_raised(played):
    played.fail = {4: ClusterError("the group was told to leave"), 5: ValueError("bad batch")}
    with pytest.raises(ValueError, match="bad batch"):
        on_dask_worker(SoloCommunicator(), plan_of([4, 5], 2, per_process=2), "topic")
    assert all("failed" in comm.aborted for comm, _, _ in played.given)
