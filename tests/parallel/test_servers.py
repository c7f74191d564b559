"""Servers as Dask actors in processes of their own."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from distributed import get_worker, secede
from support.servers import server_plan

from singa_dask.cluster import form_group, local_cluster, wait_workers
from singa_dask.cluster.held import left_behind, let_go, memory_of
from singa_dask.cluster.workers import answering
from singa_dask.errors import ClusterError
from singa_dask.server import ActorLink, Address, ServerActor, Stub, partition
from singa_dask.server.actor import HOLD_S
from singa_dask.server.messages import Get, Inspect, Moved, Origin, Put, Refused, Update
from singa_dask.supervision.servers import Keeping, make_servers

SIZE = 64
LARGE = 1 << 18  # more bytes than are applied on the event loop


class Servers:
    """Actors on workers of a cluster, ended with the test."""

    def __init__(self, client) -> None:
        self.client = client
        self.actors: dict[Address, object] = {}

    def start(self, worker: str, cut, server: int = 0, **options) -> Address:
        key = f"server-{uuid.uuid4().hex}"
        plan = server_plan(cut, server, key, **options)
        future = self.client.submit(ServerActor, plan, key=key, workers=[worker], actor=True)
        address = Address(worker, key)
        self.actors[address] = future.result(30)
        return address

    def tell(self, address: Address, name: str, *args):
        return getattr(self.actors[address], name)(*args).result(30)

    def run(self, worker: str, function, *args, timeout: float = 60):
        return self.client.submit(function, *args, workers=[worker], pure=False).result(timeout)


@pytest.fixture
def servers(cluster3):
    made = Servers(cluster3)
    yield made
    for address in made.actors:
        made.tell(address, "close")


def values(size: int = SIZE) -> np.ndarray:
    return np.arange(size, dtype=np.float32)


def exchange(address: Address, size: int, steps: int) -> tuple[bool, float, float, int]:
    """On a worker: put, get, and some updates; whether the server was here, and what came."""
    secede()
    link = ActorLink(address, get_worker(), 20.0)
    stub = Stub(partition(size, 1, 1, beside=False).slices, {0: link})
    out = values(size)
    stub.put(out, {}, 0)
    out[...] = 0
    stub.begin(stub.get(out, 0))
    assert (out == values(size)).all()
    for step in range(steps):
        stub.push(step, np.ones(size, np.float32), out)
        stub.pull(out)
    return link.local, float(out[0]), float(out[-1]), stub.take_traffic().nbytes


@pytest.mark.parametrize("size", [SIZE, LARGE])
def test_a_worker_exchanges_with_a_server_elsewhere(servers, ranks3, size):
    address = servers.start(ranks3[0], partition(size, 1, 1, beside=False))
    assert servers.run(ranks3[1], exchange, address, size, 3) == (False, -3, size - 4, 3 * 2 * size * 4)
    state = servers.tell(address, "call", Inspect(0))
    assert state.version == 3 and state.values[0] == -3


def test_a_worker_in_the_same_process_finds_the_server_itself(servers, ranks3):
    address = servers.start(ranks3[0], partition(SIZE, 1, 1, beside=False))
    assert servers.run(ranks3[0], exchange, address, SIZE, 3) == (True, -3, SIZE - 4, 0)


def ask(address: Address, request, timeout_s: float = 20.0):
    """On a worker: the reply."""
    secede()
    return ActorLink(address, get_worker(), timeout_s).send(request).result(60)


def waiting_inside(key: str, dask_worker) -> int:
    return sum(len(state.waiting) for state in dask_worker.state.actors[key].server.protocol.slices.values())


@pytest.fixture
def hold_s(cluster3):
    """How long servers hold a request before they say that they are alive; less than usual."""
    shorter = 0.75
    cluster3.run(_hold, shorter)
    yield shorter
    cluster3.run(_hold, HOLD_S)


def _hold(seconds: float) -> None:
    import singa_dask.server.actor as actor

    actor.HOLD_S = seconds


def test_a_request_may_wait_for_longer_than_one_attempt(servers, ranks3, hold_s):
    """Also longer than the silence that means a lost server: this one says all the time that it is alive. The request,
    which is repeated meanwhile, waits inside once."""
    cut = partition(SIZE, 1, 1, beside=False)
    address = servers.start(ranks3[0], cut, groups=(0, 1), max_staleness=0)
    get = servers.client.submit(ask, address, Get(0, Origin(0)), hold_s + 0.5, workers=[ranks3[1]], pure=False)
    time.sleep(1.5 * hold_s)
    servers.tell(address, "call", Put(0, values()))
    assert (get.result(60).values == values()).all()

    held = Update(0, Origin(0), 0, np.ones(SIZE, np.float32))
    update = servers.client.submit(ask, address, held, hold_s + 0.5, workers=[ranks3[1]], pure=False)
    until, inside = time.monotonic() + 2.5 * hold_s, set()
    while time.monotonic() < until or 1 not in inside:
        inside |= {*servers.client.run(waiting_inside, address.key, workers=[ranks3[0]]).values()}
    assert inside <= {0, 1}, "it waits once, or is on its way again"
    servers.tell(address, "call", Update(0, Origin(1), 0, np.ones(SIZE, np.float32)))
    reply = update.result(60)
    assert (reply.values == values() - 2).all() and reply.version == 2


def refusal(address: Address) -> str:
    secede()
    worker = get_worker()
    try:
        ActorLink(address, worker, 5.0).send(Get(0, Origin(0))).result(30)
    except ClusterError as error:
        return str(error)
    return ""


def test_refusals_and_wrong_addresses_are_errors_that_name_the_server(servers, ranks3):
    address = servers.start(ranks3[0], partition(SIZE, 1, 1, beside=False))
    servers.tell(address, "call", Put(0, values()))
    servers.tell(address, "call", Get(0, Origin(0, 3)))
    message = servers.run(ranks3[1], refusal, address)
    assert ranks3[0] in message and "refused Get" in message and "generation 3" in message
    nowhere = servers.run(ranks3[1], refusal, Address(ranks3[0], "nobody"))
    assert nowhere == f"the server nobody is no longer at {ranks3[0]}"
    assert isinstance(servers.tell(address, "call", Get(9, Origin(0))), Refused)


def train(address: Address, group: int, steps: int) -> float:
    """On a worker: updates that add 10**group."""
    secede()
    stub = Stub(
        partition(SIZE, 1, 1, beside=False).slices, {0: ActorLink(address, get_worker(), 20.0)}, group, behind=1
    )
    out = np.zeros(SIZE, np.float32)
    stub.put(out, {}, 0)
    stub.begin(stub.get(out, 0))
    for step in range(steps):
        stub.push(step, np.full(SIZE, -(10.0**group), np.float32), out)
        stub.pull(out)
    stub.pull(out, everything=True)
    stub.leave()
    return float(out[0])


def line_of(servers: Servers, workers: list[str], **options) -> list[Address]:
    """Servers in a line, each in a server group of its own, not yet met."""
    cut, n = partition(SIZE, 1, 1, beside=False), len(workers)
    line = []
    for i, worker in enumerate(workers):
        accounts = ({"left": (0, 0)} if i else {}) | ({"right": (0, 0)} if i < n - 1 else {})
        line.append(servers.start(worker, cut, groups=(i,), accounts=accounts, **options))
    return line


def meet(servers: Servers, line: list[Address]) -> None:
    for left, right in pairwise(line):
        servers.tell(left, "meet", right)


def held_by(servers: Servers, line: list[Address]) -> list[float]:
    states = [servers.tell(address, "call", Inspect(0)) for address in line]
    assert all((state.values == state.values[0]).all() for state in states)
    return [float(state.values[0]) for state in states]


def sweep(servers: Servers, line: list[Address]) -> None:
    for address in (*line[:-1], *reversed(line[:-1])):
        servers.tell(address, "flush")


@pytest.mark.parametrize("beside", [True, False], ids=["beside their workers", "elsewhere"])
def test_servers_in_a_line_exchange_and_agree(servers, ranks3, beside):
    line = line_of(servers, ranks3)
    meet(servers, line)
    at = ranks3 if beside else ranks3[1:] + ranks3[:1]
    futures = [
        servers.client.submit(train, address, group, 30, workers=[at[group]], pure=False)
        for group, address in enumerate(line)
    ]
    own = [future.result(60) for future in futures]
    assert all(30 * 10**group <= total <= 3330 for group, total in enumerate(own))
    sweep(servers, line)
    assert held_by(servers, line) == [3330] * 3


def test_updates_flow_to_the_right_without_being_asked(servers, ranks3):
    line = line_of(servers, ranks3, sync_freq=5)
    for address in line:
        servers.tell(address, "call", Put(0, np.zeros(SIZE, np.float32)))
    meet(servers, line)
    servers.run(ranks3[0], train, line[0], 0, 10)
    deadline = time.monotonic() + 20
    # An exchange takes what has arrived when it begins, so fewer than sync_freq updates may be left for the next.
    while min(held_by(servers, line)) <= 10 - 5 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert min(held_by(servers, line)) > 10 - 5
    sweep(servers, line)
    assert held_by(servers, line) == [10] * 3


def test_a_server_made_anew_takes_over_from_its_neighbours(servers, ranks3):
    line = line_of(servers, ranks3)
    meet(servers, line)
    for group, address in enumerate(line):
        servers.run(ranks3[group], train, address, group, 2)
    sweep(servers, line)
    servers.tell(line[1], "close")
    old = line[1]
    accounts = {"left": (0, 1), "right": (1, 0)}
    line[1] = servers.start(ranks3[0], partition(SIZE, 1, 1, beside=False), groups=(1,), accounts=accounts)
    servers.tell(line[1], "take_over", line[0], "left", accounts["left"])
    servers.tell(line[1], "hand_on", line[2], "right", accounts["right"])
    meet(servers, line)
    assert held_by(servers, line) == [222] * 3
    more = Update(0, Origin(2), 2, np.full(SIZE, -1000, np.float32))
    servers.tell(line[2], "call", more)
    sweep(servers, line)
    assert held_by(servers, line) == [1222] * 3
    assert servers.tell(old, "call", Inspect(0)) == Moved()


def lost(address: Address, timeout_s: float, pid: int) -> str:
    """On a worker: updates until the server's process is killed under them."""
    secede()
    link = ActorLink(address, get_worker(), timeout_s)
    stub = Stub(partition(SIZE, 1, 1, beside=False).slices, {0: link})
    out = np.zeros(SIZE, np.float32)
    stub.put(out, {}, 0)
    stub.begin(stub.get(out, 0))
    with ThreadPoolExecutor(1) as pool:
        pool.submit(kill_soon, pid)
        try:
            for step in range(1_000_000):
                stub.push(step, np.zeros(SIZE, np.float32), out)
                stub.pull(out)
        except ClusterError as error:
            return str(error)
    return ""


def kill_soon(pid: int) -> None:
    time.sleep(0.5)
    os.kill(pid, signal.SIGKILL)


def stopped(address: Address, timeout_s: float, pid: int) -> str:
    secede()
    os.kill(pid, signal.SIGSTOP)
    try:
        ActorLink(address, get_worker(), timeout_s).send(Inspect(0)).result(60)
    except ClusterError as error:
        return str(error)
    finally:
        os.kill(pid, signal.SIGCONT)
    return ""


def keeping(group: int, size: int, generation: int = 1, left=None, run="", **options) -> list[Keeping]:
    left = left or [None] * size
    return [Keeping(run, group, (i, size, generation), left=left[i], **options) for i in range(size)]


def train_on(place: str, steps: int) -> tuple[int, float]:
    """On a worker: updates of a server whose address is in a file; their number and what comes of them."""
    secede()
    where = lambda: pickle.loads(Path(place).read_bytes())  # noqa: E731
    stub = Stub(partition(SIZE, 1, 1, beside=False).slices, {0: ActorLink(where, get_worker(), 30.0)})
    out = np.zeros(SIZE, np.float32)
    stub.put(out, {}, 0)
    stub.begin(stub.get(out, 0))
    for step in range(steps):
        stub.push(step, np.ones(SIZE, np.float32), out)
        stub.pull(out)
        time.sleep(0.002)
    return steps, float(out[0])


def test_a_killed_server_comes_back_on_another_worker_while_its_client_waits(no_leaks, tmp_path):
    """With all updates, of which each is applied once. Its nanny holds what it has left."""
    with local_cluster(3, worker_ttl_s=60) as client:
        infos = wait_workers(client, 3)
        here, there, elsewhere = (info.address for info in infos)
        plans, run = [server_plan(partition(SIZE, 1, 1, beside=False), 0, "")], "job/workspace#1"
        first = make_servers(client, 0, 1, [there], plans, keeping(0, 1, run=run))
        assert first.settle()
        places = tmp_path / "place"
        places.write_bytes(pickle.dumps(first.addresses[0]))
        made = client.submit(train_on, str(places), 400, workers=[here], pure=False)
        wait_until(lambda: getattr(first._actors[0].call(Inspect(0)).result(10), "version", 0) >= 50)
        os.kill(client.run(os.getpid, workers=[there])[there], signal.SIGKILL)
        left = left_behind(client, [info.nanny for info in infos], run).groups
        second = make_servers(client, 0, 2, [elsewhere], plans, keeping(0, 1, 2, left["server group 0"], run))
        assert second.settle()
        after = left_behind(client, [infos[2].nanny], run).groups["server group 0"]
        assert [kept.generation for kept in after] == [2]
        every_update_arrives(second, places, made)
        second.stop()
        first.stop()
        let_go(client, [info.nanny for info in infos], run)


def test_a_server_that_is_lost_with_its_nanny_comes_back_from_its_replica(no_leaks, tmp_path):
    """As on a host that is lost: everything that it had acknowledged is in the memory of another nanny."""
    with local_cluster(3, worker_ttl_s=60) as client:
        infos = wait_workers(client, 3)
        here, there, elsewhere = infos
        plans, run = [server_plan(partition(SIZE, 1, 1, beside=False), 0, "")], "job/workspace#1"
        first = make_servers(client, 0, 1, [there.address], plans, keeping(0, 1, run=run))
        first.replicate([here.nanny])
        assert first.settle()
        places = tmp_path / "place"
        places.write_bytes(pickle.dumps(first.addresses[0]))
        made = client.submit(train_on, str(places), 400, workers=[here.address], pure=False)
        wait_until(lambda: getattr(first._actors[0].call(Inspect(0)).result(10), "version", 0) >= 50)
        os.kill(there.pid, signal.SIGKILL)
        memory_of(there.nanny).clear()  # all nannies are in this process
        left = left_behind(client, [info.nanny for info in infos], run).groups
        (kept,) = left["server group 0"]
        assert (kept.replica, kept.holder) == (1, here.nanny)
        second = make_servers(client, 0, 2, [elsewhere.address], plans, keeping(0, 1, 2, left["server group 0"], run))
        second.replicate([here.nanny])
        assert second.settle()
        every_update_arrives(second, places, made)
        second.stop()
        first.stop()
        let_go(client, [info.nanny for info in infos], run)


def every_update_arrives(servers, places, made):
    """The task `made`, which trains on the server that the file `places` names, ends on this one."""
    new = places.with_name("new")
    new.write_bytes(pickle.dumps(servers.addresses[0]))
    os.replace(new, places)
    assert made.result(60) == (400, -400.0)
    assert servers._actors[0].call(Inspect(0)).result(10).version == 400


def wait_until(condition, within_s: float = 30.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_servers_of_a_lost_group_that_live_exchange_no_more(cluster3, ranks3):
    cut = partition(SIZE, 1, 2, beside=False)
    plans = [server_plan(cut, i, "") for i in range(2)]
    left = make_servers(cluster3, 0, 1, ranks3[:2], plans, keeping(0, 2))
    right = make_servers(cluster3, 1, 1, [ranks3[2]] * 2, plans, keeping(1, 2))
    left.meet(right)
    here = [ranks3[0]]
    cluster3.run(_remember, left.addresses[0].key, workers=here)
    assert cluster3.run(_exchanges, workers=here) == {here[0]: True}
    left.stop()  # a process that holds another one of its servers died, say
    right.stop()
    assert cluster3.run(_exchanges, workers=here) == {here[0]: False}


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
    deadline = time.monotonic() + HOLD_S + 10
    while cluster3.run(_exchanges, workers=here)[here[0]]:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_server_holds_its_worker_against_other_runs(cluster3, ranks3):
    held = ranks3[0]
    plans = [server_plan(partition(SIZE, 1, 1, beside=False), 0, "")]
    group = make_servers(cluster3, 0, 1, [held], plans, keeping(0, 1, run="mine"))
    assert {w.address for w in answering(cluster3, 10.0)[0] if w.group} == {held}
    with pytest.raises(ClusterError, match=rf"still in use: {held} by server-0-of-group-0.*@mine"):
        form_group(cluster3, [held], _nothing, timeout_s=1.0)
    with form_group(cluster3, [held], _nothing, run="mine") as own:
        assert own.results() == [None]
    group.stop()
    assert not any(worker.group for worker in answering(cluster3, 10.0)[0])


def _nothing(comm) -> None:
    pass


def _remember(key: str, dask_worker=None) -> None:
    dask_worker.remembered = dask_worker.state.actors[key]


def _exchanges(dask_worker=None) -> bool:
    return not dask_worker.remembered._exchanging.done()


def test_a_lost_or_stopped_server_is_an_error_that_names_its_address(no_leaks):
    timeout_s = 1.5
    with local_cluster(2, worker_ttl_s=60) as client:
        there, here = (worker.address for worker in wait_workers(client, 2))
        made = Servers(client)
        pid = client.run(os.getpid, workers=[there])[there]
        for how in (stopped, lost):
            address = made.start(there, partition(SIZE, 1, 1, beside=False))
            message = made.run(here, how, address, timeout_s, pid)
            assert there in message and f"{timeout_s:g} s" in message and "lost, stopped or disconnected" in message, (
                how
            )


def test_a_request_survives_a_server_that_stops_for_a_while(servers, cluster3, ranks3):
    """Longer than one attempt: the request is repeated, and applied once."""
    address = servers.start(ranks3[0], partition(SIZE, 1, 1, beside=False))
    servers.tell(address, "call", Put(0, np.zeros(SIZE, np.float32)))
    pid = cluster3.run(os.getpid, workers=[ranks3[0]])[ranks3[0]]
    update = Update(0, Origin(0), 0, np.ones(SIZE, np.float32))
    assert servers.run(ranks3[1], ask_past_a_stop, address, update, pid) == 1
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
