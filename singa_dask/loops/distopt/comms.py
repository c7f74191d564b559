"""How the ranks of a DistOpt reach each other: through the host, or from GPU to GPU where each has one of its own."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from singa_dask.cluster.bootstrap import this_node
from singa_dask.comm import Communicator
from singa_dask.comm.communicator import part_of
from singa_dask.comm.nccl import NcclCommunicator, form_nccl
from singa_dask.exchange.buckets import even_counts
from singa_dask.exchange.executor import CollectiveExecutor
from singa_dask.exchange.group import CommGroup
from singa_dask.exchange.overlap import OverlapTuner
from singa_dask.ops import Ops
from singa_dask.ops.arrays import on_host


class RankComms:
    """host: the communicator of all ranks. device: between their GPUs; None where gradients travel through the host.
    executor: runs the operations of both, in order. shares: whether all ranks compute on the CPUs of one machine."""

    def __init__(self, host: Communicator) -> None:
        self.host = host
        self.device: NcclCommunicator | None = None
        self.shares = False
        self._one_machine = host.size > 1 and host.one_machine()
        threaded = host.size > 1 and not self._one_machine
        self.executor = CollectiveExecutor(host, threaded=threaded, tuner=OverlapTuner())
        self.group_of: Callable[[Ops], CommGroup | None] = lambda ops: None
        if host.size > 1:
            self.group_of = cache(self.group)

    @property
    def carrier(self) -> Communicator:
        """Of gradients, and of what layers exchange."""
        return self.host if self.device is None else self.device

    def form(self, ops: Ops) -> None:
        """Connect the GPUs of the ranks, if each has one of its own. Collective. ops: of the model."""
        if self.host.size == 1:
            return
        on_host = np.array([float(ops.device == "cpu")])
        self.executor.run(self.host.all_reduce, on_host)
        self.shares = self._one_machine and on_host[0] == self.host.size
        if not on_host[0]:
            self.device = self.executor.run(form_nccl, self.host, ops.device_id, self.host.timeout_s)
        if self.device is not None:
            self.device.warm_up()
            self.executor.include(self.device)
            self.executor.overlap()  # the host cannot time a device, which may complete a step long after it
            self.group_of = cache(self.group)

    def group(self, ops: Ops, *, apart: bool = False) -> CommGroup:
        """The group as layers see it. apart: with a communicator of its own; collective."""
        comm = self.executor.run(self.carrier.split, 0) if apart else self.carrier
        return CommGroup(self.executor, comm, ops, on_device=self.device is not None)

    def sum(self, array: Any) -> Any:
        """The sum of all ranks' arrays, a new one: on the rank's GPU if it travels from GPU to GPU, or on the host."""
        if array.ndim and self.device is not None and self.device.adds(array.dtype):
            total = array.copy(order="C")
            self.executor.run(self.device.all_reduce, total.reshape(-1))
            return total
        return self.executor.all_reduce(np.array(on_host(array), order="C"))

    def sum_in_place(self, array: Any) -> Any:
        """An array becomes the sum of all ranks' arrays. Of a number or an array without axes: returns the sum."""
        in_place = hasattr(array, "__array_interface__") or hasattr(array, "__cuda_array_interface__")
        total = self.sum(array if in_place else np.array(array))
        if not in_place or not getattr(array, "ndim", 0):
            return total
        if isinstance(array, np.ndarray) or not isinstance(total, np.ndarray):
            array[...] = total
        else:
            array.set(total)
        return None

    def average(self, values: Any, ops: Ops) -> None:
        """These values become their mean over the ranks."""
        ops.use()  # the thread of the collectives may be older than the model
        comm, counts = self.carrier, even_counts(len(values), self.host.size)
        part = part_of(self.host.rank, counts)
        chunk = values if self.device else ops.to_host(values)
        own = chunk[part].copy()
        comm.reduce_scatter(chunk, own, counts)
        chunk[part] = own / self.host.size
        comm.all_gather(chunk, counts)
        values[...] = ops.asarray(chunk)


def rank_on_machine(comm: Communicator) -> int:
    """The number of this rank among those on its machine. Collective."""
    machines = comm.all_gather_number(zlib.crc32(this_node().encode()))
    return int((machines[: comm.rank] == machines[comm.rank]).sum())
