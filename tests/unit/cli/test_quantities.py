"""Quantities on the command line."""

import click
import pytest

from singa_dask.cli.quantities import BANDWIDTH, LATENCY, SIZE, Counts, Names


def converted(kind, text):
    return kind.convert(text, None, None)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (BANDWIDTH, "1Gbit", 1e9),
        (BANDWIDTH, "2.5 gbit/s", 2.5e9),
        (LATENCY, "50us", 50e-6),
        (SIZE, "1GiB", 2**30),
        (Counts(), "8, 1,2", [1, 2, 8]),
        (Counts(), "1,...,1024", [2**i for i in range(11)]),
        (Counts(), "3,…,10", [3, 6, 10]),
        (Names(("a", "b")), "B,a", ("b", "a")),
        (Names(("a", "b")), (), ()),
    ],
)
def test_what_users_write_is_read(kind, text, value):
    assert (
        converted(kind, text) == pytest.approx(value) if isinstance(value, float) else converted(kind, text) == value
    )


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        (BANDWIDTH, "1", "has no unit. Use Mbit, Gbit; for example 1Gbit."),
        (BANDWIDTH, "1GB", "unknown unit 'GB'"),
        (LATENCY, "-5us", "is not a positive number with a unit. For example 50us."),
        (LATENCY, "0us", "is not a positive number"),
        (SIZE, "8GB/s", "unknown unit"),
        (Counts(), "1,x", "'x' is not a whole number from 1 on. For example 1,2,4,8"),
        (Counts(), "...,8", "'...' is not a whole number"),
        (Counts(), "0", "'0' is not"),
        (Counts(), "1,...", "a number must follow the ellipsis"),
        (Names(("a", "b")), "c", "'c' is unknown. Valid: a, b."),
    ],
)
def test_what_is_wrong_is_named_with_an_example(kind, text, says):
    with pytest.raises(click.BadParameter) as caught:
        converted(kind, text)
    assert says in caught.value.message
