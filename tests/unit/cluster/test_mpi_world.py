"""What of an MPI job can be tested without mpiexec: how many ranks it needs, what ranks tell each other."""

from __future__ import annotations

import signal
import socket
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from support.played_workers import PlayedWorkers

from singa_dask.cluster import mpi_world as module
from singa_dask.cluster.mpi_world import _packed, _unpacked, check_size, mpi_world
from singa_dask.cluster.stop_signals import FOR_THE_DRIVER
from singa_dask.errors import ClusterError, ConfigError

EACH_ALONE = r"^mpiexec: 4 processes were started, and each is alone .* loads, Open MPI 5; for srun, add --mpi=pmix"
LAUNCHERS = ["PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PALS_NRANKS"]


def test_a_rank_more_than_workers_is_enough():
    check_size(4, 3, "MPICH", {"PMI_SIZE": "4"})


@pytest.mark.parametrize(
    ("size", "workers", "library", "launched", "match"),
    [
        *((size, n, "MPICH", {"PMI_SIZE": str(size)}, f"{size}.*n {n + 1} s") for size, n in ((3, 3), (1, 1), (1, 3))),
        *((1, 3, "Open MPI 5", {name: "4", "SLURM_JOB_ID": "7"}, EACH_ALONE) for name in LAUNCHERS),
        (1, 3, "MPICH Version: 5", {"SLURM_STEP_NUM_TASKS": "4"}, "for srun, add --mpi=pmi2"),
    ],
)
def test_too_few_ranks_are_told_from_a_launcher_of_another_mpi(size, workers, library, launched, match):
    with pytest.raises(ConfigError, match=match):
        check_size(size, workers, library, launched)


def test_records_survive_their_packing():
    for text in ("tcp://10.0.0.7:4321", "", "x" * 5000):
        assert _unpacked(_packed(text)) == text[:2048]


class Request:
    """A collective that is complete after so many tests."""

    def __init__(self, after=0):
        self.left = after

    def Test(self):
        self.left -= 1
        return self.left < 0


class Comm:
    """The world as rank `rank` of `size` sees it. nodes: what other ranks tell than this one; address: what rank 0
    tells; waits: how often each collective is not complete yet."""

    def __init__(self, rank, size):
        self.rank, self.size = rank, size
        self.nodes, self.address = {}, "tcp://127.0.0.1:1"
        self.waits = {"gather": 2, "broadcast": 2, "barrier": 2}
        self.told: list[str] = []

    def Iallgather(self, mine, records):
        assert _unpacked(mine).startswith("here\n")
        records[:] = mine
        for rank, node in self.nodes.items():
            records[rank] = _packed(node)
        return Request(self.waits["gather"])

    def Ibcast(self, record):
        if self.rank == 0:
            self.told.append(_unpacked(record))
        else:
            record[:] = _packed(self.address)
        return Request(self.waits["broadcast"])

    def Ibarrier(self):
        return Request(self.waits["barrier"])


class World(PlayedWorkers):
    """An MPI job seen from one rank, by its own clock. log: what Dask and MPI were asked to do; stays: whether Dask
    workers do not close; before: the MPI world that there was at first; route: this machine's address."""

    def __init__(self, monkeypatch, rank=0, size=3, nodes=(), stays=False, before="", route="10.0.0.1", fails=None):
        super().__init__(monkeypatch, [module], {"w1": None, "w2": None})
        self.log, self.stays, self.worker_fails, self.comm = [], stays, fails, Comm(rank, size)
        self.comm.nodes = dict(nodes)
        mpi = SimpleNamespace(COMM_WORLD=self.comm, Exception=OSError, Finalize=lambda: self.log.append("finalize"))
        mpi.Get_library_version = lambda: "MPICH 5"
        stand_ins = {
            "join_launched": lambda timeout_s: mpi,
            "mpi_report": lambda: SimpleNamespace(world=before),
            "this_node": lambda: "here",
            "unlink_segments": lambda: self.log.append("unlink"),
            "get_ip": lambda: route,
            "wait_workers": lambda client, count, timeout_s: self.log.append((count, timeout_s)),
            "LocalCluster": lambda **options: self.entered("cluster", **options),
            "Client": lambda cluster, timeout: self.entered("client", timeout=timeout),
            "Worker": lambda scheduler, **options: Served(self, scheduler, options),
        }
        for name, stand_in in stand_ins.items():
            monkeypatch.setattr(module, name, stand_in)

    def answer(self, function, address):
        self.log.append("close a worker")
        if not self.stays:
            del self.there[address]

    @contextmanager
    def entered(self, name, **options):
        self.log.append((f"{name} begins", options.get("host"), options.get("interface")))
        yield SimpleNamespace(name=name, options=options, scheduler_address="tcp://10.0.0.1:5")
        self.log.append(f"{name} ends")


class Served:
    """A Dask worker that its scheduler closes."""

    def __init__(self, world, scheduler, options):
        self.world, self.said = world, (scheduler, options["name"], options["host"], options["interface"])

    async def __aenter__(self):
        if self.world.worker_fails:
            raise self.world.worker_fails
        return self

    async def __aexit__(self, *exc):
        pass

    async def finished(self):
        handlers = {signal.getsignal(number) for number in FOR_THE_DRIVER}
        assert handlers == {signal.SIG_IGN}, "only the driver ends a job in order"
        self.world.log.append(self.said)


@pytest.fixture
def played(monkeypatch):
    return lambda **options: World(monkeypatch, **options)


def enter(**options):
    """Enter the world and leave it; the client."""
    with mpi_world(**options) as client:
        return client


def test_rank_0_drives_and_ends_the_workers_before_their_scheduler(played):
    world = played()
    handler = signal.getsignal(signal.SIGINT)
    with mpi_world(lambda: 2, start_s=60.0) as client:
        assert client.name == "client" and client.options == {"timeout": 60.0}
        assert signal.getsignal(signal.SIGINT) is handler
        assert world.comm.told == ["tcp://10.0.0.1:5"]
        world.log.append("block")
    assert world.log == [
        "unlink",
        ("cluster begins", "127.0.0.1", None),
        ("client begins", None, None),
        (2, 60.0),
        "block",
        "close a worker",
        "close a worker",
        "client ends",
        "cluster ends",
        "finalize",
    ]
    assert world.now < 1001.0


@pytest.mark.parametrize(("interface", "host"), [(None, "10.0.0.1"), ("lo", None)])
def test_ranks_on_several_machines_use_the_network(played, interface, host):
    world = played(nodes={2: "b\n"})
    enter(interface=interface)
    assert ("cluster begins", host, interface) in world.log


NO_IB0 = {1: "a\nb: no ib0", 2: "a\nb: no ib0"}


@pytest.mark.parametrize(
    ("options", "interface", "raised", "match"),
    [
        ({"nodes": {2: "b\n"}, "route": "127.0.1.1"}, None, ClusterError, "no default route; .* --interface"),
        ({"nodes": NO_IB0}, "lo", ConfigError, r"--interface: b: no ib0\. Received: lo"),
        ({}, "nosuch0", ConfigError, "'nosuch0' is not a valid network interface"),
        ({"size": 2}, None, ConfigError, "mpiexec -n 3"),
    ],
    ids=["no-route", "fault-elsewhere", "fault-here", "too-few"],
)
def test_what_rank_0_cannot_start_the_others_do_not_wait_for(played, options, interface, raised, match):
    world = played(**options)
    with pytest.raises(raised, match=match):
        enter(needed=lambda: 2, interface=interface)
    assert world.comm.told == [""] and world.log == ["unlink", "finalize"]


def test_mpi_that_was_there_before_stays(played):
    world = played(before="launched")
    enter()
    assert "finalize" not in world.log


def test_workers_that_do_not_close_are_not_waited_for_for_ever(played):
    world = played(stays=True)
    enter()
    assert 1005.0 <= world.now < 1006.0 and "cluster ends" in world.log


@pytest.mark.parametrize(("nodes", "host"), [({}, "127.0.0.1"), ({1: "b\n"}, None)])
def test_another_rank_serves_until_the_scheduler_closes_it(played, nodes, host):
    world, before = played(rank=2, nodes=nodes), signal.getsignal(signal.SIGTERM)
    assert enter() is None
    assert world.log == ["unlink", ("tcp://127.0.0.1:1", "mpi-2", host, None), "finalize"]
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_rank_whose_scheduler_never_comes_serves_nothing(played):
    world = played(rank=1)
    world.comm.address = ""
    assert enter() is None and world.log == ["unlink", "finalize"]


def test_a_worker_that_cannot_serve_says_why(played, caplog):
    world = played(rank=1, fails=OSError("no route"))
    enter()
    assert "MPI rank 1 on" in caplog.text and "no route" in caplog.text and world.log[-1] == "finalize"


@pytest.mark.parametrize(("rank", "now"), [(0, 1010.0), (1, 1020.0)])
def test_ranks_that_never_leave_are_left_by_rank_0_first(played, caplog, rank, now):
    world = played(rank=rank)
    world.comm.waits["barrier"] = 10**6
    enter()
    assert "finalize" not in world.log and "MPI is not finalised" in caplog.text
    assert now <= world.now < now + 0.5


def test_a_worker_stays_as_long_as_its_scheduler_lives(played):
    world = played(rank=1)
    with socket.create_server(("127.0.0.1", 0), backlog=400) as listener:
        world.comm.address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        world.comm.waits["barrier"] = 300
        enter()
    assert world.log[-1] == "finalize" and 1029.0 < world.now < 1031.0, "longer than a rank is waited for"


@pytest.mark.parametrize(
    ("rank", "waits", "what"),
    [(0, "gather", "the other ranks to start"), (1, "broadcast", "rank 0 to start the Dask scheduler")],
)
def test_a_rank_that_does_not_come_is_given_up(played, rank, waits, what):
    world = played(rank=rank)
    world.comm.waits[waits] = 10**6
    with pytest.raises(ClusterError, match=f"MPI rank {rank} of 3 waited 7 s for {what}"):
        enter(start_s=7.0)
    assert 1007.0 <= world.now < 1007.5
