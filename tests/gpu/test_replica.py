"""Workers with a GPU each: the buckets travel between the GPUs, and the values are those of one worker on a CPU.

The stand-in's arrays refuse to mix with those of the host.
"""

from functools import partial

import numpy as np
import pytest
from google.protobuf import text_format
from support.snapshots import snapshot

from singa_dask.comm import form_nccl, run_threads
from singa_dask.comm.solo import SoloCommunicator
from singa_dask.job.job_pb2 import JobProto, Phase
from singa_dask.layers.context import Step
from singa_dask.net import Batch
from singa_dask.ops import get_ops
from singa_dask.training.replica import Replica

BATCH, STEPS = 12, 4
NET = """
name: "small" seed: 3
train_one_batch { alg: kBP }
cluster { nworkers_per_group: %(n)d nservers_per_group: %(n)d bucket_size: %(bucket)d }
updater { type: kSGD momentum: 0.9 learning_rate { type: kFixed base_lr: 0.05 } }
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { batchsize: 12 shape: 20 } }
  layer { name: "hidden" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 9 } }
  layer { name: "norm" type: kBM srclayers: "hidden" }
  layer { name: "relu" type: kReLU srclayers: "norm" }
  layer { name: "ip" type: kInnerProduct srclayers: "relu" innerproduct_conf { num_output: 5 } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "ip" srclayers: "data" }
}
"""


def job_of(n, bucket=262144):
    return text_format.Parse(NET % {"n": n, "bucket": bucket}, JobProto())


def advance(replica, comm, first, last):
    bounds = np.linspace(0, BATCH, comm.size + 1).astype(int)
    low, high = bounds[comm.rank], bounds[comm.rank + 1]
    for number in range(first, last):
        draw = np.random.default_rng(number)
        features, labels = draw.random((BATCH, 20), np.float32), draw.integers(0, 5, BATCH)
        feed = {"data": Batch(features[low:high], labels[low:high])}
        replica.train_step(feed, Step(Phase.kTrain, number, replica.job.seed, low, BATCH))


def values_of_one_worker():
    """On the CPU, by name."""
    serial = Replica.form(job_of(1), SoloCommunicator(), get_ops("cpu"))
    serial.group_state.initialise()
    advance(serial, serial.comm, 0, STEPS)
    return serial.net.flat.named(serial.net.flat.values)


def on_gpus(control, job):
    ops = get_ops("gpu", device_id=control.rank)
    device_comm = form_nccl(control, control.rank)
    replica = Replica.form(job, control, ops, device_comm=device_comm)
    replica.group_state.initialise()
    advance(replica, control, 0, STEPS)
    found = snapshot(replica, STEPS)
    operations, values = replica.operations, ops.to_host(replica.net.flat.values)
    staged = [use for use in device_comm._buffers if use.startswith(("reduce_scatter", "all_gather"))]
    replica.close()
    device_comm.close()
    return found, operations, values, staged


@pytest.mark.timeout(240)
@pytest.mark.parametrize("bucket", [262144, 16])
def test_workers_on_gpus_equal_one_on_a_cpu(gpus, bucket):
    expected = values_of_one_worker()
    results = run_threads(gpus, on_gpus, job_of(gpus, bucket), timeout_s=120)
    for _, operations, values, staged in results:
        np.testing.assert_array_equal(values, results[0][2])
        assert staged == [], "no bucket came to the host"
        assert "reduce_scatter" not in operations
    for name in ("device reduce_scatter", "device all_gather"):  # each rank's own share stays where it is
        sent = sum(operations[name]["bytes"] for _, operations, *_ in results if name in operations)
        assert sent == STEPS * (gpus - 1) * results[0][2].nbytes
    for name, value in expected.items():
        np.testing.assert_allclose(results[0][0].parameters[name], value, rtol=1e-3, atol=1e-5)


def test_a_worker_on_its_own_keeps_the_parameters_on_its_gpu(gpus, monkeypatch):
    ops = get_ops("gpu")
    replica = Replica.form(job_of(1), SoloCommunicator(), ops, device_comm=SoloCommunicator())
    replica.group_state.initialise()
    moved, to_host, asarray = [], ops.to_host, ops.asarray

    def noted(way, array, *args):
        moved.append(array.size)
        return way(array, *args)

    monkeypatch.setattr(ops, "to_host", partial(noted, to_host))
    monkeypatch.setattr(ops, "asarray", lambda a, *args: noted(asarray, a, *args) if type(a) is np.ndarray else a)
    advance(replica, replica.comm, 0, STEPS)
    assert 0 < max(moved) <= BATCH * 20 < replica.net.flat.size, "the mini-batch, and sums of a few features"
    values = replica.net.flat.named(to_host(replica.net.flat.values))
    for name, value in values_of_one_worker().items():
        np.testing.assert_allclose(values[name], value, rtol=1e-3, atol=1e-5)


@pytest.mark.timeout(240)
def test_sums_of_batch_normalisation_travel_between_the_gpus(gpus):
    def trained(control):
        ops, device_comm = get_ops("gpu", device_id=control.rank), form_nccl(control, control.rank)
        replica = Replica.form(job_of(gpus), control, ops, device_comm=device_comm)
        replica.group_state.initialise()
        before = control.operations.get("all_reduce", {"bytes": 0})["bytes"]
        advance(replica, control, 0, STEPS)
        on_host = control.operations.get("all_reduce", {"bytes": 0})["bytes"] - before
        between = replica.operations.get("device all_reduce", {"bytes": 0})["bytes"]
        staged = [use for use in device_comm._buffers if use.startswith("all_reduce")]
        replica.close()
        device_comm.close()
        return on_host, between, staged

    # Of 9 features: sums and the number of rows, squares, two sums in the backward pass.
    sums = 8 * (9 + 1 + 9 + 2 * 9) * STEPS if gpus > 1 else 0
    assert run_threads(gpus, trained, timeout_s=120) == [(0, sums, [])] * gpus


@pytest.mark.parametrize("updates_on_the_gpu", [True, False])
def test_a_worker_on_its_own_needs_no_host_for_batch_normalisation(gpus, monkeypatch, updates_on_the_gpu):
    ops, device_comm = get_ops("gpu"), SoloCommunicator() if updates_on_the_gpu else None
    replica = Replica.form(job_of(1), SoloCommunicator(), ops, device_comm=device_comm)
    replica.group_state.initialise()
    features, moved = 9, []
    asarray, to_host = ops.asarray, ops.to_host

    def noted(array, way, *args):
        if array.size <= 2 * features:
            moved.append(array.shape)
        return way(array, *args)

    monkeypatch.setattr(ops, "to_host", lambda array: noted(array, to_host))
    monkeypatch.setattr(ops, "asarray", lambda a, *args: noted(a, asarray, *args) if type(a) is np.ndarray else a)
    advance(replica, replica.comm, 0, STEPS)
    assert moved == [(BATCH,), (2,)] * STEPS, "the labels, and the numbers of the loss"
