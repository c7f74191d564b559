"""Program: PyTorch, eager, trains a language model on given mini-batches. The plan is that of published.py.

The net is the one of examples/char-gpt: blocks of LayerNorm, causal attention, LayerNorm and two layers with GELU, no
biases, and the embedding of the symbols as the last weight. Its parameters are singa_dask's initial ones.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from tools.contest import serve
from torch import nn
from torch.nn import functional

FIRST = 5

Values = Mapping[str, np.ndarray]


def parameter(value: np.ndarray) -> nn.Parameter:
    return nn.Parameter(torch.from_numpy(np.ascontiguousarray(value)))


def norm(values: Values, name: str) -> nn.LayerNorm:
    module = nn.LayerNorm(len(values[f"{name}_scale"]))
    module.weight, module.bias = parameter(values[f"{name}_scale"]), parameter(values[f"{name}_bias"])
    return module


def linear(weight: np.ndarray) -> nn.Linear:
    """weight: (in, out)."""
    module = nn.Linear(*weight.shape, bias=False)
    module.weight = parameter(weight.T)
    return module


class Block(nn.Module):
    def __init__(self, values: Values, number: int, heads: int):
        super().__init__()
        width = values["symbols_table"].shape[1]
        self.heads = heads
        self.norm_a, self.norm_b = (norm(values, f"norm{number}{letter}") for letter in "ab")
        self.qkv = linear(values[f"qkv{number}"].reshape(width, -1))
        self.mix = linear(values[f"mix{number}"].reshape(-1, width))
        self.wide, self.narrow = (linear(values[f"{name}{number}_weight"]) for name in ("wide", "narrow"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.norm_a(x)).split(width, dim=2)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.mix(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(functional.gelu(self.wide(self.norm_b(x))))


class Gpt(nn.Module):
    def __init__(self, values: Values, heads: int):
        super().__init__()
        count = sum(name.startswith("qkv") for name in values)
        self.symbols = nn.Embedding(*values["symbols_table"].shape)
        self.symbols.weight = parameter(values["symbols_table"])
        self.positions = parameter(values["positions"])
        self.blocks = nn.Sequential(*(Block(values, number, heads) for number in range(1, count + 1)))
        self.norm = norm(values, "norm")

    def forward(self, symbols: torch.Tensor) -> torch.Tensor:
        """symbols: (B, T). The scores, (B T, V)."""
        x = self.norm(self.blocks(self.symbols(symbols) + self.positions))
        return functional.linear(x, self.symbols.weight).flatten(0, 1)

    def loss(self, rows: torch.Tensor) -> torch.Tensor:
        """rows: (B, T + 1) symbols."""
        return functional.cross_entropy(self(rows[:, :-1]), rows[:, 1:].flatten())


def main(plan: dict[str, Any]) -> None:
    torch.set_num_threads(plan["threads"])
    train, validation = (torch.from_numpy(np.load(plan[name])) for name in ("train", "validation"))
    rates = np.load(plan["rates"])
    model = Gpt(np.load(plan["initial"]), plan["heads"])
    groups = [
        {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": plan["weight_decay"]},
        {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, betas=tuple(plan["betas"]), eps=plan["epsilon"])
    number = 0

    def step() -> float:
        nonlocal number
        for group in optimizer.param_groups:
            group["lr"] = float(rates[number])
        optimizer.zero_grad(set_to_none=True)
        loss = model.loss(train[number])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), plan["clip_norm"])
        optimizer.step()
        number += 1
        return float(loss.detach())

    def result() -> dict[str, float]:
        with torch.no_grad():
            return {"loss": float(np.mean([float(model.loss(rows)) for rows in validation]))}

    serve(step, [step() for _ in range(FIRST)], result)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
