"""Regions: memory that outlives a process, to which images of its state are written.

A region has two images, which are written in turns. So whenever the process is killed, one of them is whole: the state
after the last update, or after the one before.

Arrays of a device are copied beside its work: their image is whole, and takes its number, with `finish`. Until then,
the one before counts.

A successor fences the regions before it reads them. A process that lives all the same then saves nothing any more, and
so acknowledges nothing that its successor does not know.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from singa_dask.comm.shared_memory import Memory, MemoryAddress
from singa_dask.errors import ClusterError
from singa_dask.ops.copies import Copies

Array = np.ndarray
Key: TypeAlias = tuple[int, str]  # of an image among those of its process: the index of a slice, and what of it
VALUES = ""  # the name of the parameters among the arrays of an image; all other names are the updater's
_LINE = 64  # bytes of a cache line
_NOTE = 1 << 16  # bytes, with their number in front


class Superseded(ClusterError):
    """Another process continues from what this one has saved."""


@dataclass(frozen=True)
class ImageLayout:
    """The arrays of an image, by name: elements [start, stop) of each, as its process counts them."""

    key: Key
    start: int
    stop: int
    arrays: tuple[str, ...] = (VALUES,)
    dtype: str = "float32"

    @property
    def size(self) -> int:
        """Elements of an array."""
        return self.stop - self.start

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return _LINE + _NOTE + len(self.arrays) * _lines(self.size * np.dtype(self.dtype).itemsize)


class Image:
    """State after `version` updates, and a note. number: of the image in its region, growing; -1 where there is none,
    or while it is being written."""

    def __init__(self, memory: Memory, offset: int, layout: ImageLayout) -> None:
        """offset: the byte of the memory with which it begins."""
        self.layout = layout
        self.head = memory.array(np.int64, 3, offset)  # number + 1, version, whether a successor has fenced it
        self.note_memory = memory.array(np.uint8, _NOTE, offset + _LINE)
        dtype, first = np.dtype(layout.dtype), offset + _LINE + _NOTE
        each = _lines(layout.size * dtype.itemsize)
        self.arrays = {
            name: memory.array(dtype, layout.size, first + i * each) for i, name in enumerate(layout.arrays)
        }

    @property
    def number(self) -> int:
        return int(self.head[0]) - 1

    @property
    def version(self) -> int:
        return int(self.head[1])

    @property
    def note(self) -> bytes:
        size = int(self.note_memory[:8].view(np.int64)[0])
        return self.note_memory[8 : 8 + size].tobytes()

    def piece(self, *, copy: bool = True) -> Piece:
        """copy: of its arrays, so that the image may be written to afterwards."""
        arrays = {name: array.copy() if copy else array for name, array in self.arrays.items()}
        return Piece(self.layout, self.number, self.version, arrays, self.note)


@dataclass(frozen=True)
class Piece:
    """An image on its way to a store or a successor: as in Image."""

    layout: ImageLayout
    number: int
    version: int
    arrays: Mapping[str, Array]
    note: bytes

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        return sum(array.nbytes for array in self.arrays.values())


@dataclass
class Pace:
    """How often a process saves. every: updates from one image to the next; seconds: of copying so far."""

    every: int = 1
    seconds: float = 0.0


class Region:
    """Two images of the same state, as its process and a successor of it see them."""

    def __init__(self, images: Sequence[Image], pace: Pace, copies: Copies | None = None) -> None:
        self._images, self._pace, self._copies = tuple(images), pace, copies or Copies()
        self._under_way: tuple[Image, int] | None = None  # and its number

    def save(self, version: int, arrays: Mapping[str, Array], note: bytes = b"", number: int | None = None) -> None:
        """Save the state after `version` updates, if an image is due.

        arrays: the first elements of each, if not all. note: what a successor must know besides, at most 65,528 bytes.
        number: of the image, by default the next one.
        Raises Superseded if a successor reads the region.
        """
        if not self.due(version):
            return
        self.finish()
        began = time.perf_counter()
        older, newer = sorted(self._images, key=lambda image: image.number)
        if len(note) > _NOTE - 8:
            raise ValueError(f"a note has at most {_NOTE - 8} bytes. Received: {len(note)}.")
        older.head[0] = 0
        for name, array in arrays.items():
            self._copies.copy(array, older.arrays[name][: array.size])
        older.note_memory[:8].view(np.int64)[0] = len(note)
        older.note_memory[8 : 8 + len(note)] = np.frombuffer(note, np.uint8)
        older.head[1] = version
        self._under_way = older, newer.number + 1 if number is None else number
        self._pace.seconds += time.perf_counter() - began
        if not self._copies.beside:
            self.finish()
        if self.fenced:
            raise Superseded("a successor of this process continues from what it has saved")

    def finish(self) -> None:
        """Return once the image that was saved last is whole."""
        if self._under_way is not None:
            image, number = self._under_way
            self._pace.seconds += self._copies.finish()
            image.head[0], self._under_way = 1 + number, None

    def due(self, version: int) -> bool:
        """Whether an image is made after so many updates."""
        return version % self._pace.every == 0

    def fence(self) -> None:
        """Have the process that saves here be superseded."""
        for image in self._images:
            image.head[2] = 1

    @property
    def fenced(self) -> bool:
        """Whether a successor reads the region."""
        return any(image.head[2] for image in self._images)

    @property
    def number(self) -> int:
        """Of the image that was made last; -1 before the first."""
        return max(image.number for image in self._images)

    @property
    def images(self) -> list[Image]:
        """The images that are whole, the older one first."""
        return sorted((image for image in self._images if image.number >= 0), key=lambda image: image.number)

    @property
    def newest(self) -> Image | None:
        """The image that was made last, once there is one."""
        return next(reversed(self.images), None)

    def at(self, version: int) -> Image | None:
        """The state after `version` updates, if it is still here."""
        return next((image for image in reversed(self.images) if image.version == version), None)


@dataclass(frozen=True)
class RegionsAddress:
    """Where other processes find the regions of a process, in their order in memory."""

    memory: MemoryAddress
    layouts: tuple[ImageLayout, ...]


class Regions(dict[Key, Region]):
    """The regions of a process in one Memory, by the key of their images."""

    def __init__(self, memory: Memory, address: RegionsAddress, copies: Copies | None = None) -> None:
        super().__init__()
        self.memories, self.address, self.pace, offset = (memory,), address, Pace(), 0
        for layout in address.layouts:
            places = offset, offset + layout.nbytes
            self[layout.key] = Region([Image(memory, place, layout) for place in places], self.pace, copies)
            offset += 2 * layout.nbytes

    @classmethod
    def create(
        cls,
        layouts: Sequence[ImageLayout],
        room: Callable[[int], bool] = lambda nbytes: True,
        copies: Callable[[np.ndarray], Copies] | None = None,
    ) -> Regions | None:
        """Regions without images; None where the system has no memory for them.

        room: whether there is memory for so many bytes. copies: makes the copies from a device to this memory.
        """
        nbytes = 2 * sum(layout.nbytes for layout in layouts)
        memory = Memory.create(nbytes) if room(nbytes) else None
        if memory is None:
            return None
        beside = None if copies is None else copies(memory.array(np.uint8, memory.nbytes))
        return cls(memory, RegionsAddress(memory.address, tuple(layouts)), beside)

    @classmethod
    def open(cls, *addresses: RegionsAddress) -> dict[Key, Region] | None:
        """The regions of another process; None if some are on another machine, or gone."""
        opened = [cls(memory, each) for each in addresses if (memory := Memory.open(each.memory)) is not None]
        found = {key: region for regions in opened for key, region in regions.items()}
        return found if len(opened) == len(addresses) else None

    def finish(self) -> None:
        """Return once all images are whole."""
        for region in self.values():
            region.finish()

    def write(self, pieces: Sequence[Piece]) -> bool:
        """Take images of another process, unless a later one is here: messages may be late. False if a successor has
        read what is here."""
        if any(region.fenced for region in self.values()):
            return False
        for piece in pieces:
            region = self[piece.layout.key]
            if piece.number > region.number:
                region.save(piece.version, piece.arrays, piece.note, piece.number)
        return True


def _lines(size: int) -> int:
    return -(-size // _LINE) * _LINE
