"""Ranks go on from what others have left in memory, as if these had never stopped."""

from types import SimpleNamespace

import numpy as np
import pytest
from support import interchange
from support.interchange import CLOSE, HALF, PLANS, STEPS, advance, carrying, job_of, on_workers, saved_after
from support.snapshots import snapshot
from support.trained import assert_alike

from singa_dask.layers.partition import Form
from singa_dask.training.carried import joined_carried, own_carried

UNSPLIT = [name for name, (_, dims) in PLANS.items() if dims == "000"]


def formed(job, comm, held=None):
    """A replica whose rank's shadow is in `held`, by rank."""

    def hold(address, *, only=False, also=""):
        held[comm.rank] = address
        return True

    holder = SimpleNamespace(place=("machine", f"nanny {comm.rank}"), hold=hold)
    return interchange.formed(job, comm, holder=holder)


def begun(job, comm, held, steps=HALF):
    replica = formed(job, comm, held)
    replica.group_state.initialise()
    replica.group_state.fetch()
    replica.shadow.hold()
    for step in range(steps):
        advance(replica, step, step + 1)
        if replica.group_state.moves:
            replica.shadow.save_moving(step + 1, replica.group_state.moving())
    return replica


def left_by(job, plan, steps=HALF):
    """What the ranks of a plan have left, and their replicas, which keep it in memory."""
    held = {}
    replicas = on_workers(plan, lambda comm: begun(job, comm, held, steps))
    return replicas, [held[rank] for rank in range(len(replicas))]


def recovered(job, comm, left, steps=STEPS):
    replica = formed(job, comm)
    assert replica.group_state.recover(left) is not None
    assert replica.group_state.fetch() == HALF
    advance(replica, HALF, steps)
    return replica


def ended(plan, left, **options):
    """The checkpoint at the end of a run that goes on from there."""
    job = job_of(plan, **options)
    return on_workers(plan, lambda comm: snapshot(recovered(job, comm, left), STEPS))[0]


def goes_on(first, second):
    return first == second or (first in UNSPLIT and second in UNSPLIT)


@pytest.mark.parametrize(("first", "second"), [(a, b) for a in PLANS for b in PLANS if goes_on(a, b)])
def test_a_group_goes_on_from_the_memory_of_another(first, second):
    replicas, left = left_by(job_of(first), first)
    saved = ended(second, left)
    if first == second:
        assert_alike(saved, saved_after(first, STEPS))
    assert_alike(saved, saved_after("serial", STEPS), **CLOSE)
    assert replicas


def test_split_layers_cannot_be_divided_anew():
    replicas, left = left_by(job_of("columns"), "columns")

    def member(comm):
        replica = formed(job_of("mixed"), comm)
        before = replica.net.flat.values.copy()
        assert replica.group_state.recover(left) is None
        np.testing.assert_array_equal(replica.net.flat.values, before)

    on_workers("mixed", member)
    assert replicas


def forget(replica, version):
    """The rank was killed before, or while, it made this version: no copy of it is whole."""
    for slice_shadow in replica.shadow.slices.slices.values():
        for copy in slice_shadow._copies:
            if copy.version == version:
                copy.head[0] = -1


@pytest.mark.parametrize("late", [(0,), (1,), (0, 2), (0, 1, 2, 3)])
def test_ranks_that_were_lost_in_the_midst_of_a_step_go_back_to_its_start(late):
    replicas, left = left_by(job_of("four"), "four", HALF + 1)
    for rank in late:
        forget(replicas[rank], HALF + 1)
    assert_alike(ended("four", left), saved_after("four", STEPS))


def test_a_rank_without_slices_leaves_nothing_and_lacks_nothing():
    replicas, left = left_by(job_of("rows", servers=1), "rows")
    assert left[0].slices.slices and not left[1].slices.slices
    assert_alike(ended("rows", left, servers=1), saved_after("rows", STEPS), **CLOSE)
    assert replicas


@pytest.mark.parametrize("damage", ["gone", "torn"])
def test_without_the_memory_of_a_rank_nothing_changes(damage):
    replicas, left = left_by(job_of("rows"), "rows")
    if damage == "gone":
        del replicas.pop().shadow
    for version in (HALF - 1, HALF) if damage == "torn" else ():
        forget(replicas[0], version)
    assert on_workers("rows", lambda comm: formed(job_of("rows"), comm).group_state.recover(left)) == [None, None]


def test_decisions_are_left_also_where_slices_are_seldom_copied():
    job, held = job_of("rows"), {}

    def decides(comm):
        replica = begun(job, comm, held)
        replica.shadow.slices.pace.every = HALF + 1
        replica.shadow.save_moving(HALF, {"carried": {}, "decisions": {"reductions": 2}})
        return replica

    replicas = on_workers("rows", decides)
    found = on_workers("rows", lambda comm: formed(job, comm).group_state.recover([held[0], held[1]]))
    assert [each["decisions"] for each in found] == [{"reductions": 2}] * 2
    assert replicas


@pytest.mark.parametrize("plan", ["rows", "mixed"])
def test_residuals_move_with_the_ranks(plan):
    job = job_of(plan, codec="kTopK")
    replicas, left = left_by(job, plan)
    expected = on_workers(plan, lambda comm: snapshot(begun(job, comm, {}, STEPS), STEPS))[0]
    found = ended(plan, left, codec="kTopK")
    assert_alike(found, expected)
    assert any(np.asarray(array).any() for array in expected.residuals["rank 0"].values())
    for name, kept in expected.residuals.items():
        for param, array in kept.items():
            np.testing.assert_array_equal(found.residuals[name][param], array)
    assert replicas


def test_a_smaller_group_owes_the_residuals_of_all():
    job = job_of("rows", codec="kTopK")
    replicas, left = left_by(job, "rows")
    (alone,) = on_workers("serial", lambda comm: recovered(job_of("serial"), comm, left, HALF))
    kept = sum(replica.exchange.residual for replica in replicas)
    assert kept.any()
    np.testing.assert_allclose(alone.stages.owed[: kept.size], kept, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("form", [Form.ROWS, Form.COLUMNS, Form.WHOLE])
def test_the_shares_of_a_carried_state_make_it_whole(form):
    whole = np.random.default_rng(0).random((7, 5), np.float32)
    shares = [own_carried(carrying(form, rank, 3, [whole])) for rank in range(3)]
    np.testing.assert_array_equal(joined_carried(shares)["ip1"][0], whole)
