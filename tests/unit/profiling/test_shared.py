"""The exchange in shared memory, measured between processes that share some."""

from support.one_machine import run_on_one_machine

from singa_dask.profiling import shared


def test_curves_are_the_same_on_every_rank():
    first, second = run_on_one_machine(2, shared.measure_shared)
    assert first == second
    assert first.keys() == {"shared 2"}
    points = first["shared 2"].points
    assert [point.size for point in points] == sorted(shared.SIZES)
    assert all(point.seconds > 0 for point in points)
