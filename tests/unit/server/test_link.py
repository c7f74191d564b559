"""The way to a server on another worker."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
from support.servers import ones, protocol

from singa_dask.errors import ClusterError
from singa_dask.server import ActorLink, Server, link
from singa_dask.server.link import Address, ask, nbytes_of
from singa_dask.server.messages import Coded, Done, Get, Inspect, Moved, NotYet, Origin, Put, Refused, State, Update

THERE = Address("tcp://there:1", "server")


class Slow:
    """A Dask worker over a network on which a message and its reply take so long."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.attempts = seconds, 0

    def rpc(self, address: str) -> SimpleNamespace:
        return SimpleNamespace(actor_execute=self.execute)

    async def execute(self, **message: object) -> dict[str, object]:
        self.attempts += 1
        await asyncio.sleep(self.seconds)
        return {"status": "OK", "result": Done()}


def test_a_large_message_has_the_time_that_it_takes(monkeypatch):
    monkeypatch.setattr(link, "ATTEMPT_S", 0.05)
    worker = Slow(0.3)
    assert asyncio.run(ask(worker, THERE, Get(0, Origin(0)), 0.1, lambda: 2.0)) == Done()
    assert worker.attempts == 1
    with pytest.raises(ClusterError, match=r"has not answered Get for 0.1 s"):
        asyncio.run(ask(worker, THERE, Get(0, Origin(0)), 0.1))


def test_bytes_of_messages():
    values = np.zeros(10, np.float32)
    coded = Coded(10, "float32", {"name": "kHalf"}, np.zeros(20, np.uint8))
    assert nbytes_of(Put(0, values, {"m": values, "v": values})) == 120
    assert [nbytes_of(Update(0, Origin(0), 1, gradient)) for gradient in (values, coded)] == [40, 20]
    assert nbytes_of(Get(0, Origin(0))) == 0


class Answering:
    """A Dask worker whose peers do what a test says, one thing per attempt; an exception is raised."""

    def __init__(self, *answers: object) -> None:
        self.answers, self.state = list(answers), SimpleNamespace(actors={})
        self.messages: list[tuple[str, dict[str, object]]] = []

    def rpc(self, address: str) -> SimpleNamespace:
        async def execute(**message: object) -> object:
            self.messages.append((address, message))
            answer = self.answers.pop(0)
            if isinstance(answer, BaseException):
                raise answer
            return answer if isinstance(answer, dict) else {"status": "OK", "result": answer}

        return SimpleNamespace(actor_execute=execute)


GET = Get(0, Origin(0))


def asked(worker: Answering, timeout_s: float = 5.0) -> object:
    return asyncio.run(ask(worker, THERE, GET, timeout_s))


def test_what_is_asked_of_dask(monkeypatch):
    worker = Answering(Done())
    assert asked(worker) == Done()
    ((address, message),) = worker.messages
    assert address == THERE.worker
    (request,) = message.pop("args")
    assert request.data is GET and message == {"actor": "server", "function": "call", "kwargs": {}}


def test_a_broken_connection_is_tried_again_after_a_while(monkeypatch):
    monkeypatch.setattr(link, "RETRY_S", 0.1)
    worker = Answering(OSError("broken"), TimeoutError(), Done())
    began = time.monotonic()
    assert asked(worker) == Done()
    assert len(worker.messages) == 3 and 0.2 <= time.monotonic() - began < 3


def test_who_has_to_wait_asks_again_at_once_however_often(monkeypatch):
    monkeypatch.setattr(link, "RETRY_S", 60.0)
    worker = Answering(*[NotYet()] * 50, Done())
    assert asked(worker) == Done()
    assert len(worker.messages) == 51


def test_the_silence_of_a_server_begins_when_it_was_heard_last(monkeypatch):
    monkeypatch.setattr(link, "RETRY_S", 0.05)

    class Patient(Answering):
        """Says NotYet after 0.15 s, five times; afterwards it is not reached."""

        def rpc(self, address: str) -> SimpleNamespace:
            async def execute(**message: object) -> object:
                self.messages.append((address, message))
                if len(self.messages) > 5:
                    raise OSError("no route")
                await asyncio.sleep(0.15)
                return {"status": "OK", "result": NotYet()}

            return SimpleNamespace(actor_execute=execute)

    worker, began = Patient(), time.monotonic()
    with pytest.raises(ClusterError, match=r"tcp://there:1 has not answered Get for 0\.3 s \(OSError\('no route'\)\)"):
        asked(worker, 0.3)
    assert len(worker.messages) > 7
    assert 5 * 0.15 + 0.3 <= time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (Refused("too late"), ClusterError, "the server at tcp://there:1 refused Get: too late"),
        (KeyError("server"), ClusterError, "the server server is no longer at tcp://there:1"),
        ({"status": "error", "exception": ValueError("inside")}, ValueError, "inside"),
    ],
)
def test_answers_that_are_errors_are_raised_at_once(answer, error, message):
    worker = Answering(answer)
    with pytest.raises(error) as raised:
        asked(worker)
    assert str(raised.value) == message and len(worker.messages) == 1


@pytest.mark.parametrize("gone", [Moved(), KeyError("server"), OSError("broken")], ids=repr)
def test_a_request_is_repeated_to_the_successor_of_a_server(monkeypatch, gone):
    """However long that takes to come, up to the timeout; afterwards the silence begins anew."""
    monkeypatch.setattr(link, "RETRY_S", 0.05)
    worker, places = Answering(gone, gone, gone, OSError("starts"), Done()), [THERE] * 6
    later = Address("tcp://elsewhere:2", "successor")
    where = lambda: places.pop() if places else later  # noqa: E731
    assert asyncio.run(ask(worker, where, GET, 5.0)) == Done()
    asked = [(address, message["actor"]) for address, message in worker.messages]
    assert asked[0] == ("tcp://there:1", "server") and asked[-1] == ("tcp://elsewhere:2", "successor")
    worker.answers = [gone] * 100
    with pytest.raises(ClusterError, match=r"the server at tcp://elsewhere:2 has not answered Get for 0\.2 s"):
        asyncio.run(ask(worker, where, GET, 0.2))


def test_an_attempt_ends_when_the_server_is_elsewhere(monkeypatch):
    """A lost process may leave connections that nobody answers."""
    monkeypatch.setattr(link, "RETRY_S", 0.05)
    now = [THERE]

    class Lost(Answering):
        def rpc(self, address: str) -> SimpleNamespace:
            async def execute(**message: object) -> object:
                self.messages.append((address, message))
                if address == THERE.worker:
                    now[0] = Address("tcp://elsewhere:2", "successor")
                    await asyncio.sleep(60)
                return {"status": "OK", "result": Done()}

            return SimpleNamespace(actor_execute=execute)

    worker, began = Lost(), time.monotonic()
    assert asyncio.run(ask(worker, lambda: now[0], GET, 60.0)) == Done()
    assert time.monotonic() - began < 5 and [address for address, _ in worker.messages] == [
        "tcp://there:1",
        "tcp://elsewhere:2",
    ]


# Links


@pytest.fixture
def loop():
    """An event loop in a thread, as a Dask worker has it."""
    made = asyncio.new_event_loop()
    thread = threading.Thread(target=made.run_forever)
    thread.start()
    yield SimpleNamespace(asyncio_loop=made)
    made.call_soon_threadsafe(made.stop)
    thread.join(5)
    made.close()


def test_a_server_in_this_process_is_called_directly(loop):
    server = Server(protocol())
    worker = SimpleNamespace(state=SimpleNamespace(actors={"here": SimpleNamespace(server=server)}))
    own = ActorLink(Address("tcp://here:1", "here"), worker, 1.0)
    assert own.local
    out = ones(7.0)
    assert own.send(Put(0, ones(3.0))).result(1) == Done()
    assert own.send(GET, out).result(1).values is out and (out == 3).all()


@pytest.mark.parametrize("hears", ["the server", "the worker group", "Dask"])
def test_a_server_in_this_process_may_have_a_successor_elsewhere(loop, hears):
    server, worker = Server(protocol()), Answering(Done())
    worker.loop, worker.state = loop, SimpleNamespace(actors={"here": SimpleNamespace(server=server)})
    now = [Address("tcp://here:1", "here")]
    own = ActorLink(lambda: now[0], worker, 5.0)
    waiting = own.send(GET)
    if hears == "the server":
        now[0] = Address("tcp://elsewhere:2", "successor")
        server.retire()
    elif hears == "the worker group":  # the driver has not reached the server
        now[0] = Address("tcp://elsewhere:2", "successor")
    else:
        del worker.state.actors["here"]
        with pytest.raises(TimeoutError):
            waiting.result(0.1)
        now[0] = Address("tcp://elsewhere:2", "successor")
    assert own.local and waiting.result(5) == Done()
    assert [(address, message["actor"]) for address, message in worker.messages] == [
        ("tcp://elsewhere:2", "successor")
    ]


def test_a_server_elsewhere_is_asked_on_the_event_loop_of_the_worker(loop, monkeypatch):
    worker = Answering(OSError("broken"), Done())
    worker.loop = loop
    far = ActorLink(THERE, worker, 0.0)
    assert not far.local
    with pytest.raises(ClusterError, match="for 0 s"):
        far.send(GET).result(5)
    worker.answers = [Done()]
    assert ActorLink(THERE, worker, 5.0).send(GET).result(5) == Done()


def test_messages_may_take_the_time_of_the_arrays_of_all_slices(loop, monkeypatch):
    """There and back, at the least rate of a network; with those of the updater where they are asked for."""
    times: list[Callable[[], float]] = []

    async def remember(worker, where, request, timeout_s, transfer_s):
        assert (worker, where, timeout_s) == (far._worker, THERE, 9.0)
        times.append(transfer_s)
        return Done()

    monkeypatch.setattr(link, "ask", remember)
    monkeypatch.setattr(link, "LEAST_RATE", 100.0)
    far = ActorLink(THERE, SimpleNamespace(loop=loop, state=SimpleNamespace(actors={})), 9.0)

    def seconds() -> list[float]:
        return [transfer_s() for transfer_s in times]

    far.send(GET).result(5)
    assert seconds() == [0.0]
    far.send(GET, ones(size=100)).result(5)
    assert seconds() == [8.0, 8.0]
    far.send(Update(1, Origin(0), 0, ones(size=50))).result(5)
    assert seconds() == [12.0] * 3
    far.send(Update(1, Origin(0), 0, ones(size=10))).result(5)
    far.send(Inspect(1)).result(5)
    assert seconds() == [12.0] * 4 + [24.0]


def test_bytes_of_a_message_with_a_state():
    assert nbytes_of(State(ones(), {"m": ones()}, 3)) == 128
