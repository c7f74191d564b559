"""Making, calling and closing the servers of a group, with actors that the test plays."""

import asyncio
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from singa_dask.cluster import departure, leases
from singa_dask.cluster.formation import NoAnswer, WorkersInUse
from singa_dask.errors import ClusterError
from singa_dask.server import Address, Server, ServerActor
from singa_dask.server.messages import Origin
from singa_dask.supervision import servers as serving
from singa_dask.supervision.servers import Keeping, RunServer, make_servers

KEEPING = [Keeping("run", 0, (rank, 2, 1)) for rank in range(2)]


@dataclass(frozen=True)
class Plan:
    key: str = ""
    transfer_s: float = 0.0


class Call:
    def __init__(self, actor, said):
        self.actor, self.said = actor, said

    def result(self, timeout):
        self.actor.waits.append(timeout)
        if self.actor.fault:
            raise self.actor.fault
        return self.actor.returns


class Actor:
    def __init__(self):
        self.calls, self.waits, self.fault, self.lost, self.returns = [], [], None, False, None

    def __getattr__(self, name):
        def call(*args):
            if self.lost:
                raise ValueError("the worker holding this Actor was lost")
            self.calls.append((name, *args))
            return Call(self, name)

        return call


class Future:
    """Of an actor; late: how often its result does not come."""

    def __init__(self, actor, late=0, fault=None):
        self.actor, self.late, self.fault, self.released = actor, late, fault, False

    def result(self, timeout):
        if self.fault:
            raise self.fault
        self.late -= 1
        if self.late >= 0:
            raise TimeoutError
        return self.actor

    def release(self):
        self.released = True


class Client:
    def __init__(self, *futures):
        self.futures, self.submitted, self.waiting = list(futures), [], list(futures)

    def submit(self, function, plan, keeping, **options):
        self.submitted.append((plan, options))
        return self.waiting.pop(0)


@pytest.fixture
def there(monkeypatch):
    """The addresses of living processes."""
    there, now = {"a", "b", "c"}, [100.0]
    monkeypatch.setattr(serving, "alive", lambda client, addresses, *timeout: there & set(addresses))
    monkeypatch.setattr(serving, "time", SimpleNamespace(monotonic=lambda: now[0]))
    there_now = SimpleNamespace(there=there, now=now)
    return there_now


def made(number=0, generation=1, where=("a", "b"), **plan):
    actors = [Actor() for _ in where]
    client = Client(*map(Future, actors))
    servers = make_servers(client, number, generation, where, [Plan(**plan)] * len(where), KEEPING[: len(where)])
    return servers, actors, client


def test_a_server_of_each_plan_is_made_on_its_worker(there):
    servers, _, client = made(2, 3, where=("b", "a"))
    keys = [plan.key for plan, _ in client.submitted]
    assert [options["workers"] for _, options in client.submitted] == [["b"], ["a"]]
    assert all(options["actor"] and not options["allow_other_workers"] for _, options in client.submitted)
    assert [key.startswith(f"server-{i}-of-group-2-3-") and key.endswith("@run") for i, key in enumerate(keys)] == [
        True
    ] * 2
    assert servers.addresses == (Address("b", keys[0]), Address("a", keys[1])) and servers.where == ("b", "a")
    assert (servers.number, servers.generation) == (2, 3)


def test_an_actor_is_waited_for_as_long_as_its_process_lives(there):
    client = Client(Future(Actor(), late=3))
    assert make_servers(client, 0, 1, ["a"], [Plan()], KEEPING[:1]).where == ("a",)
    there.there.discard("a")
    with pytest.raises(ClusterError, match="server group 0 could not be made on a: TimeoutError"):
        make_servers(Client(Future(Actor(), late=3)), 0, 1, ["a"], [Plan()], KEEPING[:1])


def test_an_actor_that_does_not_come_in_a_minute_is_given_up(there):
    future = Future(Actor(), late=1000)
    result = future.result

    def later(timeout):
        there.now[0] += timeout
        return result(timeout)

    future.result = later
    with pytest.raises(ClusterError, match="could not be made"):
        make_servers(Client(future), 0, 1, ["a"], [Plan()], KEEPING[:1])
    assert 160.0 <= there.now[0] <= 161.0 and future.released


def test_of_a_group_that_cannot_be_made_nothing_is_left(there):
    first = Actor()
    client = Client(Future(first), Future(None, fault=ValueError("out of memory")))
    with pytest.raises(ClusterError, match=r"on a, b: ValueError\('out of memory'\)"):
        make_servers(client, 0, 1, ["a", "b"], [Plan()] * 2, KEEPING)
    assert first.calls == [("close",)] and all(future.released for future in client.futures)


def test_neighbours_are_introduced_to_each_other(there):
    left, (one, two), _ = made(0, 4)
    right, (three, four), _ = made(1, 7)
    left.meet(right)
    assert (one.calls, two.calls) == ([("meet", right.addresses[0])], [("meet", right.addresses[1])])
    right.take_over(left)
    assert three.calls == [("take_over", left.addresses[0], "left", (4, 7))]
    left.hand_on(right)
    assert two.calls[1:] == [("hand_on", right.addresses[1], "right", (4, 7))]
    left.flush()
    assert one.calls[-1] == ("flush",)
    right.dismiss(5, 2)
    assert four.calls[-1] == ("dismiss", Origin(5, 2)) and three.waits[-1] == 2.0


def test_a_group_is_kept_if_all_its_servers_are(there):
    servers, (one, two), _ = made()
    one.returns = two.returns = True
    assert servers.settle() and one.calls == two.calls == [("settle",)]
    two.returns = False
    assert not servers.settle()


def test_a_server_hears_which_nanny_keeps_its_replica(there):
    servers, (one, two), _ = made()
    servers.replicate(("n1", ""))
    servers.replica_lost(1, 3, "n2")
    assert one.calls == [("replicate", "n1")]
    assert two.calls == [("replicate", ""), ("replica_lost", 3, "n2")] and len(two.waits) == 1, (
        "the second is not awaited"
    )
    two.lost = True
    servers.replica_lost(1, 4, "n1")


def test_what_a_lost_server_has_left_may_be_gone(there):
    futures = [Future(Actor()), Future(None, fault=NoAnswer("the nanny does not answer"))]
    with pytest.raises(NoAnswer, match=r"server group 0 could not be made on a, b: .*the nanny does not answer"):
        make_servers(Client(*futures), 0, 1, ("a", "b"), [Plan()] * 2, KEEPING)


def test_what_moves_parameters_has_the_time_that_it_needs(there):
    servers, (one, _), _ = made(transfer_s=12.0)
    servers.flush()
    assert one.waits == [42.0]


@pytest.mark.parametrize("lost", [True, False])
def test_a_server_that_fails_is_named(there, lost):
    servers, (_, two), _ = made(3)
    two.lost, two.fault = lost, OSError("no answer")
    with pytest.raises(ClusterError, match=r"server group 3: flush failed at b: (ValueError|OSError)"):
        servers.flush()


def test_what_lives_is_closed_and_everything_is_released(there):
    servers, (one, two), client = made()
    there.there.discard("b")
    one.fault = OSError("lost a moment ago")
    servers.stop()
    assert one.calls == [("close",)] and two.calls == [] and one.waits == [2.0]
    assert all(future.released for future in client.futures)


def test_a_call_without_an_answer_and_one_that_fails_are_told_apart(there):
    servers, actors, _ = made()
    actors[1].fault = TimeoutError()
    with pytest.raises(NoAnswer, match="flush failed at b"):
        servers.flush()
    actors[1].fault = ValueError("a bug")
    with pytest.raises(ClusterError, match="a bug") as failure:
        servers.flush()
    assert not isinstance(failure.value, NoAnswer)


def test_no_server_is_made_on_a_worker_that_another_run_has(monkeypatch):
    loop = SimpleNamespace(add_callback=lambda function, *args: None)
    worker = SimpleNamespace(address="w", state=SimpleNamespace(actors={}), nanny="", loop=loop, plugin_add=None)
    monkeypatch.setattr("distributed.get_worker", lambda: worker)
    monkeypatch.setattr(ServerActor, "__init__", lambda self, plan: setattr(self, "server", Server(None)))
    own, other = (Plan(leases.server_key("0", run)) for run in ("its run", "another run"))
    its, others = (Keeping(run, 0, (0, 1, 1)) for run in ("its run", "another run"))
    try:
        assert leases.reserve("w", "group-of-it", 60.0, "its run") == ""
        RunServer(own, its)
        with pytest.raises(WorkersInUse, match="w is in use by group-of-it"):
            RunServer(other, others)
    finally:
        leases.end("w")
    assert not RunServer(other, others).settle(), "there is no nanny"
    worker.state.actors[own.key] = None  # Dask is about to make it
    RunServer(own, its)
    with pytest.raises(WorkersInUse, match="w is in use by server-0@its run"):
        RunServer(other, others)


@pytest.mark.parametrize("connected", [True, False])
def test_a_worker_that_has_lost_its_scheduler_waits_for_the_groups_of_its_server(connected, monkeypatch):
    deserted, waited = [False, False, True], []

    async def sleep(seconds):
        waited.append(seconds)

    loop = SimpleNamespace(add_callback=lambda function, *args: None)
    stream = SimpleNamespace(comm=SimpleNamespace(closed=lambda: not connected))
    worker = SimpleNamespace(loop=loop, plugin_add=None, plugins={}, batched_stream=stream)
    server = Mock(closed=False, is_deserted=lambda quiet_s: deserted.pop(0))
    monkeypatch.setattr(departure, "asyncio", SimpleNamespace(sleep=sleep))
    may_close = partial(serving._may_close, lambda: server, worker)
    asyncio.run(departure.Departure("server", worker, may_close).teardown(worker))
    assert len(waited) == (0 if connected else 2)


def test_workers_in_use_are_told_as_such(there):
    futures = [Future(Actor()), Future(Actor(), fault=WorkersInUse("w is in use"))]
    with pytest.raises(WorkersInUse, match="w is in use"):
        make_servers(Client(*futures), 0, 1, ("a", "b"), [Plan()] * 2, KEEPING)
    assert all(future.released for future in futures)
