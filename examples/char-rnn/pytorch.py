"""The job in PyTorch: the net of job.conf with the same initial weights, mini-batches and updater.

    pip install torch
    python examples/char-rnn/pytorch.py [steps]

Prints the validation loss at the same steps as `singa-dask train examples/char-rnn/job.conf`.
"""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path

import numpy as np
import torch

from singa_dask import Job
from singa_dask.data import Manifest, make_stream
from singa_dask.data.shards import ShardFolder
from singa_dask.job import runs_in
from singa_dask.job.job_pb2 import Phase
from singa_dask.job.stores import store_of
from singa_dask.net import Net
from singa_dask.ops import get_ops
from singa_dask.training.prepare import prepare

GATES = ("r", "z", "c")  # the order of torch.nn.GRU


class Text:
    """The mini-batches of the job's data in one phase: (T + 1, B) character numbers."""

    def __init__(self, job, phase):
        (layer,) = (x for x in job.neuralnet.layer if x.name == "data" and runs_in(x, phase))
        manifest = Manifest.load(Path(store_of(layer).path))
        self.stream = make_stream(store_of(layer), manifest, seed=job.seed, phase=phase)
        shards = ShardFolder(manifest)
        name = manifest.features.name
        self.text = np.concatenate([shards.reader(i).column(name)[:, 0] for i in range(len(manifest.shards))])

    def __getitem__(self, step):
        return torch.tensor(self.text[self.stream.batch(step)].T.astype(np.int64))


class Model(torch.nn.Module):
    """A GRU over one-hot characters, and a linear layer."""

    def __init__(self, weights):
        super().__init__()
        units, symbols = weights["z_hx"].shape
        self.symbols = symbols
        self.gru, self.out = torch.nn.GRU(symbols, units), torch.nn.Linear(units, symbols)
        with torch.no_grad():
            self.gru.weight_ih_l0.copy_(torch.cat([torch.tensor(weights[f"{g}_hx"]) for g in GATES]))
            self.gru.weight_hh_l0.copy_(torch.cat([torch.tensor(weights[f"{g}_hh"]) for g in GATES]))
            self.gru.bias_ih_l0.copy_(torch.cat([torch.tensor(weights[f"{g}_b"]) for g in GATES]))
            self.gru.bias_hh_l0.zero_()
            self.out.weight.copy_(torch.tensor(weights["w"].T))
            self.out.bias.copy_(torch.tensor(weights["b"]))
        self.gru.bias_hh_l0.requires_grad_(False)  # one bias per gate

    def loss(self, batch, state):
        """The loss summed over the characters, and the final state."""
        onehot = torch.nn.functional.one_hot(batch[:-1], self.symbols).float()
        hidden, state = self.gru(onehot, state)
        scores = self.out(hidden).flatten(0, 1)
        return torch.nn.functional.cross_entropy(scores, batch[1:].flatten(), reduction="sum"), state.detach()


def validate(model, text, steps):
    total, count, state = 0.0, 0, None
    with torch.no_grad():
        for step in range(steps):
            loss, state = model.loss(text[step], state)
            total, count = total + loss.item(), count + text[step][1:].numel()
    return total / count


def main(steps):
    job = prepare(Job.from_file(Path(__file__).with_name("job.conf")), phases=[Phase.kVal]).job
    net = Net(job.neuralnet, Phase.kTrain, get_ops("cpu"))
    net.initialise(job.seed)
    model = Model({param.name: param.value for param in net.params})
    train, validation = Text(job, Phase.kTrain), Text(job, Phase.kVal)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    squares = [torch.zeros_like(weight) for weight in weights]
    rule, state, began = job.updater, None, time.perf_counter()
    for step in range(steps + 1):
        if step % job.validate_freq == 0 or step == steps:
            loss = validate(model, validation, job.validate_steps)
            seconds = time.perf_counter() - began
            print(
                f"step {step}: validation loss {loss:.4f}, {loss / math.log(2):.4f} bits; {seconds:.0f} s", flush=True
            )
        if step == steps:
            return
        batch = train[step]
        loss, state = model.loss(batch, state)
        model.zero_grad()
        (loss / batch.shape[1]).backward()
        rate = rule.learning_rate
        lr = rate.base_lr * rate.step_conf.gamma ** (step // rate.step_conf.change_freq)
        with torch.no_grad():  # SINGA's RMSProp has delta under the root
            for weight, square in zip(weights, squares, strict=True):
                gradient = weight.grad.clamp(rule.clip_low, rule.clip_high)
                square.mul_(rule.rmsprop_conf.rho).addcmul_(gradient, gradient, value=1 - rule.rmsprop_conf.rho)
                weight.addcdiv_(gradient, (square + rule.delta).sqrt(), value=-lr)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000)
