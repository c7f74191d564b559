"""Reading a source in tests, and writing SINGA's kvfiles."""

from __future__ import annotations

import pickle
import struct
from pathlib import Path

import numpy as np

from singa_dask.data.sources.source import Source


def read_all(source: Source) -> dict[str, np.ndarray]:
    """The values of all blocks, as a process would read them that received the blocks."""
    assert len({block.key for block in source.blocks}) == len(source.blocks)
    parts = [pickle.loads(pickle.dumps(block)).read() for block in source.blocks]
    return {name: np.concatenate([np.asarray(part[name]) for part in parts]) for name in parts[0]}


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = b""
    while number > 0x7F:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def field(number: int, content: int | bytes) -> bytes:
    """One field of a protobuf message."""
    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    return varint(number << 3 | 2) + varint(len(content)) + content


def record_proto(values: np.ndarray, label: int | None, shape: tuple[int, ...] | None = None) -> bytes:
    """SINGA's RecordProto: bytes as `pixel`, other numbers as packed floats in `data`."""
    message = b"".join(field(1, size) for size in (values.shape if shape is None else shape))
    message += b"" if label is None else field(2, label)
    if values.dtype == np.uint8:
        return message + field(3, values.tobytes())
    return message + field(4, values.astype("<f4").tobytes())


def write_kvfile(path: Path, records: list[bytes]) -> Path:
    """A kvfile as SINGA's KVFile::Insert writes it, with keys 00000, 00001, ..."""
    with path.open("wb") as file:
        for number, record in enumerate(records):
            key = b"%05d" % number
            file.write(struct.pack("<Q", len(key)) + key + struct.pack("<Q", len(record)) + record)
    return path
