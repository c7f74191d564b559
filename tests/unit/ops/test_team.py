"""A team of threads: what it does, and what becomes of it where a task or a thread fails."""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from queue import SimpleQueue
from unittest.mock import patch

import numpy as np
import pytest

from singa_dask.ops.cpu.ops import CpuOps
from singa_dask.ops.cpu.toolkit import team as team_module
from singa_dask.ops.cpu.toolkit.team import Team


def test_a_team_does_every_task_once_and_raises_what_one_of_them_raised():
    team, seen = Team(3), []
    for count in (1, 2, 3):
        seen.clear()
        team.run(count, seen.append)
        assert sorted(seen) == list(range(count))

    def fail(number: int) -> None:
        seen.append(number)
        if number == 2:
            raise ArithmeticError("two")

    seen.clear()
    with pytest.raises(ArithmeticError, match="two"):
        team.run(3, fail)
    assert sorted(seen) == [0, 1, 2]
    # A team at work does not take another task: its member does that alone.
    team.run(2, lambda number: team.run(2, seen.append))
    assert sorted(seen) == [0, 0, 0, 1, 1, 1, 2]
    with pytest.raises(ValueError, match="size=0"):
        Team(0)


def test_a_team_forgets_what_a_task_that_was_broken_off_has_left():
    team, seen, slow = Team(2), [], threading.Event()

    def stuck(number: int) -> None:
        if number == 1:
            assert slow.wait(10)

    interrupted = patch.object(team_module, "SimpleQueue", _Interrupting)
    with interrupted, pytest.raises(KeyboardInterrupt):
        team.run(2, stuck)
    slow.set()

    def late(number: int) -> None:
        time.sleep(0.05 * number)
        seen.append(number)

    for _ in range(3):
        seen.clear()
        team.run(2, late)
        assert sorted(seen) == [0, 1]


class _Interrupting(SimpleQueue):
    """Of the thread that waits for the others: it is interrupted there."""

    def get(self, *args, **settings):
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return super().get(*args, **settings)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_team_works_in_a_process_that_was_forked():
    team, seen = Team(2), []
    team.run(2, seen.append)
    child = os.fork()
    if child == 0:  # pragma: no cover - in the child
        signal.alarm(20)
        team.run(2, seen.append)
        os._exit(len(seen))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4


def test_a_team_that_could_not_start_can_be_asked_again(monkeypatch):
    team, seen = Team(3), []
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", lambda self: (_ for _ in ()).throw(RuntimeError("no more threads")))
        with pytest.raises(RuntimeError, match="no more threads"):
            team.run(3, seen.append)
    team.run(3, seen.append)
    assert sorted(seen) == [0, 1, 2]


def test_a_team_warns_where_its_caller_does():
    a = np.full((64, 64), np.inf, np.float32)
    ops = CpuOps(threads=2)
    ops._product_worth_a_thread = 1
    with warnings.catch_warnings(), np.errstate(invalid="ignore"):
        warnings.simplefilter("error")
        assert np.isnan(ops.gemm(a, -a * np.eye(64, dtype=np.float32), out=np.zeros_like(a), accumulate=True)).all()
