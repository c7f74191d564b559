"""A manifest for HDF5 files as they lie, which training then reads in place."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from singa_dask.data.columns import MASK, WEIGHT, Column, Role, stored_dtype
from singa_dask.data.folders import replace_folder
from singa_dask.data.ingest.assemble import SampleStatistics, Written, batch_rows, finish
from singa_dask.data.ingest.facts import Part
from singa_dask.data.ingest.layout import Layout, make_layout
from singa_dask.data.ingest.options import Encoding, Splits
from singa_dask.data.ingest.run import run_all
from singa_dask.data.ingest.splits import Rules
from singa_dask.data.ingest.stage import StagePlan, encoded
from singa_dask.data.manifest import WAY_OUT, Manifest, Shard
from singa_dask.data.origins import Origins
from singa_dask.data.shards import contiguous_range, open_untrusted
from singa_dask.data.sources.arrays import is_turned
from singa_dask.data.sources.conventions import packing
from singa_dask.data.sources.files import Block, RowsBlock
from singa_dask.data.sources.source import Source
from singa_dask.errors import DataError, NotFinite

_CONVERT = "Leave out --in-place: the samples are then copied into shards."


def index(source: Source, out: Path, window: int | None = None, overwrite: bool = False) -> Manifest:
    """Write a folder with a manifest of HDF5 files that stay where they are; each file is a shard.

    source: of `hdf5.load`, whose datasets are stored contiguously, without filters, as numbers that shards can hold.
    Reads every value twice: for what shards of these samples would be, and for hashes and statistics. Raises DataError
    where a dataset does not suit, or its samples would be changed in shards.
    """
    blocks = [block for block in source.blocks if isinstance(block, RowsBlock)]
    paths = list(dict.fromkeys(rows.path for block in blocks for rows in block.rows))
    if any(is_turned(block) for block in blocks):
        told = "the files have the same coordinates or dimensions in different orders"
        raise DataError(f"{source.name}: {told}, and are read in place as they lie. {_CONVERT}")
    columns_of = blocks[0].columns.items()
    stored = {name: _stored(paths[0], dataset) for name, dataset in columns_of if name != source.time}
    source = replace(source, table=False, time=None)
    plan = StagePlan(out, replace(source, blocks=()), Encoding(), 0, False, Rules(Splits()))
    tasks = dict(enumerate(enumerate(source.blocks)))
    found = run_all(partial(_facts, plan), tasks, None, lambda *_: None, {})
    parts = [found[place] for place in tasks]
    try:
        layout = make_layout(plan, _numbered(source, parts), parts, None, window, Origins([]))
    except NotFinite as error:
        column, what, count, first, _ = error.args
        hint = "Remove or fill them; without --in-place, --missing fills them."
        raise NotFinite(column, what, count, first, hint) from None
    factors = {WEIGHT: source.weight, MASK: source.mask}
    raw = {own: factors.get(piece) or piece[2:] for own, piece in layout.pieces.items()}
    columns = [_as_stored(column, stored[raw[column.name]], layout) for column in layout.schema.columns]
    shards = [_measured(path, columns, layout.window) for path in paths]
    with replace_folder(out, overwrite) as folder:
        schema = replace(layout.schema, columns=tuple(columns))
        made = finish(folder, schema, layout.window, shards, order="source", in_place=True, notes=layout.notes)
    return replace(made, folder=out)


def _facts(plan: StagePlan, index: int, block: Block) -> Part:
    return replace(encoded(plan, index, block), held=None)


def _numbered(source: Source, parts: list[Part]) -> Source:
    """The source with labels that keep their numbers."""
    high = max((facts.high for part in parts for facts in part.facts.values()), default=0)
    return replace(source, outputs=int(high) + 1, places=True)


def _stored(path: Path, dataset: str) -> Column:
    """A dataset as a column of which the use is not known yet. Raises DataError if shards would hold other values."""
    with open_untrusted(path) as file:
        _offset(file, path, dataset, None, None)
        shape, kind = tuple(file[dataset].shape[1:]), file[dataset].dtype
        packed = packing(file[dataset].attrs, kind)
    if packed:
        told = ", ".join(f"{key} {value}" for key, value in packed.items())
        raise DataError(f"{path}: {dataset!r} is packed, or says which values are missing ({told}). {_CONVERT}")
    if stored_dtype(kind) != kind:
        raise DataError(f"{path}: {dataset!r} holds {kind}, which is not read in place. {_CONVERT}")
    return Column("", Role.FEATURE, kind.name, shape, dataset=dataset)


def _as_stored(column: Column, stored: Column, layout: Layout) -> Column:
    """The column as it lies. Raises DataError if shards would hold other labels."""
    single = column.values == 1 and stored.shape in ((), (1,))
    if column.role is Role.LABEL and (
        stored.dtype.startswith("float") or not (single or stored.shape == column.shape)
    ):
        message = "labels must be one integer per sample, or per position of images (H, W)"
        raise DataError(f"{stored.dataset!r}: {message}. {_CONVERT}")
    if layout.pieces[column.name] in layout.codes:
        raise DataError(f"{stored.dataset!r}: labels must be at least 0. {_CONVERT}")
    return replace(column, dtype=stored.dtype, shape=stored.shape, dataset=stored.dataset)


def _measured(path: Path, columns: list[Column], window: int) -> Written:
    """A file as a shard."""
    with open_untrusted(path) as file:
        lengths = {of.dataset: file[of.dataset].shape[0] if of.dataset in file else 0 for of in columns}
        total = next(iter(lengths.values()))
        arrays = {}
        for column in columns:
            shape, dtype = (lengths[column.dataset], *column.shape), np.dtype(column.dtype)
            offset = _offset(file, path, column.dataset, shape, dtype)
            arrays[column.name] = np.asarray(np.memmap(path, dtype, "r", offset, shape))
    measured, step = SampleStatistics(columns, window), batch_rows(columns, window)
    for start in range(0, total, step):
        measured.add({name: array[start : start + step] for name, array in arrays.items()})
    return Shard(str(path), total, tuple(measured.hashes)), measured.statistics


def _offset(file: object, path: Path, dataset: str, shape: tuple[int, ...] | None, dtype: np.dtype | None) -> int:
    try:
        return contiguous_range(file, path, dataset, shape, dtype)
    except DataError as error:
        raise DataError(str(error).replace(WAY_OUT, _CONVERT)) from error
