"""Which ranks make no step, judged by what they did before."""

import pytest

from singa_dask.cluster.rank import Looks
from singa_dask.supervision.standstill import Standstill


def looks(*of, **more):
    return {rank: each and Looks(*each, "forward, own.py:7", **more) for rank, each in enumerate(of)}


def standstill(patience_s=30.0):
    return Standstill(patience_s)


@pytest.mark.parametrize(
    ("ago_s", "longest_s", "asked", "still"),
    [
        (31.0, 0.2, False, True),
        (29.0, 0.2, False, False),
        (31.0, 0.2, True, True),
        (6.0, 0.2, True, True),
        (4.0, 0.2, True, False),
        (301.0, 60.0, False, False),  # long steps
        (601.0, 60.0, False, True),
        (170.0, 60.0, True, False),
        (190.0, 60.0, True, True),
        (299.0, 0.0, False, False),  # the first step: kernels may be compiled
        (301.0, 0.0, False, True),
        (29.0, 0.0, True, False),
        (31.0, 0.0, True, True),
    ],
)
def test_a_rank_stands_still_by_what_its_steps_took_before(ago_s, longest_s, asked, still):
    given = looks((ago_s, longest_s), (0.1, longest_s), asked=asked)
    assert standstill().still(given) == ([0] if still else [])


def test_ranks_that_wait_have_left_or_do_not_answer_do_not_stand_still():
    assert standstill().still(looks(None, (40.0, 0.1))) == [1]
    assert standstill().still(looks((40.0, 0.1), asked=True, waits=True)) == []


def test_ranks_are_asked_only_after_a_while_without_a_step():
    watched = standstill()
    watched.made_step(0, 100.0)
    assert [watched.due(0, now) for now in (101.0, 104.0, 106.0, 106.5, 109.0)] == [False, False, True, False, True]
    watched.made_step(0, 110.0)
    assert not watched.due(0, 113.0) and watched.due(0, 116.0)
    watched.made_step(0, 117.0)
    assert watched.due(1, 117.0) is False, "a group that has just been formed"


def test_it_is_said_rarely_and_anew_after_a_step():
    watched = standstill()
    watched.made_step(0, 0.0)
    assert [now for now in range(30, 300, 2) if watched.says(0, float(now))] == [30, 60, 120, 240]
    watched.made_step(0, 300.0)
    assert watched.says(0, 331.0) and not watched.says(0, 340.0)
