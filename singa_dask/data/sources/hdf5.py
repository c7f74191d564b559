"""HDF5 files as they lie: chunked, compressed, in groups, in several files."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import h5py
import numpy as np

from singa_dask.data.sources.arrays import array_sources
from singa_dask.data.sources.conventions import (
    coordinates_along,
    decoded,
    decoded_type,
    netcdf_packing,
    packing,
    units_of,
    unpacked,
)
from singa_dask.data.sources.datasets import Dataset, channels_by_dimensions, listing, unwritten
from singa_dask.data.sources.files import Rows, find_files, reading
from singa_dask.data.sources.source import ARRAYS, Format, Source, Wanted
from singa_dask.errors import DataError

SUFFIXES = (".h5", ".hdf5", ".hdf", ".he5", ".nxs")
_LIST = "DIMENSION_LIST"  # the attribute of a dataset whose dimensions have scales
_REMEDY = "Is it a whole HDF5 file that no program is writing? Copy it again, or leave it out of --source."


def read(source: str | Path, wanted: Wanted, allow_virtual: bool = False) -> dict[str, Source]:
    """A field of a compound dataset is "table/field". allow_virtual: also read virtual datasets, external storage and
    external links, which can name any other file."""
    wanted = wanted.renamed(lambda name: name.strip("/"))
    layouts = {path: _layout(path, wanted, allow_virtual) for path in find_files(source, SUFFIXES)}
    return array_sources(source, layouts, wanted, _read)


def opened(
    dataset: h5py.Dataset,
) -> tuple[str, Dataset, Callable[[Any], np.ndarray], Callable[[Sequence[str]], dict[str, Any]]]:
    """Where an open dataset is, what it is, what reads its values at an index, and the coordinates of dimensions.
    Raises DataError if its file is closed."""
    if not dataset:
        raise DataError("an h5py.Dataset is of a file that was closed. Leave the file open until its values are read.")
    described = replace(_describe(dataset, None, _lost(dataset)), note=_unwritten(dataset))
    return f"{dataset.file.filename}: {dataset.name}", described, partial(_decoded, dataset), partial(places, dataset)


def contents(source: str | Path) -> str:
    """The datasets of the first file, one a line. Raises DataError."""
    return listing(_layout(find_files(source, SUFFIXES)[0], Wanted(), False))


FORMAT = Format("hdf5", ARRAYS, SUFFIXES, read, contents)


@contextmanager
def _opened(path: Path) -> Iterator[h5py.File]:
    """An HDF5 file for reading. Raises DataError, also for errors while reading."""
    # File systems of clusters often have no locks.
    with reading(path, _REMEDY), h5py.File(path, "r", locking="best-effort") as file:
        yield file


def _layout(path: Path, wanted: Wanted, allow_virtual: bool) -> dict[str, Dataset]:
    """The datasets that are wanted, or all if it takes a look at all to find them."""
    with _opened(path) as file:
        asked = (*wanted.names, *wanted.split)
        named = {name: found for name in asked if name and (found := _resolve(file, name))}
        if not wanted.names or len(named) < len({*asked}):
            named = dict(_members(file)) | named
        layout = {}
        for scale in [scale for dataset, _ in named.values() for scale in _scales(dataset)[:1] if scale is not None]:
            if not _is_bare(scale):  # the times of the samples
                named.setdefault(scale.name.strip("/"), (scale, None))
        for name, (dataset, field) in named.items():
            fault = _lost(dataset) if allow_virtual else _foreign(file, dataset)
            described = replace(_describe(dataset, field, fault), note="" if fault else _unwritten(dataset))
            if not fault:
                along = places(dataset, described.dimensions[len(described.shape) != 2 :], partial(_foreign, file))
                described = replace(described, **along)
            layout[name] = described
        return layout


def _members(file: h5py.File) -> Iterator[tuple[str, tuple[h5py.Dataset, str | None]]]:
    """All datasets of a file, those of compound types by their fields."""
    names: list[str] = []
    file.visit(names.append)
    for name in names:
        if isinstance(member := file[name], h5py.Dataset) and not _is_bare(member):
            fields = member.dtype.names or ()
            yield from (
                ((f"{name}/{field}", (member, field)) for field in fields) if fields else [(name, (member, None))]
            )


def _resolve(file: h5py.File, name: str) -> tuple[h5py.Dataset, str | None] | None:
    """A dataset, or a compound dataset and the name of its field."""
    if isinstance(member := file.get(name), h5py.Dataset):
        return member, None
    parent, field = PurePosixPath(name).parent, PurePosixPath(name).name
    member = file.get(str(parent)) if str(parent) != "." else None
    known = isinstance(member, h5py.Dataset) and field in (member.dtype.names or ())
    return (member, field) if known else None


def _foreign(file: h5py.File, dataset: h5py.Dataset) -> str:
    """Why the values of a dataset come from elsewhere than its file, if they do."""
    kind = ""
    if dataset.file.filename != file.filename:
        kind = "is in another file, by an external link"
    elif dataset.is_virtual:
        kind = "is a virtual dataset, whose values are in other files"
    elif dataset.external:
        kind = "is stored in another file"
    return kind and f"{kind}. Say --allow-virtual if you trust this file."


def _scales(dataset: h5py.Dataset) -> list[h5py.Dataset | None]:
    """The dimension scale of each axis, None for those without; nothing if no axis has one."""
    if _LIST in dataset.attrs:
        return [axis[0] if len(axis) else None for axis in dataset.dims]
    return [dataset] if dataset.ndim == 1 and dataset.is_scale else []


def _dimensions(dataset: h5py.Dataset) -> tuple[str, ...]:
    """Their names are those of the scales."""
    return tuple("" if scale is None else PurePosixPath(scale.name).name for scale in _scales(dataset))


def places(
    dataset: h5py.Dataset, dims: Sequence[str], fault: Callable[[h5py.Dataset], str] = lambda dataset: ""
) -> dict[str, Any]:
    """The coordinates of these dimensions, and scalar ones, which are scales, and datasets of its group, or of one
    around it. fault: why values must not be read."""
    scales = dict(zip(_dimensions(dataset), _scales(dataset), strict=True))
    if not scales:
        return {}

    def at(name: str) -> h5py.Dataset | None:
        groups = PurePosixPath(dataset.name).parents
        found = scales.get(name) or next(
            (each for group in groups if isinstance(each := dataset.file.get(f"{group}/{name}"), h5py.Dataset)), None
        )
        return None if found is None or _is_bare(found) or _describe(found, None, fault(found)).fault else found

    def known(name: str) -> np.ndarray | None:
        if (found := at(name)) is None:
            return None
        texts = h5py.check_string_dtype(found.dtype) is not None
        return (
            np.array(found.asstr(errors="replace")[()], str) if texts else unpacked(found[()], lambda: _packing(found))
        )

    told = str(np.asarray(dataset.attrs.get("coordinates", "")).astype(str)).split()
    others = {name: _dimensions(found) for name in told if (found := at(name)) is not None}
    return coordinates_along(dims, known, others)


def _is_bare(scale: h5py.Dataset) -> bool:
    """Whether it only gives a dimension its name, and holds no coordinates."""
    return bytes(scale.attrs.get("NAME", b"")).startswith(b"This is a netCDF dimension but not a netCDF variable")


def _packing(dataset: h5py.Dataset) -> dict[str, Any]:
    return (netcdf_packing if _LIST in dataset.attrs else packing)(dataset.attrs, dataset.dtype)


def _unwritten(dataset: h5py.Dataset) -> str:
    if not dataset.chunks or not dataset.size:
        return ""
    number = math.prod(-(-size // step) for size, step in zip(dataset.shape, dataset.chunks, strict=True))
    return unwritten(dataset.id.get_num_chunks(), number, dataset.fillvalue)


def _lost(dataset: h5py.Dataset) -> str:
    """What a virtual dataset lacks; HDF5 itself would return fill values."""
    if dataset.is_virtual:
        folder = Path(dataset.file.filename).parent
        covered = 0.0
        for part in dataset.virtual_sources():
            if "%" in part.file_name or "%" in part.dset_name:
                return ""  # by number, as many as there are
            own = part.file_name == "."
            if not own and not (folder / part.file_name).exists():
                return f"is a virtual dataset, and its file {part.file_name} is missing. Copy it to {folder}."
            with _opened(Path(dataset.file.filename) if own else folder / part.file_name) as file:
                if part.dset_name not in file:
                    name = Path(file.filename).name
                    return f"is a virtual dataset, and {name} lacks {part.dset_name}. Write it there."
            try:
                covered += part.vspace.get_select_npoints()
            except RuntimeError:  # of an unlimited selection, whose file must be there all the same
                covered = math.inf
        if covered < dataset.size:
            lacking = f"{dataset.size - covered:,.0f} of its {dataset.size:,} values"
            return f"is a virtual dataset, and {lacking} have no source. Map them."
    return ""


def _describe(dataset: h5py.Dataset, field: str | None, fault: str = "") -> Dataset:
    dtype = dataset.dtype[field] if field else dataset.dtype
    inner = dtype.shape
    dtype = dtype.base
    if dataset.shape is None:
        return Dataset((), dtype, fault="is empty (a null dataset). Name another dataset.")
    members = {} if dtype.kind == "b" else h5py.check_enum_dtype(dtype) or {}
    text = dtype.kind == "S" or h5py.check_string_dtype(dtype) is not None
    fault = fault or _unreadable(dataset, dtype, text)
    chunks, units = dataset.chunks, ""
    if dataset.attrs and not (text or members or field):
        dtype, wrong = decoded_type(dtype, lambda: _packing(dataset))
        fault, units = fault or wrong, units_of(dataset.attrs, dtype)
    dims = _dimensions(dataset)
    dims = (*dims, *[""] * len(inner)) if dims else ()
    about = [dataset.compression or "", f"chunks {chunks}" if chunks else "", "virtual" if dataset.is_virtual else ""]
    about += [" x ".join(dims)]
    return Dataset(
        (*dataset.shape, *inner),
        dtype,
        chunks[0] if chunks else 1,
        ", ".join(filter(None, about)),
        text,
        tuple(sorted(members, key=lambda name: members[name])),
        fault,
        channels=channels_by_dimensions(dims[1:]) if dims and all(dims) else None,
        dimensions=dims,
        units=units,
    )


def _unreadable(dataset: h5py.Dataset, dtype: np.dtype, text: bool) -> str:
    if dtype.names:
        path = (dataset.name or "").strip("/")
        return (
            f"has values of the fields {', '.join(dtype.names)} (a compound type). "
            f"Name one of them, for example {path}/{dtype.names[0]}."
        )
    if dtype.kind == "O" and not text:
        return "has values of different lengths, or references. Store values of one length instead."
    plist = dataset.id.get_create_plist()
    for place in range(plist.get_nfilters()):
        code, _, _, name = plist.get_filter(place)
        if not h5py.h5z.filter_avail(code):
            with suppress(ImportError):
                importlib.import_module("hdf5plugin")
        if not h5py.h5z.filter_avail(code):
            return (
                f"is compressed with {name.decode(errors='replace') or code}. Run `pip install hdf5plugin` to read it."
            )
    written = dataset.id.get_space_status() != h5py.h5d.SPACE_STATUS_NOT_ALLOCATED
    if not written and dataset.size and not dataset.is_virtual and not dataset.external:
        return "was created, but never written. Write its values first, or name another dataset."
    return ""


def _read(rows: Rows, names: Sequence[str]) -> list[np.ndarray]:
    with _opened(rows.path) as file:
        return [_read_one(file, rows, name) for name in names]


def _read_one(file: h5py.File, rows: Rows, name: str) -> np.ndarray:
    dataset, field = _resolve(file, name) or (None, None)
    if dataset is None or dataset.shape[0] < rows.stop:
        raise DataError(f"{rows.path}: {name} has changed since the command began. Start it again.")
    described = _describe(dataset, field)
    if described.fault:
        raise DataError(f"{rows.path}: {name} {described.fault}")
    view = dataset.fields(field) if field else dataset.asstr("utf-8") if described.text else dataset
    try:
        values = view[rows.index(name)]
    except UnicodeDecodeError as error:
        raise DataError(
            f"{rows.path}: {name} holds texts that are not UTF-8 ({error}). Convert them first."
        ) from error
    except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
        raise DataError(
            f"{rows.path}: {name}, samples {rows.start:,} to {rows.stop - 1:,} cannot be read ({error}). "
            "The file is damaged: copy it again."
        ) from error
    if described.text:
        return np.array([v.decode() if isinstance(v, bytes) else v for v in values.ravel()], str).reshape(values.shape)
    if described.classes:
        return _places(values, dataset, field, rows, name)
    return values if field else decoded(values, _packing(dataset))


def _decoded(dataset: h5py.Dataset, index: Any) -> np.ndarray:
    return decoded(dataset[index], _packing(dataset))


def _places(values: np.ndarray, dataset: h5py.Dataset, field: str | None, rows: Rows, name: str) -> np.ndarray:
    """Values of an enumeration as places among its sorted members."""
    members = h5py.check_enum_dtype(dataset.dtype[field] if field else dataset.dtype)
    known = np.array(sorted(members.values()))
    places = np.searchsorted(known, values).clip(max=known.size - 1)
    strange = known[places] != values
    if strange.any():
        raise DataError(
            f"{rows.path}: {name} holds {values[strange][0]}, but its enumeration has only {known.tolist()}. "
            "Correct the file."
        )
    return places.astype(np.int64)
