"""What is written for nets that are refused, until the error."""

from __future__ import annotations

from typing import Any

from peers import nets, ours
from peers.nets import NETS

from singa_dask import ClusterTopology, Job, Model, autograd
from singa_dask.layers import RecordInput, SoftmaxLoss
from singa_dask.tensors.tensor import Tensor

# What the users of trainers for PyTorch would give a job.
_OF_JOBS: dict[str, dict[str, Any]] = {
    nets.ACCUMULATION: {"gradient_accumulation_steps": 2},
    nets.SIXTEEN_BITS: {"precision": 16},
    nets.CHECKPOINTING: {"gradient_checkpointing": True},
}


class Checkpointed(ours.formulas.MLP):
    """Its first layer is computed again in the backward pass."""

    def __init__(self) -> None:
        super().__init__(5, SoftmaxLoss)

    def forward(self, x: Any, *targets: Any) -> Any:
        return self.loss(self.second(autograd.checkpoint(self.first, x)), *targets)


def attempt(name: str, mode: str) -> None:
    """Raises ConfigError."""
    entry = NETS[name]
    reason, rule = getattr(entry, mode), ours.rule(entry)
    in_model = reason == nets.CHECKPOINTING and mode != "job"
    net = Checkpointed() if in_model else ours.MADE[name]() if reason == nets.STATE else ours.training.plain()
    of = name if "y" in entry.data else "clipping"  # two optimizers are refused for any net
    typed: dict[str, Any] = {"dtype": name} if reason == nets.SIXTEEN_BITS else {}
    if mode == "loop":
        net(*(Tensor(array[0].shape, data=array[0], **typed) for array in ours.batches(of).values()))
    elif mode == "model":
        model = Model(ours.as_list(net(*_inputs(of))), **typed)
        for _ in autograd.backward(model({key: ours.rows(array[0]) for key, array in ours.batches(of).items()})):
            pass
    else:
        rules: Any = [rule, rule] if reason == nets.ALTERNATING else rule
        layers, cluster = ours.as_list(net(*_inputs(of, path="nowhere", batchsize=8))), ClusterTopology.allreduce(2)
        more = _OF_JOBS.get(reason, {})
        Job(name=name, layers=layers, updater=rules, train_steps=5, cluster=cluster, **more).check()


def _inputs(name: str, **given: Any) -> list[RecordInput]:
    return [RecordInput(key, shape=list(of.shape) or [1], **given) for key, of in NETS[name].data.items()]
