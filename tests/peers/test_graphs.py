"""Random graphs in loops, models and jobs: the same losses and parameters, and gradients as differences say."""

from __future__ import annotations

import random

import numpy as np
import pytest
from peers.graphs import INPUTS, MOST, ROWS, Graph, data
from simulation.batch import seed_of_tree

from singa_dask import ClusterTopology, Job, Model, autograd, layers, updaters
from singa_dask.comm import run_threads
from singa_dask.layers import Step
from singa_dask.loops.distopt import DistOpt
from singa_dask.net import Batch
from singa_dask.ops import get_ops
from singa_dask.tensors.device import set_default_dtype
from singa_dask.tensors.tensor import Tensor
from singa_dask.training.replica import Replica

STEPS, FEW, MANY, BATCH = 3, 100, 1500, 25
FEW_JOBS, MANY_JOBS = 15, 300
RULE = {"lr": 0.01, "momentum": 0.5}
_draw = random.Random(seed_of_tree())
_NOW = [_draw.randrange(10**6) for _ in range(FEW)]


@pytest.fixture
def float64():
    set_default_dtype(np.float64)
    yield
    set_default_dtype(np.float32)


class Kink(Exception):
    pass


def looped(seed):
    """The losses of a loop, and its parameters. Also checks the gradient of the first step along a direction."""
    autograd.set_seed(seed)
    net, (x, y) = Graph(seed), data(seed, STEPS)
    loss_of, opt, losses = layers.MSELoss(), DistOpt(updaters.SGD(**RULE)), []
    autograd.training = True
    try:
        for step in range(STEPS):
            loss = loss_of(net(Tensor.of(x[step])), Tensor.of(y[step]))
            if step == 0:
                start = net.state_dict()
                check_gradient(net, loss, lambda: loss_of(net(Tensor.of(x[0])), Tensor.of(y[0])).item(), seed)
                net.load_state_dict(start)
                loss = loss_of(net(Tensor.of(x[0])), Tensor.of(y[0]))
            losses.append(loss.item())
            opt.backward_and_update(loss)
    finally:
        autograd.training = False
    return losses, start, net.state_dict()


def check_gradient(net, loss, value, seed):
    """A central difference along a drawn direction of all parameters but running statistics. Raises Kink where the
    loss has no derivative, since a maximum ties."""
    pairs = [(param, gradient.to_numpy()) for param, gradient in autograd.backward(loss)]
    pairs = [(param, gradient) for param, gradient in pairs if not param.name.endswith(("_mean", "_var"))]
    rng, before = np.random.default_rng(seed), [param.to_numpy() for param, _ in pairs]
    ways = [rng.normal(size=array.shape) for array in before]
    expected = sum(float(np.vdot(gradient, way)) for (_, gradient), way in zip(pairs, ways, strict=True))

    def moved(by):
        for (param, _), array, way in zip(pairs, before, ways, strict=True):
            param.copy_from_numpy(array + by * way)
        return value()

    eps, here = 1e-6, value()
    (above, below), near = (((moved(by) - here) / by, (here - moved(-by)) / by) for by in (eps, eps / 8))
    moved(0)
    bend, scale = abs(above - below), max(1, abs(expected), abs(here))
    if bend > 1e-3 * scale or (bend > 1e-6 * scale and abs(near[0] - near[1]) > bend / 2):  # a bend shrinks with eps
        raise Kink
    assert (above + below) / 2 == pytest.approx(expected, rel=1e-4, abs=1e-6 * max(1, abs(loss.item()))), (
        f"graph {seed}"
    )


def modelled(seed, start):
    net, (x, y) = Graph(seed), data(seed, STEPS)
    inputs = layers.RecordInput("x", shape=[INPUTS], target_shape=[2])
    model = Model([layers.MSELoss()(net(inputs), inputs)], dtype=np.float64)
    model.load_state_dict({name: start[name] for name in model.state_dict()})
    opt, losses = DistOpt(updaters.SGD(**RULE), model), []
    for step in range(STEPS):
        loss = model(x[step], y[step])
        opt.backward_and_update(loss)
        losses.append(float(loss))
    return losses, model.state_dict()


def as_job(seed, start):
    """What the two workers of a job under AllReduce train, in float64 here and without files."""
    net, (x, y) = Graph(seed), data(seed, STEPS)
    inputs = layers.RecordInput("x", shape=[INPUTS], target_shape=[2], path="nowhere", batchsize=ROWS)
    loss, cluster = layers.MSELoss()(net(inputs), inputs), ClusterTopology.allreduce(2)
    job = Job(name="graph", layers=[loss], updater=updaters.SGD(**RULE), train_steps=STEPS, cluster=cluster).proto

    def worker(comm):
        replica = Replica.form(job, comm, get_ops("cpu", np.float64))
        net, first = replica.net, comm.rank * ROWS // 2
        replica.group_state.initialise({name: start[name] for name in net.named_params if name in start})
        replica.group_state.fetch()
        own, losses = slice(first, first + ROWS // 2), []
        for number in range(STEPS):
            step = Step(number=number, first_row=first, total_rows=ROWS)
            losses.append(replica.train_step({"x": Batch(x[number, own], y[number, own])}, step)["loss"].total / ROWS)
        state = {param.name: param.value.copy() for param in net.params}
        replica.close()
        return losses, state

    ranks = run_threads(2, worker)
    return np.sum([losses for losses, _ in ranks], axis=0), ranks[0][1]


def played(seeds, trained):
    """How many graphs do not count, since their values are too large or a maximum ties. trained: trains a graph from
    given parameters."""
    again = 0
    for seed in seeds:
        try:
            losses, start, state = looped(seed)
        except Kink:
            losses = [np.inf]
        if not max(map(abs, losses)) <= MOST:
            again += 1
            continue
        found, other = trained(seed, start)
        np.testing.assert_allclose(found, losses, rtol=1e-9, err_msg=f"graph {seed}")
        for name, array in state.items():  # of layers that do not reach the loss, nets have none
            np.testing.assert_allclose(
                array, other.get(name, start[name]), 1e-9, 1e-9, err_msg=f"graph {seed}: {name}"
            )
    return again


@pytest.mark.parametrize("first", range(0, FEW, BATCH))
def test_loops_and_models_train_random_graphs_alike(first, float64):
    assert played(_NOW[first : first + BATCH], modelled) <= BATCH * 0.2


def test_jobs_train_random_graphs_as_loops_do(float64):
    assert played(_NOW[:FEW_JOBS], as_job) < FEW_JOBS


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_many_random_graphs(float64):
    assert played(range(MANY), modelled) <= 0.05 * MANY


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_many_random_graphs_as_jobs(float64):
    assert played(range(MANY_JOBS), as_job) <= 0.05 * MANY_JOBS
