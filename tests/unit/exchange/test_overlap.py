"""The faster of two ways is found out, and by all ranks alike."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from singa_dask.exchange.overlap import LASTS, TURNS, WARM_UP, OverlapTuner


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def steps(trial: OverlapTuner, clock: Clock, count: int, first: float, second: float) -> Iterator[bool]:
    """Whether each of `count` steps, so long by the one and the other way, went the first way."""
    for _ in range(count):
        trial.begin()
        yield trial.first
        clock.now += first if trial.first else second
        if trial.end():
            trial.choose(trial.seconds)


@given(st.floats(0.001, 1), st.floats(0.001, 1))
def test_the_faster_way_goes_on_after_as_many_turns_of_each(first: float, second: float):
    clock = Clock()
    trial = OverlapTuner(clock)
    warm, turns = WARM_UP, 2 * TURNS
    went = list(steps(trial, clock, warm + LASTS, first, second))
    assert all(went[:warm])
    assert sum(went[warm : warm + turns]) == TURNS
    if not np.isclose(first, second, rtol=1e-6):
        assert set(went[warm + turns :]) == {first < second}


def test_neither_way_is_always_the_later_one_of_a_pair():
    clock = Clock()
    went = list(steps(OverlapTuner(clock), clock, WARM_UP + 2 * TURNS, 1, 1))[WARM_UP:]
    pairs = list(zip(went[::2], went[1::2], strict=True))
    assert pairs.count((True, False)) == pairs.count((False, True)) == TURNS // 2


def test_what_has_changed_is_found_out_by_the_next_trial():
    clock = Clock()
    trial = OverlapTuner(clock)
    assert list(steps(trial, clock, WARM_UP + LASTS, 1, 2))[-1]
    went = list(steps(trial, clock, LASTS, 3, 2))
    assert sum(went[: 2 * TURNS]) == TURNS
    assert not any(went[2 * TURNS :])


def test_one_slow_step_decides_nothing():
    clock = Clock()
    trial = OverlapTuner(clock)
    for number, went in enumerate(steps(trial, clock, WARM_UP + 2 * TURNS + 1, 1, 2)):
        if number == WARM_UP + 4:
            assert went
            clock.now += 100
    assert trial.first
