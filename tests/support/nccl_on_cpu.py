"""A stand-in for CuPy's arrays, streams, events and NCCL, on machines without a GPU.

Memory of the "GPUs" is the process's own, and ranks are threads. What runs on a stream runs in a thread of its own, so
that calls return at once, as on a GPU. NCCL's calls get addresses and numbers, as the real ones do; addresses outside
of device arrays, arrays that are gone when they are read or written, a GPU used twice, and calls of two ranks that do
not fit each other are errors here, where the real library crashes, hangs or returns wrong numbers.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import weakref
from collections import defaultdict, deque
from types import BuiltinFunctionType, FunctionType, ModuleType, SimpleNamespace
from typing import Any, ClassVar

import numpy as np
from support import cupy_on_cpu

from singa_dask.ops.gpu import visible

GPUS = 8
_memory: dict[int, weakref.ref] = {}
_here = threading.local()


class DeviceArray(np.ndarray):
    """An array that NumPy's own do not mix with."""

    def __array_finalize__(self, base):
        if self.base is None:
            _memory[id(self)] = weakref.ref(self)

    def __array_ufunc__(self, ufunc, method, *inputs, out=(), **options):
        for each in (*inputs, *out):
            if isinstance(each, np.ndarray) and not isinstance(each, DeviceArray) and each.ndim:
                raise TypeError(f"{ufunc.__name__}: unsupported type numpy.ndarray")
        plain = [each.view(np.ndarray) if isinstance(each, DeviceArray) else each for each in inputs]
        if out:
            options["out"] = tuple(each.view(np.ndarray) if isinstance(each, DeviceArray) else each for each in out)
        result = getattr(ufunc, method)(*plain, **options)
        if out:
            return out[0]
        return on_gpu(result) if isinstance(result, np.ndarray | np.generic) else result

    @property
    def data(self):
        return SimpleNamespace(ptr=self.ctypes.data if self.size else 0)

    def set(self, array, stream=None):
        taken = array.copy()  # memory that is not pinned is read before the call returns
        (stream or _NULL).enqueue(lambda: np.copyto(self.view(np.ndarray), taken))

    def get(self, stream=None, order="C", out=None):
        out = np.empty(self.shape, self.dtype) if out is None else out
        (stream or _NULL).enqueue(lambda: np.copyto(out, self.view(np.ndarray)))
        (stream or _NULL).synchronize()
        return out


def on_gpu(values, dtype=None):
    made = empty(np.shape(values), dtype or np.asarray(values).dtype)
    made.view(np.ndarray)[...] = values
    return made


def empty(shape, dtype=float):
    return DeviceArray(shape, dtype)


class Place:
    """Device memory. Nobody keeps it for those who have its address."""

    def __init__(self, address, nbytes):
        self.nbytes = nbytes
        for self._array in list(_memory.values()):
            array = self._array()
            if array is not None and 0 <= (start := address - array.ctypes.data) <= array.nbytes - nbytes:
                self._start = start
                return
        raise NcclError(f"invalid argument: no {nbytes} bytes of device memory at {address:#x}")

    @property
    def bytes(self):
        if (array := self._array()) is None:
            raise NcclError("illegal memory access: a kernel reads or writes an array that is gone")
        return np.frombuffer(array.view(np.ndarray), np.uint8, self.nbytes, self._start)


class Stream:
    """Runs what it is given, in order, in a thread that ends when there is nothing left."""

    known: ClassVar[weakref.WeakValueDictionary] = weakref.WeakValueDictionary()

    def __init__(self, null=False, non_blocking=False):
        self.ptr = 0 if null else next(_numbers)
        self.device = current_device()
        self._tasks, self._lock, self._running = deque(), threading.Lock(), False
        Stream.known[self.ptr] = self

    def enqueue(self, task):
        with self._lock:
            self._tasks.append(task)
            if not self._running:
                self._running = True
                threading.Thread(target=self._drain, daemon=True, name=f"stream-{self.ptr}").start()

    def _drain(self):
        while True:
            with self._lock:
                if not self._tasks:
                    self._running = False
                    return
                task = self._tasks.popleft()
            task()

    def wait_event(self, event):
        recorded = event.recorded
        self.enqueue(recorded.wait)

    def synchronize(self):
        reached = threading.Event()
        self.enqueue(reached.set)
        reached.wait()


class Event:
    def __init__(self, block=False, disable_timing=False):
        self.recorded = threading.Event()
        self.recorded.set()

    def record(self, stream=None):
        self.recorded = threading.Event()
        (stream or _NULL).enqueue(self.recorded.set)

    @property
    def ptr(self):
        return self


_numbers = itertools.count(0x1000)


def current_device():
    return getattr(_here, "device", 0)


_NULL = Stream(null=True)


class Device:
    def __init__(self, device_id):
        self.id = device_id
        self._before = []

    def use(self):
        _here.device = self.id

    def __enter__(self):
        self._before.append(current_device())
        self.use()

    def __exit__(self, *_):
        _here.device = self._before.pop()


class NcclError(RuntimeError):
    pass


NUMBERS = {
    "INT8": 0,
    "UINT8": 1,
    "INT32": 2,
    "UINT32": 3,
    "INT64": 4,
    "UINT64": 5,
    "FLOAT16": 6,
    "FLOAT32": 7,
    "FLOAT64": 8,
}
TYPES = {number: np.dtype(name.lower()) for name, number in NUMBERS.items()}
SUM = 0


class World:
    """What the ranks of one unique id share."""

    def __init__(self, size):
        self.size = size
        self.devices: dict[int, int] = {}
        self.changed = threading.Condition()
        self.collectives: dict[int, dict] = defaultdict(dict)
        self.mail: dict[tuple, deque] = defaultdict(deque)
        self.error = ""

    def fail(self, error):
        self.error = self.error or error
        self.changed.notify_all()


_worlds: dict[bytes, World] = {}
_worlds_lock = threading.Lock()


class NcclCommunicator:
    def __init__(self, ndev, commId, rank):
        if not isinstance(commId, bytes) or len(commId) != 128:
            raise TypeError("commId must be 128 bytes")
        with _worlds_lock:
            self.world = _worlds.setdefault(commId, World(ndev))
        self.rank, self.size_, self.device = rank, ndev, current_device()
        self.ended, self.count = "", 0
        with self.world.changed:
            if ndev != self.world.size or not 0 <= rank < ndev or rank in self.world.devices:
                raise NcclError("invalid argument: rank or size")
            if self.device in self.world.devices.values():
                self.world.fail(f"invalid usage: duplicate GPU {self.device}")
            else:
                self.world.devices[rank] = self.device
            self.world.changed.notify_all()
            self.world.changed.wait_for(lambda: self.world.error or len(self.world.devices) == ndev)
            if len(self.world.devices) < ndev:  # the others may have gone on and failed since
                raise NcclError(self.world.error)

    def abort(self):
        with self.world.changed:
            self.ended = "aborted"
            self.world.changed.notify_all()

    def destroy(self):
        self.ended = "destroyed"

    def check_async_error(self):
        self._check()
        if self.world.error:
            raise NcclError(self.world.error)

    def allReduce(self, sendbuf, recvbuf, count, datatype, op, stream):
        self._collective("allReduce", sendbuf, recvbuf, count, datatype, stream, op=op)

    def reduceScatter(self, sendbuf, recvbuf, recvcount, datatype, op, stream):
        self._collective("reduceScatter", sendbuf, recvbuf, recvcount, datatype, stream, op=op)

    def allGather(self, sendbuf, recvbuf, count, datatype, stream):
        self._collective("allGather", sendbuf, recvbuf, count, datatype, stream)

    def reduce(self, sendbuf, recvbuf, count, datatype, op, root, stream):
        self._collective("reduce", sendbuf, recvbuf, count, datatype, stream, op=op, root=root)

    def broadcast(self, sendbuff, recvbuff, count, datatype, root, stream):
        self._collective("broadcast", sendbuff, recvbuff, count, datatype, stream, root=root)

    def send(self, sendbuf, count, datatype, peer, stream):
        self._message((self.rank, peer), sendbuf, count, datatype, peer, stream, sends=True)

    def recv(self, recvbuf, count, datatype, peer, stream):
        self._message((peer, self.rank), recvbuf, count, datatype, peer, stream, sends=False)

    def _check(self):
        if self.ended:
            raise NcclError(f"invalid argument: the communicator was {self.ended}")

    def _started(self, numbers, datatype, rank, stream):
        self._check()
        if not all(type(number) is int and number >= 0 for number in (*numbers, datatype, rank, stream)):
            raise TypeError(f"an integer is required, got {numbers}")
        if rank >= self.size_ or datatype not in TYPES or stream not in Stream.known:
            raise NcclError(f"invalid argument: rank {rank}, type {datatype} or stream {stream}")
        if Stream.known[stream].device != self.device or current_device() != self.device:
            raise NcclError("invalid usage: the stream or the thread is not on the communicator's GPU")

    def _collective(self, name, source, target, count, datatype, stream, op=SUM, root=0):
        self._started((source, target, count), datatype, root, stream)
        nbytes = count * TYPES[datatype].itemsize
        reads = nbytes * (self.size_ if name == "reduceScatter" else 1)
        writes = nbytes * (self.size_ if name == "allGather" else 1)
        call = SimpleNamespace(
            agreed=(name, count, datatype, op, root),
            comm=self,
            source=None if name == "broadcast" and self.rank != root else Place(source, reads),
            target=None if name == "reduce" and self.rank != root else Place(target, writes),
        )
        number, self.count = self.count, self.count + 1
        world = self.world

        def post():
            calls = world.collectives[number]
            calls[self.rank] = call
            if len(calls) == world.size and not any(each.comm.ended for each in calls.values()):
                if len({each.agreed for each in calls.values()}) > 1:
                    world.fail(f"mismatch: {sorted({each.agreed for each in calls.values()})}")
                else:
                    _move([calls[rank] for rank in range(world.size)])
                    call.agreed = None
                    for each in calls.values():
                        each.over = True

        call.over = False
        _enqueue(self, Stream.known[stream], post, lambda: call.over)

    def _message(self, way, address, count, datatype, peer, stream, sends):
        self._started((address, count), datatype, peer, stream)
        if peer == self.rank and not _group_depth():
            raise NcclError("invalid usage: a message to oneself outside of a group")
        box = self.world.mail[way]
        place = Place(address, count * TYPES[datatype].itemsize)
        end = SimpleNamespace(comm=self, place=place, sends=sends, over=False)

        def post():
            other = next((each for each in box if each.sends != sends and not each.comm.ended), None)
            if other is None:
                box.append(end)
                return
            box.remove(other)
            if other.place.nbytes != place.nbytes:
                self.world.fail(f"mismatch: rank {way[0]} to {way[1]}: {other.place.nbytes} and {place.nbytes} bytes")
                return
            source, target = (end, other) if sends else (other, end)
            target.place.bytes[...] = source.place.bytes
            end.over = other.over = True

        _enqueue(self, Stream.known[stream], post, lambda: end.over)


def _move(calls):
    name, count, datatype, _, root = calls[0].agreed
    kind = TYPES[datatype]
    if name == "broadcast":
        for call in calls:
            call.target.bytes[...] = calls[root].source.bytes
    elif name == "allGather":
        whole = np.concatenate([call.source.bytes for call in calls])
        for call in calls:
            call.target.bytes[...] = whole
    else:
        with np.errstate(over="ignore"):
            total = np.add.reduce([call.source.bytes.view(kind) for call in calls], dtype=kind)
        for rank, call in enumerate(calls):
            if name == "allReduce" or (name == "reduce" and rank == root):
                call.target.bytes.view(kind)[...] = total
            elif name == "reduceScatter":
                call.target.bytes.view(kind)[...] = total[rank * count : rank * count + count]


def _group_depth():
    return getattr(_here, "depth", 0)


def groupStart():
    _here.depth = _group_depth() + 1
    if _here.depth == 1:
        _here.calls = []


def groupEnd():
    if not _group_depth():
        raise NcclError("invalid usage: groupEnd without groupStart")
    _here.depth -= 1
    if not _here.depth and _here.calls:
        _launch(_here.calls)


def _enqueue(comm, stream, post, over):
    if _group_depth():
        _here.calls.append((comm, stream, post, over))
    else:
        _launch([(comm, stream, post, over)])


def _launch(calls):
    """A group is one kernel: all its calls begin, then all of them end."""
    comm, stream, *_ = calls[0]
    assert all(each[0] is comm and each[1] is stream for each in calls)
    world = comm.world

    def kernel():
        with world.changed:
            if comm.ended:
                return
            for _, _, post, _ in calls:
                post()
            world.changed.notify_all()
            world.changed.wait_for(lambda: comm.ended or all(over() for *_, over in calls))

    stream.enqueue(kernel)


def _of_device(function):
    """One of NumPy's functions that takes no arrays of the host and returns a device array."""

    def call(*args, **options):
        for each in (*args, *options.values()):
            if isinstance(each, np.ndarray) and not isinstance(each, DeviceArray) and each.ndim:
                raise TypeError(f"{function.__name__}: unsupported type numpy.ndarray")
        result = function(*args, **options)
        if type(result) is not np.ndarray:
            return result
        return on_gpu(result) if result.base is None else result.view(DeviceArray)

    return call


def install(patch: Any) -> None:
    """Have a pytest.MonkeyPatch put all of it in place, and GPUs that the driver lists."""
    for name, module in _modules().items():
        patch.setitem(sys.modules, name, module)
    gpus = tuple(visible.Gpu(number, f"host/{number}") for number in range(GPUS))
    patch.setattr(visible, "visible_gpus", lambda: gpus)


def _modules() -> dict[str, ModuleType]:
    """What is to stand in sys.modules."""
    cupy, cuda, nccl = cupy_on_cpu.module(), ModuleType("cupy.cuda"), ModuleType("cupy.cuda.nccl")
    runtime = SimpleNamespace(
        getDeviceCount=lambda: GPUS,
        getDevice=current_device,
        eventQuery=lambda event: 0 if event.recorded.is_set() else 600,
        CUDARuntimeError=type("CUDARuntimeError", (Exception,), {}),
    )
    vars(cuda).update(nccl=nccl, runtime=runtime, Device=Device, Stream=Stream, Event=Event)
    vars(nccl).update(
        available=True,
        NCCL_SUM=SUM,
        NcclError=NcclError,
        NcclCommunicator=NcclCommunicator,
        get_unique_id=lambda: os.urandom(128),
        groupStart=groupStart,
        groupEnd=groupEnd,
        **{f"NCCL_{name}": number for name, number in NUMBERS.items()},
    )
    for name, value in list(vars(cupy).items()):
        if isinstance(value, FunctionType | BuiltinFunctionType) or type(value).__name__ == "_ArrayFunctionDispatcher":
            setattr(cupy, name, _of_device(value))
    vars(cupy).update(
        cuda=cuda,
        ndarray=DeviceArray,
        empty=empty,
        zeros=lambda shape, dtype=float: on_gpu(np.zeros(shape, dtype)),
        asarray=lambda values, dtype=None: (
            values if isinstance(values, DeviceArray) and dtype in (None, values.dtype) else on_gpu(values, dtype)
        ),
        asnumpy=lambda array: np.array(array, subok=False),
    )
    return {"cupy": cupy, "cupy.cuda": cuda, "cupy.cuda.nccl": nccl}
