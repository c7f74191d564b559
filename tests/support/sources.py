"""Files of every format for tests, and reading a source."""

from __future__ import annotations

import pickle
import struct
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import xarray as xr
import zarr
from PIL import Image

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


# A few samples with labels, as `write_file` takes them. The images and records are of two classes.
CONTENT: dict[str, Any] = {
    "csv": {"a": [1.0, 2.5] * 10, "label": [0, 1] * 10},
    "images": {f"{name}/1.png": np.zeros((9, 9, 3), np.uint8) for name in ("ant", "bee")},
    "kvfile": [record_proto(np.full((3, 2, 2), label, np.uint8), label) for label in range(2)],
    "parquet": {"a": [1.0, 2.0], "label": [0, 1]},
    **{kind: {"x": np.ones((4, 4), "f4"), "y": np.arange(4)} for kind in ("hdf5", "netcdf", "npz", "zarr")},
}


def write_file(kind: str, path: Path, content: Any, **options: Any) -> Path:
    """A file, store or folder of this format. content: its columns or arrays, its images, its records; or the bytes.

    A dataset of HDF5 or Zarr may be given as the arguments that create it, and in HDF5 as a link. options: of the
    library's writer.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    match content:
        case str():
            path.write_text(content, encoding="utf-8")
        case bytes():
            path.write_bytes(content)
        case _:
            WRITERS[kind](path, content, **options)
    return path


def _write_hdf5(path: Path, content: dict[str, Any]) -> None:
    with h5py.File(path, "w") as file:
        for name, values in content.items():
            if isinstance(values, dict):
                file.create_dataset(name, **values)
            else:
                file[name] = values.astype(object) if getattr(values, "dtype", np.dtype(int)).kind == "U" else values


def _write_zarr(path: Path, content: dict[str, Any], version: int = 3) -> None:
    group = zarr.open_group(str(path), mode="w", zarr_format=version)
    for name, values in content.items():
        group.create_array(name, **(values if isinstance(values, dict) else {"data": values}))


def _write_netcdf(path: Path, content: dict[str, Any], **options: Any) -> None:
    arrays = {name: (["sample", "a", "b", "c"][: np.ndim(v)], v) for name, v in content.items()}
    xr.Dataset(arrays).to_netcdf(path, engine="h5netcdf", **options)


def _write_npz(path: Path, content: dict[str, Any], packed: bool = False) -> None:
    with path.open("wb") as file:
        (np.savez_compressed if packed else np.savez)(file, **content)


def _write_images(path: Path, content: dict[str, np.ndarray | bytes]) -> None:
    for name, pixels in content.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        if isinstance(pixels, bytes):
            (path / name).write_bytes(pixels)
        else:
            Image.fromarray(pixels).save(path / name)


WRITERS = {
    "csv": lambda path, content: pd.DataFrame(content).to_csv(path, index=False),
    "hdf5": _write_hdf5,
    "images": _write_images,
    "kvfile": write_kvfile,
    "netcdf": _write_netcdf,
    "npz": _write_npz,
    "parquet": lambda path, content, **options: pd.DataFrame(content).to_parquet(path, **options),
    "zarr": _write_zarr,
}
