"""The steps into a world, with an MPI that the test plays."""

import time
from types import SimpleNamespace

import pytest

from singa_dask.cluster import join
from singa_dask.cluster.join import RankPlan, communicator, join_group
from singa_dask.cluster.pmi_server import PmiEndpoint
from singa_dask.comm import SoloCommunicator
from singa_dask.errors import ClusterError


class Comm:
    """What MpiCommunicator is made of, and what was done with it."""

    log: list
    fails: str | None

    def __init__(self, mpi_comm, timeout_s, abort=None):
        self.what = (mpi_comm, timeout_s, abort)

    def barrier(self):
        self.log.append(("barrier", *self.what))
        if Comm.fails == self.what[0]:
            raise ClusterError("a rank was lost")


@pytest.fixture
def log(monkeypatch):
    log: list = []
    Comm.log, Comm.fails = log, None
    mpi = SimpleNamespace(COMM_WORLD="world")
    monkeypatch.setattr(join, "load_mpi", lambda: mpi)
    monkeypatch.setattr(join, "MpiCommunicator", Comm)
    monkeypatch.setattr(
        join, "join_world", lambda *args: log.append(("join", *args[:4], round(args[4] - time.monotonic())))
    )
    monkeypatch.setattr(join, "unlink_segments", lambda name: log.append(("unlink", name)))
    monkeypatch.setattr(join, "communicator", lambda ranks, name: log.append(("make", tuple(ranks), name)) or "made")
    return log


def test_a_group_of_one_needs_no_mpi(log):
    comm = join_group(RankPlan("g", 0, 1, comm_timeout_s=7.0))
    assert isinstance(comm, SoloCommunicator) and comm.timeout_s == 7.0 and log == []


def test_a_new_world_is_joined_met_and_left_without_names(log):
    endpoint = PmiEndpoint("h", 1, "token", "kvs")
    join_group(RankPlan("g", 1, 3, endpoint=endpoint, host="me", forming_s=20.0, comm_timeout_s=7.0), "event")
    assert log == [
        ("join", endpoint, 1, 3, "me", 20),
        ("barrier", "world", 20.0, "event"),
        ("unlink", "kvs"),
        ("make", (0, 1, 2), "g"),
        ("barrier", "made", 7.0, "event"),
    ]


def test_a_world_that_exists_is_used(log):
    join_group(RankPlan("g", 0, 2, (5, 3)))
    assert log == [("make", (5, 3), "g"), ("barrier", "made", 30.0, None)]


def test_a_world_that_does_not_meet_leaves_no_shared_memory(log):
    Comm.fails = "world"
    with pytest.raises(ClusterError, match="a rank was lost"):
        join_group(RankPlan("g", 0, 2, endpoint=PmiEndpoint("h", 1, "token", "kvs")))
    assert log[-1] == ("unlink", "kvs")


def test_a_communicator_has_the_planned_ranks(monkeypatch):
    from mpi4py import MPI

    made = SimpleNamespace(rank=1, size=2)
    members = SimpleNamespace(Free=lambda: None)
    world = SimpleNamespace(
        rank=3, group=SimpleNamespace(Incl=lambda ranks: members), Create_group=lambda group, tag: made
    )
    monkeypatch.setattr(MPI, "COMM_WORLD", world)
    assert communicator((5, 3), "g") is made
    with pytest.raises(ClusterError, match="planned rank 0 of 2, became rank 1 of 2"):
        communicator((3, 5), "g")
    with pytest.raises(ClusterError, match=r"rank 3 of its MPI world; the group wants \[0, 1\]"):
        communicator((0, 1), "g")
