"""A group of processes, or threads, with a GPU each: collectives between GPUs.

Tested on GPUs that are emulated on a CPU (tests/cuda_on_cpu), and between two processes on one GPU.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from singa_dask.comm.calling_thread import CallingThread
from singa_dask.comm.checks import check_counts, check_flat, check_met, check_parts, check_root, check_target
from singa_dask.comm.communicator import Communicator, part_of
from singa_dask.comm.nccl_library import (
    UNIQUE_ID_NBYTES,
    UnlistedStatus,
    device_identity,
    libraries,
    listed,
    shared_id,
)
from singa_dask.comm.polled import PolledCommunicator
from singa_dask.errors import ClusterError

Array = Any

_SUCCESS, _NOT_READY = 0, 600  # cudaError_t
# What can be added up. Everything else travels as bytes.
_TYPES = ("float16", "float32", "float64", "int32", "int64", "uint8")


class NcclCommunicator(PolledCommunicator):
    """Collectives over cupy.cuda.nccl, on CuPy's arrays; NumPy's are staged through a buffer on the GPU.

    An operation begins after the work that is already in the caller's current stream; it is complete when the call
    returns. NCCL's calls block while it connects to other ranks, at creation and at first use. A thread of the
    communicator makes them, so that they have deadlines too. An error, a deadline or an abort calls ncclCommAbort,
    which also stops kernels that wait for other ranks. If even that hangs, cluster/rank.py ends the process.

    device: by number; NCCL wants one for every rank. interrupted: returns why operations must end, or "".
    `form` makes one.
    """

    kind = "NCCL"

    def __init__(self, size: int, rank: int, device: int, timeout_s: float, interrupted: Callable[[], str]) -> None:
        check_root(rank, size)
        super().__init__(rank, size, timeout_s, interrupted)
        self._cupy, self._nccl = libraries()
        self._device = self._cupy.cuda.Device(device)
        self._caller = CallingThread(f"nccl-{rank}")
        self._handle: Any = None
        self._in_handle = threading.Lock()
        self._buffers: dict[str, Array] = {}
        self._in_use: Sequence[Array] = ()  # what the current operation reads and writes

    @classmethod
    def form(
        cls,
        unique_id: bytes,
        size: int,
        rank: int,
        device: int,
        timeout_s: float = 30.0,
        interrupted: Callable[[], str] = str,
        connect_s: float | None = None,
    ) -> NcclCommunicator:
        """Connect to the other ranks. Collective.

        unique_id: the same on all ranks. connect_s: the deadline of that, by default `timeout_s`. Raises CommTimeout
        if a rank does not come, ClusterError if NCCL fails or is missing. A rank that has timed out cannot cancel its
        call: the process should end.
        """
        if len(unique_id) != UNIQUE_ID_NBYTES:
            raise ValueError(f"unique_id must be {UNIQUE_ID_NBYTES} bytes. Received: {len(unique_id)}.")
        made = cls(size, rank, device, timeout_s, interrupted)
        with made.patiently(timeout_s if connect_s is None else connect_s):
            made._wait_for("connect", lambda: made._connect(unique_id))
        return made

    def _connect(self, unique_id: bytes) -> None:
        self._device.use()
        self._stream = self._cupy.cuda.Stream(non_blocking=True)
        self._before, self._after = (self._cupy.cuda.Event(disable_timing=True) for _ in range(2))
        with listed():
            handle = self._nccl.NcclCommunicator(self.size, unique_id, self.rank)
        with self._in_handle:
            self._handle = handle
        if self._broken:  # `form` has given up
            self._stop()

    @property
    def _errors(self) -> tuple[type[Exception], ...]:
        return self._nccl.NcclError, self._cupy.cuda.runtime.CUDARuntimeError, UnlistedStatus

    def _wait_for(self, operation: str, fn: Callable[[], None]) -> None:
        """Make a call that moves no arrays, with the deadline of an operation."""
        try:
            self._poll(operation, self._caller.call(fn))
        except BaseException as error:
            self._break(f"a failed {operation}")
            self._caller.end()
            if isinstance(error, self._errors):
                raise ClusterError(f"rank {self.rank}: {operation} failed: {error}") from error
            raise

    def abort(self, reason: str) -> None:
        super().abort(reason)
        self._stop()

    def reduce_scatter(self, send: Array, recv: Array, counts: Sequence[int]) -> None:
        check_counts(counts, self.size)
        check_flat("send", send, sum(counts))
        check_flat("recv", recv, counts[self.rank])
        kind, item, add = self._kind(send), send.itemsize, self._nccl.NCCL_SUM

        def calls(handle: Any, stream: int, source: int, target: int) -> None:
            if len(set(counts)) == 1:
                handle.reduceScatter(source, target, counts[0], kind, add, stream)
                return
            with self._group():
                for rank, count in enumerate(counts):
                    if count:
                        begin = source + item * part_of(rank, counts).start
                        handle.reduce(begin, target if rank == self.rank else 0, count, kind, add, rank, stream)

        self._call("reduce_scatter", send.nbytes - recv.nbytes, calls, (send,), (recv,))

    def all_gather(self, buffer: Array, counts: Sequence[int]) -> None:
        check_counts(counts, self.size)
        check_flat("buffer", buffer, sum(counts))
        nbytes = [n * buffer.itemsize for n in counts]
        kind = self._nccl.NCCL_UINT8

        def calls(handle: Any, stream: int, place: int) -> None:
            if len(set(counts)) == 1:
                handle.allGather(place + part_of(self.rank, nbytes).start, place, nbytes[0], kind, stream)
                return
            with self._group():
                for rank, count in enumerate(nbytes):
                    if count:
                        begin = place + part_of(rank, nbytes).start
                        handle.broadcast(begin, begin, count, kind, rank, stream)

        self._call("all_gather", buffer.nbytes - nbytes[self.rank], calls, (), (buffer,))

    def gather(self, send: Array, recv: Array | None, counts: Sequence[int], root: int = 0) -> None:
        check_counts(counts, self.size)
        check_root(root, self.size)
        check_flat("send", send, counts[self.rank])
        targets = (check_target(recv, root, counts),) if self.rank == root else ()
        nbytes = [n * send.itemsize for n in counts]

        def calls(handle: Any, stream: int, source: int, target: int = 0) -> None:
            arriving = nbytes if targets else [0] * self.size
            leaving = [nbytes[self.rank] if rank == root else 0 for rank in range(self.size)]
            self._trade(handle, stream, source, [0] * self.size, leaving, target, arriving)

        self._call("gather", send.nbytes, calls, (send,), targets)

    def all_to_all(self, send: Array, send_counts: Sequence[int], recv: Array, recv_counts: Sequence[int]) -> None:
        check_parts(send, send_counts, recv, recv_counts, self.size)
        check_met(self.rank, send_counts[self.rank], self.rank, recv_counts[self.rank])
        leaving, arriving = ([n * send.itemsize for n in counts] for counts in (send_counts, recv_counts))
        starts = [part_of(rank, leaving).start for rank in range(self.size)]

        def calls(handle: Any, stream: int, source: int, target: int) -> None:
            self._trade(handle, stream, source, starts, leaving, target, arriving)

        self._call("all_to_all", send.nbytes - send_counts[self.rank] * send.itemsize, calls, (send,), (recv,))

    def all_reduce(self, buffer: Array) -> None:
        check_flat("buffer", buffer)
        kind = self._kind(buffer)

        def calls(handle: Any, stream: int, place: int) -> None:
            handle.allReduce(place, place, buffer.size, kind, self._nccl.NCCL_SUM, stream)

        self._call("all_reduce", buffer.nbytes, calls, (), (buffer,))

    def broadcast(self, buffer: Array, root: int = 0) -> None:
        check_flat("buffer", buffer)
        check_root(root, self.size)

        def calls(handle: Any, stream: int, place: int) -> None:
            handle.broadcast(place, place, buffer.nbytes, self._nccl.NCCL_UINT8, root, stream)

        self._call("broadcast", buffer.nbytes, calls, (), (buffer,))

    def barrier(self) -> None:
        def calls(handle: Any, stream: int, place: int) -> None:
            handle.allReduce(place, place, 1, self._nccl.NCCL_FLOAT32, self._nccl.NCCL_SUM, stream)

        self._call("barrier", 0, calls, (), (np.zeros(1, np.float32),))

    def _of_color(self, colors: list[int]) -> NcclCommunicator:
        members = self._alike(colors)

        def spread(own: np.ndarray) -> np.ndarray:
            every = np.zeros((self.size, own.size), own.dtype)
            every[self.rank] = own
            self.all_gather(every.reshape(-1), [own.size] * self.size)
            return every[members[0]]

        made, rank = shared_id(self.rank == members[0], spread), members.index(self.rank)
        return NcclCommunicator.form(made, len(members), rank, self._device.id, self.timeout_s, lambda: self.aborted)

    def warm_up(self) -> None:
        """Make each kind of operation once, as NCCL connects two ranks when it first needs them connected."""
        even, uneven = [1] * self.size, [2, *[1] * (self.size - 1)]
        for counts in (even, uneven):
            whole, own = np.zeros(sum(counts), np.float32), np.zeros(counts[self.rank], np.float32)
            self.reduce_scatter(whole, own, counts)
            self.all_gather(whole, counts)
        self.all_to_all(np.zeros(self.size, np.uint8), even, np.zeros(self.size, np.uint8), even)
        self.all_reduce(np.zeros(1, np.float32))
        self.nbytes.clear()
        self.seconds.clear()

    def close(self) -> None:
        if self._handle is not None:  # neither broken nor aborted
            self._wait_for("close", self._handle.destroy)
            self._handle = None
        self._caller.end()
        self._buffers.clear()
        self._in_use = ()

    def _trade(
        self,
        handle: Any,
        stream: int,
        source: int,
        starts: list[int],
        leaving: list[int],
        target: int,
        arriving: list[int],
    ) -> None:
        """Bytes from and to every rank, the own one too; those that arrive lie one after another."""
        kind = self._nccl.NCCL_UINT8
        with self._group():
            for rank in range(self.size):
                if leaving[rank]:
                    handle.send(source + starts[rank], leaving[rank], kind, rank, stream)
                if arriving[rank]:
                    handle.recv(target + part_of(rank, arriving).start, arriving[rank], kind, rank, stream)

    @contextmanager
    def _group(self) -> Iterator[None]:
        self._nccl.groupStart()
        try:
            yield
        finally:
            self._nccl.groupEnd()

    @staticmethod
    def adds(dtype: np.dtype) -> bool:
        """Whether NCCL can add up arrays of this dtype."""
        return dtype.name in _TYPES

    def _kind(self, array: Array) -> int:
        """NCCL's number of a dtype that it can add up."""
        if not self.adds(array.dtype):
            raise ValueError(f"NCCL adds up {', '.join(_TYPES)}. Received: {array.dtype}.")
        return int(getattr(self._nccl, f"NCCL_{array.dtype.name.upper()}"))

    def _call(
        self,
        operation: str,
        nbytes: int,
        calls: Callable[..., None],
        sources: Sequence[Array],
        targets: Sequence[Array],
    ) -> None:
        """calls: makes NCCL's, given its handle, the stream and the addresses of the arrays, sources first."""
        arrays = [*sources, *targets]
        places = [self._on_device(f"{operation} {i}", array) for i, array in enumerate(arrays)]

        def enqueue() -> None:
            self._stream.wait_event(self._before)
            for place, array in zip(places, arrays, strict=True):
                if place is not array:
                    place.set(array, stream=self._stream)
            handle = self._alive()
            if any(array.size for array in arrays):
                with listed():
                    calls(handle, self._stream.ptr, *(place.data.ptr for place in places))
            self._after.record(self._stream)

        def start() -> Callable[[], bool]:
            self._before.record()
            called = self._caller.call(enqueue)
            return lambda: called() and self._over()

        self._in_use = places
        with self._device:
            self._start(operation, nbytes, start).wait()
            for place, array in zip(places[len(sources) :], targets, strict=True):
                if place is not array:
                    place.get(stream=self._stream, out=array)
        self._in_use = ()

    def _on_device(self, use: str, array: Array) -> Array:
        """The array, or for one of NumPy's a place on the GPU, which the next call may get again."""
        if isinstance(array, self._cupy.ndarray):
            return array
        held = self._buffers.get(use)
        if held is None or held.size < array.nbytes:
            with self._device:
                held = self._buffers[use] = self._cupy.empty(max(array.nbytes, 1), np.uint8)
        return held[: array.nbytes].view(array.dtype)

    def _alive(self) -> Any:
        handle = self._handle
        if handle is None:
            raise ClusterError(f"rank {self.rank}: the communicator has ended. {self.aborted}".rstrip())
        return handle

    def _over(self) -> bool:
        """Whether the GPU has done what was enqueued last. Raises NcclError or CUDARuntimeError where one of them has
        noticed that it cannot."""
        with self._in_handle:
            if self._handle is None:  # an abort ends kernels too, but not what they were to do
                return False
            with listed():
                self._handle.check_async_error()
        runtime = self._cupy.cuda.runtime
        status = runtime.eventQuery(self._after.ptr)  # Event.done takes an error for "not yet"
        if status not in (_SUCCESS, _NOT_READY):
            raise runtime.CUDARuntimeError(status)
        return bool(status == _SUCCESS)

    def _break(self, what: str) -> None:
        super()._break(what)
        self._stop()

    def _stop(self) -> None:
        """Have NCCL end what it does, in a thread that nobody waits for, and that keeps the arrays until then."""
        with self._in_handle:
            handle, self._handle, in_use = self._handle, None, self._in_use
        if handle is not None:
            name = f"nccl-abort-{self.rank}"
            threading.Thread(target=_abort, args=(handle, in_use), name=name, daemon=True).start()


def _abort(handle: Any, in_use: Sequence[Array]) -> None:
    """End what NCCL does. in_use: arrays whose memory must not be given to others before."""
    handle.abort()


def form_nccl(
    comm: Communicator, device: int, timeout_s: float = 30.0, connect_s: float | None = None
) -> NcclCommunicator | None:
    """The NCCL communicator of the ranks of `comm`; None if two ranks share a GPU, or any has no NCCL. Collective.

    device: this rank's GPU, by number. connect_s: see NcclCommunicator.form. An abort of `comm` ends its operations.
    Raises ClusterError on all ranks if NCCL fails on one.
    """
    gpus = comm.all_gather_number(device_identity(device))
    if not gpus.all() or len(np.unique(gpus)) < comm.size:
        return None

    def spread(own: np.ndarray) -> np.ndarray:
        comm.broadcast(own)
        return own

    made = shared_id(comm.rank == 0, spread)
    return NcclCommunicator.form(made, comm.size, comm.rank, device, timeout_s, lambda: comm.aborted, connect_s)
