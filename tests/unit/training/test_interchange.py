"""Checkpoints do not know about partitions: a run goes on under another one, or none, as if it had never stopped."""

import tracemalloc

import numpy as np
import pytest
from support.interchange import (
    CLOSE,
    HALF,
    PLANS,
    STEPS,
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
from singa_dask.exchange import portions
from singa_dask.job import ClusterTopology
from singa_dask.layers.partition import Form
from singa_dask.net import init
from singa_dask.net.flat import GroupLayout
from singa_dask.ops import get_ops
from singa_dask.server import LocalLink, Server
from singa_dask.training import checkpoint_file
from singa_dask.training.carried import gather_carried, share_carried
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
        param.portion.write(found[name], own)
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


@pytest.mark.parametrize("second", [Form.ROWS, Form.COLUMNS, Form.WHOLE])
@pytest.mark.parametrize("first", [Form.ROWS, Form.COLUMNS, Form.WHOLE])
def test_a_state_that_is_carried_reaches_any_partition(first, second, tmp_path):
    whole = [np.random.default_rng(i).random((7, 5), np.float32) for i in range(2)]

    def member(comm, form, saved):
        net = carrying(form, comm.rank, comm.size, whole)
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
    """Initialising and saving take a few blocks, restoring own portions of each updater state, once more."""
    block = 4096
    for module in (init, portions, checkpoint_file):
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
