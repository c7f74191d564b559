"""What is written for nets that are refused, until the error."""

from __future__ import annotations

from typing import Any

from peers import nets, ours
from peers.nets import NETS

from singa_dask import ClusterTopology, Job, Model, autograd
from singa_dask.distopt import DistOpt
from singa_dask.layers import RecordInput
from singa_dask.tensor import Tensor


class Checkpointed(ours.formulas.MLP):
    """Its first layer is computed again in the backward pass."""

    def __init__(self) -> None:
        super().__init__(5, ours.SoftmaxLoss)

    def forward(self, x: Any, *targets: Any) -> Any:
        return self.loss(self.second(autograd.checkpoint(self.first, x)), *targets)


def attempt(name: str, mode: str) -> None:
    """Raises ConfigError."""
    entry = NETS[name]
    reason, rule = getattr(entry, mode), ours.rule(entry)
    net = Checkpointed() if reason == nets.CHECKPOINTING else ours.MADE.get(name, ours.training.plain)()
    more: dict[str, Any] = {"dtype": name} if reason == nets.SIXTEEN_BITS else {}
    more |= {"accumulate": 2} if reason == nets.ACCUMULATION and mode == "job" else {}
    rules: Any = [rule, rule] if reason == nets.ALTERNATING else rule
    if mode == "loop":
        net(*(Tensor(array[0].shape, data=array[0], **more) for array in ours.batches(name).values()))
    elif mode == "model":
        model = Model(ours.as_list(net(*_inputs(name))), **more)
        DistOpt(rules, model, **({"accumulate": 2} if reason == nets.ACCUMULATION else {}))
    else:
        layers = ours.as_list(net(*_inputs(name, path="nowhere", batchsize=8)))
        cluster = ClusterTopology.allreduce(2)
        Job(name=name, layers=layers, updater=rules, train_steps=5, cluster=cluster, **more).check()


def _inputs(name: str, **given: Any) -> list[RecordInput]:
    return [RecordInput(key, shape=list(of.shape) or [1], **given) for key, of in NETS[name].data.items()]
