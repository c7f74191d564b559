"""What a worker is said to do in a step is what it does."""

from collections import Counter

import numpy as np
import pytest
from support import planned
from support.partitioned import Member

from singa_dask.algorithms import BP
from singa_dask.comm.threads import run_threads
from singa_dask.job import ClusterTopology
from singa_dask.layers import Convolution, InnerProduct, Pooling, RecordInput, ReLU, SoftmaxLoss, STanh
from singa_dask.planning.candidates import with_cluster
from singa_dask.planning.work import NBYTES, Collective, server_memory, worker_step

BATCH, SIZE = 12, 3
OUTPUTS, INPUTS = [{"partition_dim": 1}], [{"partition_dim": 0}]


def mlp(param=()):
    return [
        RecordInput("data", shape=[8], batchsize=BATCH),
        InnerProduct("fc1", num_output=12),
        STanh("tanh1"),
        InnerProduct("fc2", num_output=9, param=param),
        STanh("tanh2"),
        InnerProduct("fc3", num_output=5),
        SoftmaxLoss("loss"),
    ], (8,)


def cnn():
    return [
        RecordInput("data", shape=[1, 9, 9], batchsize=BATCH),
        Convolution("conv1", num_filters=6, kernel=3, partition_dim=0),
        ReLU("relu1"),
        Pooling("pool1", pool="MAX", kernel=2, stride=2),
        InnerProduct("ip1", num_output=9, partition_dim=1),
        SoftmaxLoss("loss", partition_dim=0),
    ], (9, 9, 1)


def job_of(layers, dim):
    return planned.job_of(layers, ClusterTopology.allreduce(SIZE), dim)


def step_of(comm, job, shape):
    """What the last worker really does: its calls with the rows of their results, and the bytes that it sends."""
    member = Member(comm, job.neuralnet)
    calls, rows = [], {}

    def around(layer, way, call):
        def counted(*args):
            out = call(*args)
            calls.append((layer, way))
            if way == "forward" and hasattr(out, "shape"):
                rows[layer] = out.shape[0]
            return out

        return counted

    member.net.wrap_calls(around)
    draw = np.random.default_rng(0)
    batch = {"data": (draw.standard_normal((BATCH, *shape)), draw.integers(0, 5, BATCH))}
    BP().train_one_batch(member.net, *member.feed(batch, 0))
    return calls, rows, dict(member.group.comm.nbytes)


@pytest.mark.parametrize(("net", "dim"), [(mlp(), 0), (mlp(), 1), (mlp(OUTPUTS), 1), (mlp(INPUTS), 1), (cnn(), 0)])
def test_calls_rows_and_bytes_are_those_of_a_real_step(net, dim):
    layers, shape = net
    job = job_of(layers, dim)
    work = worker_step(job)
    calls, rows, nbytes = run_threads(SIZE, step_of, job, shape)[-1]
    assert [call.layer for call in work.forward] == [layer for layer, way in calls if way == "forward"]
    assert [call.layer for call in work.backward] == [layer for layer, way in calls if way == "backward"]
    for call in work.forward:
        if not call.moves and call.layer in rows:
            assert call.work.rows == rows[call.layer], call
    said = Counter()
    for call in work.calls:
        for c in call.collectives:
            said[c.operation] += 2 * c.sent(SIZE)  # the test computes in 8 bytes
    for operation in ("all_gather", "reduce_scatter", "all_to_all"):
        assert said[operation] == pytest.approx(nbytes.get(operation, 0), rel=0.05), operation
    assert bool(sum(said.values())) == any(shardings[0] != "batch" for shardings in work.shardings.values())


def test_parameters_are_replicated_or_split():
    whole, split = (worker_step(job_of(mlp()[0], dim)) for dim in (0, 1))
    assert (whole.own, split.rows, split.batch) == (0, BATCH // SIZE, BATCH)
    assert split.own > 0
    assert split.replicated < whole.replicated
    weights = [tuple(param.name for param in call.completes) for call in whole.backward if call.completes]
    assert weights == [("fc3_weight", "fc3_bias"), ("fc2_weight", "fc2_bias"), ("fc1_weight", "fc1_bias")]


def test_a_transition_backward_is_the_adjoint_of_the_one_forward():
    work = worker_step(job_of(mlp(INPUTS)[0], 1))
    ways = {
        name: [[c.operation for c in call.collectives] for call in calls if call.layer == name]
        for calls, name in ((work.forward, "fc2:batch"), (work.backward, "fc2:batch"))
    }
    assert ways["fc2:batch"] == [["all_gather"]]
    (forward,) = [call for call in work.forward if call.layer == "fc2:batch"]
    assert forward.collectives == (Collective("reduce_scatter", 4 * BATCH * 9),)


def test_servers_hold_values_and_the_updaters_state():
    def held(topology):
        job = with_cluster(planned.mlp(), topology.to_proto())
        job.updater.type = job.updater.kAdaGrad
        return server_memory(job, worker_step(job))

    whole = held(ClusterTopology.hogwild(2))
    assert whole >= 2 * NBYTES * (8 * 64 + 64 + 64 * 5 + 5)  # values and one array of state
    assert held(ClusterTopology.sandblaster(2, 2)) == pytest.approx(whole / 2, rel=0.1)
    assert held(ClusterTopology.allreduce(2)) == 0
