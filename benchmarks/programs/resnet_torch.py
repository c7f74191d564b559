"""Program: PyTorch, eager, channels last, trains and tests a residual net on images. The plan is that of resnet.py.

It prints a JSON line for every row of its curves. Samples come in a given order; each is padded, cropped at random and
mirrored by chance. The state is saved with every test, and a repeated command resumes from it.
"""

from __future__ import annotations

import json
import pickle
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from programs.step_torch import Graph


def augmented(images: np.ndarray, pad: int, draw: np.random.Generator) -> np.ndarray:
    """images: (B, H, W, C), padded with zeros on each side already. -> (B, H - 2 pad, W - 2 pad, C)."""
    size = images.shape[1] - 2 * pad
    tops, lefts = draw.integers(0, 2 * pad + 1, (2, len(images)))
    rows, columns = tops[:, None] + np.arange(size), lefts[:, None] + np.arange(size)
    mirrored = draw.integers(0, 2, len(images)) == 1
    columns[mirrored] = columns[mirrored, ::-1]
    return images[np.arange(len(images))[:, None, None], rows[:, :, None], columns[:, None, :]]


def as_torch(images: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(images)).permute(0, 3, 1, 2)


def main(plan: dict[str, Any]) -> None:
    torch.set_num_threads(plan["threads"])
    files = np.load(plan["images"])
    pad, order, rates = plan["pad"], files["order"], files["rates"]
    images = np.pad(files["train"], ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    labels, test = torch.from_numpy(files["train_labels"]).long(), files["test"]
    test_labels = torch.from_numpy(files["test_labels"]).long()
    model, draw = Graph(pickle.loads(Path(plan["layers"]).read_bytes())), np.random.default_rng(plan["seed"])
    model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=1.0, momentum=plan["momentum"], weight_decay=plan["weight_decay"]
    )
    criterion = nn.CrossEntropyLoss()
    saved, rows, begin = Path(plan["state"]), [], 0
    if saved.exists():
        state = torch.load(saved)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        draw.bit_generator.state, rows, begin = state["draw"], state["rows"], state["step"]
        print("\n".join(json.dumps(row) for row in rows), flush=True)

    def save(step: int) -> None:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save({**state, "draw": draw.bit_generator.state, "rows": rows, "step": step}, saved.with_suffix(".new"))
        saved.with_suffix(".new").replace(saved)

    def report(phase: str, step: int, losses: list[float], right: list[float]) -> None:
        row = {"phase": phase, "step": step, "loss": float(np.mean(losses)), "accuracy": float(np.mean(right))}
        rows.append({**row, "time": time.time()})
        print(json.dumps(rows[-1]), flush=True)

    def evaluate(step: int) -> None:
        model.eval()
        losses, right = [], []
        with torch.no_grad():
            for start in range(0, len(test), plan["test_rows"]):
                scores = model(as_torch(test[start : start + plan["test_rows"]]))
                found = test_labels[start : start + plan["test_rows"]]
                losses.append(float(criterion(scores, found)))
                right.append(float((scores.argmax(1) == found).float().mean()))
        model.train()
        report("test", step, losses, right)

    losses, right = [], []
    for step in range(begin, len(order)):
        taken = order[step]
        if step % plan["test_every"] == 0 and not (begin and step == begin):
            evaluate(step)
            save(step)
        for group in optimizer.param_groups:
            group["lr"] = float(rates[step])
        optimizer.zero_grad()
        scores = model(as_torch(augmented(images[taken], pad, draw)))
        loss = criterion(scores, labels[taken])
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        right.append(float((scores.detach().argmax(1) == labels[taken]).float().mean()))
        if (step + 1) % plan["every"] == 0:
            report("train", step + 1, losses, right)
            losses, right = [], []
    if begin < len(order):
        evaluate(len(order))
        save(len(order))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
