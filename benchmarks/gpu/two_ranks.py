"""Two ranks of NCCL that share a GPU, as processes that NCCL takes for different hosts: their collectives."""

from __future__ import annotations

import json
import multiprocessing
import os
import queue
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

SIZE = 2
TYPES = ("f2", "f4", "f8", "i4", "i8", "u1")
TIMED = (1 << 10, 1 << 20, 1 << 24)  # elements of float32


def rank_main(rank: int, timeout_s: float, ids: Any, results: Any) -> None:
    """One rank, in a process of its own."""
    os.environ["NCCL_HOSTID"] = f"rank {rank}"
    try:
        results.put((rank, collectives(rank, timeout_s, ids)))
    except Exception as error:
        results.put((rank, {"error": f"{type(error).__name__}: {error}"}))
        raise


def collectives(rank: int, timeout_s: float, ids: Any) -> dict[str, Any]:
    """Check what each operation returns; returns seconds and milliseconds."""
    import cupy  # after NCCL's settings

    from singa_dask.comm.nccl import NcclCommunicator
    from singa_dask.comm.nccl_library import unique_id

    if rank == 0:
        shared = unique_id()
        for _ in range(1, SIZE):
            ids.put(shared)
    else:
        shared = ids.get(timeout=timeout_s)
    began = time.perf_counter()
    comm = NcclCommunicator.form(shared, SIZE, rank, 0, timeout_s)
    found: dict[str, Any] = {"connect_s": round(time.perf_counter() - began, 3)}
    for counts in ([5, 5], [4, 9], [0, 7], [0, 0]):
        check_parts(cupy, comm, counts)
    for dtype in TYPES:
        x = np.arange(6).astype(dtype)
        comm.all_reduce(x)
        np.testing.assert_array_equal(x, (SIZE * np.arange(6)).astype(dtype))
    last = cupy.full(3, rank, "i8")
    comm.broadcast(last, root=SIZE - 1)
    np.testing.assert_array_equal(last.get(), SIZE - 1)
    part = comm.split(0)
    part.barrier()
    part.close()
    comm.barrier()
    for size in TIMED:
        x = cupy.ones(size, "f4")
        comm.all_reduce(x)
        began = time.perf_counter()
        comm.all_reduce(x)
        found[f"all_reduce of {x.nbytes} bytes, ms"] = round(1e3 * (time.perf_counter() - began), 3)
    comm.close()
    return found


def check_parts(cupy: Any, comm: Any, counts: Sequence[int]) -> None:
    """Operations on parts of an array, of these lengths."""
    size, rank, last = comm.size, comm.rank, comm.size - 1
    x = cupy.arange(sum(counts), dtype="f4") + rank
    total = size * np.arange(sum(counts), dtype="f4") + sum(range(size))
    own, every, begin = cupy.zeros(counts[rank], "f4"), cupy.zeros(sum(counts), "f4"), sum(counts[:rank])
    comm.reduce_scatter(x, own, counts)
    every[begin : begin + counts[rank]] = own
    comm.all_gather(every, counts)
    np.testing.assert_array_equal(every.get(), total)
    comm.all_reduce(x)
    np.testing.assert_array_equal(x.get(), total)
    there = cupy.zeros(sum(counts), "f4") if rank == last else None
    comm.gather(own, there, counts, root=last)
    if there is not None:
        np.testing.assert_array_equal(there.get(), total)


@click.command()
@click.option("--timeout", "timeout_s", default=30.0, show_default=True, help="Seconds for an operation.")
@click.option("--json", "out", type=click.Path(path_type=Path), required=True, help="Write the figures to this file.")
def main(timeout_s: float, out: Path) -> None:
    """Two ranks of NCCL on GPU 0."""
    context = multiprocessing.get_context("spawn")
    ids, results = context.Queue(), context.Queue()
    ranks = [
        context.Process(target=rank_main, args=(rank, timeout_s, ids, results), daemon=True) for rank in range(SIZE)
    ]
    for process in ranks:
        process.start()
    found = {str(rank): {"error": f"said nothing for {timeout_s + 5:g} s"} for rank in range(SIZE)}
    try:
        for _ in ranks:
            rank, told = results.get(timeout=timeout_s + 5)
            found[str(rank)] = told
    except queue.Empty:
        pass
    finally:
        for process in ranks:
            process.kill()
            process.join()
    text = json.dumps(found, indent=1)
    print(text)
    out.write_text(text + "\n")
    if faults := [f"rank {rank}: {told['error']}" for rank, told in found.items() if "error" in told]:
        raise SystemExit("; ".join(faults))


if __name__ == "__main__":
    main()
