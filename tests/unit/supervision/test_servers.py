"""Making, calling and closing the servers of a group, with actors that the test plays."""

import asyncio
from dataclasses import dataclass
from functools import partial
from itertools import count
from types import SimpleNamespace
from unittest.mock import DEFAULT, Mock, call

import pytest

from singa_dask.cluster import departure, leases
from singa_dask.cluster.formation import NoAnswer, WorkersInUse
from singa_dask.errors import ClusterError
from singa_dask.memory.owner import SERVERS, Owner, Version
from singa_dask.server import Address, Server, ServerActor
from singa_dask.server.messages import Origin
from singa_dask.supervision import servers as serving
from singa_dask.supervision.servers import Keeping, RunServer, make_servers

KEEPING = [Keeping(Owner(SERVERS, 0, rank, 2), Version("run", 1)) for rank in range(2)]


@dataclass(frozen=True)
class Plan:
    key: str = ""
    transfer_s: float = 0.0
    trace: None = None


def future(actor=None, late=0, fault=None):
    """Of an actor, which may come late, or of an error."""
    return Mock(**{"result.side_effect": [TimeoutError] * late + [fault or actor]})


def waited_s(call):
    """For how long the result of an actor's call was waited for."""
    return call.return_value.result.call_args.kwargs["timeout"]


@pytest.fixture
def there(monkeypatch):
    """The addresses of living processes."""
    there, clock = {"a", "b", "c"}, count(100.0, 0.5)
    monkeypatch.setattr(serving, "alive", lambda client, addresses, *timeout: there & set(addresses))
    monkeypatch.setattr(serving, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    return there


def make(*futures, number=0, generation=1, where=("a", "b"), **plan):
    client = Mock(**{"submit.side_effect": futures})
    plans = [Plan(**plan)] * len(futures)
    return make_servers(client, number, generation, where, plans, KEEPING[: len(futures)]), client.submit


def made(number=0, generation=1, **plan):
    actors = [Mock(), Mock()]
    servers, _ = make(*map(future, actors), number=number, generation=generation, **plan)
    return servers, actors


def test_a_server_of_each_plan_is_made_on_its_worker(there):
    servers, submit = make(future(), future(late=3), number=2, generation=3, where=("b", "a"))
    keys = [made.args[1].key for made in submit.call_args_list]
    assert [made.kwargs["workers"] for made in submit.call_args_list] == [["b"], ["a"]]
    assert all(made.kwargs["actor"] and not made.kwargs["allow_other_workers"] for made in submit.call_args_list)
    assert all(key.startswith(f"server-{i}-of-group-2-3-") and key.endswith("@run") for i, key in enumerate(keys))
    assert servers.addresses == (Address("b", keys[0]), Address("a", keys[1])) and servers.where == ("b", "a")
    assert (servers.number, servers.generation) == (2, 3)


@pytest.mark.parametrize(
    ("second", "living", "kind"),
    [
        ({"late": 3}, {"a"}, ClusterError),  # its process dies
        ({"late": 1000}, {"a", "b"}, ClusterError),  # it does not come in a minute
        ({"fault": ValueError("out of memory")}, {"a", "b"}, ClusterError),
        ({"fault": NoAnswer("what the lost server has left is gone")}, {"a", "b"}, NoAnswer),
        ({"fault": WorkersInUse("w is in use")}, {"a", "b"}, WorkersInUse),
    ],
)
def test_of_a_group_that_cannot_be_made_nothing_is_left(there, second, living, kind):
    first = Mock()
    futures = future(first), future(**second)
    there &= living
    with pytest.raises(ClusterError) as caught:
        make(*futures, number=4)
    assert type(caught.value) is kind
    assert kind is WorkersInUse or str(caught.value).startswith("server group 4 could not be made on a, b: ")
    assert first.method_calls == [call.close()] and all(each.release.called for each in futures)
    assert futures[1].result.call_count < 130, "looks, of half a second each"


def test_servers_are_called_one_by_one(there):
    left, (one, two) = made(0, 4)
    right, (three, four) = made(1, 7, transfer_s=12.0)
    left.meet(right)
    assert [each.method_calls for each in (one, two)] == [[call.meet(address)] for address in right.addresses]
    right.take_over(left)
    assert three.method_calls == [call.take_over(left.addresses[0], "left", (4, 7))]
    left.hand_on(right)
    assert two.method_calls[1:] == [call.hand_on(right.addresses[1], "right", (4, 7))]
    right.flush()
    assert four.flush.called and 40 < waited_s(four.flush) <= 42, "as parameters have to be moved"
    right.dismiss(5, 2)
    assert four.dismiss.call_args.args == (Origin(5, 2),) and 1 <= waited_s(four.dismiss) < 2


@pytest.mark.parametrize("second", [True, False])
def test_a_group_is_kept_if_all_its_servers_are(there, second):
    servers, (one, two) = made()
    one.settle.return_value.result.return_value, two.settle.return_value.result.return_value = True, second
    assert servers.settle() == second


def test_a_server_hears_which_nanny_keeps_its_replica(there):
    servers, (one, two) = made()
    servers.replicate(("n1", ""))
    two.replica_lost.side_effect = [DEFAULT, ValueError("its worker is lost")]
    servers.replica_lost(1, 3, "n2")
    servers.replica_lost(1, 4, "n1")
    assert one.method_calls == [call.replicate("n1")]
    assert two.method_calls == [call.replicate(""), call.replica_lost(3, "n2"), call.replica_lost(4, "n1")]
    assert not two.replica_lost.return_value.result.called, "it is not awaited"


@pytest.mark.parametrize(
    ("of_call", "of_result", "kind"),
    [
        (ValueError("the worker holding this Actor was lost"), None, ClusterError),
        (None, ValueError("a bug"), ClusterError),
        (None, TimeoutError(), NoAnswer),
        (None, ClusterError("its neighbour does not answer"), NoAnswer),
    ],
)
def test_a_server_that_fails_is_named(there, of_call, of_result, kind):
    servers, (_, two) = made(3)
    two.flush.side_effect, two.flush.return_value.result.side_effect = of_call, of_result
    with pytest.raises(ClusterError, match="server group 3: flush failed at b") as caught:
        servers.flush()
    assert type(caught.value) is kind


def test_what_lives_is_closed_and_everything_is_released(there):
    one, two = Mock(), Mock()
    futures = future(one), future(two)
    servers, _ = make(*futures)
    there.discard("b")
    one.close.return_value.result.side_effect = OSError("lost a moment ago")
    servers.stop()
    assert one.close.called and not two.close.called and all(each.release.called for each in futures)


def test_no_server_is_made_on_a_worker_that_another_run_has(monkeypatch):
    loop = SimpleNamespace(add_callback=lambda function, *args: None)
    worker = SimpleNamespace(address="w", state=SimpleNamespace(actors={}), nanny="", loop=loop, plugin_add=None)
    monkeypatch.setattr("distributed.get_worker", lambda: worker)
    monkeypatch.setattr(ServerActor, "__init__", lambda self, plan: setattr(self, "server", Server(None)))
    own, other = (Plan(leases.server_key("0", run)) for run in ("its run", "another run"))
    its, others = (Keeping(Owner(SERVERS), Version(run, 1)) for run in ("its run", "another run"))
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
