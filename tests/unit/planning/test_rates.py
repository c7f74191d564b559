"""What layers take, from the samples of a profile."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from singa_dask.errors import ConfigError
from singa_dask.planning.profile import LayerSample, Profile
from singa_dask.planning.rates import PARALLEL_SHARE, Rate, Rates
from singa_dask.planning.work import Work


def product(rows, inputs=64, outputs=32, **more):
    return Work("InnerProduct", rows, inputs, outputs, params=inputs * outputs, **more)


def plain(rows, size=100, kind="ReLU"):
    return Work(kind, rows, size, size)


def profile(*samples, cores=2):
    return Profile(cores=cores, layers=[LayerSample(*sample) for sample in samples])


OTHER_SHAPE = [(product(rows, 128, 128), seconds, seconds) for rows, seconds in ((8, 4.0), (16, 4.0), (256, 40.0))]
FEW_ROWS = profile(*OTHER_SHAPE, (product(8), 1.0, 2.0), (product(16), 1.0, 2.0))
LINE = profile((product(8), 1.0, 2.0), (product(16), 2.0, 6.0), (product(64), 3.0, 7.0))
ONE_ROW, TWO_ROWS = profile((plain(8), 1.0, 2.0)), profile((plain(8), 1.0, 2.0), (plain(16), 2.0, 6.0))
LEVELS = profile((plain(8), 1.0, 2.0, 1), (plain(8), 3.0, 6.0, 3), cores=4)
TWO_LEVELS = profile((plain(8), 1.0, 1.0, 1), (plain(8), 3.0, 3.0, 2))
BOTH = profile((product(8), 1.0, 2.0), (plain(8), 3.0, 6.0))
POOLING = profile((plain(8, kind="Pooling kernel=3"), 5.0, 5.0), (plain(8), 1.0, 1.0))
OTHERS = profile((plain(8), 1.0, 2.0), (plain(8, kind="LRN"), 3.0, 6.0), (product(8), 9.0, 9.0))
RATIO = profile((plain(8), 1.0, 1.0, 1), (plain(8), 1.5, 1.5, 2), (plain(8, 300), 4.0, 4.0, 1))
THREADS = profile((plain(8), 1.0, 3.0, 1, 1), (plain(8), 0.6, 1.8, 1, 2))  # a fifth is serial
USUAL = 1 - PARALLEL_SHARE + PARALLEL_SHARE / 4
# A profile, the cores of the machine that is asked about, a work, by how many, and what it takes.
FOUND = {
    "a measured work": (LINE, 2, product(8), {}, Rate(1.0, 2.0, known=True)),
    "between measured rows, on a straight line": (LINE, 2, product(12), {}, Rate(1.5, 4.0, known=True)),
    "beyond measured rows, on the last line": (TWO_ROWS, 2, plain(32), {}, Rate(4.0, 14.0, known=False)),
    "below measured rows, no less than in proportion": (TWO_ROWS, 2, plain(4), {}, Rate(0.5, 1.0, known=False)),
    "a single row count, in proportion": (ONE_ROW, 2, plain(4), {}, Rate(0.5, 1.0, known=False)),
    "few rows, as those of another shape": (FEW_ROWS, 2, product(256), {}, Rate(10.0, 20.0, known=False)),
    "another shape, by operations": (BOTH, 2, product(8, 128, 32), {}, Rate(2.0, 4.0, known=False)),
    "another shape, by elements": (BOTH, 2, plain(8, 200), {}, Rate(6.0, 12.0, known=False)),
    "no gradient for below, half the products": (BOTH, 2, product(8, gradient=False), {}, Rate(1.0, 1.0, known=False)),
    "other settings before other classes": (
        POOLING,
        2,
        plain(8, kind="Pooling kernel=2"),
        {},
        Rate(5, 5, known=False),
    ),
    "an unknown kind, as layers without parameters": (OTHERS, 2, plain(16, kind="Mine"), {}, Rate(4, 8, known=False)),
    "a concurrency between two": (LEVELS, 4, plain(8), {"concurrency": 2}, Rate(2.0, 4.0, known=True)),
    "a concurrency beyond": (LEVELS, 4, plain(8), {"concurrency": 4}, Rate(3.0, 6.0, known=False)),
    "a concurrency that takes turns": (LEVELS, 4, plain(8), {"concurrency": 8}, Rate(6.0, 12.0, known=False)),
    "a concurrency's share of more cores": (TWO_LEVELS, 11, plain(8), {"concurrency": 6}, Rate(2.0, 2.0, known=False)),
    "a larger concurrency's share": (TWO_LEVELS, 11, plain(8), {"concurrency": 22}, Rate(6.0, 6.0, known=False)),
    "by the ratio of its kind": (RATIO, 2, plain(8, 300), {"concurrency": 2}, Rate(6.0, 6.0, known=False)),
    "measured threads": (THREADS, 2, plain(8), {"threads": 2}, Rate(0.6, 1.8, known=True)),
    "other threads, by Amdahl's law": (THREADS, 2, plain(8), {"threads": 4}, Rate(0.4, 1.2, known=False)),
    "threads by a usual share": (ONE_ROW, 2, plain(8), {"threads": 4}, Rate(USUAL, 2 * USUAL, known=False)),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_a_layer_takes(name):
    measured, cores, work, asked, expected = FOUND[name]
    found = Rates(measured, cores=cores).layer(work, **asked)
    assert (found.forward, found.backward) == pytest.approx((expected.forward, expected.backward))
    assert found.known == expected.known


def test_nearer_shapes_weigh_more():
    samples = (product(8, 64, 64), 1.0, 1.0), (product(8, 1024, 1024), 1.0, 1.0)
    near = Rates(profile(*samples)).layer(product(8, 80, 64)).forward
    assert near == pytest.approx(80 / 64, rel=0.1)


def test_a_profile_without_layers_is_refused():
    with pytest.raises(ConfigError, match="no samples of layers"):
        Rates(Profile())


ROWS = st.integers(1, 4096)
SIZES = st.sampled_from((16, 64, 100, 512))


@st.composite
def profiles(draw):
    """Of a few products and elementwise layers, each at some rows; more rows take longer."""
    samples = []
    for size in draw(st.sets(SIZES, min_size=1)):
        make = draw(st.sampled_from((product, plain)))
        seconds = 0.0
        for rows in sorted(draw(st.sets(ROWS, min_size=1, max_size=4))):
            seconds += draw(st.floats(0, 10))
            samples.append((make(rows, size), seconds, 2 * seconds))
    return profile(*samples)


@given(profiles(), SIZES, st.sampled_from((product, plain)), ROWS, ROWS, st.integers(1, 5))
def test_more_rows_never_take_less(profile, size, make, a, b, concurrency):
    rates = Rates(profile)
    few, many = (rates.layer(make(rows, size), concurrency) for rows in sorted((a, b)))
    assert many.forward >= few.forward * (1 - 1e-9)
    assert many.backward >= few.backward * (1 - 1e-9)


def test_many_samples_are_searched_within_the_budget_of_a_test():
    samples = [(product(rows, i, o), 1.0, 1.0) for rows in (8, 64) for i in range(8, 258, 8) for o in range(8, 258, 8)]
    rates = Rates(profile(*samples))
    assert all(rates.layer(replace(product(32, 100 + i, 77), steps=2)).forward > 0 for i in range(100))
