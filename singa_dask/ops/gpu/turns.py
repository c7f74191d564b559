"""On which GPU a process computes on its own, and when: by locks on files, which all processes of a machine see."""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
import threading
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from singa_dask.errors import ClusterError
from singa_dask.job.gpus import on_cpus
from singa_dask.ops.gpu import visible

T = TypeVar("T")

# A GPU by number, and which of those that may compute there at once.
_Place = tuple[int, int]
_LOOK_S, _LONG_S = 0.002, 600.0


def places_here(listed: Sequence[int] = ()) -> list[_Place]:
    """Where this process can compute for a job that lists these GPUs: a place on each that it sees, the first one
    first, or as many as are listed. Empty for the CPU."""
    if on_cpus(listed) or not visible.has_cupy():
        return []
    seen = [gpu.number for gpu in visible.visible_gpus()]
    numbers = [number for number in listed if number in seen] if listed else seen
    return [(number, numbers[:i].count(number)) for i, number in enumerate(numbers)]


def own_gpu(listed: Sequence[int] = ()) -> int | None:
    """The GPU on which this process computes on its own, by number, for a job that lists these; None for the CPU.

    It is the first one that no other process has; the first one if others have them all. The process keeps it until it
    gets another one. A GPU that is listed and not there is returned, for get_ops to say what is missing.
    """
    places = places_here(listed)
    if not places:
        return listed[0] if listed and not on_cpus(listed) else None
    return _own.among(places)


@contextmanager
def turn(gpu: int | None, listed: Sequence[int] = ()) -> Iterator[None]:
    """Inside, this thread computes on the GPU, and no other thread or process of this machine that asks here does;
    with a GPU that is listed several times, as many do. None: the CPU, for which nobody waits.

    Raises ClusterError after 10 minutes.
    """
    held = None if gpu is None else _next(gpu, max(1, list(listed).count(gpu)))
    try:
        yield
    finally:
        if held is not None:
            os.close(held)


def in_turns(items: Iterable[T], gpu: int | None, listed: Sequence[int] = ()) -> Generator[T]:
    """The same items: each is made, and used by the caller, in a turn. To be closed."""
    iterator = iter(items)
    while True:
        with turn(gpu, listed):
            for item in iterator:
                yield item
                break
            else:
                return


class _Own:
    """The GPU of this process."""

    def __init__(self) -> None:
        self._number: int | None = None
        self._held: int | None = None
        self._lock = threading.Lock()

    def among(self, places: Sequence[_Place]) -> int:
        with self._lock:
            if self._number is None or self._number not in [number for number, _ in places]:
                found = ((number, _locked(number, slot, "process")) for number, slot in places)
                number, held = next(((number, it) for number, it in found if it is not None), (places[0][0], None))
                if self._held is not None:
                    os.close(self._held)
                self._number, self._held = number, held
            return self._number


_own = _Own()


def _next(gpu: int, slots: int) -> int:
    """A lock, once one of the slots is free."""
    deadline = time.monotonic() + _LONG_S
    while True:
        for slot in range(slots):
            if (held := _locked(gpu, slot, "turn")) is not None:
                return held
        if time.monotonic() > deadline:
            raise ClusterError(
                f"{visible.in_words(gpu)}: another process has predicted there for {_LONG_S:g} s. Wait until it ends, "
                "or choose another GPU or the CPU, by CUDA_VISIBLE_DEVICES or gpu=[...]."
            )
        time.sleep(_LOOK_S)


def _locked(gpu: int, slot: int, what: str) -> int | None:
    """The descriptor of a file that holds a lock of the machine; None if others have it."""
    name = hashlib.sha256(f"{visible.identity_of(gpu)} {slot} {what}".encode()).hexdigest()[:16]
    descriptor = _opened(Path(tempfile.gettempdir(), f"singa_dask-gpu-{name}"))
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _opened(path: Path) -> int:
    """Other users can only read it, which is enough for a lock. What they put there is not followed or waited for."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        descriptor = os.open(path, flags | os.O_CREAT, 0o644)
        os.fchmod(descriptor, 0o644)
        return descriptor
