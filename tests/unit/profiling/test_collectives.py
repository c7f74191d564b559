"""Collectives, measured by threads."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from singa_dask.comm.threads import ThreadCommunicator
from singa_dask.profiling import collectives, shared
from singa_dask.profiling.collectives import CollectivesPlan, measure_collectives

pytestmark = pytest.mark.usefixtures("short_work")
NAMES = {"reduce_scatter", "all_gather", "all_reduce", "all_to_all", "barrier"}


@pytest.fixture
def short_work(monkeypatch):
    """Between barriers is less work than usual."""
    monkeypatch.setattr(collectives, "_COMPUTE_S", (1e-4, 4e-4))


def measured(ranks, where, seconds, **plan):
    comms = ThreadCommunicator.create(ranks)
    with ThreadPoolExecutor(ranks) as pool:
        plan = CollectivesPlan(where, 2, seconds, **plan)
        futures = [pool.submit(measure_collectives, comm, plan) for comm in comms]
        return [future.result() for future in futures], comms


@pytest.mark.parametrize("where", ["machine", "network"])
def test_every_rank_has_the_same_curves_under_the_names_of_the_contract(where, monkeypatch):
    monkeypatch.setattr(collectives, "SIZES", (256, 4096))
    monkeypatch.setattr(shared, "SIZES", shared.SIZES[:2])
    curves, comms = measured(2, where, 0.05)
    expected = {f"{name} {where} 2" for name in NAMES}
    if where == "machine":
        expected |= {"barrier shared 2", "shared 2"}
    assert curves[0].keys() == expected
    assert curves[0] == curves[1]
    assert [point.size for point in curves[0][f"all_to_all {where} 2"].points] == [256, 4096]
    assert all(point.seconds > 0 for point in curves[0][f"all_reduce {where} 2"].points)
    assert all(comm.hurried for comm in comms)


def test_without_time_two_sizes_tell_how_time_grows():
    curves, _ = measured(2, "network", 0.0)
    sizes = {name: [point.size for point in curve.points] for name, curve in curves[0].items()}
    assert sizes == {f"{name} network 2": [256, 1 << 20] if name != "barrier" else [0] for name in NAMES}


def test_sizes_that_would_take_too_long_are_left_out(monkeypatch):
    monkeypatch.setattr(collectives, "LONGEST_S", -1.0)
    curves, _ = measured(2, "network", 1.0)
    assert {len(curve.points) for name, curve in curves[0].items() if "barrier" not in name} == {2}


def test_barriers_alone_are_measured():
    curves, _ = measured(2, "machine", 0.2, operations=())
    assert [each.keys() for each in curves] == [{"barrier machine 2", "barrier shared 2"}] * 2
