"""Placement, without a cluster."""

from __future__ import annotations

import os
import random
import socket
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from singa_dask.cluster import leases, workers
from singa_dask.cluster.bootstrap import MpiReport, this_node
from singa_dask.cluster.formation import shared_world
from singa_dask.cluster.workers import WorkerInfo, answering, describe, host_of, place, wait_workers
from singa_dask.errors import ClusterError, ConfigError
from singa_dask.job.topology import ClusterTopology


def _workers(**hosts):
    """One worker per port: _workers(a=2) has tcp://a:1 and tcp://a:2. A host has 4 cores."""
    return [
        WorkerInfo(f"tcp://{host}:{port}", host=host, node=host, cores=4)
        for host, n in hosts.items()
        for port in range(1, n + 1)
    ]


def test_allreduce_has_every_server_beside_its_worker():
    placement = place(ClusterTopology.allreduce(3), _workers(a=3))
    assert placement.workers == placement.servers == (("tcp://a:1", "tcp://a:2", "tcp://a:3"),)
    assert placement.cores == dict.fromkeys(placement.addresses, 1)


def test_sandblaster_has_servers_of_their_own_that_share_the_cores():
    placement = place(ClusterTopology.sandblaster(nworkers=1, nservers=1), _workers(a=2))
    assert placement.workers == (("tcp://a:1",),) and placement.servers == (("tcp://a:2",),)
    assert placement.cores == {"tcp://a:1": 2}


def test_processes_that_are_bound_to_cores_of_their_own_keep_them():
    bound = [WorkerInfo(f"tcp://a:{i}", host="a", cores=4, cpus=frozenset(range(4 * i, 4 * i + 4))) for i in range(2)]
    assert set(place(ClusterTopology.allreduce(2), bound).cores.values()) == {4}
    free = [WorkerInfo(f"tcp://a:{i}", host="a", cores=8, cpus=frozenset(range(8))) for i in range(2)]
    assert set(place(ClusterTopology.allreduce(2), free).cores.values()) == {4}


def test_hogwild_has_each_worker_with_its_own_servers():
    placement = place(ClusterTopology.hogwild(3), _workers(a=2, b=1))
    assert placement.workers == placement.servers and len(placement.addresses) == 3


def test_gradients_stay_in_a_process_where_placement_says_so():
    kinds = set()
    names = ("nworker_groups", "nserver_groups", "nworkers_per_group", "nservers_per_group")
    for numbers in product((1, 2, 4), (1, 2, 4), (1, 2), (1, 2), (1, 2, 4), (False, True)):
        fields = (*names, "nservers_per_procs", "server_worker_separate")
        try:
            topology = ClusterTopology(**dict(zip(fields, numbers, strict=True)))
        except ConfigError:
            continue
        placement = place(topology, _workers(a=topology.nprocesses))
        alone = all(
            {*placement.servers[topology.server_group_of(group)]} == {worker}
            for group, workers_there in enumerate(placement.workers)
            for worker in workers_there
        )
        assert topology.stays_in_process == (alone and topology.nworkers_per_group == 1), topology
        kinds.add(topology.stays_in_process)
    assert kinds == {False, True}


def test_a_group_stays_on_one_host_where_it_fits():
    placement = place(ClusterTopology.downpour(2, 2, nservers=1), _workers(a=3, b=2))
    hosts = [{host_of(address) for address in group} for group in placement.workers]
    assert hosts == [{"b"}, {"a"}] and placement.servers == (("tcp://a:3",),)


def test_a_group_too_large_for_any_host_is_spread_from_the_fullest_on():
    placement = place(ClusterTopology.allreduce(4), _workers(a=1, b=3))
    assert placement.workers == (("tcp://b:1", "tcp://b:2", "tcp://b:3", "tcp://a:1"),)


def test_several_servers_in_a_process_share_an_address():
    topology = ClusterTopology(nworker_groups=4, nserver_groups=4, nservers_per_procs=2)
    placement = place(topology, _workers(a=4))
    assert placement.servers == (("tcp://a:2",), ("tcp://a:2",), ("tcp://a:4",), ("tcp://a:4",))


def test_too_few_workers_are_counted():
    with pytest.raises(ClusterError, match=r"2 Dask workers are missing, 3 of 5 are there"):
        place(ClusterTopology.sandblaster(3, 2), _workers(a=3))


@given(
    st.dictionaries(st.sampled_from("abcd"), st.integers(1, 5), min_size=1),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 3),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_placement_is_complete_disjoint_and_does_not_depend_on_order(hosts, groups, size, servers, separate, rng):
    topology = ClusterTopology(groups, groups, size, servers, server_worker_separate=separate)
    workers = _workers(**hosts)
    shuffled = random.Random(rng.random()).sample(workers, len(workers))
    if len(workers) < topology.nprocesses:
        with pytest.raises(ClusterError):
            place(topology, workers)
        return
    placement = place(topology, workers)
    assert place(topology, shuffled) == placement
    trainers = [address for group in placement.workers for address in group]
    holders = [address for group in placement.servers for address in group]
    assert len(set(trainers)) == topology.nworkers and len(set(holders)) == topology.nservers
    assert len(placement.addresses) == topology.nprocesses
    assert bool(set(trainers) & set(holders)) != separate
    assert all(cores >= 1 for cores in placement.cores.values()) and set(placement.cores) == set(trainers)


def _in_world(*reports):
    return [WorkerInfo(f"tcp://a:{i}", mpi=report) for i, report in enumerate(reports)]


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        ([MpiReport(), MpiReport()], None),
        ([MpiReport("w", 1, 2, True), MpiReport("w", 0, 2, True)], (1, 0)),
        ([MpiReport("w", 0, 3, True), MpiReport("w", 2, 3, True)], (0, 2)),
        ([MpiReport("w", 0, 2, True), MpiReport()], None),
        ([MpiReport("w", 0, 2, True), MpiReport("v", 1, 2, True)], None),
        ([MpiReport("w", 0, 2, True, spent=True), MpiReport("w", 1, 2, True)], None),
        ([MpiReport("launched", 0, 2, spent=True), MpiReport("launched", 1, 2)], (0, 1)),
        ([MpiReport("launched", 0, 1), MpiReport("launched", 0, 1)], None),
        ([MpiReport("w", 0, 3, True, spent=True)], (0,)),
    ],
)
def test_which_world_workers_share(reports, expected):
    assert shared_world(_in_world(*reports)) == expected


class _Client:
    """The client of a cluster whose workers have two threads. asked, cancelled: tasks."""

    asynchronous = False

    def __init__(self):
        self.asked, self.cancelled = [], []

    def map(self, function, numbers, *, key, pure, resources):
        self.asked += numbers
        return [*numbers]

    def cancel(self, tasks, force):
        self.cancelled += tasks


@pytest.fixture(autouse=True)
def threads(monkeypatch):
    monkeypatch.setattr(workers, "threads_of", lambda client: 2)


def test_a_wait_for_workers_is_told_once_and_ends(monkeypatch, caplog):
    monkeypatch.setattr(workers, "answering", lambda client: (_workers(a=1), ""))
    assert len(wait_workers(None, 1, 0.2)) == 1 and not caplog.records
    with pytest.raises(ClusterError, match=r"only 1 of 3 Dask workers came within 0\.4 s\. Start more"):
        wait_workers(_Client(), 3, 0.4)
    assert [r.getMessage() for r in caplog.records] == [
        "1 of 3 Dask workers are there; waiting for more, 0.4 s in all"
    ]


def test_servers_among_the_actors_of_a_worker():
    made, gone = SimpleNamespace(closed=False), SimpleNamespace(closed=True)
    key = leases.server_key("0-of-group-0", "run")
    actors = {key: made, f"{key}2": gone, f"{key}3": None, "server-x": made, ("server-", 1): made, "other@run": made}
    assert leases.servers(actors) == [key, f"{key}3"]


def test_workers_of_other_groups_are_left_alone_where_there_are_enough():
    first, *others = _workers(a=3)
    held = [replace(first, group="other"), *others]
    assert place(ClusterTopology.allreduce(2), held).addresses == ("tcp://a:2", "tcp://a:3")
    assert place(ClusterTopology.allreduce(3), held).addresses == ("tcp://a:1", "tcp://a:2", "tcp://a:3")


def test_a_worker_says_who_has_it(monkeypatch):
    monkeypatch.setattr(leases, "_leases", {})
    actors = {}
    worker = SimpleNamespace(address="tcp://h:1", name="n", nanny=None, state=SimpleNamespace(actors=actors))
    assert (workers.describe(worker).group, workers.describe(worker).nanny) == ("", "")
    actors[leases.server_key("0", "run")] = None
    assert workers.describe(worker).group == "server-0@run"
    leases.reserve("tcp://h:1", "job-1", 60.0)
    assert workers.describe(worker).group == "job-1"


@pytest.fixture
def cluster(monkeypatch):
    """Dask workers that answer or raise, by address; `calls` says how they were asked."""
    cluster = SimpleNamespace(answers={}, calls=[])

    def run_each(client, function, args, timeout_s):
        cluster.calls.append((function, list(args), timeout_s))
        return {address: cluster.answers[address] for address in args}

    monkeypatch.setattr(workers, "alive", lambda client: set(cluster.answers))
    monkeypatch.setattr(workers, "run_each", run_each)
    return cluster


def test_those_that_answer_are_told_from_those_that_do_not(cluster):
    first, second = _workers(a=2)
    cluster.answers = {second.address: second, "lost": TimeoutError("no answer"), first.address: first}
    assert answering(None, 3.0) == ([first, second], "lost: TimeoutError('no answer')")
    assert cluster.calls == [(describe, ["lost", first.address, second.address], 3.0)]


def test_the_worker_of_a_driver_in_a_dask_task_does_not_count(cluster, monkeypatch):
    here = {"node": this_node(), "pid": os.getpid()}
    own, other, thread = replace(_workers(a=1)[0], **here), *_workers(b=1), WorkerInfo("inproc://1", **here)
    cluster.answers = {info.address: info for info in (own, other, thread)}
    assert answering(None) == ([thread, other], f"{own.address}: this driver is one of its tasks")
    monkeypatch.setattr(workers.time, "sleep", lambda seconds: None)
    with pytest.raises(ClusterError, match=rf"only 2 of 3 .* Not counted: {own.address}: this driver is one of its"):
        wait_workers(_Client(), 3, 0.01)


def test_workers_that_do_not_answer_are_named_after_the_wait(cluster, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(workers.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(workers.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    cluster.answers = {"lost": TimeoutError("no answer")} | {worker.address: worker for worker in _workers(a=1)}
    with pytest.raises(ClusterError, match=r"only 1 of 2 .* within 30 s\. Not counted: lost: TimeoutError"):
        wait_workers(_Client(), 2)
    assert 30.0 <= now[0] < 30.1


def test_a_worker_describes_itself(monkeypatch):
    monkeypatch.setattr(leases, "_leases", {})
    monkeypatch.setattr(workers.os, "sched_getaffinity", lambda pid: {1, 5})
    state = SimpleNamespace(actors={})
    said = describe(SimpleNamespace(address="tcp://h:1", name=7, nanny="tcp://h:2", state=state))
    assert (said.address, said.host, said.nanny) == ("tcp://h:1", "h", "tcp://h:2")
    assert (said.pid, said.cores, said.cpus, said.node) == (os.getpid(), 2, {1, 5}, this_node())
    assert str(said) == f"tcp://h:1 (host {socket.gethostname()}, pid {os.getpid()})"
    assert str(WorkerInfo("tcp://h:1", host="h")) == "tcp://h:1 (host h, pid 0)"


def test_workers_are_taken_in_the_order_of_their_numbers():
    by_port = [WorkerInfo(f"tcp://a:{port}", host="a") for port in (10000, 9999, 998)]
    by_host = [WorkerInfo(f"tcp://{host}:1", host=host) for host in ("node10", "node9")]
    assert place(ClusterTopology.allreduce(2), by_port).addresses == ("tcp://a:998", "tcp://a:9999")
    assert place(ClusterTopology.allreduce(1), by_host).addresses == ("tcp://node9:1",)
    assert host_of("inproc://") == "inproc://" and host_of("tls://[::1]:99") == "::1"


@pytest.mark.parametrize(("there", "wanted"), [(0, 1), (1, 3)])
def test_too_few_workers_are_told_with_the_ways_to_more(monkeypatch, there, wanted):
    monkeypatch.setattr(workers, "answering", lambda client: (_workers(a=there) if there else [], ""))
    client = _Client()
    said = rf"only {there} of {wanted} .*Start more: .*client\.cluster\.scale\({wanted}\).*adapt\(minimum={wanted}\)"
    with pytest.raises(ClusterError, match=said):
        wait_workers(client, wanted, timeout_s=0.2)
    assert len(client.asked) == 10 * wanted * 2 and client.cancelled == client.asked, "work for so many threads"
