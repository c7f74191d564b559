"""What becomes of a bucket in a job: gradients are summed, servers update it, all workers take the new values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from singa_dask.comm.communicator import Communicator
from singa_dask.exchange.base import BucketExchange
from singa_dask.exchange.clipping import NormClip
from singa_dask.exchange.executor import CollectiveExecutor
from singa_dask.exchange.staging import InPlace
from singa_dask.job.job_pb2 import JobProto
from singa_dask.memory.region import Regions
from singa_dask.net import Net
from singa_dask.net.flat import ALIGNMENT, Joined
from singa_dask.server import Stub


class ServerStages:
    """The Stages of a job.

    in_process_servers: each worker's server is in its own process, for it alone, so that its new values are there as
    soon as a bucket is updated. Else replies come at the end of the step, or of the next one with `stub.behind`.

    staging, own: of the replicated parameters, and of the worker's own shards.

    new: the servers' values of this worker's parts, flat: the net's own array where that is exact. values: `new`, then
    the worker's own shards: what the stub reads and writes. owed: gradients, in the same order, that an earlier run
    kept back and no codec here can keep; they are part of the next step.

    regions: that the servers of this process save to. The images of a step are whole before another rank gets a
    gradient of the next one, and before the next update changes what is copied.

    With `clip`, servers update no bucket before all are summed: the norm is that of all of them.
    """

    def __init__(
        self,
        job: JobProto,
        comm: Communicator,
        net: Net,
        exchange: BucketExchange,
        stub: Stub,
        executor: CollectiveExecutor,
        staging: InPlace,
        own: InPlace,
        clip: NormClip | None,
        *,
        in_process_servers: bool,
        regions: Regions | None = None,
    ) -> None:
        self._regions, self._begins = regions, False
        self.exchange, self.staging, self.stub = exchange, staging, stub
        self.in_process_servers = in_process_servers
        self.at_once = staging.at_once
        self.owed: np.ndarray | None = None
        self._comm, self._net, self._executor = comm, net, executor
        self._held_back = not in_process_servers and job.cluster.HasField("max_staleness")
        self._step = 0
        self.new: Any = net.flat.values if in_process_servers else staging.served
        if not exchange.exact:  # the values that all workers have differ from the servers'
            self.new = net.ops.empty((net.flat.size,)) if in_process_servers else np.empty_like(staging.served)
        self._offered = staging.offered(self.new)
        self._sums = staging.gradients if exchange.in_place else staging.empty()
        self._own = own
        self._summed = staging.summed(self._sums)
        self.values, self._gradients = Joined(self.new, own.values), Joined(self._summed, own.gradients)
        self._own_range = range(net.flat.size, net.flat.size + net.own.size)
        self._clip = clip
        self._squares: Any = 0.0  # of the sums of this worker's parts so far

    def warm_up(self) -> None:
        """Compile what clipping by the norm needs."""
        if self._clip is not None:
            few, part = self._net.ops.zeros((ALIGNMENT,)), slice(0, ALIGNMENT)
            squares = self._clip.squares(few, part)
            float(0.0 + squares + squares + 0.0)  # as the sums of a step are made
            self._clip.apply(0.5, few, part)

    def begin(self, step: int) -> None:
        """Begin a step, on every worker."""
        self._step, self._squares, self._begins = step, 0.0, True
        if self._own_range:  # activations tell other ranks as much as gradients do
            self._send_first()
        self.exchange.begin(step)

    def prepare(self, bucket: int) -> None:
        elements = self.exchange.buckets[bucket].elements
        if self.owed is not None:
            self._net.flat.grads[elements] += self._net.ops.asarray(self.owed[elements])
        self.staging.send(elements)
        self.exchange.prepare(bucket, self.staging.gradients)

    def start(self, bucket: int) -> None:
        self._send_first()
        self.exchange.start_reduce_scatter(bucket, self.staging.gradients, self._sums)

    def update(self, bucket: int) -> None:
        """Have the servers update this worker's part."""
        part = self.exchange.parts[bucket]
        self.exchange.reduce_scatter(bucket, self.staging.gradients, self._sums)
        self.staging.fetch(self._sums, part)
        if self._clip is None:
            self._push(bucket)
        else:
            self._squares = self._squares + self._clip.squares(self._summed, part)

    def gather(self, bucket: int) -> None:
        """Take the other workers' parts, if the servers are in the workers' processes."""
        if self._clip is None:
            self._take(bucket)

    def finish(self) -> None:
        """Have the servers update the worker's own shards, and take the replies of servers elsewhere."""
        if self._own_range:
            if self.owed is not None:
                self._net.own.grads += self._net.ops.asarray(self.owed[self._own_range.start : self._own_range.stop])
            self._own.send(slice(None))
        if self._clip is not None:
            self._executor.run(self._update_clipped, self._clip)
        if self._own_range:
            self.stub.push(self._step, self._gradients, self.values, self._own_range)
        self.owed = None
        self.stub.pull(self.values)
        self.receive_own()
        if not self.in_process_servers:
            self._gather_replies()

    def _send_first(self) -> None:
        """Before anything of a step is sent: wait for the images of the last one."""
        if self._begins and self._regions is not None:
            self._regions.finish()
        self._begins = False

    def _push(self, bucket: int) -> None:
        part = self.exchange.parts[bucket]
        self.stub.push(self._step, self._gradients, self.values, range(part.start, part.stop))
        if self.in_process_servers:
            self.staging.offer(self.new, part)
            self.exchange.start_all_gather(bucket, self.staging.values, self._offered)

    def _take(self, bucket: int) -> None:
        if self.in_process_servers:
            self.exchange.all_gather(bucket, self.staging.values, self._offered)
            self.staging.receive(self.exchange.buckets[bucket].elements)

    def _update_clipped(self, clip: NormClip) -> None:
        """Scale all sums to the largest norm, have the servers update every bucket, and take the others' parts."""
        own = slice(self._own_range.start, self._own_range.stop)
        scale = clip.scale(self._comm, self._squares + clip.squares(self._gradients, own))
        for part in (*self.exchange.parts, own):
            clip.apply(scale, self._gradients, part)
        count = len(self.exchange.buckets)
        for bucket in range(count + 1):  # one travels while the next one is updated
            if bucket < count:
                self._push(bucket)
            if bucket > 0:
                self._take(bucket - 1)

    def drain(self) -> None:
        """Take the replies to all updates that are under way, and wait for all images. Collective."""
        if self._regions is not None:
            self._regions.finish()
        if self.stub.behind:
            self.stub.pull(self.values, everything=True)
            self.receive_own()
            self._gather_replies()

    def gather_exactly(self) -> None:
        """Bring `new` to every worker with every value in full. Collective."""
        for index, bucket in enumerate(self.exchange.buckets):
            self.staging.offer(self.new, self.exchange.parts[index])
            self.exchange.gather_exactly(index, self.staging.values, self._offered)
            self.staging.receive(bucket.elements)

    def receive_own(self) -> None:
        """Bring the own shards in `values` to the net."""
        self._own.receive(slice(None))

    def put(self, values: np.ndarray, own: np.ndarray) -> None:
        """Set the replicated parameters on this worker, `new`, and its own shards."""
        self._own.put(own)
        self.staging.put(values)
        if not self.exchange.exact:
            self.new[...] = self._net.ops.asarray(values) if self.in_process_servers else values

    @contextmanager
    def patiently(self) -> Iterator[None]:
        """Inside, collectives wait for workers that a server holds back; those without a slice are not held back."""
        with ExitStack() as stack:
            for comm in {self._comm, self.exchange.comm} if self._held_back else ():
                stack.enter_context(comm.patiently(self.stub.patience_s))
            yield

    def _gather_replies(self) -> None:
        with self.patiently():
            self._executor.run(self._gather_all)

    def _gather_all(self) -> None:
        for index, bucket in enumerate(self.exchange.buckets):
            self.staging.offer(self.new, self.exchange.parts[index])
            self.exchange.all_gather(index, self.staging.values, self._offered)
            self.staging.receive(bucket.elements)
