"""Trains one net on threads that share its mini-batches, for comparison with the serial net."""

from __future__ import annotations

from typing import Any

import numpy as np

from singa_dask.comm.threads import run_threads
from singa_dask.exchange.executor import CollectiveExecutor
from singa_dask.exchange.group import CommGroup
from singa_dask.job.assemble import assemble
from singa_dask.job.job_pb2 import NetProto, Phase
from singa_dask.layers import Step
from singa_dask.layers.partition import even_bounds
from singa_dask.net import Batch, Net
from singa_dask.ops import Ops


def net_of(layers, **settings):
    return NetProto(layer=assemble(layers), **settings)


def batches(shape, classes, rows=7, count=3, seed=0):
    """Mini-batches of drawn samples and labels for an input layer called data."""
    rng = np.random.default_rng(seed)
    return [{"data": (rng.standard_normal((rows, *shape)), rng.integers(0, classes, rows))} for _ in range(count)]


class Member:
    """One worker's net. All its methods are collective."""

    def __init__(self, comm, proto, *, seed=0, phases=(Phase.kTrain,), dtype=np.float64, fold=True):
        self.comm, self.seed = comm, seed
        ops = Ops(dtype)
        self.nets = {}
        for phase in phases:
            share = self.nets.get(Phase.kTrain)
            self.nets[phase] = Net(proto, phase, ops, share, fold=fold, rank=comm.rank, size=comm.size)
        self.net = self.nets[Phase.kTrain]
        self.net.initialise(seed)
        self.group = CommGroup(CollectiveExecutor(comm, threaded=False), comm.split(0), ops)
        for net in self.nets.values():
            net.join(self.group)

    def feed(self, batches, number, phase=Phase.kTrain):
        """This worker's rows. batches: whole arrays (features, labels or None) by input layer."""
        rows = len(next(iter(batches.values()))[0])
        bounds = even_bounds(rows, self.comm.size)
        own = slice(bounds[self.comm.rank], bounds[self.comm.rank + 1])
        feed = {name: Batch(x[own], None if y is None else y[own]) for name, (x, y) in batches.items()}
        counts = tuple(np.diff(bounds).tolist())
        return feed, Step(phase, number, self.seed, own.start, rows, counts)

    def gradients(self, algorithm, batches, number):
        """Train one batch; the summed gradients are in the parameters. Returns the means of the metrics."""
        metrics = algorithm.train_one_batch(self.net, *self.feed(batches, number))
        self.comm.all_reduce(self.net.flat.grads)
        return self.means(metrics)

    def means(self, metrics):
        summed = np.array([[metric.total, metric.count] for metric in metrics.values()]).reshape(-1)
        self.comm.all_reduce(summed)
        return {name: total / count for name, (total, count) in zip(metrics, summed.reshape(-1, 2), strict=True)}

    def whole(self, what="value"):
        """Whole arrays of all parameters, by name: value or grad."""
        found = {}
        for param in self.net.params:
            array = np.zeros(param.whole_shape)
            if param.shard is None:
                array[...] = getattr(param, what)
            else:
                param.shard.write(array, getattr(param, what))
                self.comm.all_reduce(array.reshape(-1))
            found[param.name] = array
        return found


def train(comm, proto, algorithm, batches, lr=0.1, settings=None) -> dict[str, Any]:
    """A step of gradient descent per mini-batch. Returns losses, and whole parameters and last gradients by name."""
    member = Member(comm, proto, **(settings or {}))
    losses = []
    for number, batch in enumerate(batches):
        losses.append(member.gradients(algorithm, batch, number))
        for flat in (member.net.flat, member.net.own):
            flat.values -= lr * flat.grads
    values, grads = member.whole(), member.whole("grad")
    own = {param.name: param.shard for param in member.net.params if param.shard is not None}
    return {"losses": losses, "values": values, "grads": grads, "own": own, "bytes": dict(member.group.comm.nbytes)}


def assert_equal_to_serial(proto, algorithm, batches, sizes=(2, 3), *, rtol=1e-9, atol=1e-12, **settings):
    """Train serially and on groups of these sizes; compare losses, gradients and parameters. Returns the groups'
    results by size. settings: of Member."""
    (serial,) = run_threads(1, train, proto, algorithm, batches, 0.1, settings)
    results = {}
    for size in sizes:
        ranks = run_threads(size, train, proto, algorithm, batches, 0.1, settings)
        for result in ranks:
            for ours, theirs in zip(result["losses"], serial["losses"], strict=True):
                assert ours.keys() == theirs.keys()
                for key in ours:
                    np.testing.assert_allclose(ours[key], theirs[key], rtol=rtol, atol=atol, err_msg=key)
            for what in ("grads", "values"):
                for name, array in serial[what].items():
                    np.testing.assert_allclose(
                        result[what][name], array, rtol=rtol, atol=atol, err_msg=f"{what} of {name}, {size} workers"
                    )
        results[size] = ranks[0]
    return results
