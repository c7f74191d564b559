"""Costs of collectives."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from singa_dask.errors import ConfigError
from singa_dask.planning.collectives import Collectives
from singa_dask.planning.prediction import Machines
from singa_dask.planning.profile import Curve, Point, Profile

PER_HOST = Machines(cores=1, hosts=None, workers_per_host=1)


def line(latency, bandwidth):
    return Curve.of([Point(0, latency), Point(1e7, latency + 1e7 / bandwidth, 1e-3)])


def test_what_was_measured_is_taken():
    known = Profile(curves={"all_gather machine 2": line(1e-4, 1e9), "all_gather network 2": line(1e-3, 1e8)})
    assert Collectives(known, Machines(hosts=1)).cost("all_gather", 1e6, 2).seconds == pytest.approx(1.1e-3)
    cost = Collectives(known, PER_HOST).cost("all_gather", 1e7, 2)
    assert (cost.seconds, cost.cpu) == (pytest.approx(0.101), 1e-3)


def test_more_ranks_send_more_of_the_buffer_in_more_rounds():
    known = Profile(curves={"all_gather network 2": line(1e-3, 1e8)})
    cost = Collectives(known, PER_HOST).cost("all_gather", 1e7, 8)
    # 7/8 of the buffer instead of 1/2, and three rounds instead of one.
    assert cost.seconds == pytest.approx(1e-3 + 0.1 * (7 / 8) / (1 / 2) + 2 * (1e-3 + 4096 / 1e8))


def test_a_network_that_is_given_is_added_to_the_work_on_a_machine():
    known = Profile(curves={"all_reduce machine 2": line(1e-4, 1e9)})
    imagined = Machines(cores=2, hosts=None, workers_per_host=1, bandwidth=1e9, latency=5e-5)
    cost = Collectives(known, imagined).cost("all_reduce", 1e6, 4)
    assert cost.seconds == pytest.approx(1.1e-3 + 8e6 * 1.5 / 1e9 + 4 * 5e-5)


@given(st.integers(2, 1024), st.floats(1, 1e9), st.floats(1e6, 1e11))
def test_more_bytes_and_a_slower_network_take_longer(ranks, nbytes, bandwidth):
    known = Profile(curves={"reduce_scatter machine 2": line(1e-4, 1e9)})

    def seconds(nbytes, bandwidth):
        machines = Machines(hosts=None, workers_per_host=1, bandwidth=bandwidth, latency=1e-5)
        return Collectives(known, machines).cost("reduce_scatter", nbytes, ranks).seconds

    assert seconds(nbytes, bandwidth) <= seconds(2 * nbytes, bandwidth)
    assert seconds(nbytes, bandwidth) <= seconds(nbytes, bandwidth / 2)


def test_a_profile_without_collectives_says_what_to_do():
    with pytest.raises(ConfigError, match="singa-dask profile"):
        Collectives(Profile(), Machines(hosts=1)).cost("all_gather", 1e6, 2)
