"""The norm of a gradient does not depend on who has which part of it."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from singa_dask.comm import SoloCommunicator, run_threads
from singa_dask.exchange.clipping import NormClip, norm_clip
from singa_dask.net.flat import Entry, FlatParams
from singa_dask.ops import Ops
from singa_dask.updaters import SGD

ENTRIES = [
    Entry("w", (30,), 0, 30),
    Entry("mean", (16,), 32, 16, statistic=True),
    Entry("b", (20,), 48, 20, 2.0, 0.0),
    Entry("frozen", (10,), 80, 10, 0.0),
    Entry("table", (32,), 96, 32),
]
SIZE = 128
LEARN = np.r_[0:30, 48:68, 96:128]
GRADIENT = np.random.default_rng(0).normal(size=SIZE).astype(np.float32)


def clip(limit, *groups):
    return NormClip(limit, ENTRIES, SGD(lr=0.1, group=list(groups)).proto, Ops())


@given(cuts=st.lists(st.integers(0, SIZE), max_size=7), limit=st.floats(0.1, 20))
def test_the_squares_of_all_parts_give_the_factor(cuts, limit):
    ends = [0, *sorted(cuts), SIZE]
    made = clip(limit)
    total = sum(made.squares(GRADIENT, slice(start, stop)) for start, stop in pairwise(ends))
    norm = math.sqrt(float((GRADIENT[LEARN].astype(np.float64) ** 2).sum()))
    assert made.scale(SoloCommunicator(), total) == pytest.approx(min(1, limit / norm), rel=1e-12)


def test_parameters_that_a_group_keeps_from_learning_are_left_out():
    whole, some = (
        clip(1, *groups).squares(GRADIENT, slice(0, SIZE)) for groups in ([], [{"match": "b", "lr_scale": 0}])
    )
    assert whole - some == pytest.approx(float((GRADIENT[48:68].astype(np.float64) ** 2).sum()))


def test_only_what_learns_is_scaled():
    gradient = GRADIENT.copy()
    clip(1).apply(0.5, gradient, slice(10, 100))
    scaled = np.r_[10:30, 48:68, 96:100]
    np.testing.assert_array_equal(gradient[scaled], GRADIENT[scaled] / 2)
    rest = np.setdiff1d(np.arange(SIZE), scaled)
    np.testing.assert_array_equal(gradient[rest], GRADIENT[rest])


def test_a_large_part_is_summed_in_float64():
    entry, gradient = Entry("w", (1 << 18,), 0, 1 << 18), np.full(1 << 18, 1e-4, np.float32)
    gradient[0] = 1e3
    squares = NormClip(1, [entry], SGD(lr=0.1).proto, Ops()).squares(gradient, slice(0, gradient.size))
    assert squares == pytest.approx(1e6 + ((1 << 18) - 1) * float(np.float32(1e-4)) ** 2, rel=1e-13)


def test_all_ranks_have_the_same_factor():
    squares = [0.1, 1e-9, 7.3]
    found = run_threads(3, lambda comm: clip(0.5).scale(comm, squares[comm.rank], 2.0))
    assert found == [0.5 / math.sqrt(2.0 + sum(squares))] * 3


@pytest.mark.parametrize("squares", [0.0, 0.25, math.nan])
def test_a_norm_that_is_not_larger_changes_nothing(squares):
    assert clip(0.5).scale(SoloCommunicator(), squares) == 1.0


def test_own_shards_lie_behind_the_replicated_parameters():
    flat = FlatParams(None, None, ENTRIES[:1], [], 32)
    own = FlatParams(None, None, [Entry("t", (8,), 0, 8)], [], 16)
    made = norm_clip(SGD(lr=0.1, clip_norm=2).proto, flat, own, Ops())
    gradient = np.zeros(48)
    gradient[[3, 33]] = 3, 4
    assert made.squares(gradient, slice(0, 48)) == 25 and made.squares(gradient, slice(32, 48)) == 16
    assert made.scale(SoloCommunicator(), 25.0) == 0.4
    assert norm_clip(SGD(lr=0.1).proto, flat, own, Ops()) is None
