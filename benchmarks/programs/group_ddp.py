"""Program: one process of PyTorch's DistributedDataParallel (gloo), or of PyTorch alone where there is only one.

Told and answering as programs/group_ours.py; its only run is "step".
"""

from __future__ import annotations

import json
import sys
import time

import torch
import torch.distributed as dist
from tools.workloads import TINY_RATE, WORKLOADS
from torch import nn

from programs.step_torch import model_of, step_of


def main() -> None:
    plan = json.loads(sys.stdin.readline())
    torch.set_num_threads(1)
    model, x, y = model_of(WORKLOADS[plan["net"]])
    several = plan["size"] > 1
    if several:
        address = f"tcp://127.0.0.1:{plan['port']}"
        dist.init_process_group("gloo", init_method=address, rank=plan["rank"], world_size=plan["size"])
        model = nn.parallel.DistributedDataParallel(model)
    step = step_of(model, x, y, TINY_RATE)
    print(json.dumps({}), flush=True)
    for line in sys.stdin:
        steps = json.loads(line)["steps"]
        if several:
            dist.barrier()
        began = time.perf_counter()
        for _ in range(steps):
            step()
        print(json.dumps({"seconds": (time.perf_counter() - began) / steps}), flush=True)
    if several:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
