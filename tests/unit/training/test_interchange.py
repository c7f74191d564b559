"""Checkpoints, and what ranks leave in memory, know no partitions: a run goes on as if it had never stopped."""

import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest
from support.interchange import (
    CLOSE,
    HALF,
    PLANS,
    STEPS,
    advance,
    begun,
    carrying,
    formed,
    job_of,
    on_workers,
    resumed,
    saved_after,
)
from support.snapshots import snapshot
from support.trained import assert_alike

from singa_dask.comm import run_threads
from singa_dask.exchange import sharded
from singa_dask.job import ClusterTopology
from singa_dask.layers import init
from singa_dask.layers.partition import Sharding
from singa_dask.memory.owner import WORKERS, Owner, Version
from singa_dask.net.flat import GroupLayout
from singa_dask.ops import get_ops
from singa_dask.server import LocalLink, Server
from singa_dask.training import checkpoint_file
from singa_dask.training.carried import gather_carried, joined_carried, own_carried, share_carried
from singa_dask.training.checkpoint import contribute, load, save
from singa_dask.training.placement import parameter_partition, server_plan


@pytest.mark.parametrize("second", PLANS)
@pytest.mark.parametrize("first", PLANS)
def test_a_run_goes_on_under_any_partition(first, second):
    saved = saved_after(first, HALF)
    ended = on_workers(second, lambda comm: snapshot(resumed(job_of(second), comm, saved), STEPS))[0]
    if first == second:
        assert_alike(ended, saved_after(first, STEPS))
    for checkpoint, steps in ((saved, HALF), (ended, STEPS)):
        assert_alike(checkpoint, saved_after("serial", steps), **CLOSE)
        assert checkpoint.ledger.encode() == [[1, 0, [[0, [0, steps], [0, steps], []]]]]


@pytest.mark.parametrize("plan", ["columns", "mixed"])
def test_given_parameters_reach_their_owners(plan):
    given = {name: np.asarray(value) + 7 for name, value in saved_after("serial", 0).parameters.items()}
    del given["ip2_weight"], given["ip3_bias"]

    def member(comm):
        replica = formed(job_of(plan), comm)
        for param in replica.net.params:
            param.proto.init.SetInParent()  # may be drawn
            param.proto.init.type = param.proto.init.kConstant
            param.proto.init.value = 0.5
        replica.group_state.initialise(given if comm.rank == 0 else None)
        return snapshot(replica, 0)

    found = on_workers(plan, member)[0].parameters
    for name, value in found.items():
        np.testing.assert_array_equal(value, given.get(name, np.full(value.shape, 0.5)))


def links_of(plan, servers, codec=None):
    """Links to servers elsewhere."""
    job = job_of(plan, codec=codec)
    net = on_workers(plan, lambda comm: formed(job, comm).net)[0]
    layout = GroupLayout.of(net.flat, net.own, PLANS[plan][0])
    cut = parameter_partition(ClusterTopology.from_proto(job.cluster), layout, job.updater)
    plans = [server_plan(job, layout.entries, cut.of_server(i)) for i in range(servers)]
    return {i: LocalLink(Server(each.protocol(get_ops("cpu")))) for i, each in enumerate(plans)}


def test_servers_elsewhere_are_asked_for_each_slice_once():
    job, links = job_of("mixed"), links_of("mixed", 3)
    asked = []

    def member(comm):
        replica = begun(job, comm, HALF, links)
        inspect = replica.stub.inspect
        replica.stub.inspect = lambda i: asked.append(replica.stub.slices[i].index) or inspect(i)
        return snapshot(replica, HALF), len(replica.stub.slices)

    found = run_threads(3, member)
    assert len(set(asked)) == len(asked) == sum(count for _, count in found)
    assert_alike(found[0][0], saved_after("serial", HALF), **CLOSE)

    def restored(comm, links):
        return snapshot(resumed(job, comm, found[0][0], links=links), STEPS)

    assert_alike(run_threads(3, restored, links_of("mixed", 3))[0], saved_after("serial", STEPS), **CLOSE)


def owed_by(replica):
    """What this worker has kept back or owes, by parameter, whole; zeros where it has nothing."""
    net, stages = replica.net, replica.stages
    kept = np.zeros(net.flat.size + net.own.size, np.float32) if stages.owed is None else stages.owed.copy()
    if stages.exchange.residual is not None:
        kept[: net.flat.size] += stages.exchange.residual
    found = net.flat.named(kept[: net.flat.size])
    for param, (name, own) in zip(net.own.params, net.own.named(kept[net.flat.size :]).items(), strict=True):
        found[name] = np.zeros(param.whole_shape, np.float32)
        param.shard.write(found[name], own)
    return found


@pytest.mark.parametrize(
    ("second", "codec"), [("rows", "kTopK"), ("mixed", "kTopK"), ("mixed", None), ("columns", None), ("serial", None)]
)
@pytest.mark.parametrize("first", ["rows", "mixed"])
def test_what_codecs_kept_back_is_owed_under_any_partition(first, second, codec):
    def half(comm):
        replica = begun(job_of(first, codec="kTopK"), comm, HALF)
        return owed_by(replica), snapshot(replica, HALF)

    found = on_workers(first, half)
    saved = found[0][1]
    results = on_workers(second, lambda comm: owed_by(resumed(job_of(second, codec=codec), comm, saved, HALF)))
    assert any(total.any() for total in found[0][0].values())
    for name in saved.parameters:
        expected = sum(owed[name] for owed, _ in found)
        np.testing.assert_allclose(sum(owed[name] for owed in results), expected, rtol=1e-5, atol=1e-8, err_msg=name)


@pytest.mark.parametrize("second", [Sharding.BATCH, Sharding.FEATURES, Sharding.REPLICATED])
@pytest.mark.parametrize("first", [Sharding.BATCH, Sharding.FEATURES, Sharding.REPLICATED])
def test_a_state_that_is_carried_reaches_any_partition(first, second, tmp_path):
    whole = [np.random.default_rng(i).random((7, 5), np.float32) for i in range(2)]

    def member(comm, sharding, saved):
        net = carrying(sharding, comm.rank, comm.size, whole)
        if saved is not None:
            expected, net.state = net.state, {}
            share_carried(net, comm, saved if comm.rank == 0 else None)
            for array, wanted in zip(net.state["ip1"], expected["ip1"], strict=True):
                np.testing.assert_array_equal(array, wanted)
        found = gather_carried(net, comm)["ip1"]
        return [
            np.concatenate(blocks).reshape(array.shape) if (blocks := list(array.blocks())) else None
            for array in found
        ]

    saved = run_threads(3, member, first, None)[0]
    np.testing.assert_array_equal(saved, whole)
    run_threads(2, member, second, {"ip1": saved})


def test_no_worker_holds_the_whole_model_to_save_or_restore_it(tmp_path, monkeypatch):
    """Initialising and saving take a few blocks, restoring own shards of each updater state, once more."""
    block = 4096
    for module in (init, sharded, checkpoint_file):
        monkeypatch.setattr(module, "BLOCK", block)
    job, peaks = job_of("columns", hidden=60_000), {}

    def measured(name, comm, call):
        comm.barrier()
        if comm.rank == 0:
            tracemalloc.reset_peak()
            peaks[name] = -tracemalloc.get_traced_memory()[0]
        comm.barrier()
        result = call()
        comm.barrier()
        if comm.rank == 0:
            peaks[name] += tracemalloc.get_traced_memory()[1]
        return result

    def member(comm):
        path, replica = tmp_path / "c.h5", formed(job, comm)
        measured("initialise", comm, replica.group_state.initialise)
        found = replica.group_state.snapshot(0, "", {}, replica.comm)
        measured("save", comm, lambda: contribute(found) if comm.rank else save(found, path))
        saved = measured("load", comm, lambda: None if comm.rank else load(path))
        measured("restore", comm, lambda: replica.group_state.restore(saved))
        return replica.net.flat.size, replica.net.own.size

    tracemalloc.start()
    try:
        sizes = run_threads(2, member)
    finally:
        tracemalloc.stop()
    replicated, model = sizes[0][0], sum(own for _, own in sizes)
    few = 20 * block * 4
    assert replicated * 100 < model and few < model * 4 / 10
    assert max(peaks["initialise"], peaks["save"], peaks["load"]) < few, peaks
    assert peaks["restore"] < model * 4 + few, peaks  # of both workers together


UNSPLIT = [name for name, (_, dims) in PLANS.items() if dims == "000"]


def with_shadow(job, comm, held=None):
    """A replica whose rank's shadow is in `held`, by rank."""

    def hold(saved, *, only=False, also=""):
        held[comm.rank] = saved
        return True

    own = {"owner": Owner(WORKERS, 0, comm.rank, comm.size), "version": Version("run", 1)}
    holder = SimpleNamespace(place=("machine", f"nanny {comm.rank}"), hold=hold, **own)
    return formed(job, comm, holder=holder)


def begun_with_shadow(job, comm, held, steps=HALF):
    replica = with_shadow(job, comm, held)
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
    replicas = on_workers(plan, lambda comm: begun_with_shadow(job, comm, held, steps))
    return replicas, [held[rank] for rank in range(len(replicas))]


def recovered(job, comm, left, steps=STEPS):
    replica = with_shadow(job, comm)
    assert replica.group_state.recover(left) is not None
    assert replica.group_state.fetch() == HALF
    advance(replica, HALF, steps)
    return replica


def ended(plan, left, **options):
    """The checkpoint at the end of a run that resumes from there."""
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
        replica = with_shadow(job_of("mixed"), comm)
        before = replica.net.flat.values.copy()
        assert replica.group_state.recover(left) is None
        np.testing.assert_array_equal(replica.net.flat.values, before)

    on_workers("mixed", member)
    assert replicas


def forget(replica, version):
    """The rank was killed before, or while, it made this version: no copy of it is whole."""
    for region in replica.shadow.slices.values():
        for copy in region._images:
            if copy.version == version:
                copy.head[0] = 0


@pytest.mark.parametrize("late", [(0,), (1,), (0, 2), (0, 1, 2, 3)])
def test_ranks_that_were_lost_in_the_midst_of_a_step_go_back_to_its_start(late):
    replicas, left = left_by(job_of("four"), "four", HALF + 1)
    for rank in late:
        forget(replicas[rank], HALF + 1)
    assert_alike(ended("four", left), saved_after("four", STEPS))


def test_a_rank_without_slices_leaves_nothing_and_lacks_nothing():
    replicas, left = left_by(job_of("rows", servers=1), "rows")
    assert left[0].regions[0].layouts and not left[1].regions[0].layouts
    assert_alike(ended("rows", left, servers=1), saved_after("rows", STEPS), **CLOSE)
    assert replicas


@pytest.mark.parametrize("damage", ["gone", "torn"])
def test_without_the_memory_of_a_rank_nothing_changes(damage):
    replicas, left = left_by(job_of("rows"), "rows")
    if damage == "gone":
        del replicas.pop().shadow
    for version in (HALF - 1, HALF) if damage == "torn" else ():
        forget(replicas[0], version)
    assert on_workers("rows", lambda comm: with_shadow(job_of("rows"), comm).group_state.recover(left)) == [None, None]


def test_decisions_are_left_also_where_slices_are_seldom_copied():
    job, held = job_of("rows"), {}

    def decides(comm):
        replica = begun_with_shadow(job, comm, held)
        replica.shadow.slices.pace.every = HALF + 1
        replica.shadow.save_moving(HALF, {"carried": {}, "decisions": {"reductions": 2}})
        return replica

    replicas = on_workers("rows", decides)
    found = on_workers("rows", lambda comm: with_shadow(job, comm).group_state.recover([held[0], held[1]]))
    assert found == [{"reductions": 2}] * 2
    assert replicas


@pytest.mark.parametrize("plan", ["rows", "mixed"])
def test_residuals_move_with_the_ranks(plan):
    job = job_of(plan, codec="kTopK")
    replicas, left = left_by(job, plan)
    expected = on_workers(plan, lambda comm: snapshot(begun_with_shadow(job, comm, {}, STEPS), STEPS))[0]
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


@pytest.mark.parametrize("sharding", [Sharding.BATCH, Sharding.FEATURES, Sharding.REPLICATED])
def test_the_shares_of_a_carried_state_make_it_whole(sharding):
    whole = np.random.default_rng(0).random((7, 5), np.float32)
    shares = [own_carried(carrying(sharding, rank, 3, [whole])) for rank in range(3)]
    np.testing.assert_array_equal(joined_carried(shares)["ip1"][0], whole)
