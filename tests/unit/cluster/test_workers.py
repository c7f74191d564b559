"""Placement, without a cluster."""

import os
import random
import socket
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.played_workers import PlayedWorkers

from singa_dask.cluster import leases, workers
from singa_dask.cluster.bootstrap import MpiReport, this_node
from singa_dask.cluster.formation import shared_world
from singa_dask.cluster.gpus import GpuReport
from singa_dask.cluster.remote import StillImporting
from singa_dask.cluster.workers import WorkerInfo, answering, describe, host_of, place, wait_workers
from singa_dask.errors import ClusterError, ConfigError
from singa_dask.job.topology import ClusterTopology
from singa_dask.ops.gpu import visible
from singa_dask.ops.gpu.visible import Gpu


def _workers(**hosts):
    """One worker per port: _workers(a=2) has tcp://a:1 and tcp://a:2. A host has 4 cores."""
    return [
        WorkerInfo(f"tcp://{host}:{port}", host=host, node=host, cores=4)
        for host, n in hosts.items()
        for port in range(1, n + 1)
    ]


def _names(groups):
    return [" ".join(address.removeprefix("tcp://") for address in group) for group in groups]


@pytest.mark.parametrize(
    ("topology", "hosts", "groups", "servers"),
    [
        (ClusterTopology.allreduce(3), {"a": 3}, ["a:1 a:2 a:3"], ["a:1 a:2 a:3"]),
        (ClusterTopology.sandblaster(nworkers=1, nservers=1), {"a": 2}, ["a:1"], ["a:2"]),
        (ClusterTopology.hogwild(3), {"a": 2, "b": 1}, ["b:1", "a:1", "a:2"], ["b:1", "a:1", "a:2"]),
        (ClusterTopology.downpour(2, 2, nservers=1), {"a": 3, "b": 2}, ["b:1 b:2", "a:1 a:2"], ["a:3"]),
        (ClusterTopology.allreduce(4), {"a": 1, "b": 3}, ["b:1 b:2 b:3 a:1"], ["b:1 b:2 b:3 a:1"]),
        (
            ClusterTopology(nworker_groups=4, nserver_groups=4, nservers_per_procs=2),
            {"a": 4},
            ["a:1", "a:2", "a:3", "a:4"],
            ["a:2", "a:2", "a:4", "a:4"],
        ),
    ],
    ids=[
        "beside-workers",
        "servers-apart",
        "one-each",
        "group-on-one-host",
        "from-the-fullest-host",
        "in-one-process",
    ],
)
def test_which_workers_get_which_groups_and_servers(topology, hosts, groups, servers):
    placement = place(topology, _workers(**hosts))
    assert (_names(placement.workers), _names(placement.servers)) == (groups, servers)


def test_processes_of_a_host_share_its_cores():
    assert set(place(ClusterTopology.allreduce(3), _workers(a=3)).cores.values()) == {1}
    assert place(ClusterTopology.sandblaster(nworkers=1, nservers=1), _workers(a=2)).cores == {"tcp://a:1": 2}


def test_processes_that_are_bound_to_cores_of_their_own_keep_them():
    bound = [WorkerInfo(f"tcp://a:{i}", host="a", cores=4, cpus=frozenset(range(4 * i, 4 * i + 4))) for i in range(2)]
    assert set(place(ClusterTopology.allreduce(2), bound).cores.values()) == {4}
    free = [WorkerInfo(f"tcp://a:{i}", host="a", cores=8, cpus=frozenset(range(8))) for i in range(2)]
    assert set(place(ClusterTopology.allreduce(2), free).cores.values()) == {4}


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


@pytest.fixture
def cluster(monkeypatch):
    """Dask workers that answer or do not, by address."""
    return PlayedWorkers(monkeypatch, [workers], {})


def test_those_that_answer_are_told_from_those_that_do_not(cluster):
    first, second = _workers(a=2)
    cluster.there, cluster.mute = {second.address: second, "lost": None, first.address: first}, {"lost"}
    assert answering(None) == ([first, second], "lost: TimeoutError('no answer')")
    assert cluster.calls == [(describe, address, ()) for address in ("lost", first.address, second.address)]


def test_the_worker_of_a_driver_in_a_dask_task_does_not_count(cluster):
    here = {"node": this_node(), "pid": os.getpid()}
    own, other, thread = replace(_workers(a=1)[0], **here), *_workers(b=1), WorkerInfo("inproc://1", **here)
    cluster.there = {info.address: info for info in (own, other, thread)}
    assert answering(None) == ([thread, other], f"{own.address}: this driver is one of its tasks")


@pytest.mark.parametrize(
    ("hosts", "lost", "wanted", "there", "mute"),
    [
        ({}, set(), 1, 0, ""),
        ({"a": 1}, set(), 3, 1, ""),
        ({"a": 1}, {"lost"}, 2, 1, "Not counted: lost: TimeoutError"),
    ],
)
def test_too_few_workers_are_told_with_the_ways_to_more(cluster, caplog, hosts, lost, wanted, there, mute):
    cluster.there, cluster.mute = {info.address: info for info in _workers(**hosts)} | dict.fromkeys(lost), lost
    client, ways = _Client(), rf"Start more: .*client\.cluster\.scale\({wanted}\).*adapt\(minimum={wanted}\)"
    with pytest.raises(
        ClusterError, match=rf"only {there} of {wanted} Dask workers came within 30 s\..*{mute}.*{ways}"
    ):
        wait_workers(client, wanted)
    assert 1030.0 <= cluster.now < 1030.1
    assert len(client.asked) == 10 * wanted * 2 and client.cancelled == client.asked, "work for so many threads"
    (told,) = (record.getMessage() for record in caplog.records)
    assert told == f"{there} of {wanted} Dask workers are there; waiting for more, 30 s in all"


def test_enough_workers_are_not_waited_for(cluster, caplog):
    cluster.there = {info.address: info for info in _workers(a=2)}
    assert len(wait_workers(None, 1)) == 2 and cluster.now == 1000.0 and not caplog.records


def test_workers_that_are_importing_the_package_are_waited_for_longer(cluster, caplog):
    (info,) = _workers(a=1)
    cluster.there = {info.address: StillImporting("it is importing singa_dask")}
    cluster.at[1300.0] = lambda: cluster.there.update({info.address: info})
    assert wait_workers(_Client(), 1) == [info] and cluster.now >= 1300.0
    assert [record.getMessage() for record in caplog.records] == [
        "Dask workers are importing singa_dask; waiting up to 600 s",
        "0 of 1 Dask workers are there; waiting for more, 600 s in all",
    ]
    cluster.there = {info.address: StillImporting("it is importing singa_dask")}
    with pytest.raises(ClusterError, match=r"came within 600 s\. Not counted: tcp://a:1: StillImporting\('it is imp"):
        wait_workers(_Client(), 1)


def test_a_worker_describes_itself_and_says_who_has_it(monkeypatch):
    monkeypatch.setattr(leases, "_leases", {})
    monkeypatch.setattr(workers.os, "sched_getaffinity", lambda pid: {1, 5})
    gpus = (Gpu(0, "h/1"), Gpu(1, "h/2"))
    monkeypatch.setattr(visible, "visible_gpus", lambda: gpus)
    monkeypatch.setattr(visible, "has_cupy", lambda: False)
    state = SimpleNamespace(actors={}, total_resources={"GPU": 2.0})
    worker = SimpleNamespace(address="tcp://h:1", name=7, nanny="tcp://h:2", state=state)
    said = describe(worker)
    assert (said.gpus, said.gpu) == (GpuReport(gpus, cupy=False, resource=2.0), None)
    assert (said.address, said.host, said.nanny, said.group) == ("tcp://h:1", "h", "tcp://h:2", "")
    assert (said.pid, said.cores, said.cpus, said.node) == (os.getpid(), 2, {1, 5}, this_node())
    assert str(said) == f"tcp://h:1 (host {socket.gethostname()}, pid {os.getpid()})"
    assert str(WorkerInfo("tcp://h:1", host="h")) == "tcp://h:1 (host h, pid 0)"
    worker.nanny, state.actors[leases.server_key("0", "run")] = None, None
    assert (describe(worker).group, describe(worker).run, describe(worker).nanny) == ("server-0@run", "run", "")
    leases.reserve("tcp://h:1", "job-1", 60.0, "other")
    assert (describe(worker).group, describe(worker).run) == ("job-1", "other")


def test_workers_are_taken_in_the_order_of_their_numbers():
    by_port = [WorkerInfo(f"tcp://a:{port}", host="a") for port in (10000, 9999, 998)]
    by_host = [WorkerInfo(f"tcp://{host}:1", host=host) for host in ("node10", "node9")]
    assert place(ClusterTopology.allreduce(2), by_port).addresses == ("tcp://a:998", "tcp://a:9999")
    assert place(ClusterTopology.allreduce(1), by_host).addresses == ("tcp://node9:1",)
    assert host_of("inproc://") == "inproc://" and host_of("tls://[::1]:99") == "::1"
