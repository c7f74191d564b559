"""SINGA's kvfile (0.3): records [key size, key, value size, value], with sizes of 8 bytes, little-endian.

A value is a RecordProto of kvfile.proto, or a Record that holds one.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from singa_dask.data.columns import Channels, Role
from singa_dask.data.sources import kvfile_pb2 as messages
from singa_dask.data.sources.files import BLOCK_NBYTES, Block, find_files, reading, stamp_of
from singa_dask.data.sources.source import Format, Source
from singa_dask.errors import DataError

SUFFIXES = (".bin", ".dat", ".kvfile")
FOLDER_FILE = "shard.dat"  # of a folder that SINGA opens as one store
SPLIT_FILES = {"train": "train_data.bin", "test": "test_data.bin"}  # as SINGA's examples write them
_SIZE = struct.Struct("<Q")


def read(source: str | Path) -> dict[str, Source]:
    """Images (uint8 or float32, channels first) and labels of kvfiles.

    source: a file, a pattern, or a folder with train_data.bin and test_data.bin, with shard.dat, or of such files.
    Raises DataError that names file and record.
    """
    folder = Path(source).expanduser().absolute()
    if (folder / FOLDER_FILE).is_file():
        return {"": _load([folder / FOLDER_FILE])}
    if any((folder / name).is_file() for name in SPLIT_FILES.values()):
        return {s: _load([folder / name]) for s, name in SPLIT_FILES.items() if (folder / name).is_file()}
    return {"": _load(find_files(source, SUFFIXES))}


FORMAT = Format("kvfile", (), SUFFIXES, read)


@dataclass(frozen=True)
class KvRecord:
    """The fields of a RecordProto. values: pixel or data, as they were stored."""

    shape: tuple[int, ...]
    label: int | None
    values: np.ndarray

    @property
    def form(self) -> tuple:
        """What all records of a data set have in common."""
        return self.shape, self.values.dtype.name, self.label is not None


@dataclass(frozen=True)
class KvfileBlock(Block):
    """Records in bytes [start, stop) of a file. first: the number of the first one. form: that of every record."""

    path: Path
    start: int
    stop: int
    first: int
    form: tuple
    stamp: str

    @property
    def files(self) -> tuple[Path, ...]:
        return (self.path,)

    @property
    def key(self) -> str:
        return f"{self.path}[{self.start}:{self.stop}]@{self.stamp}"

    def read(self) -> dict[str, np.ndarray]:
        """x (rows, *shape), and the labels y (rows,) if there are any. Raises DataError."""
        with _mapped(self.path) as data:
            records = [
                _checked(self.path, number, data[start:stop], self.form)
                for number, (start, stop) in enumerate(_values(self.path, data, self.start, self.stop), self.first)
            ]
            x = np.stack([record.values for record in records]).reshape(len(records), *self.form[0])
        return {"x": x} | ({"y": np.array([record.label for record in records])} if self.form[2] else {})


def _load(files: list[Path]) -> Source:
    blocks: list[KvfileBlock] = []
    form: tuple | None = None
    for path in files:
        with _mapped(path) as data:
            ends: list[tuple[int, int]] = [(0, 0)]  # of blocks: (offset, records before it)
            number = -1
            for number, (start, stop) in enumerate(_values(path, data, 0, len(data))):
                form = form or parse_record(path, number, data[start:stop]).form
                if stop - ends[-1][0] >= BLOCK_NBYTES:
                    ends.append((stop, number + 1))
            if ends[-1][0] < len(data):
                ends.append((len(data), number + 1))
        stamp = stamp_of(path)
        for (start, first), (stop, _) in pairwise(ends):
            blocks.append(KvfileBlock(path, start, stop, first, form or (), stamp))
    if form is None:
        raise DataError(f"{files[0]}: holds no records.")
    shape, _, has_label = form
    channels = Channels.FIRST if len(shape) > 2 else Channels.NONE
    name = str(files[0] if len(files) == 1 else files[0].parent)
    y = ("y",) if has_label else ()
    return Source(name, blocks, ("x",), y, roles=dict.fromkeys(y, Role.LABEL), channels={"x": channels})


@contextmanager
def _mapped(path: Path) -> Iterator[mmap.mmap | bytes]:
    with reading(path, "Check the path and its rights."), path.open("rb") as file:
        if not path.stat().st_size:
            yield b""
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield data


def _values(path: Path, data: mmap.mmap | bytes, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Where the values of the records in [start, stop) are."""
    number, place = 0, start
    while place < stop:
        for _ in ("key", "value"):
            begin = place + _SIZE.size
            size = _SIZE.unpack_from(data, place)[0] if begin <= stop else stop
            place = begin + size
            if place > stop:
                raise DataError(
                    f"{path}: the record at byte {begin - _SIZE.size:,} is not complete. Is it a whole kvfile of "
                    "SINGA? Copy it again."
                )
        number += 1
        yield begin, place


def _checked(path: Path, number: int, value: bytes, form: tuple) -> KvRecord:
    record = parse_record(path, number, value)
    if record.form != form:
        raise DataError(
            f"{path}: record {number} has the shape {record.shape} of {record.values.dtype}, and "
            f"{'a' if record.form[2] else 'no'} label; the first record has {form[0]} of {form[1]}, and "
            f"{'a' if form[2] else 'no'} label. All records must be alike."
        )
    return record


def parse_record(path: Path, number: int, value: bytes) -> KvRecord:
    """A record from protobuf's wire format. Raises DataError that names it."""
    try:
        holder = messages.Record.FromString(value)
        record = holder.image if holder.HasField("image") else messages.RecordProto.FromString(value)
        return _record(record)
    except (ValueError, DecodeError) as error:
        raise DataError(f"{path}: record {number} is not a record of SINGA ({error}). Copy the file again.") from error


def _record(record: messages.RecordProto) -> KvRecord:
    for field in UnknownFieldSet(record):
        raise ValueError(f"it has the field {field.field_number}")
    values = np.array(record.data, np.float32) if record.data else np.frombuffer(record.pixel, np.uint8)
    if not values.size:
        raise ValueError("it has neither pixels nor data")
    shape = tuple(record.shape) or (values.size,)
    if math.prod(shape) != values.size:
        raise ValueError(f"it has {values.size} values, but the shape {shape}")
    return KvRecord(shape, record.label if record.HasField("label") else None, values)
