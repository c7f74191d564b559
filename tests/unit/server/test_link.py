"""The way to a server on another worker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
from support.servers import ones, protocol

from singa_dask.errors import ClusterError
from singa_dask.server import ActorLink, Server, link
from singa_dask.server.link import Address, ask, nbytes_of
from singa_dask.server.messages import Coded, Done, Get, Inspect, Moved, NotYet, Origin, Put, Refused, State, Update

THERE, ELSEWHERE = Address("tcp://there:1", "server"), Address("tcp://elsewhere:2", "successor")


class Answering:
    """A Dask worker whose peers do what a test says, one thing per attempt; an exception is raised. seconds: that each
    answer takes."""

    def __init__(self, *answers: object, seconds: float = 0.0) -> None:
        self.answers, self.seconds, self.state = list(answers), seconds, SimpleNamespace(actors={})
        self.messages: list[tuple[str, dict[str, object]]] = []

    def rpc(self, address: str) -> SimpleNamespace:
        async def execute(**message: object) -> object:
            self.messages.append((address, message))
            answer = self.answers.pop(0)
            if isinstance(answer, BaseException):
                raise answer
            await asyncio.sleep(self.seconds)
            return answer if isinstance(answer, dict) else {"status": "OK", "result": answer}

        return SimpleNamespace(actor_execute=execute)

    @property
    def receivers(self) -> list[tuple[str, object]]:
        return [(address, message["actor"]) for address, message in self.messages]


GET = Get(0, Origin(0))


def asked(worker: Answering, timeout_s: float = 5.0) -> object:
    return asyncio.run(ask(worker, THERE, GET, timeout_s))


def test_a_large_message_has_the_time_that_it_takes(monkeypatch):
    monkeypatch.setattr(link, "ATTEMPT_S", 0.05)
    worker = Answering(*[Done()] * 100, seconds=0.3)
    assert asyncio.run(ask(worker, THERE, GET, 0.1, lambda: 20.0)) == Done()
    assert len(worker.messages) == 1
    with pytest.raises(ClusterError, match=r"Get for 0.1 s"):
        asked(worker, 0.1)


def test_bytes_of_messages():
    values = np.zeros(10, np.float32)
    coded = Coded(10, "float32", {"name": "kHalf"}, np.zeros(20, np.uint8))
    updates = [Update(0, Origin(0), 1, gradient) for gradient in (values, coded)]
    states = [Put(0, values, {"m": values, "v": values}), State(values, {"m": values}, 3)]
    assert [nbytes_of(message) for message in (GET, *updates, *states)] == [0, 40, 20, 120, 80]


def test_what_is_asked_of_dask():
    worker = Answering(Done())
    assert asked(worker) == Done()
    ((address, message),) = worker.messages
    assert address == THERE.worker
    (request,) = message.pop("args")
    assert request.data is GET and message == {"actor": "server", "function": "call", "kwargs": {}}


def test_a_broken_connection_is_tried_again_after_a_while(monkeypatch):
    monkeypatch.setattr(link, "RETRY_S", 0.01)
    broken = [OSError("broken"), TimeoutError(), Done()]
    worker = Answering(*broken)
    assert asked(worker) == Done() and len(worker.messages) == 3
    monkeypatch.setattr(link, "RETRY_S", 60.0)
    patient = Answering(*broken)
    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(ask(patient, THERE, GET, 5.0), 0.1))
    assert len(patient.messages) == 1


def test_who_has_to_wait_asks_again_at_once_however_often(monkeypatch):
    monkeypatch.setattr(link, "RETRY_S", 60.0)
    worker = Answering(*[NotYet()] * 50, Done())
    assert asked(worker) == Done()
    assert len(worker.messages) == 51


def test_the_silence_of_a_server_begins_when_it_was_heard_last(monkeypatch):
    monkeypatch.setattr(link, "RETRY_S", 0.05)
    worker = Answering(*[NotYet()] * 5, *[OSError("no route")] * 100, seconds=0.15)
    with pytest.raises(ClusterError, match=r"tcp://there:1 has not answered Get for 0\.3 s \(OSError\('no route'\)\)"):
        asked(worker, 0.3)
    assert len(worker.messages) > 6


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
    where = lambda: places.pop() if places else ELSEWHERE  # noqa: E731
    assert asyncio.run(ask(worker, where, GET, 5.0)) == Done()
    assert worker.receivers[0] == ("tcp://there:1", "server")
    assert worker.receivers[-1] == ("tcp://elsewhere:2", "successor")
    worker.answers = [gone] * 100
    with pytest.raises(ClusterError, match=r"the server at tcp://elsewhere:2 has not answered Get for 0\.2 s"):
        asyncio.run(ask(worker, where, GET, 0.2))


def test_an_attempt_ends_when_the_server_is_elsewhere(monkeypatch):
    """A lost process may leave connections that nobody answers."""
    monkeypatch.setattr(link, "RETRY_S", 0.05)
    monkeypatch.setattr(link, "ATTEMPT_S", 600.0)
    worker = Answering(Done(), Done(), seconds=600.0)

    def where() -> Address:
        if not worker.messages:
            return THERE
        worker.seconds = 0.0
        return ELSEWHERE

    assert asyncio.run(asyncio.wait_for(ask(worker, where, GET, 600.0), 60)) == Done()
    assert worker.receivers == [("tcp://there:1", "server"), ("tcp://elsewhere:2", "successor")]


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
    if hears == "Dask":
        del worker.state.actors["here"]
        with pytest.raises(TimeoutError):
            waiting.result(0.1)
    now[0] = ELSEWHERE  # of which the worker group hears, where the driver has not reached the server
    if hears == "the server":
        server.retire()
    assert own.local and waiting.result(5) == Done()
    assert worker.receivers == [("tcp://elsewhere:2", "successor")]


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
    updates = [Update(1, Origin(0), 0, ones(size=size)) for size in (50, 10)]
    for sent, seconds in [
        ((GET,), [0.0]),
        ((GET, ones(size=100)), [8.0] * 2),
        ((updates[0],), [12.0] * 3),
        ((updates[1],), [12.0] * 4),
        ((Inspect(1),), [12.0] * 4 + [24.0]),
    ]:
        far.send(*sent).result(5)
        assert [transfer_s() for transfer_s in times] == seconds
