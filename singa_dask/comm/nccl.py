"""A group of processes, or threads, with a GPU each: collectives that never leave the GPUs.

Tested with a stand-in for CuPy and NCCL on processors (tests/support/nccl_on_cpu.py); it has not met a GPU.
"""

from __future__ import annotations

import hashlib
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np

from singa_dask.comm.buffers import check_counts, check_flat, check_met, check_root, check_runs, check_target, run_of
from singa_dask.comm.communicator import Communicator
from singa_dask.comm.polled import PolledCommunicator
from singa_dask.errors import ClusterError

Array = Any

UNIQUE_ID_NBYTES = 128
_SUCCESS, _NOT_READY = 0, 600  # cudaError_t
# What can be added up. Everything else travels as bytes.
_TYPES = {
    "float16": "NCCL_FLOAT16",
    "float32": "NCCL_FLOAT32",
    "float64": "NCCL_FLOAT64",
    "int32": "NCCL_INT32",
    "int64": "NCCL_INT64",
    "uint8": "NCCL_UINT8",
}


def unique_id() -> bytes:
    """What the members of a new communicator must all have: made by one of them. Raises ClusterError without NCCL."""
    return bytes(_libraries()[1].get_unique_id())


class NcclCommunicator(PolledCommunicator):
    """Collectives over cupy.cuda.nccl, on CuPy's arrays; NumPy's are staged through a buffer on the GPU.

    An operation begins when the work that its caller's current stream had until then is done; it has ended when the
    call returns. NCCL's calls block where it connects to others, at creation and at first use, so a thread of the
    communicator makes them, and the deadline holds for them too. An error, a deadline or an abort ends in
    ncclCommAbort, which also stops kernels that wait for others; where even that hangs, only the end of the process
    helps, and cluster/rank.py sees to it.

    unique_id: the same on all ranks. device: by number; NCCL wants one for every rank. interrupted: why operations
    must end, told from outside; "" while there is no reason.

    Making one is collective: it meets the other ranks. Raises CommTimeout where a rank does not come, ClusterError
    where NCCL fails or there is none. A rank that has timed out cannot take its call back: the process should end.
    """

    kind = "NCCL"

    def __init__(
        self,
        unique_id: bytes,
        size: int,
        rank: int,
        device: int,
        timeout_s: float = 30.0,
        interrupted: Callable[[], str] = str,
    ) -> None:
        if len(unique_id) != UNIQUE_ID_NBYTES:
            raise ValueError(f"unique_id must be {UNIQUE_ID_NBYTES} bytes. Received: {len(unique_id)}.")
        check_root(rank, size)
        super().__init__(rank, size, timeout_s)
        self._cupy, self._nccl = _libraries()
        self._interrupted = interrupted
        self._device = self._cupy.cuda.Device(device)
        self._caller = _Caller(f"nccl-{rank}")
        self._handle: Any = None
        self._in_handle = threading.Lock()
        self._buffers: dict[str, Array] = {}

        def connect() -> None:
            self._device.use()
            self._stream = self._cupy.cuda.Stream(non_blocking=True)
            self._before, self._after = (self._cupy.cuda.Event(disable_timing=True) for _ in range(2))
            handle = self._nccl.NcclCommunicator(size, unique_id, rank)
            with self._in_handle:
                self._handle = handle
            if self._broken:  # nobody waits for it any more
                self._stop()

        self._wait_for("connect", connect)

    @property
    def _errors(self) -> tuple[type[Exception], ...]:
        return self._nccl.NcclError, self._cupy.cuda.runtime.CUDARuntimeError

    def _wait_for(self, operation: str, fn: Callable[[], None]) -> None:
        """A call that is no operation between ranks' arrays, with the deadline of one."""
        try:
            self._finish(operation, self._caller.call(fn))
        except BaseException as error:
            self._break(f"a failed {operation}")
            self._caller.end()
            if isinstance(error, self._errors):
                raise ClusterError(f"rank {self.rank}: {operation} failed: {error}") from error
            raise

    @property
    def aborted(self) -> str:
        return self._aborted or self._interrupted()

    def abort(self, reason: str) -> None:
        self._aborted = self._aborted or reason
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
                        begin = source + item * run_of(rank, counts).start
                        handle.reduce(begin, target if rank == self.rank else 0, count, kind, add, rank, stream)

        self._call("reduce_scatter", send.nbytes - recv.nbytes, calls, (send,), (recv,))

    def all_gather(self, buffer: Array, counts: Sequence[int]) -> None:
        check_counts(counts, self.size)
        check_flat("buffer", buffer, sum(counts))
        nbytes = [n * buffer.itemsize for n in counts]
        kind = self._nccl.NCCL_UINT8

        def calls(handle: Any, stream: int, place: int) -> None:
            if len(set(counts)) == 1:
                handle.allGather(place + run_of(self.rank, nbytes).start, place, nbytes[0], kind, stream)
                return
            with self._group():
                for rank, count in enumerate(nbytes):
                    if count:
                        begin = place + run_of(rank, nbytes).start
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
        check_runs(send, send_counts, recv, recv_counts, self.size)
        check_met(self.rank, send_counts[self.rank], self.rank, recv_counts[self.rank])
        leaving, arriving = ([n * send.itemsize for n in counts] for counts in (send_counts, recv_counts))
        starts = [run_of(rank, leaving).start for rank in range(self.size)]

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

        made, rank = _shared_id(self.rank == members[0], spread), members.index(self.rank)
        return NcclCommunicator(made, len(members), rank, self._device.id, self.timeout_s, lambda: self.aborted)

    def close(self) -> None:
        if self._handle is not None:  # neither broken nor aborted
            self._wait_for("close", self._handle.destroy)
            self._handle = None
        self._caller.end()
        self._buffers.clear()

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
                    handle.recv(target + run_of(rank, arriving).start, arriving[rank], kind, rank, stream)

    @contextmanager
    def _group(self) -> Iterator[None]:
        self._nccl.groupStart()
        try:
            yield
        finally:
            self._nccl.groupEnd()

    def _kind(self, array: Array) -> int:
        """NCCL's number of a dtype that it can add up."""
        if array.dtype.name not in _TYPES:
            raise ValueError(f"NCCL adds up {', '.join(_TYPES)}. Received: {array.dtype}.")
        return int(getattr(self._nccl, _TYPES[array.dtype.name]))

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
                calls(handle, self._stream.ptr, *(place.data.ptr for place in places))
            self._after.record(self._stream)

        def start() -> Callable[[], bool]:
            self._before.record()
            called = self._caller.call(enqueue)
            return lambda: called() and self._over()

        with self._device:
            self._run(operation, nbytes, start)
            for place, array in zip(places[len(sources) :], targets, strict=True):
                if place is not array:
                    place.get(stream=self._stream, out=array)

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
        """Have NCCL end what it does, in a thread that nobody waits for."""
        with self._in_handle:
            handle, self._handle = self._handle, None
        if handle is not None:
            threading.Thread(target=handle.abort, name=f"nccl-abort-{self.rank}", daemon=True).start()


class _Caller(threading.Thread):
    """Makes calls one after another; nothing waits for it, not even the end of the process."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self.start()

    def call(self, fn: Callable[[], None]) -> Callable[[], bool]:
        """Returns what tells whether the call has returned; it raises what the call raised."""
        job = _Job(fn)
        self._jobs.put(job)
        return job.done

    def end(self) -> None:
        """After the calls so far."""
        self._jobs.put(None)

    def run(self) -> None:
        for job in iter(self._jobs.get, None):
            job.run()


class _Job:
    def __init__(self, fn: Callable[[], None]) -> None:
        self._fn = fn
        self._error: BaseException | None = None
        self._returned = threading.Event()

    def run(self) -> None:
        try:
            self._fn()
        except BaseException as error:
            self._error = error
        finally:
            self._returned.set()

    def done(self) -> bool:
        if not self._returned.is_set():
            return False
        if self._error is not None:
            raise self._error
        return True


def nccl_beside(comm: Communicator, device: int, timeout_s: float = 30.0) -> NcclCommunicator | None:
    """The NCCL communicator of the ranks of `comm`; None where two of them share a GPU, or any has no NCCL.

    device: of this rank, by number. Collective. An abort of `comm` ends its operations. Raises ClusterError on all
    ranks where NCCL fails on one.
    """
    gpus = np.zeros(comm.size, np.int64)
    gpus[comm.rank] = _identity(device)
    comm.all_gather(gpus, [1] * comm.size)
    if not gpus.all() or len(np.unique(gpus)) < comm.size:
        return None

    def spread(own: np.ndarray) -> np.ndarray:
        comm.broadcast(own)
        return own

    made = _shared_id(comm.rank == 0, spread)
    return NcclCommunicator(made, comm.size, comm.rank, device, timeout_s, lambda: comm.aborted)


def _shared_id(makes: bool, spread: Callable[[np.ndarray], np.ndarray]) -> bytes:
    """What one member makes, on every member. spread: gives all of them that one's array.

    Raises ClusterError on all where it could not be made: the others wait for it.
    """
    own, fault = np.zeros(UNIQUE_ID_NBYTES, np.uint8), None
    if makes:
        try:
            own[:] = np.frombuffer(unique_id(), np.uint8)
        except Exception as error:
            fault = error
    found = spread(own)
    if not found.any():
        why = f": {fault}" if fault else " on the first rank, whose error says why"
        raise ClusterError(f"NCCL made no unique id{why}") from fault
    return found.tobytes()


def _identity(device: int) -> int:
    """A number that no other GPU has; 0 where there is no NCCL."""
    try:
        cupy, _ = _libraries()
    except ClusterError:
        return 0
    runtime = cupy.cuda.runtime
    # CuPy takes the uuid for a C string, and cuts it at its first zero byte.
    known = runtime.getDeviceProperties(device)["uuid"] + runtime.deviceGetPCIBusId(device).encode()
    return int.from_bytes(hashlib.sha256(known).digest()[:7], "big") + 1


def _libraries() -> tuple[Any, Any]:
    """CuPy and its NCCL. Raises ClusterError where one is missing."""
    try:
        cupy, nccl = import_module("cupy"), import_module("cupy.cuda.nccl")
    except ImportError as error:
        raise ClusterError(f"NCCL needs CuPy and the NCCL library: {error}") from error
    if not getattr(nccl, "available", True):
        raise ClusterError("CuPy finds no NCCL library. Install nvidia-nccl-cu13, or the system's libnccl.")
    return cupy, nccl
