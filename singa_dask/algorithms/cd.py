"""Contrastive divergence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from singa_dask.algorithms.base import OnGradient, TrainOneBatch
from singa_dask.errors import ConfigError, Problem
from singa_dask.job.job_pb2 import AlgProto
from singa_dask.layers import RBMHid, RBMVis
from singa_dask.layers.context import Context, Metric, Step
from singa_dask.net import Net
from singa_dask.ops.arrays import Array


class CD(TrainOneBatch):
    """CD-k for the restricted Boltzmann machines of a net (Hinton 2002). Layers below them are not trained.

    Positive phase: v, h = E(h | v). Then k times: s ~ p(h | v), v' = E(v | s), h' = E(h | v').

        dW = (v'^T h' - v^T h) / T      da = sum(v' - v) / T      db = sum(h' - h) / T

    T: rows of the group's mini-batch. cd_conf: cd_k. Raises ConfigError for a net without RBMs.
    """

    type: ClassVar[str] = "kCD"
    conf_field: ClassVar[str | None] = "cd_conf"

    def check(self, net: Net) -> None:
        for _ in _machines(net):
            pass

    def train_one_batch(
        self, net: Net, feed: Mapping[str, Any], step: Step, on_gradient: OnGradient = None
    ) -> dict[str, Metric]:
        net.forward(feed, step)
        with net.gradients(on_gradient):
            for machine in _machines(net):
                visible, hidden = machine.chain(self.conf.cd_k)
                machine.learn(visible, hidden, step.total_rows)
        return net.metrics()

    def test_one_batch(self, net: Net, feed: Mapping[str, Any], step: Step) -> dict[str, Metric]:
        net.forward(feed, step)
        for machine in _machines(net):
            machine.chain(1)
        return net.metrics()


class _Machine:
    """One RBM of a net and the contexts of its layers."""

    def __init__(self, vis: RBMVis, hid: RBMHid, vis_ctx: Context, hid_ctx: Context) -> None:
        self.vis, self.hid, self.vis_ctx, self.hid_ctx = vis, hid, vis_ctx, hid_ctx

    def chain(self, k: int) -> tuple[Array, Array]:
        """Run k steps of Gibbs sampling from the data, and measure the first reconstruction."""
        hidden = self.hid_ctx.mean
        for number in range(k):
            visible = self.vis.reconstruct(self.vis_ctx, self.hid.sample(self.hid_ctx, hidden, number))
            if number == 0:
                self.vis.measure(self.vis_ctx, visible)
            hidden = self.hid.infer(self.hid_ctx, visible)
        return visible, hidden

    def learn(self, visible: Array, hidden: Array, rows: float) -> None:
        """Write the gradients: negative minus positive statistics."""
        ops, data, mean = self.vis_ctx.ops, self.vis_ctx.data, self.hid_ctx.mean
        weight = self.vis.weight
        positive = ops.gemm(data.T, mean, out=self.vis_ctx.buffer("statistics", weight.shape))
        ops.gemm(visible.T, hidden, out=weight.grad)
        weight.grad -= positive
        # The exchange adds up what the workers have of a visible bias. If all have all rows, each sums its share.
        own = slice(*self.vis.partition.own(len(data))) if self.vis.split else slice(None)
        for layer, model, observed in ((self.vis, visible[own], data[own]), (self.hid, hidden, mean)):
            if layer.bias is not None:
                ops.column_sums(model, layer.bias.grad)
                layer.bias.grad -= observed.sum(axis=0)
        for param in (*self.vis.params, *self.hid.params):
            if not param.claim():
                param.grad[...] /= rows


def _machines(net: Net) -> Iterator[_Machine]:
    found = False
    for name, hid in net.layers.items():
        below = hid.proto.srclayers[0] if isinstance(hid, RBMHid) else ""
        vis = net.layers.get(below)
        if isinstance(hid, RBMHid) and isinstance(vis, RBMVis):
            found = True
            yield _Machine(vis, hid, net.contexts[below], net.contexts[name])
    if not found:
        hint = "Add a kRBMVis and a kRBMHid that reads it."
        alg = AlgProto.AlgType.Name(AlgProto.kCD)
        raise ConfigError(Problem("train_one_batch.alg", "the net has no restricted Boltzmann machine", alg, hint))
