"""How processes of workers ended, as their nannies and the driver say it."""

from __future__ import annotations

import asyncio

import pytest
from distributed.nanny import WorkerProcess

from singa_dask.cluster import exits


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
    assert exits.ending_of(None, "tcp://n:1", 7) == said


def test_without_a_nanny_nobody_is_asked():
    assert exits.ending_of(None, "", 7) == "died"
