"""Servers as Dask actors in processes of their own."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import sys
import time
import uuid
from itertools import pairwise
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
from distributed import get_worker, secede
from support.commands import wait_for
from support.servers import server_plan

from singa_dask.cluster.nanny_store import HELD, left_behind, let_go
from singa_dask.errors import ClusterError
from singa_dask.memory.owner import SERVERS, Owner, Version
from singa_dask.server import ActorLink, Address, ServerActor, Stub, partition
from singa_dask.server.messages import Get, Inspect, Origin, Put, Update
from singa_dask.supervision.servers import Keeping, make_servers

cloudpickle.register_pickle_by_value(sys.modules[__name__])

SIZE = 64
LARGE = 1 << 18  # more bytes than are applied on the event loop


class Servers:
    """Actors on workers of a cluster, ended with the test."""

    def __init__(self, client) -> None:
        self.client = client
        self.actors: dict[Address, object] = {}

    def start(self, worker: str, size: int = SIZE, **options) -> Address:
        key = f"server-{uuid.uuid4().hex}"
        plan = server_plan(partition(size, 1, 1, beside=False), 0, key, **options)
        future = self.client.submit(ServerActor, plan, key=key, workers=[worker], actor=True)
        address = Address(worker, key)
        self.actors[address] = future.result(30)
        return address

    def tell(self, address: Address, name: str, *args):
        return getattr(self.actors[address], name)(*args).result(30)

    def begin(self, worker: str, function, *args):
        return self.client.submit(function, *args, workers=[worker], pure=False)

    def run(self, worker: str, function, *args):
        return self.begin(worker, function, *args).result(60)


@pytest.fixture
def servers(cluster3):
    made = Servers(cluster3)
    yield made
    for address in made.actors:
        made.tell(address, "close")


def values(size: int = SIZE) -> np.ndarray:
    return np.arange(size, dtype=np.float32)


def stub_of(server, size: int = SIZE, *args, **options) -> Stub:
    """On a worker: the stub of a server, at an address or where a function finds it."""
    secede()
    link = ActorLink(server, get_worker(), 30.0)
    return Stub(partition(size, 1, 1, beside=False).slices, {0: link}, *args, **options)


def exchange(address: Address, size: int, steps: int) -> tuple[bool, float, float, int]:
    """On a worker: put, get, and some updates; whether the server was here, and what came."""
    stub = stub_of(address, size)
    out = values(size)
    stub.put(out, {}, 0)
    out[...] = 0
    stub.begin(stub.get(out, 0))
    assert (out == values(size)).all()
    for step in range(steps):
        stub.push(step, np.ones(size, np.float32), out)
        stub.pull(out)
    return address.worker == get_worker().address, float(out[0]), float(out[-1]), stub.take_traffic().nbytes


@pytest.mark.parametrize(("size", "here"), [(SIZE, False), (LARGE, False), (SIZE, True)])
def test_a_worker_exchanges_with_a_server_elsewhere_and_in_its_own_process(servers, ranks3, size, here):
    address = servers.start(ranks3[0], size)
    nbytes = 0 if here else 3 * 2 * size * 4
    assert servers.run(ranks3[0 if here else 1], exchange, address, size, 3) == (here, -3, size - 4, nbytes)
    state = servers.tell(address, "call", Inspect(0))
    assert state.version == 3 and state.values[0] == -3


def error_of(address: Address, request, timeout_s: float, signals: tuple[int, ...] = (), pid: int = 0) -> str:
    """On a worker: what is raised for a request, after signals to the server's process."""
    secede()
    for number in signals:
        os.kill(pid, number)
    try:
        ActorLink(address, get_worker(), timeout_s).send(request).result(60)
    except ClusterError as error:
        return str(error)
    finally:
        if signal.SIGSTOP in signals:
            os.kill(pid, signal.SIGCONT)
    return ""


def test_refusals_and_wrong_addresses_are_errors_that_name_the_server(servers, ranks3):
    address = servers.start(ranks3[0])
    servers.tell(address, "call", Put(0, values()))
    servers.tell(address, "call", Get(0, Origin(0, 3)))
    message = servers.run(ranks3[1], error_of, address, Get(0, Origin(0)), 20.0)
    assert ranks3[0] in message and "refused Get" in message
    nowhere = servers.run(ranks3[1], error_of, Address(ranks3[0], "nobody"), Get(0, Origin(0)), 20.0)
    assert nowhere == f"the server nobody is no longer at {ranks3[0]}"


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_a_stopped_or_lost_server_is_an_error_that_names_its_address(cluster3, workers3, number):
    there, here = workers3[:2]
    address = Servers(cluster3).start(there.address)
    message = Servers(cluster3).run(here.address, error_of, address, Inspect(0), 1.5, (number,), there.pid)
    assert there.address in message and "1.5 s" in message and "lost, stopped or disconnected" in message


def test_a_request_survives_a_server_that_stops_for_a_while(servers, workers3):
    """Longer than one attempt: the request is repeated, and applied once."""
    there, here = workers3[:2]
    address = servers.start(there.address)
    servers.tell(address, "call", Put(0, np.zeros(SIZE, np.float32)))
    update = Update(0, Origin(0), 0, np.ones(SIZE, np.float32))
    assert servers.run(here.address, ask_past_a_stop, address, update, there.pid) == 1
    assert held_by(servers, [address]) == [-1]


def ask_past_a_stop(address: Address, request, pid: int) -> int:
    secede()
    os.kill(pid, signal.SIGSTOP)
    try:
        import singa_dask.server.link as link

        before, link.ATTEMPT_S = link.ATTEMPT_S, 0.5
        future = ActorLink(address, get_worker(), 20.0).send(request)
        time.sleep(1.8)
    finally:
        os.kill(pid, signal.SIGCONT)
        link.ATTEMPT_S = before
    return future.result(30).version


def train(address: Address, group: int, steps: int) -> float:
    """On a worker: updates that add 10**group."""
    stub = stub_of(address, SIZE, group, behind=1)
    out = np.zeros(SIZE, np.float32)
    stub.put(out, {}, 0)
    stub.begin(stub.get(out, 0))
    for step in range(steps):
        stub.push(step, np.full(SIZE, -(10.0**group), np.float32), out)
        stub.pull(out)
    stub.pull(out, everything=True)
    stub.leave()
    return float(out[0])


def held_by(servers: Servers, line: list[Address]) -> list[float]:
    states = [servers.tell(address, "call", Inspect(0)) for address in line]
    assert all((state.values == state.values[0]).all() for state in states)
    return [float(state.values[0]) for state in states]


@pytest.mark.parametrize("beside", [True, False], ids=["beside their workers", "elsewhere"])
def test_servers_in_a_line_exchange_and_agree(servers, ranks3, beside):
    accounts = [{"right": (0, 0)}, {"left": (0, 0), "right": (0, 0)}, {"left": (0, 0)}]
    line = [servers.start(at, groups=(i,), accounts=accounts[i]) for i, at in enumerate(ranks3)]
    for left, right in pairwise(line):
        servers.tell(left, "meet", right)
    at = ranks3 if beside else ranks3[1:] + ranks3[:1]
    futures = [servers.begin(at[group], train, address, group, 30) for group, address in enumerate(line)]
    own = [future.result(60) for future in futures]
    assert all(30 * 10**group <= total <= 3330 for group, total in enumerate(own))
    for address in (*line[:-1], *reversed(line[:-1])):
        servers.tell(address, "flush")
    assert held_by(servers, line) == [3330] * 3


def keeping(group: int, size: int, generation: int = 1, left=None, run="") -> list[Keeping]:
    left = left or [None] * size
    version = Version(run, generation)
    return [Keeping(Owner(SERVERS, group, i, size), version, left=left[i]) for i in range(size)]


def train_on(place: str, steps: int) -> tuple[int, float]:
    """On a worker: updates of a server whose address is in a file; their number and what comes of them."""
    stub = stub_of(lambda: pickle.loads(Path(place).read_bytes()))
    out = np.zeros(SIZE, np.float32)
    stub.put(out, {}, 0)
    stub.begin(stub.get(out, 0))
    for step in range(steps):
        stub.push(step, np.ones(SIZE, np.float32), out)
        stub.pull(out)
        time.sleep(0.002)
    return steps, float(out[0])


@pytest.mark.parametrize("replica", [False, True], ids=["from its nanny's memory", "from its replica"])
def test_a_killed_server_comes_back_on_another_worker_while_its_client_waits(cluster3, workers3, tmp_path, replica):
    """With all updates, of which each is applied once; as on a host that is lost, or its nanny holds what it left."""
    here, there, elsewhere = workers3
    nannies, run = [worker.nanny for worker in workers3], f"job/{tmp_path}#1"
    plans = [server_plan(partition(SIZE, 1, 1, beside=False), 0, "")]

    def placed(made):
        if replica:
            made.replicate([here.nanny])
        assert made.settle()
        (tmp_path / "new").write_bytes(pickle.dumps(made.addresses[0]))
        os.replace(tmp_path / "new", tmp_path / "place")
        return made

    def version(made):
        return getattr(made._actors[0].call(Inspect(0)).result(10), "version", 0)

    first = placed(make_servers(cluster3, 0, 1, [there.address], plans, keeping(0, 1, run=run)))
    made = cluster3.submit(train_on, str(tmp_path / "place"), 400, workers=[here.address], pure=False)
    wait_for(lambda: version(first) >= 50)
    os.kill(there.pid, signal.SIGKILL)
    if replica:
        HELD[there.nanny].clear()  # all nannies are in this process
    (kept,) = left_behind(cluster3, nannies, run).groups["server group 0"]
    assert not replica or (kept.version.number, kept.holder) == (1, here.nanny)
    second = placed(make_servers(cluster3, 0, 2, [elsewhere.address], plans, keeping(0, 1, 2, [kept], run)))
    after = left_behind(cluster3, [elsewhere.nanny], run).groups["server group 0"]
    assert [kept.version.generation for kept in after] == [2]
    assert made.result(60) == (400, -400.0) and version(second) == 400
    second.stop()
    first.stop()
    let_go(cluster3, nannies, run)


def test_servers_that_dask_lets_go_exchange_no_more(cluster3, ranks3):
    """Where their driver was killed nobody closes them."""
    cut = partition(SIZE, 1, 2, beside=False)
    plans = [server_plan(cut, i, "") for i in range(2)]
    left, right = (make_servers(cluster3, i, 1, ranks3[i : i + 1] * 2, plans, keeping(i, 2)) for i in range(2))
    left.meet(right)
    here = ranks3[:1]
    cluster3.run(_remember, left.addresses[0].key, workers=here)
    for group in (left, right):
        for future in group._futures:
            future.release()
    del left, right, group, future
    gc.collect()  # what Dask's client keeps of actors refers to itself
    wait_for(lambda: not cluster3.run(_exchanges, workers=here)[here[0]])


def _remember(key: str, dask_worker=None) -> None:
    dask_worker.remembered = dask_worker.state.actors[key]


def _exchanges(dask_worker=None) -> bool:
    return not dask_worker.remembered._exchanging.done()
