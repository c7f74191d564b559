"""How a rank waits for an operation: when it yields, when it sleeps, and that its deadline holds."""

from __future__ import annotations

import pytest

from singa_dask.comm import polled
from singa_dask.comm.polled import LONGEST_YIELDING_S, WANTED_S, YIELD_S, PolledCommunicator
from singa_dask.errors import CommTimeout

PLENTY_S = 2 * LONGEST_YIELDING_S


class Clock:
    """Time that passes only while a rank waits. yields, sleeps: when each began."""

    def __init__(self, monkeypatch, yield_s: float) -> None:
        self.now, self.yields, self.sleeps = 0.0, [], []
        monkeypatch.setattr(polled.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(polled.time, "sleep", lambda s: self._pass(self.sleeps, s))
        monkeypatch.setattr(polled.os, "sched_yield", lambda: self._pass(self.yields, yield_s))

    def _pass(self, noted: list[float], seconds: float) -> None:
        noted.append(self.now)
        self.now += seconds


class Waiting(PolledCommunicator):
    """Whose operations are done at a given time of the clock."""

    _errors = ()

    def wait_until(self, done_at: float, clock: Clock) -> None:
        self._start("barrier", 0, lambda: lambda: clock.now >= done_at).wait()


Waiting.__abstractmethods__ = frozenset()


def waiting(timeout_s: float = 30.0) -> Waiting:
    return Waiting(0, 2, timeout_s)


def test_a_rank_yields_for_longer_where_nobody_else_wants_its_core(monkeypatch):
    clock = Clock(monkeypatch, yield_s=WANTED_S / 10)
    waiting().wait_until(PLENTY_S, clock)
    assert YIELD_S < clock.yields[-1] < LONGEST_YIELDING_S <= clock.sleeps[0]


def test_a_rank_whose_core_others_had_soon_sleeps(monkeypatch):
    clock = Clock(monkeypatch, yield_s=1.5 * WANTED_S)
    waiting().wait_until(PLENTY_S, clock)
    assert clock.yields[-1] < YIELD_S <= clock.sleeps[0] < YIELD_S + 2 * WANTED_S


def test_a_rank_yields_only_while_it_is_hurried(monkeypatch):
    clock = Clock(monkeypatch, yield_s=WANTED_S / 10)
    comm = waiting()
    comm.hurried = False
    started = comm._poll

    def finish(operation, done):
        def told_to_hurry_later() -> bool:
            comm.hurried = clock.now >= 1e-3
            return done()

        started(operation, told_to_hurry_later)

    comm._poll = finish
    comm.wait_until(2e-3, clock)
    assert clock.sleeps[0] == 0 and clock.sleeps[-1] < 1e-3 <= clock.yields[0]


@pytest.mark.parametrize("hurried", [True, False])
def test_the_deadline_holds_while_a_rank_yields_and_while_it_sleeps(monkeypatch, hurried):
    clock = Clock(monkeypatch, yield_s=WANTED_S / 10)
    comm = waiting(timeout_s=2e-3)
    comm.hurried = hurried
    with pytest.raises(CommTimeout, match="did not finish within"):
        comm.wait_until(1.0, clock)
    assert 2e-3 <= clock.now < 2.5e-3 and bool(clock.yields) == hurried
