"""What becomes of a bucket in a job, with an exchange, a stub and a staging that note what is done with them."""

from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

from singa_dask.exchange.staging import InPlace
from singa_dask.job.job_pb2 import JobProto
from singa_dask.net.flat import Joined
from singa_dask.training.stages import ServerStages

SIZE = 4


class Noted:
    """Notes calls by name and bucket, and returns what `answers` says."""

    def __init__(self, name, log, **fields):
        self.name, self.log = name, log
        self.__dict__ |= fields

    def __getattr__(self, method):
        def call(*args, **options):
            plain = [arg for arg in args if not isinstance(arg, np.ndarray | Joined)]
            self.log.append((f"{self.name}.{method}", *plain, *options.values()))

        return call


def made(*, in_process, exact=True, in_place=False, behind=0, staleness=False):
    """Stages of two buckets, and the log."""
    log: list = []
    job = JobProto()
    if staleness:
        job.cluster.max_staleness = 3
    flat = SimpleNamespace(values=np.zeros(SIZE), grads=np.arange(SIZE, dtype=float), size=SIZE)
    ops = SimpleNamespace(empty=np.zeros, asarray=np.asarray)
    net = SimpleNamespace(flat=flat, own=SimpleNamespace(size=0), ops=ops)
    buckets = [SimpleNamespace(elements=slice(0, 2)), SimpleNamespace(elements=slice(2, 4))]
    parts = [slice(0, 1), slice(2, 3)]
    exchange = Noted("exchange", log, exact=exact, in_place=in_place, buckets=buckets, parts=parts)
    stub = Noted("stub", log, behind=behind, patience_s=77.0)
    staging = Noted("staging", log, at_once=True, values=flat.values, gradients=flat.grads)
    own = InPlace(np.empty(0), np.empty(0))
    staging.empty, staging.offered = lambda: np.zeros(SIZE), lambda new: new
    waits: list = []

    @contextmanager
    def patiently(seconds):
        waits.append(seconds)
        yield

    comm = SimpleNamespace(patiently=patiently)
    executor = SimpleNamespace(run=lambda call: call())
    stages = ServerStages(job, comm, net, exchange, stub, executor, staging, own, in_process_servers=in_process)
    log.clear()
    stages.begin(5)
    return stages, log, flat, waits


def passed(stages, bucket=1):
    for stage in (stages.prepare, stages.start, stages.update, stages.gather):
        stage(bucket)
    stages.finish()


def test_servers_of_the_process_update_a_bucket_as_soon_as_it_is_summed():
    stages, log, flat, _ = made(in_process=True)
    passed(stages)
    assert log == [
        ("exchange.begin", 5),
        ("staging.send", slice(2, 4)),
        ("exchange.prepare", 1),
        ("exchange.start_reduce_scatter", 1),
        ("exchange.reduce_scatter", 1),
        ("stub.push", 5, range(2, 3)),
        ("staging.offer", slice(2, 3)),
        ("exchange.start_all_gather", 1),
        ("exchange.all_gather", 1),
        ("staging.receive", slice(2, 4)),
        ("stub.pull",),
    ]
    assert stages.new is flat.values


def test_replies_of_servers_elsewhere_are_gathered_at_the_end():
    stages, log, _, waits = made(in_process=False)
    passed(stages)
    assert log[5:] == [
        ("stub.push", 5, range(2, 3)),
        ("stub.pull",),
        ("exchange.all_gather", 0),
        ("staging.receive", slice(0, 2)),
        ("exchange.all_gather", 1),
        ("staging.receive", slice(2, 4)),
    ]
    assert waits == []


@pytest.mark.parametrize("in_process", [True, False])
def test_a_group_that_servers_may_hold_back_is_patient(in_process):
    stages, _, _, waits = made(in_process=in_process, staleness=True)
    with stages.patiently():
        pass
    assert waits == ([] if in_process else [77.0])


@pytest.mark.parametrize("behind", [0, 1])
def test_draining_takes_the_replies_that_are_under_way(behind):
    stages, log, _, _ = made(in_process=False, behind=behind)
    log.clear()
    stages.drain()
    assert [call[0] for call in log] == ["stub.pull", *["exchange.all_gather", "staging.receive"] * 2] * behind
    assert log[:1] == [("stub.pull", True)] * behind, "everything"


@pytest.mark.parametrize("in_process", [True, False])
def test_values_are_gathered_exactly(in_process):
    stages, log, _, _ = made(in_process=in_process)
    log.clear()
    stages.gather_exactly()
    offered = [("staging.offer", slice(0, 1))] if in_process else []
    assert log[: len(offered) + 2] == [*offered, ("exchange.gather_exactly", 0), ("staging.receive", slice(0, 2))]
    assert len(log) == 2 * (len(offered) + 2)


@pytest.mark.parametrize("in_process", [True, False])
@pytest.mark.parametrize("exact", [True, False])
def test_the_servers_values_are_kept_apart_where_a_codec_changes_them(in_process, exact):
    stages, log, flat, _ = made(in_process=in_process, exact=exact)
    assert (stages.new is flat.values) == exact
    log.clear()
    stages.put(np.full(SIZE, 7.0), np.empty(0))
    assert log == [("staging.put",)]
    assert stages.new.tolist() == ([0.0] if exact else [7.0]) * SIZE, "else the staging sets it"


def test_gradients_that_no_codec_keeps_are_part_of_one_step():
    stages, _, flat, _ = made(in_process=True)
    stages.owed = np.array([10.0, 20.0, 30.0, 40.0])
    passed(stages, 1)
    assert flat.grads.tolist() == [0.0, 1.0, 32.0, 43.0] and stages.owed is None
    passed(stages, 0)
    assert flat.grads.tolist() == [0.0, 1.0, 32.0, 43.0]
