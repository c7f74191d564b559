"""Copies of a server's slices in memory that outlives its process.

A slice has two copies, which are written in turns. So whenever the process is killed, one of them is whole: the slice
as it was after the last update, or after the one before. A worker group that goes on from its shadows repeats at most
one step.

A successor fences the copies before it reads them. A process that lives all the same then saves nothing any more, and
so acknowledges nothing that its successor does not know.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from singa_dask.comm.shared_memory import Memory, MemoryAddress
from singa_dask.errors import ClusterError
from singa_dask.server.slices import Slice

Array = np.ndarray
_LINE = 64  # bytes of a cache line
_NOTE = 1 << 16  # bytes, with their number in front
_NEVER = -1


class Superseded(ClusterError):
    """Another process goes on from what this one has saved."""


@dataclass(frozen=True)
class ShadowAddress:
    """Where the shadow of a process is, and what it is a shadow of.

    slices: (index, start, stop) of each, as its process counts elements. states: names of the updater's arrays.
    """

    memory: MemoryAddress
    slices: tuple[tuple[int, int, int], ...]
    states: tuple[str, ...]
    dtype: str


@dataclass
class Copy:
    """One of the two copies of a slice. number: of the copy, growing; _NEVER while it is being written."""

    head: Array  # number, version, whether a successor has fenced it
    note_memory: Array
    values: Array
    states: dict[str, Array]

    @property
    def number(self) -> int:
        return int(self.head[0])

    @property
    def version(self) -> int:
        return int(self.head[1])

    @property
    def note(self) -> bytes:
        size = int(self.note_memory[:8].view(np.int64)[0])
        return self.note_memory[8 : 8 + size].tobytes()


@dataclass
class Pace:
    """How often a process copies its slices. every: updates from one copy to the next; seconds: of copying so far."""

    every: int = 1
    seconds: float = 0.0


class SliceShadow:
    """The two copies of one slice, as its server and a successor of it see them."""

    def __init__(self, copies: Sequence[Copy], pace: Pace) -> None:
        self._copies, self._pace = tuple(copies), pace

    def save(self, version: int, values: Array, states: Mapping[str, Array], note: bytes = b"") -> None:
        """Copy the slice after `version` updates, if a copy is due.

        values: the first elements of it, if not all. note: what the server must know besides, at most 65,528 bytes.
        Raises Superseded if a successor reads the copies.
        """
        if not self.due(version):
            return
        began = time.perf_counter()
        older, newer = sorted(self._copies, key=lambda copy: copy.number)
        if len(note) > _NOTE - 8:
            raise ValueError(f"a note has at most {_NOTE - 8} bytes. Received: {len(note)}.")
        older.head[0] = _NEVER
        older.values[: values.size] = values
        for name, array in states.items():
            older.states[name][...] = array
        older.note_memory[:8].view(np.int64)[0] = len(note)
        older.note_memory[8 : 8 + len(note)] = np.frombuffer(note, np.uint8)
        older.head[1] = version
        older.head[0] = newer.number + 1
        self._pace.seconds += time.perf_counter() - began
        if self.fenced:
            raise Superseded("a successor of this process goes on from what it has saved")

    def due(self, version: int) -> bool:
        """Whether a copy is made after so many updates."""
        return version % self._pace.every == 0

    def fence(self) -> None:
        """Have the process that saves here be superseded."""
        for copy in self._copies:
            copy.head[2] = 1

    @property
    def fenced(self) -> bool:
        """Whether a successor reads the copies."""
        return any(copy.head[2] for copy in self._copies)

    @property
    def number(self) -> int:
        """Of the copy that was made last; -1 before the first."""
        return max(copy.number for copy in self._copies)

    @property
    def copies(self) -> list[Copy]:
        """The copies that are whole, the older one first."""
        return sorted((copy for copy in self._copies if copy.number > _NEVER), key=lambda copy: copy.number)

    @property
    def newest(self) -> Copy | None:
        """The copy that was made last, once there is one."""
        return next(reversed(self.copies), None)

    def at(self, version: int) -> Copy | None:
        """The slice after `version` updates, if it is still here."""
        found = [copy for copy in self._copies if copy.number > _NEVER and copy.version == version]
        return max(found, key=lambda copy: copy.number, default=None)


class Shadow:
    """The shadows of all slices of a process, by index, in one Memory."""

    def __init__(self, memory: Memory, address: ShadowAddress) -> None:
        self.memory, self.address, self.pace = memory, address, Pace()
        self.slices = dict(self._cut())

    @classmethod
    def create(
        cls,
        slices: Sequence[Slice],
        states: Sequence[str],
        dtype: Any,
        room: Callable[[int], bool] = lambda nbytes: True,
    ) -> Shadow | None:
        """Shadows of slices of which there is no copy yet; None where the system has no memory for them.

        room: whether there is memory for so many bytes.
        """
        known = tuple((s.index, s.start, s.stop) for s in slices)
        size = nbytes(known, len(states), dtype)
        memory = Memory.create(size) if room(size) else None
        if memory is None:
            return None
        shadow = cls(memory, ShadowAddress(memory.address, known, tuple(states), np.dtype(dtype).name))
        for each in shadow.slices.values():
            for copy in each._copies:
                copy.head[:2] = _NEVER
        return shadow

    @classmethod
    def open(cls, address: ShadowAddress) -> Shadow | None:
        """The shadows of another process; None if they are on another machine, or gone."""
        memory = Memory.open(address.memory)
        return None if memory is None else cls(memory, address)

    @property
    def version(self) -> int | None:
        """The number of updates that every slice has a copy of; None if a slice has no copy."""
        newest = [each.newest for each in self.slices.values()]
        return None if None in newest else min((copy.version for copy in newest if copy is not None), default=None)

    def _cut(self) -> Iterator[tuple[int, SliceShadow]]:
        dtype, offset = np.dtype(self.address.dtype), 0

        def take(kind: Any, count: int) -> Array:
            nonlocal offset
            array = self.memory.array(kind, count, offset)
            offset += _lines(array.nbytes)
            return array

        for index, start, stop in self.address.slices:
            copies = [
                Copy(
                    take(np.int64, 3),
                    take(np.uint8, _NOTE),
                    take(dtype, stop - start),
                    {name: take(dtype, stop - start) for name in self.address.states},
                )
                for _ in range(2)
            ]
            yield index, SliceShadow(copies, self.pace)


def nbytes(slices: Sequence[tuple[int, int, int]], states: int, dtype: Any) -> int:
    """Bytes of the shadows of slices (index, start, stop) with so many states."""
    itemsize = np.dtype(dtype).itemsize
    arrays = sum((1 + states) * _lines((stop - start) * itemsize) for _, start, stop in slices)
    return 2 * (arrays + len(slices) * (_LINE + _NOTE))


def _lines(size: int) -> int:
    return -(-size // _LINE) * _LINE
