"""Replicas of servers on other hosts: where they are, and which of them count."""

from dataclasses import replace

import pytest
from support.supervised import Run, kept_server

from singa_dask.supervision import events as ev

DOWNPOUR = {"nworker_groups": 2, "nservers_per_group": 2, "server_worker_separate": True}


@pytest.fixture
def start(monkeypatch):
    """A run that has started, with its Dask workers on so many hosts in turns."""

    def start(hosts=2, spare=2, **options):
        run = Run(monkeypatch, spare=spare, **DOWNPOUR | options)
        for i, (address, info) in enumerate(list(run.there.items())):
            run.there[address] = replace(info, node=f"host{i % hosts}")
        return run.begin()

    return start


def node(run, nanny):
    return next(info.node for info in run.there.values() if info.nanny == nanny)


def lost(run, rank=0, replica=1, *, awaited=True, generation=1):
    """A server has lost a replica; returns the commands."""
    return run.handle(ev.ReplicaLost(0, generation, rank, replica, awaited))


def left(run, *replicas):
    """Servers of the group have left this: the numbers of replicas, 0 for their own memory."""
    group = run.server_groups[0]
    run.left[str(group)] = tuple(
        replace(kept_server(rank, group), replica=number) for rank, number in enumerate(replicas)
    )


def test_servers_have_replicas_on_another_host(start):
    run = start()
    servers = run.servers[0]
    for address, nanny in zip(servers.where, servers.replicas, strict=True):
        assert node(run, nanny) != run.there[address].node


def test_one_host_has_none(start):
    assert start(hosts=1).servers[0].replicas == ["", ""]
    assert "" not in start(hosts=1, server_replicas=1).servers[0].replicas
    assert start(hosts=2, server_replicas=0).servers[0].replicas == ["", ""]


def test_a_lost_replica_is_replaced_and_told_once(start):
    run = start()
    told = lost(run)
    assert [command for command in told if isinstance(command, ev.Note)] == [
        ev.Note("server group 0 has no replica of server 0 now, as its nanny does not answer or has no memory")
    ]
    (replaced,) = (command for command in told if isinstance(command, ev.ReplaceReplica))
    assert (replaced.server_group, replaced.rank, replaced.replica) == (0, 0, 1)
    assert node(run, replaced.nanny) != run.there[run.servers[0].where[0]].node
    assert [type(command) for command in lost(run)] == [ev.ReplaceReplica], "repeated"
    assert [type(command) for command in lost(run, replica=2, awaited=False)] == [ev.ReplaceReplica], "never whole"


@pytest.mark.parametrize("numbers", [(0, 1), (1, 2)])
def test_servers_go_on_from_replicas(start, numbers):
    run = start()
    lost(run, 1, 1) if numbers[1] == 2 else None
    left(run, *numbers)
    run.lose_servers(0)
    run.settle()
    assert run.made()[1:] == [([], [0])] and run.servers[0].parameters == "generation 1"
    assert run.state.restarts[0].whole == (0,)


def test_a_replica_that_was_lost_does_not_count(start):
    run = start()
    lost(run, 1, 1)
    left(run, 0, 1)
    run.lose_servers(0)
    run.settle()
    assert run.made()[1:] == [([0, 1], [0])] and run.state.restarts[0].whole == ()


def test_a_server_of_a_lost_group_does_not_hear_that_its_replica_is_known_to_be_lost(start):
    """Its successor may have read the replica, and know nothing that it acknowledges from now on."""
    run = start(spare=0)
    left(run, 1, 1)
    run.lose_servers(0)
    assert lost(run) == []
    run.answer()
    assert lost(run) == [] and run.server_groups[0].outdated == {}
    for _ in range(2):
        run.start()
    run.settle()
    assert run.servers[0].parameters == "generation 1"
    assert lost(run) == [], "of the former generation"
    assert [type(command) for command in lost(run, generation=2)] == [ev.Note, ev.RecordOutdated, ev.ReplaceReplica]
