"""The steps into a world, with an MPI that the test plays, and handlers of signals where MPI begins."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import threading
import time
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from singa_dask.cluster import bootstrap, join
from singa_dask.cluster.bootstrap import MpiReport, launched_size, launched_sizes, mpi_report
from singa_dask.cluster.join import RankPlan, call_by, communicator, join_group, join_launched, join_world
from singa_dask.cluster.pmi_server import PmiEndpoint, PmiServer
from singa_dask.cluster.stop_signals import kept_handlers
from singa_dask.comm import SoloCommunicator
from singa_dask.errors import ClusterError

NOW = 100.0


class Comm:
    """What MpiCommunicator is made of. log: what was done; fails: which one does not meet."""

    def __init__(self, mpi_comm, timeout_s, abort=None):
        self.what = (mpi_comm, timeout_s, abort)

    def barrier(self):
        self.log.append(("barrier", *self.what))
        if Comm.fails == self.what[0]:
            raise ClusterError("a rank was lost")


@pytest.fixture
def log(monkeypatch):
    log = Comm.log = []
    Comm.fails = None
    monkeypatch.setattr(join, "load_mpi", lambda: SimpleNamespace(COMM_WORLD="world"))
    monkeypatch.setattr(join, "MpiCommunicator", Comm)
    monkeypatch.setattr(join, "join_world", lambda *args: log.append(("join", *args)))
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
        ("join", endpoint, 1, 3, "me", NOW + 20.0),
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


@pytest.mark.parametrize(
    ("ranks", "fault"),
    [
        ((5, 3), ""),
        ((3, 5), "planned rank 0 of 2, became rank 1 of 2"),
        ((0, 1), r"rank 3 of its MPI world; the group wants \[0, 1\]"),
    ],
)
def test_a_communicator_has_the_planned_ranks(monkeypatch, ranks, fault):
    MPI = bootstrap.load_mpi()  # not initialised: other tests of this process need it so
    made, group = SimpleNamespace(rank=1, size=2), SimpleNamespace(Incl=lambda ranks: SimpleNamespace(Free=list))
    world = SimpleNamespace(rank=3, group=group, Create_group=lambda group, tag: made)
    monkeypatch.setattr(MPI, "COMM_WORLD", world)
    with pytest.raises(ClusterError, match=fault) if fault else nullcontext():
        assert communicator(ranks, "g") is made


class Mpi:
    """An MPI library. becomes: rank and size in its world; provided: how threads may call it; environment, world: what
    MPI_Init finds; left: the seconds until the process ends."""

    THREAD_SERIALIZED, THREAD_MULTIPLE = 2, 3

    def __init__(self, becomes=(0, 1), provided=3, initialised=False):
        self.COMM_WORLD = SimpleNamespace(rank=becomes[0], size=becomes[1])
        self.provided, self.initialised = provided, initialised
        self.environment: dict[str, str] = {}
        self.left, self.world = 0.0, ""

    def Is_initialized(self):
        return self.initialised

    def Init_thread(self, required):
        assert required == self.THREAD_MULTIPLE
        self.initialised, self.environment = True, dict(os.environ)
        self.left, self.world = Timer.left, bootstrap._process.world
        return self.provided

    def Query_thread(self):
        return self.provided

    def Get_library_version(self):
        return "MPICH 5.0, package: conda\nbuilt today\0"


class Timer:
    """The only one that faulthandler has."""

    left: float | None = None

    @classmethod
    def dump_traceback_later(cls, seconds, *, exit, file):
        assert cls.left is None and exit and file == 2
        cls.left = seconds

    @classmethod
    def cancel_dump_traceback_later(cls):
        cls.left = None


@pytest.fixture(autouse=True)
def timer(monkeypatch):
    monkeypatch.setattr(join, "faulthandler", Timer)
    monkeypatch.setattr(join, "time", SimpleNamespace(monotonic=lambda: NOW))
    yield
    assert Timer.left is None


@pytest.fixture
def load(monkeypatch):
    """Have a library loaded, with a process that has entered no world."""

    def load(mpi):
        monkeypatch.setattr(bootstrap, "_process", bootstrap._Process())
        monkeypatch.setitem(bootstrap.sys.modules, "mpi4py.MPI", mpi)
        monkeypatch.setattr(join, "load_mpi", lambda **options: mpi)
        return mpi

    monkeypatch.delenv("UCX_RNDV_THRESH", raising=False)
    return load


@pytest.mark.parametrize(
    ("mpi", "fault"),
    [
        (Mpi((1, 2)), ""),
        (Mpi((0, 1)), "^rank 1 of 2 became rank 0 of 1: MPICH 5.0 does not take its start from PMI-1"),
        (Mpi((1, 2), provided=1), "^rank 1: MPICH 5.0 cannot be called from threads"),
    ],
)
def test_mpi_starts_with_our_server_and_a_deadline(load, monkeypatch, mpi, fault):
    for name in ("PMIX_RANK", "PMI_RANK"):
        monkeypatch.setenv(name, "7")
    load(mpi)
    before, deadline = dict(os.environ), time.monotonic() + 20
    # The other rank is no MPI process: it only makes the world start.
    with PmiServer(["a", "a"]) as server, socket.socket() as other:
        other.connect((server.endpoint.host, server.endpoint.port))
        other.sendall(f"cmd=hello token={server.endpoint.token} rank=0 size=2\n".encode())
        with pytest.raises(ClusterError, match=fault) if fault else nullcontext():
            join_world(server.endpoint, 1, 2, "", NOW + 20.0)
        while not fault and server.state.ready != {1}:
            assert time.monotonic() < deadline, "the server hears who is through"
            time.sleep(0.001)
    assert (mpi.environment["PMI_RANK"], mpi.environment["PMI_SIZE"]) == ("1", "2")
    assert int(mpi.environment["PMI_FD"]) > 2 and "PMIX_RANK" not in mpi.environment
    assert mpi.world == server.endpoint.kvsname, "known before MPI can fail"
    assert mpi.left == 20.0
    assert dict(os.environ) == before


def test_a_process_with_mpi_cannot_join_another_world(load):
    load(Mpi(initialised=True))
    with pytest.raises(ClusterError, match=r"rank 0: this process has initialised MPI already\. .*inside functions"):
        join_world(PmiEndpoint("127.0.0.1", 1, "", ""), 0, 1, "", NOW + 5.0)


def test_a_deadline_is_set_for_the_call_alone():
    def called(*args):
        assert Timer.left == 7.0
        raise ValueError(args)

    with pytest.raises(ValueError, match="1, 2"):
        call_by(NOW + 7.0, "MPI_Init", called, 1, 2)
    assert call_by(NOW - 7.0, "MPI_Init", lambda: Timer.left) == 0.01, "at once, but not never"


def test_a_launched_process_joins_once(load):
    mpi = load(Mpi((1, 4)))
    before = dict(os.environ)
    assert join_launched(9.0) is mpi and mpi.left == 9.0 and mpi.initialised
    assert dict(os.environ) == before
    mpi.environment = {}
    assert join_launched(9.0) is mpi and mpi.environment == {}
    mpi.provided = 1
    with pytest.raises(ClusterError, match="cannot be called from threads"):
        join_launched(9.0)


def test_a_report_says_what_mpi_is_to_a_process(load, monkeypatch):
    mpi = load(Mpi((1, 2)))
    assert mpi_report() == MpiReport(library="MPICH 5.0")
    mpi.initialised = True
    monkeypatch.setenv("SLURM_JOB_ID", "42")
    launched = mpi_report()
    assert (launched.rank, launched.size, launched.ours, launched.spent) == (1, 2, False, False)
    assert launched.world.startswith("launched/2/42/")
    bootstrap.enter_world("kvs")
    assert mpi_report() == MpiReport("kvs", 1, 2, True, False, "MPICH 5.0")
    bootstrap.spend_world("comm")
    assert mpi_report().spent and bootstrap._process.abandoned == ["comm"]
    monkeypatch.delitem(bootstrap.sys.modules, "mpi4py.MPI")
    assert mpi_report() == MpiReport()


def test_launchers_say_how_many_processes_there_are():
    said = {"PMI_SIZE": "4", "OMPI_COMM_WORLD_SIZE": "", "SLURM_STEP_NUM_TASKS": "6", "PALS_NRANKS": "x"}
    assert launched_sizes(said) == {"PMI_SIZE": 4, "SLURM_STEP_NUM_TASKS": 6}
    assert launched_size(said) == 6 and launched_size({}) == 0


def own(number, frame):
    pass


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL, own])
def test_a_library_that_replaces_a_handler_in_another_thread_replaces_none(handler):
    def begin():
        with kept_handlers():
            libc.signal(signal.SIGUSR2, 1 if handler is not signal.SIG_IGN else 0)

    libc, before = ctypes.CDLL(None), signal.signal(signal.SIGUSR2, handler)
    libc.signal.argtypes, libc.signal.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
    try:
        kept = libc.signal(signal.SIGUSR2, None)
        libc.signal(signal.SIGUSR2, kept)
        thread = threading.Thread(target=begin)
        thread.start()
        thread.join(20.0)
        assert libc.signal(signal.SIGUSR2, None) == kept
    finally:
        signal.signal(signal.SIGUSR2, before)
