"""Train every net in PyTorch, and write what the tests compare with.

PYTHONPATH=tests .venv/bin/python -m peers.pytorch       # after `make peers`
"""

from __future__ import annotations

import sys
import time
from fnmatch import fnmatch
from typing import Any

import numpy as np
import torch
from peers import drawn, expected
from peers.nets import NETS, Net
from peers.pytorch import formulas, images, sequences, training
from torch import nn

MADE = {**images.NETS, **sequences.NETS, **formulas.NETS, **training.NETS}
State = dict[str, np.ndarray]


def main() -> int:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    began, arrays = time.monotonic(), {}
    trained = [name for name, net in NETS.items() if not net.loop]
    for name in trained:
        losses, gradients, state = train(name, torch.float64)
        single_losses, *single = train(name, torch.float32)
        found = expected.summary(name, losses, gradients, state, single)
        print(f"{name:20s} {len(state):4d} parameters, losses {np.round(losses, 4)}", flush=True)
        if not np.isfinite(losses).all() or np.abs(losses - single_losses).max() > 1e-3:
            sys.exit(f"{name}: float32 gives {single_losses}")
        arrays |= {f"{name}/{key}": array for key, array in found.items()}
    np.savez_compressed(expected.FILE, **arrays)
    size = expected.FILE.stat().st_size
    print(f"{len(trained)} nets in {time.monotonic() - began:.0f} s: {size / 1e6:.2f} MB")
    return 0


def train(name: str, dtype: torch.dtype) -> tuple[np.ndarray, State, State]:
    """The losses of five steps, the gradients of the first, and parameters and running statistics after the last."""
    net, entry = MADE[name](), NETS[name]
    for key, value in net.named_parameters():
        value.data = torch.tensor(drawn.initial(name, key, tuple(value.shape)), dtype=dtype)
        if "bias_hh" in key:  # our recurrent layers have one bias a gate
            value.requires_grad_(False)
    for key, value in net.named_buffers():
        if value.is_floating_point():
            value.data = torch.tensor(drawn.initial(name, key, tuple(value.shape)), dtype=dtype)
    data = {key: drawn.batches(name, key, of)[:, list(entry.rows) or slice(None)] for key, of in entry.data.items()}
    own = {key: value for key, value in net.named_parameters() if "bias_hh" not in key}
    rule, averages = optimizer(net, entry), {key: value.detach().clone() for key, value in own.items()}
    losses, first = [], {}
    for step in range(drawn.STEPS):
        batch = [given(array[step], dtype) for array in data.values()]
        losses.append(one_step(name, net, batch, rule, entry))
        if not step:
            first = {key: value.grad.numpy().copy() for key, value in own.items() if value.grad is not None}
        for key, value in own.items():
            decay = entry.update.get("ema", 0)
            averages[key] = decay * averages[key] + (1 - decay) * value.detach()
    statistics = {key: value for key, value in net.named_buffers() if "running_" in key}
    state = {key: value.numpy() for key, value in {**averages, **statistics}.items()}
    return np.array(losses), first, state


def given(array: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor(array, dtype=dtype if array.dtype.kind == "f" else None)


def one_step(name: str, net: nn.Module, batch: list[torch.Tensor], rule: Any, entry: Net) -> float:
    if name == "gan":
        return adversarial(net, batch, *rule)
    parts = [list(each) for each in zip(*(x.chunk(2) for x in batch), strict=True)]
    parts = parts if name == "accumulation" else [batch]
    rule.zero_grad()
    losses = [net(*part) for part in parts]
    for loss in losses:
        (loss / len(losses)).backward()
    if "clip_norm" in entry.update:
        clip(list(net.parameters()), entry.update["clip_norm"])
    rule.step()
    return float(sum(losses).detach()) / len(losses)


def clip(params: list[nn.Parameter], limit: float) -> None:
    """As clip_grad_norm_ does, which also adds 1e-6 to the norm."""
    norm = torch.cat([param.grad.flatten() for param in params]).norm()
    for param in params:
        param.grad *= min(1.0, limit / float(norm))


def adversarial(net: Any, batch: list[torch.Tensor], judging: Any, making: Any) -> float:
    x, noise = batch
    for optimizer, loss in ((judging, lambda: net(x, noise)), (making, lambda: net.generated(noise))):
        net.zero_grad()
        value = loss()
        value.backward()
        optimizer.step()
    return float(value.detach())


def optimizer(net: nn.Module, entry: Net) -> Any:
    settings = {key: value for key, value in entry.update.items() if key not in ("rule", "scale", "ema", "clip_norm")}
    kind = getattr(torch.optim, entry.update["rule"])
    if entry.row.startswith("GAN"):
        judging = [*net.judge.parameters(), *net.logit.parameters()]
        making = [*net.first.parameters(), *net.second.parameters()]
        return kind(judging, **settings), kind(making, **settings)
    groups = []
    for key, value in net.named_parameters():
        scale = next((by for of, by in entry.update.get("scale", {}).items() if fnmatch(key, of)), 1.0)
        groups.append({"params": [value], "lr": entry.update["lr"] * scale})
    return kind(groups, **settings)


if __name__ == "__main__":
    sys.exit(main())
