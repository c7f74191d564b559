"""Images of a rank's state on a GPU: they are copied beside its work, and are whole in time."""

from types import SimpleNamespace

import numpy as np
import pytest
from support.interchange import CLOSE, HALF, PLANS, STEPS, advance, job_of, on_workers, saved_after
from support.snapshots import snapshot
from support.trained import assert_alike

from singa_dask.comm import form_nccl
from singa_dask.memory.owner import WORKERS, Owner, Version
from singa_dask.memory.region import VALUES, ImageLayout, Regions
from singa_dask.ops import get_ops
from singa_dask.ops.gpu.ops import GpuOps
from singa_dask.server.clocks import SliceNote
from singa_dask.training.replica import Replica

KEY = (0, "")


@pytest.fixture
def saving(cupy):
    """Ops on a GPU, and a region to which it copies."""
    ops = GpuOps()
    return ops, Regions.create([ImageLayout(KEY, 0, 5000, (VALUES, "v"))], copies=ops.copies)[KEY]


def save(ops, region, version):
    arrays = {name: ops.xp.full(5000, version + i, np.float32) for i, name in enumerate((VALUES, "v"))}
    region.save(version, arrays, b"%d" % version)
    return arrays


def seen(region):
    return [(of.version, of.note, [{*array.tolist()} for array in of.arrays.values()]) for of in region.images]


def whole(*versions):
    return [(version, b"%d" % version, [{version}, {version + 1}]) for version in versions]


def test_an_image_counts_once_all_of_it_is_there_and_the_former_one_until_then(saving):
    ops, region = saving
    save(ops, region, 1)
    assert seen(region) == []
    region.finish()
    assert seen(region) == whole(1)
    arrays = save(ops, region, 2)
    assert seen(region) == whole(1)
    region.finish()
    arrays[VALUES].fill(9)  # as the next update does
    assert seen(region) == whole(1, 2)
    save(ops, region, 3)
    save(ops, region, 4)  # waits for the one before
    assert seen(region) == whole(3)


def test_arrays_whose_memory_is_free_again_are_kept_until_they_are_copied(saving):
    ops, region = saving
    save(ops, region, 1)
    others = [ops.xp.full(5000, 7, np.float32) for _ in range(8)]  # of the pool
    region.finish()
    assert seen(region) == whole(1) and len(others) == 8


def test_copies_make_the_host_wait_at_most_once_a_step(saving, emulated):
    ops, region = saving
    save(ops, region, 1)
    emulated.counts()
    region.finish()
    save(ops, region, 2)
    counts = emulated.counts()
    assert counts.get("wait", 0) <= 1 and counts["download"] == 2


def group(plan, steps, held, left=None, devices=0, seen=lambda replica: None):
    """The checkpoint of a group that leaves images in `held`, after so many steps. left: what it resumes from.
    devices: of the machine; 0 for the CPU. seen: called before a rank sends anything of a step."""
    job = job_of(plan)

    def member(comm):
        def hold(saved, *, only=False, also=""):
            held[comm.rank] = saved
            return True

        owner, version = Owner(WORKERS, 0, comm.rank, comm.size), Version("run", 1)
        holder = SimpleNamespace(place=("machine", f"nanny {comm.rank}"), hold=hold, owner=owner, version=version)
        ops, wired = get_ops("cpu"), None
        if devices:
            ops = GpuOps(device_id=comm.rank % devices)
            wired = form_nccl(comm, comm.rank) if 1 < comm.size <= devices else None
        replica = Replica.form(job, comm, ops, device_comm=wired, holder=holder)
        send_first = replica.stages._send_first

        def sent():
            begins = replica.stages._begins
            send_first()
            if begins:
                seen(replica)

        replica.stages._send_first = sent
        if left is None:
            replica.group_state.initialise()
        else:
            assert replica.group_state.recover(left) is not None
        first = replica.group_state.fetch()
        replica.shadow.hold()
        advance(replica, first, steps)
        replica.drain()
        return replica, snapshot(replica, steps)

    made = on_workers(plan, member)
    return [replica for replica, _ in made], made[0][1]


@pytest.fixture
def devices(plan, gpus):
    count = PLANS[plan][0]
    if count > gpus:
        pytest.skip(f"needs {count} GPUs")
    return gpus


@pytest.mark.parametrize("plan", ["serial", "rows", "columns", "mixed"])
def test_before_a_rank_sends_anything_of_a_step_it_has_the_images_of_the_last_one(plan, devices):
    """So whichever rank is lost, the images of all others have its last step too."""
    checked = []

    def seen(replica):
        stages, step = replica.stages, replica.stages._step
        for (index, _), region in replica.shadow.slices.items():
            s = next(s for s in replica.stub.slices if s.index == index)
            image, values = region.newest, replica.net.ops.to_host(stages.values[s.start : s.stop])
            assert image.version == step == SliceNote.decode(image.note).ledger.next(0)
            np.testing.assert_array_equal(image.arrays[VALUES], values)
            checked.append(step)

    group(plan, STEPS, {}, devices=devices, seen=seen)
    assert {*checked} == {*range(STEPS)}


@pytest.mark.parametrize("second", ["gpu", "cpu"])
@pytest.mark.parametrize("plan", ["serial", "rows", "mixed"])
def test_a_group_resumes_from_the_images_of_a_lost_one(plan, devices, second):
    held = {}
    lost, _ = group(plan, HALF, held, devices=devices)
    left = [held[rank] for rank in range(len(lost))]
    _, ended = group(plan, STEPS, {}, left, devices=devices if second == "gpu" else 0)
    assert_alike(ended, saved_after("serial", STEPS), **CLOSE)


@pytest.mark.parametrize("late", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("plan", ["rows"])
def test_ranks_that_were_lost_in_the_midst_of_a_step_go_back_to_its_start(plan, devices, late):
    held = {}
    lost, _ = group(plan, HALF + 1, held, devices=devices)
    for rank in late:  # killed before it made this version
        for region in lost[rank].shadow.slices.values():
            next(image for image in region._images if image.version == HALF + 1).head[0] = 0
    _, ended = group(plan, STEPS, {}, [held[0], held[1]], devices=devices)
    assert_alike(ended, saved_after("serial", STEPS), **CLOSE)


def test_state_that_changes_with_each_step_stays_on_the_gpu(cupy):
    """Copying residuals would make each step wait: a loss resumes from the newest checkpoint in memory."""
    job, holder = job_of("rows", codec="kTopK"), SimpleNamespace(place=("machine", "nanny"))
    on_gpus = [GpuOps(), GpuOps()]
    replicas = on_workers("rows", lambda comm: Replica.form(job, comm, on_gpus[comm.rank], holder=holder))
    assert [replica.shadow for replica in replicas] == [None, None]
