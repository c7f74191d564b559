"""MNIST with PyTorch's DistributedDataParallel (gloo): one of the processes, 1 thread, of the net and recipe of
examples/mnist.

The plan is a JSON object as the only argument; the first rank prints a JSON line with step, accuracy and time after
every evaluation. Made to be quick: the shards are read into memory once, mini-batches are picked by an index (no
DataLoader), each process computes half of every mini-batch and of every evaluation. Initial parameters and the samples
of every mini-batch are read from files.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
import torch.distributed as dist
from torch import nn


def samples(folder: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Images (n, 1, 28, 28) uint8 and labels (n,) of a folder of shards."""
    images, labels = [], []
    for path in sorted(Path(folder).glob("shard-*.h5")):
        with h5py.File(path) as file:
            images.append(torch.from_numpy(file["features"][:]))
            labels.append(torch.from_numpy(file["labels"][:]))
    # With one channel `contiguous` would leave the strides as they are, which DDP warns of.
    return torch.cat(images).permute(0, 3, 1, 2).clone(memory_format=torch.contiguous_format), torch.cat(labels)


def net() -> nn.Sequential:
    """The net of the example."""
    layers: list[nn.Module] = [nn.Conv2d(1, 20, 5), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(20, 50, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    layers += [nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10)]
    return nn.Sequential(*layers)


def accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, plan: dict[str, Any]) -> float:
    """Of all test images, shared by the processes."""
    right = torch.zeros(())
    with torch.no_grad():
        for start in range(plan["rank"] * plan["test_rows"], len(labels), plan["test_rows"] * plan["size"]):
            rows = slice(start, start + plan["test_rows"])
            right += (model(images[rows].float().div_(255)).argmax(1) == labels[rows]).sum()
    dist.all_reduce(right)
    return float(right) / len(labels)


def main(plan: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    rank, size = plan["rank"], plan["size"]
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{plan['port']}", rank=rank, world_size=size)
    images, labels = samples(plan["train"])
    test_images, test_labels = samples(plan["test"])
    model = net()
    model.load_state_dict(torch.load(plan["initial"]))
    model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=plan["rate"], momentum=plan["momentum"], weight_decay=plan["decay"]
    )
    criterion = nn.CrossEntropyLoss()
    # (steps, this process's part of a mini-batch)
    order = torch.from_numpy(np.load(plan["order"])).tensor_split(size, dim=1)[rank]
    for step in range(plan["steps"] + 1):
        if step % plan["every"] == 0:
            reached = accuracy(model.module, test_images, test_labels, plan)
            if rank == 0:
                print(json.dumps({"step": step, "accuracy": reached, "time": time.time()}), flush=True)
            if reached >= plan["target"]:
                break
        mine = order[step]
        optimizer.zero_grad()
        criterion(model(images[mine].float().div_(255)), labels[mine]).backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
