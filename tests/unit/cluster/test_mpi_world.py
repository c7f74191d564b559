"""What of an MPI job can be tested without mpiexec: how many ranks it needs, what ranks tell each other."""

from __future__ import annotations

import signal
import socket
from types import SimpleNamespace

import pytest

from singa_dask.cluster import mpi_world as module
from singa_dask.cluster.mpi_world import _fault, _packed, _unpacked, check_size, mpi_world
from singa_dask.cluster.stop_signals import FOR_THE_DRIVER
from singa_dask.errors import ClusterError, ConfigError


def test_a_rank_more_than_workers_is_enough():
    check_size(4, 3, "MPICH", {"PMI_SIZE": "4"})


@pytest.mark.parametrize(("size", "workers"), [(3, 3), (1, 1), (1, 3)])
def test_too_few_ranks_name_the_number_to_use(size, workers):
    with pytest.raises(ConfigError, match=rf"Received: {size}\. .*mpiexec -n {workers + 1} singa-dask"):
        check_size(size, workers, "MPICH", {"PMI_SIZE": str(size)})


@pytest.mark.parametrize("variable", ["PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PALS_NRANKS"])
def test_a_launcher_of_another_mpi_is_told_from_too_few_ranks(variable):
    with pytest.raises(ConfigError, match=r"4 processes were started, and each is alone .* loads, Open MPI 5; "):
        check_size(1, 3, "Open MPI 5", {variable: "4", "SLURM_JOB_ID": "7"})


@pytest.mark.parametrize(("library", "option"), [("MPICH Version: 5", "pmi2"), ("Open MPI v5.0", "pmix")])
def test_srun_is_told_which_pmi_the_library_needs(library, option):
    with pytest.raises(ConfigError, match=f"for srun, add --mpi={option}"):
        check_size(1, 3, library, {"SLURM_STEP_NUM_TASKS": "4"})


def test_records_survive_their_packing():
    assert _unpacked(_packed("tcp://10.0.0.7:4321")) == "tcp://10.0.0.7:4321"
    assert _unpacked(_packed("")) == ""
    assert _unpacked(_packed("x" * 5000)) == "x" * 2048


def test_an_unknown_interface_is_a_fault_of_this_machine():
    assert _fault(None) == _fault("lo") == ""
    assert "'nosuch0' is not a valid network interface" in _fault("nosuch0")


class Request:
    """A collective that is complete after so many tests."""

    def __init__(self, after=0):
        self.left = after

    def Test(self):
        self.left -= 1
        return self.left < 0


class Comm:
    """The world as rank `rank` of `size` sees it. nodes: what the ranks tell each other; address: what rank 0 tells;
    waits: how often each collective is not complete yet."""

    def __init__(self, rank, size):
        self.rank, self.size = rank, size
        self.nodes, self.address = ["a\n"] * size, "tcp://127.0.0.1:1"
        self.waits = {"gather": 2, "broadcast": 2, "barrier": 2}
        self.told: list[str] = []

    def Iallgather(self, mine, records):
        assert _unpacked(mine) == "here\n"
        for record, node in zip(records, self.nodes, strict=True):
            record[:] = _packed(node)
        return Request(self.waits["gather"])

    def Ibcast(self, record):
        if self.rank == 0:
            self.told.append(_unpacked(record))
        else:
            record[:] = _packed(self.address)
        return Request(self.waits["broadcast"])

    def Ibarrier(self):
        return Request(self.waits["barrier"])


class World:
    """An MPI job seen from one rank, by its own clock. log: what Dask and MPI were asked to do."""

    def __init__(self, monkeypatch, rank, size):
        self.now, self.log, self.alive, self.world = 1000.0, [], ["w1", "w2"], ""
        self.comm = Comm(rank, size)
        mpi = SimpleNamespace(COMM_WORLD=self.comm, Exception=OSError, Finalize=lambda: self.log.append("finalize"))
        mpi.Get_library_version = lambda: "MPICH 5"
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now, sleep=self.sleep))
        monkeypatch.setattr(module, "join_launched", lambda timeout_s: mpi)
        monkeypatch.setattr(module, "mpi_report", lambda: SimpleNamespace(world=self.world))
        monkeypatch.setattr(module, "this_node", lambda: "here")
        monkeypatch.setattr(module, "unlink_segments", lambda: self.log.append("unlink"))
        monkeypatch.setattr(module, "get_ip", lambda: "10.0.0.1")
        monkeypatch.setattr(module, "alive", lambda client: list(self.alive))
        monkeypatch.setattr(module, "run_each", self.run_each)
        monkeypatch.setattr(
            module, "wait_workers", lambda client, count, timeout_s: self.log.append((count, timeout_s))
        )
        self.scheduler = SimpleNamespace(scheduler_address="tcp://10.0.0.1:5", options={})
        monkeypatch.setattr(module, "LocalCluster", lambda **options: Entered(self, "cluster", options))
        monkeypatch.setattr(module, "Client", lambda cluster, timeout: Entered(self, "client", {"timeout": timeout}))
        monkeypatch.setattr(module, "Worker", lambda scheduler, **options: Served(self, scheduler, options))
        self.worker_fails: Exception | None = None

    def sleep(self, seconds):
        self.now += seconds

    def run_each(self, client, function, args, timeout_s):
        for address in args:
            self.log.append(f"close {address}")
            self.alive.remove(address)


class Entered:
    def __init__(self, world, name, options):
        self.world, self.name, self.options = world, name, options
        self.scheduler_address = "tcp://10.0.0.1:5"

    def __enter__(self):
        self.world.log.append((f"{self.name} begins", self.options.get("host"), self.options.get("interface")))
        return self

    def __exit__(self, *exc):
        self.world.log.append(f"{self.name} ends")


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
    return lambda rank=0, size=3: World(monkeypatch, rank, size)


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
        "close w1",
        "close w2",
        "client ends",
        "cluster ends",
        "finalize",
    ]
    assert world.now < 1001.0


@pytest.mark.parametrize(("interface", "host"), [(None, "10.0.0.1"), ("lo", None)])
def test_ranks_on_several_machines_use_the_network(played, interface, host):
    world = played()
    world.comm.nodes[2] = "b\n"
    with mpi_world(interface=interface):
        pass
    assert ("cluster begins", host, interface) in world.log


def test_a_machine_without_a_route_asks_for_an_interface(played, monkeypatch):
    world = played()
    world.comm.nodes[2] = "b\n"
    monkeypatch.setattr(module, "get_ip", lambda: "127.0.1.1")
    with pytest.raises(ClusterError, match="has no default route; name the network with --interface"), mpi_world():
        pytest.fail("there is no cluster")
    assert world.comm.told == [""], "the other ranks do not wait"


def test_faults_of_any_machine_reach_the_driver_and_the_others_leave(played):
    world = played()
    world.comm.nodes[1:] = ["a\nb: no ib0", "a\nb: no ib0"]
    with pytest.raises(ConfigError, match=r"--interface: b: no ib0\. Received: lo"), mpi_world(interface="lo"):
        pytest.fail("there is no cluster")
    assert world.comm.told == [""] and "finalize" in world.log


def test_too_few_ranks_leave_together(played):
    world = played(size=2)
    with pytest.raises(ConfigError, match="mpiexec -n 3"), mpi_world(lambda: 2):
        pytest.fail("there is no cluster")
    assert world.comm.told == [""] and world.log == ["unlink", "finalize"]


def test_mpi_that_was_there_before_stays(played):
    world = played()
    world.world = "launched"
    with mpi_world():
        pass
    assert "finalize" not in world.log


def test_workers_that_do_not_close_are_not_waited_for_for_ever(played, monkeypatch):
    world = played()
    monkeypatch.setattr(module, "run_each", lambda *args: None)
    with mpi_world():
        pass
    assert 1005.0 <= world.now < 1006.0 and "cluster ends" in world.log


@pytest.mark.parametrize(("nodes", "host"), [(["a\n"] * 3, "127.0.0.1"), (["a\n", "b\n", "a\n"], None)])
def test_another_rank_serves_until_the_scheduler_closes_it(played, nodes, host):
    world = played(rank=2)
    world.comm.nodes = nodes
    before = signal.getsignal(signal.SIGTERM)
    with mpi_world() as client:
        assert client is None
    assert world.log == ["unlink", ("tcp://127.0.0.1:1", "mpi-2", host, None), "finalize"]
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_rank_whose_scheduler_never_comes_serves_nothing(played):
    world = played(rank=1)
    world.comm.address = ""
    with mpi_world() as client:
        assert client is None
    assert world.log == ["unlink", "finalize"]


def test_a_worker_that_cannot_serve_says_why(played, caplog):
    world = played(rank=1)
    world.worker_fails = OSError("no route")
    with mpi_world():
        pass
    assert "MPI rank 1 on" in caplog.text and "no route" in caplog.text and world.log[-1] == "finalize"


@pytest.mark.parametrize(("rank", "now"), [(0, 1010.0), (1, 1020.0)])
def test_ranks_that_never_leave_are_left_by_rank_0_first(played, caplog, rank, now):
    world = played(rank=rank)
    world.comm.waits["barrier"] = 10**6
    with mpi_world():
        pass
    assert "finalize" not in world.log and "MPI is not finalised" in caplog.text
    assert now <= world.now < now + 0.5


def test_a_worker_stays_as_long_as_its_scheduler_lives(played):
    world = played(rank=1)
    with socket.create_server(("127.0.0.1", 0), backlog=400) as listener:
        world.comm.address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        world.comm.waits["barrier"] = 300
        with mpi_world():
            pass
    assert world.log[-1] == "finalize" and 1029.0 < world.now < 1031.0, "longer than a rank is waited for"


@pytest.mark.parametrize(
    ("rank", "what"), [(0, "the other ranks to start"), (1, "rank 0 to start the Dask scheduler")]
)
def test_a_rank_that_does_not_come_is_given_up(played, rank, what):
    world = played(rank=rank)
    world.comm.waits["gather" if rank == 0 else "broadcast"] = 10**6
    with pytest.raises(ClusterError, match=f"MPI rank {rank} of 3 waited 7 s for {what}"), mpi_world(start_s=7.0):
        pytest.fail("there is no cluster")
    assert 1007.0 <= world.now < 1007.5
