"""Making, calling and closing the servers of a group, with actors that the test plays."""

import asyncio
from dataclasses import dataclass
from functools import partial
from itertools import count
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


class Actor:
    """Logs its calls and how long they were waited for. returns: what they return, or raise; lost: with its worker."""

    def __init__(self):
        self.calls, self.waits, self.returns, self.lost = [], [], None, False

    def __getattr__(self, name):
        return lambda *args: self._call(name, *args)

    def _call(self, name, *args):
        if self.lost:
            raise ValueError("the worker holding this Actor was lost")
        self.calls.append((name, *args))
        return SimpleNamespace(result=self._result)

    def _result(self, timeout):
        self.waits.append(timeout)
        if isinstance(self.returns, Exception):
            raise self.returns
        return self.returns


class Future:
    """Of an actor, which may come late, or of an error."""

    def __init__(self, actor, late=0):
        self.actor, self.late, self.released = actor, late, False

    def result(self, timeout):
        self.late -= 1
        if self.late >= 0:
            raise TimeoutError
        if isinstance(self.actor, Exception):
            raise self.actor
        return self.actor

    def release(self):
        self.released = True


@pytest.fixture
def there(monkeypatch):
    """The addresses of living processes."""
    there, clock = {"a", "b", "c"}, count(100.0, 0.5)
    monkeypatch.setattr(serving, "alive", lambda client, addresses, *timeout: there & set(addresses))
    monkeypatch.setattr(serving, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    return there


def make(*futures, number=0, generation=1, where=("a", "b"), **plan):
    submitted, waiting = [], list(futures)

    def submit(function, plan, keeping, **options):
        submitted.append((plan, options))
        return waiting.pop(0)

    plans = [Plan(**plan)] * len(futures)
    client = SimpleNamespace(submit=submit, submitted=submitted)
    return make_servers(client, number, generation, where, plans, KEEPING[: len(futures)]), client


def made(number=0, generation=1, **plan):
    actors = [Actor(), Actor()]
    servers, _ = make(*map(Future, actors), number=number, generation=generation, **plan)
    return servers, actors


def test_a_server_of_each_plan_is_made_on_its_worker(there):
    servers, client = make(Future(Actor()), Future(Actor(), late=3), number=2, generation=3, where=("b", "a"))
    keys = [plan.key for plan, _ in client.submitted]
    assert [options["workers"] for _, options in client.submitted] == [["b"], ["a"]]
    assert all(options["actor"] and not options["allow_other_workers"] for _, options in client.submitted)
    assert all(key.startswith(f"server-{i}-of-group-2-3-") and key.endswith("@run") for i, key in enumerate(keys))
    assert servers.addresses == (Address("b", keys[0]), Address("a", keys[1])) and servers.where == ("b", "a")
    assert (servers.number, servers.generation) == (2, 3)


@pytest.mark.parametrize(
    ("second", "late", "kind"),
    [
        (None, 3, ClusterError),  # its process dies
        (None, 1000, ClusterError),  # it does not come in a minute
        (ValueError("out of memory"), 0, ClusterError),
        (NoAnswer("what the lost server has left is gone"), 0, NoAnswer),
        (WorkersInUse("w is in use"), 0, WorkersInUse),
    ],
)
def test_of_a_group_that_cannot_be_made_nothing_is_left(there, second, late, kind):
    first = Actor()
    futures = Future(first), Future(second or Actor(), late)
    if late == 3:
        there.discard("b")
    with pytest.raises(ClusterError) as caught:
        make(*futures, number=4)
    assert type(caught.value) is kind
    assert kind is WorkersInUse or str(caught.value).startswith("server group 4 could not be made on a, b: ")
    assert first.calls == [("close",)] and all(future.released for future in futures)
    assert late < 1000 or 110 < 1000 - futures[1].late < 130, "looks, of half a second each"


def test_servers_are_called_one_by_one(there):
    left, (one, two) = made(0, 4)
    right, (three, four) = made(1, 7, transfer_s=12.0)
    left.meet(right)
    assert (one.calls, two.calls) == ([("meet", right.addresses[0])], [("meet", right.addresses[1])])
    right.take_over(left)
    assert three.calls == [("take_over", left.addresses[0], "left", (4, 7))]
    left.hand_on(right)
    assert two.calls[1:] == [("hand_on", right.addresses[1], "right", (4, 7))]
    right.flush()
    assert four.calls[-1] == ("flush",) and 40 < four.waits[-1] <= 42, "as parameters have to be moved"
    right.dismiss(5, 2)
    assert four.calls[-1] == ("dismiss", Origin(5, 2)) and 1 <= four.waits[-1] < 2


def test_a_group_is_kept_if_all_its_servers_are(there):
    servers, (one, two) = made()
    one.returns = two.returns = True
    assert servers.settle()
    two.returns = False
    assert not servers.settle() and two.calls == [("settle",)] * 2


def test_a_server_hears_which_nanny_keeps_its_replica(there):
    servers, (one, two) = made()
    servers.replicate(("n1", ""))
    servers.replica_lost(1, 3, "n2")
    assert (one.calls, two.calls) == ([("replicate", "n1")], [("replicate", ""), ("replica_lost", 3, "n2")])
    assert len(two.waits) == 1, "the second is not awaited"
    two.lost = True
    servers.replica_lost(1, 4, "n1")


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (None, ClusterError),  # of an actor whose worker is lost
        (ValueError("a bug"), ClusterError),
        (TimeoutError(), NoAnswer),
        (ClusterError("its neighbour does not answer"), NoAnswer),
    ],
)
def test_a_server_that_fails_is_named(there, fault, kind):
    servers, (_, two) = made(3)
    two.lost, two.returns = fault is None, fault
    with pytest.raises(ClusterError, match="server group 3: flush failed at b") as caught:
        servers.flush()
    assert type(caught.value) is kind


def test_what_lives_is_closed_and_everything_is_released(there):
    actors = one, two = Actor(), Actor()
    futures = [Future(actor) for actor in actors]
    servers, _ = make(*futures)
    there.discard("b")
    one.returns = OSError("lost a moment ago")
    servers.stop()
    assert one.calls == [("close",)] and two.calls == [] and all(future.released for future in futures)


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
    with pytest.raises(WorkersInUse, match="server-0@its run"):
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
