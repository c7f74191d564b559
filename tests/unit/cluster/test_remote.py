"""Calls to a cluster that is not there, and how processes of workers ended, as their nannies and the driver say it."""

import asyncio
import gc
import pickle
import signal
import socket
import subprocess
import threading
import time
import warnings
from types import SimpleNamespace
from unittest.mock import Mock

import psutil
import pytest
from distributed.nanny import WorkerProcess
from distributed.utils import wait_for

from singa_dask.cluster import exits, remote
from singa_dask.cluster.remote import (
    StillImporting,
    StoppedProcesses,
    alive,
    ask_nannies,
    kill_processes,
    last_seen,
    run_each,
)
from singa_dask.errors import ClusterError, SchedulerLost


def _interrupted(function, *args, callback_timeout):
    """Client.sync, where Ctrl-C comes when the call is due and has not begun."""

    async def main():
        call = asyncio.ensure_future(wait_for(function(*args), callback_timeout))
        call.cancel()
        await asyncio.wait([call])

    asyncio.run(main())
    raise KeyboardInterrupt


@pytest.mark.parametrize("call", [lambda client: alive(client, []), lambda client: run_each(client, print, {}, 1.0)])
def test_a_call_that_is_given_up_before_it_begins_leaves_nothing_behind(call):
    client = Mock(asynchronous=False, sync=_interrupted)
    gc.freeze()  # what other tests left
    with warnings.catch_warnings(record=True) as complaints:
        warnings.simplefilter("always")
        with pytest.raises(KeyboardInterrupt):
            call(client)
        gc.collect()
    gc.unfreeze()
    assert not complaints


class Client:
    """A client whose workers answer as `answers` says; its scheduler knows them, or does not answer (mute), or is
    given up (closed). stuck: its event loop does not run. importing: workers that import the package meanwhile."""

    def __init__(
        self, answers=(), stuck=False, mute=False, closed=False, status="running", asynchronous=False, importing=()
    ):
        self.importing = set(importing)
        self.answers, self.stuck, self.given, self.asked = dict(answers), stuck, 0.0, []
        scheduler = SimpleNamespace(addr="tcp://here:1", ncores=self._ncores, identity=self._identity)
        self.scheduler, self.mute = None if closed else scheduler, mute
        self.status, self.asynchronous = status, asynchronous

    def sync(self, function, *args, callback_timeout):
        self.given = callback_timeout
        if self.stuck:
            raise TimeoutError("timed out")

        async def main():
            return await function(*args)

        return asyncio.run(main())

    async def _run(self, function, *args, workers):
        (address,) = workers
        self.asked.append((function.__name__, args, address))
        answer = self.answers[address]
        if answer is None or (function is asyncio.to_thread and address in self.importing):
            await asyncio.sleep(60)
        if isinstance(answer, Exception):
            raise answer
        return {address: answer}

    async def _ncores(self, workers):
        if self.mute:
            await asyncio.sleep(60)
        return {address: 1 for address in self.answers if workers is None or address in workers}

    async def _identity(self):
        return {"workers": {address: {"last_seen": 7.0, "nanny": f"nanny of {address}"} for address in self.answers}}


def test_each_worker_answers_for_itself():
    fault = ValueError("no")
    client = Client({"a": 1, "b": 2, "c": 3})
    run_each(client, print, {"a": (), "b": (), "c": ()}, 1.0)
    client.answers, client.asked = {"a": 1, "b": None, "c": fault}, []
    answers = run_each(client, print, {"a": (), "b": (7,), "c": ()}, 0.05)
    assert client.asked == [("print", (), "a"), ("print", (7,), "b"), ("print", (), "c")]
    assert answers["a"] == 1 and answers["c"] is fault and isinstance(answers["b"], TimeoutError)


def test_a_worker_imports_the_package_in_a_thread_before_it_is_asked_the_first_time():
    client = Client({"a": 1, "b": 2, "stopped": None}, importing={"b"})
    asked = dict.fromkeys(client.answers, ())
    answers = run_each(client, print, asked, 0.05)
    assert answers["a"] == 1 and isinstance(answers["b"], StillImporting) and type(answers["stopped"]) is TimeoutError
    assert [name for name, _, address in client.asked if address == "b"] == ["getpid", "to_thread"]
    client.importing.clear()
    assert run_each(client, print, {"b": ()}, 0.05) == {"b": 2}
    client.asked.clear()
    run_each(client, print, {"a": (), "b": ()}, 0.05)
    assert [name for name, _, _ in client.asked] == ["print", "print"], "once"


def test_a_worker_that_the_scheduler_misses_meanwhile_is_not_waited_for():
    client = Client({"a": 1, "b": None})
    threading.Timer(0.2, client.answers.pop, ("b",)).start()
    answers = run_each(client, print, {"a": (), "b": ()}, 1000.0)
    assert answers["a"] == 1
    assert "the scheduler misses b" in str(answers["b"]) and not isinstance(answers["b"], TimeoutError)


def test_a_client_whose_event_loop_is_stuck_has_no_answers():
    """On a busy machine the loop is late: it has half a minute more than the workers."""
    client = Client({"a": 1}, stuck=True)
    assert isinstance(run_each(client, print, {"a": (), "b": ()}, 2.0)["b"], TimeoutError)
    assert client.given >= 32.0
    with pytest.raises(SchedulerLost, match=r"here:1.* did not answer within 10 s"):
        alive(client)
    assert client.given >= 90.0


def test_who_lives_and_when_it_was_seen_the_scheduler_knows():
    client = Client({"a": 1, "b": 2})
    assert alive(client) == {"a", "b"} and alive(client, ["b", "x"]) == {"b"} and alive(client, []) == set()
    assert last_seen(client) == {"a": 7.0, "b": 7.0}


@pytest.mark.parametrize(
    ("state", "timeout_s", "match"),
    [
        ({"mute": True}, 0.05, r"the Dask scheduler \(tcp://here:1\) did not answer within 0.05 s"),
        ({"mute": True}, None, "within 0.6 s"),
        ({"mute": True, "status": "connecting"}, None, "within 0.1 s"),
        ({"closed": True}, None, "the Dask scheduler did not answer"),
        ({"asynchronous": True}, None, "asynchronous"),
    ],
    ids=["in-time", "busy", "lost", "closed", "asynchronous"],
)
def test_a_scheduler_that_does_not_answer_is_waited_for_as_long_as_it_is_connected(
    monkeypatch, state, timeout_s, match
):
    for name, seconds in {"_BUSY_S": 0.6, "_LOST_S": 0.1, "_LOOK_S": 0.05}.items():
        monkeypatch.setattr(remote, name, seconds)
    with pytest.raises(ClusterError if "asynchronous" in state else SchedulerLost, match=match):
        alive(Client(**state), timeout_s=timeout_s)


def test_nannies_are_asked_to_kill_and_nobody_for_workers_that_have_left(monkeypatch):
    asked = []
    monkeypatch.setattr(remote, "ask_nannies", lambda client, function, args, s: asked.append((function, args)))
    client = Client({"a": 1, "b": 1})
    kill_processes(client, {"a": 5, "left": 6})
    assert asked == [(remote._kill, {"nanny of a": (5,)})] and client.asked == []


def test_a_nanny_that_is_gone_is_not_waited_for():
    """Dask would try to connect until the deadline."""

    class Call:
        def __init__(self, address):
            self.address = address

        async def run(self, function, args):
            await asyncio.sleep(0.3 if self.address == there else 1000.0)
            return {"status": "OK", "result": pickle.loads(function)(*pickle.loads(args))}

    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_server(("127.0.0.1", 0)) as closed:
        there, gone = (f"tcp://127.0.0.1:{each.getsockname()[1]}" for each in (listener, closed))
        closed.close()
        client = Client()
        client.rpc = Call
        answers = ask_nannies(client, abs, {there: (-3,), gone: (1,)}, 1000.0)
        assert answers[there] == 3 and isinstance(answers[gone], ConnectionRefusedError)


@pytest.mark.parametrize(("count", "lost"), [(2, [0, 0, 2, 0, 2]), (90, [0, 0, 0, 0, 90])])
def test_many_processes_are_looked_at_less_often(monkeypatch, count, lost):
    """Each look asks every nanny."""
    monkeypatch.setattr(remote, "time", SimpleNamespace(monotonic=Mock(side_effect=(0.0, 0.2, 0.5, 0.7, 1.0))))
    monkeypatch.setattr(remote, "stopped_processes", lambda client, pids: set(pids))
    watched = StoppedProcesses(None)
    assert [len(watched.look({f"n{i}": i for i in range(count)})) for _ in lost] == lost


def test_a_nanny_kills_the_process_that_was_meant_and_no_later_one(monkeypatch):
    done = []
    monkeypatch.setattr(remote, "unlink_segments", lambda process: done.append(("unlink", process)))
    monkeypatch.setattr(remote.os, "kill", lambda *given: done.append(given))
    for pid in (6, 5):
        remote._kill(5, SimpleNamespace(pid=pid))
    assert done == [("unlink", 5), (5, remote.signal.SIGKILL)]


@pytest.mark.parametrize("stopped", [False, True])
def test_a_nanny_replaces_a_worker_that_is_stopped_and_no_other(stopped):
    with subprocess.Popen(["sleep", "60"]) as process:
        if stopped:
            process.send_signal(signal.SIGSTOP)
            while psutil.Process(process.pid).status() != psutil.STATUS_STOPPED:
                time.sleep(0.01)
        for pid in (None, process.pid):
            remote._replace_stopped(SimpleNamespace(pid=pid))
        if not stopped:
            process.terminate()
        assert process.wait(timeout=10) == -(signal.SIGKILL if stopped else signal.SIGTERM)


@pytest.fixture
def recording(monkeypatch):
    monkeypatch.setattr(WorkerProcess, "_death_message", WorkerProcess._death_message)
    monkeypatch.setattr(exits, "_codes", {})
    exits.record_exits()


def test_a_nanny_remembers_how_its_processes_ended_and_dask_still_logs_it(recording):
    exits.record_exits()  # once for each run
    process = WorkerProcess.__new__(WorkerProcess)
    assert process._death_message(7, -9) == "Worker process 7 was killed by signal 9"
    assert process._death_message(8, 3) == "Worker process 8 exited with status 3"
    assert [asyncio.run(exits._code_of(pid)) for pid in (7, 8, 9)] == [-9, 3, None]


def test_it_waits_a_moment_for_one_that_it_has_not_heard_of_yet(recording):
    async def hears():
        asked = asyncio.ensure_future(exits._code_of(7))
        await asyncio.sleep(0.03)
        WorkerProcess.__new__(WorkerProcess)._death_message(7, -11)
        return await asked

    assert asyncio.run(hears()) == -11


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (-9, "was killed by SIGKILL (by kill -9, or because memory ran out)"),
        (-11, "was killed by SIGSEGV"),
        (-99, "was killed by signal 99"),
        (3, "ended with exit code 3"),
        (255, "died"),
        (None, "died"),
        (OSError("nobody listens"), "died"),
        (TimeoutError(), "died"),
    ],
)
def test_the_driver_says_what_the_nanny_knows(monkeypatch, answer, said):
    monkeypatch.setattr(exits, "ask_nannies", lambda client, function, args, timeout_s: {"tcp://n:1": answer})
    monkeypatch.setattr(exits, "_ended_by_dask", lambda client, pid, address: "")
    assert exits.ending_of(None, "tcp://n:1", 7, "tcp://w:1") == said


def test_without_a_nanny_nobody_is_asked(monkeypatch):
    monkeypatch.setattr(exits, "_ended_by_dask", lambda client, pid, address: "")
    assert exits.ending_of(None, "", 7, "tcp://w:1") == "died"


@pytest.mark.parametrize(
    ("topic", "event", "said"),
    [
        (
            "scheduler",
            {"action": "worker-ttl-timed-out", "workers": ["w"], "ttl": 10.0},
            "no heartbeat for 10 s and was",
        ),
        ("scheduler", {"action": "worker-ttl-timed-out", "workers": ["v"], "ttl": 10.0}, "was killed by SIGTERM"),
        ("scheduler", {"action": "restart"}, "was killed by SIGTERM"),
        ("worker-restart-memory", {"worker": "w", "pid": 7, "rss": 5}, "exceeded its memory limit and was ended by"),
        ("worker-restart-memory", {"worker": "w", "pid": 6, "rss": 5}, "was killed by SIGTERM"),
    ],
)
@pytest.mark.parametrize("age_s", [1, 100])
def test_dask_says_why_it_has_ended_a_process(monkeypatch, topic, event, said, age_s):
    events = {topic: [(exits.time.time() - age_s, event)]}
    client = SimpleNamespace(scheduler=SimpleNamespace(events=lambda topic: events.get(topic, ())))
    monkeypatch.setattr(exits, "ask_scheduler", lambda client, question, timeout_s: question())
    monkeypatch.setattr(exits, "ask_nannies", lambda client, function, args, timeout_s: {"n": -15})
    assert (said if age_s == 1 else "was killed by SIGTERM") in exits.ending_of(client, "n", 7, "w")


def test_a_lost_scheduler_says_nothing(monkeypatch):
    def lost(client, question, timeout_s):
        raise SchedulerLost("gone")

    monkeypatch.setattr(exits, "ask_scheduler", lost)
    assert exits.ending_of(None, "", 7, "w") == "died"
