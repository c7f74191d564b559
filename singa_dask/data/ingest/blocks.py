"""Collections in blocks: those of this process, and those of Dask."""

from __future__ import annotations

import logging
import math
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from singa_dask.data.ingest.given import Given
from singa_dask.data.ingest.run import DaskBlock
from singa_dask.data.sources.files import Block
from singa_dask.data.sources.patches import NUMBER, Cutting, Tile
from singa_dask.errors import DataError

logger = logging.getLogger(__name__)

BLOCK_NBYTES = 64 << 20


def blocks_of(given: list[Given]) -> Sequence[Any]:
    """The blocks of collections that have the same rows. Raises DataError where they have not."""
    known = [(one, one.rows) for one in given if one.rows is not None]
    for one, rows in known[1:]:
        if rows != known[0][1]:
            raise DataError(
                f"{known[0][0].what} has {known[0][1]:,} samples, but {one.what} has {rows:,}. "
                "Every sample needs one of each: check how they were made."
            )
    if any(one.lazy for one in given):
        return _dask_blocks(given)
    return _memory_blocks(given)


@dataclass(frozen=True)
class MemoryBlock(Block):
    """Rows of collections that lie in this process, or that it reads (h5py, zarr). local: it cannot travel."""

    key: str
    given: tuple[tuple[Any, str | Mapping[Any, str]], ...]
    start: int
    stop: int
    local: bool = True

    def read(self) -> Mapping[str, Any]:
        raw: dict[str, Any] = {}
        for value, names in self.given:
            part = value.iloc[self.start : self.stop] if hasattr(value, "iloc") else value[self.start : self.stop]
            raw |= {names: part} if isinstance(names, str) else {own: part[column] for column, own in names.items()}
        return raw


def _memory_blocks(given: list[Given]) -> list[MemoryBlock]:
    total = given[0].rows or 0
    nbytes = sum(_nbytes(one.value) for one in given)
    step = max(1, int(BLOCK_NBYTES * total / max(nbytes, 1)))
    for one in given:  # a chunk of HDF5 or zarr is read as a whole
        chunks = getattr(one.value, "chunks", None)
        if chunks and chunks[0] < total:
            step = max(chunks[0], step - step % chunks[0])
    name = uuid.uuid4().hex
    pairs = tuple((one.value, one.names) for one in given)
    ranges = [(start, min(start + step, total)) for start in range(0, total, step)]
    return [MemoryBlock(f"rows {first:,} to {stop - 1:,}@{name}", pairs, first, stop) for first, stop in ranges]


@dataclass(frozen=True)
class FieldsBlock(Block):
    """Patches of arrays that lie in this process, or that it reads. beside: what has one value for each record."""

    key: str
    fields: tuple[tuple[Any, str], ...]
    beside: MemoryBlock
    cutting: Cutting
    tile: Tile
    local: bool = True
    numbered: bool = True

    def read(self) -> Mapping[str, Any]:
        raw = dict(self.beside.read())
        raw |= {name: value[self.cutting.index(name, self.tile)] for value, name in self.fields}
        return self.cutting.cut(raw, self.tile)


def cut_blocks(given: list[Given], cutting: Cutting) -> list[Any]:
    import dask.array as da

    lazy = any(one.lazy for one in given)
    cut = [one for one in given if one.lazy or one.raw[0] in cutting.fields]
    others = tuple((one.value, one.names) for one in given if not any(one is each for each in cut))
    values = [da.from_array(one.value) if lazy and not one.lazy else one.value for one in cut]
    fields = tuple(zip(values, (one.raw[0] for one in cut), strict=True))
    name = uuid.uuid4().hex
    blocks: list[Any] = []
    for tile in cutting.tiles():
        beside = MemoryBlock("", others, *tile.records)
        if lazy:
            blocks.append(_lazy_patches(fields, beside.read(), cutting, tile))
        else:
            blocks.append(FieldsBlock(f"{tile}@{name}", fields, beside, cutting, tile))
    return blocks


def _lazy_patches(
    fields: Sequence[tuple[Any, str]], known: Mapping[str, Any], cutting: Cutting, tile: Tile
) -> DaskBlock:
    """The chunks in which the patches lie, cut by one task."""
    import dask

    names = [name for _, name in fields]
    slices = [array[cutting.index(name, tile)].rechunk(-1) for array, name in fields]
    parts = [one.to_delayed(optimize_graph=False).item() for one in slices]
    call = dask.delayed(partial(_cut, cutting, tile, names, known), pure=False, traverse=False)(*parts)
    key = f"{'+'.join(str(part.key) for part in parts)} {cutting.patches} {tile}"
    return DaskBlock(key, (call,), ({each: each for each in (NUMBER, *names, *known)},), numbered=True)


def _cut(cutting: Cutting, tile: Tile, names: Sequence[str], known: Mapping[str, Any], *parts: Any) -> dict[str, Any]:
    return cutting.cut({**known, **dict(zip(names, parts, strict=True))}, tile)


def _nbytes(value: Any) -> int:
    if hasattr(value, "memory_usage"):
        usage = value.memory_usage()
        return int(usage.sum()) if hasattr(usage, "sum") else int(usage)
    return int(math.prod(value.shape) * value.dtype.itemsize)


def _dask_blocks(given: list[Given]) -> list[DaskBlock]:
    _align(given)
    frames = [one for one in given if not one.array]
    arrays = [one for one in given if one.array]
    # Arrays as they are: optimised alone, two of them may each get a copy of the tasks that they share.
    parts = [one.value.to_delayed(optimize_graph=False).ravel().tolist() for one in arrays]
    names: list[Any] = [one.names for one in arrays]
    if frames:  # as one collection, so that what several of them read is read once
        import dask.dataframe as dd

        together = dd.map_partitions(
            _together,
            *(one.value for one in frames),
            align_dataframes=False,
            enforce_metadata=False,
            meta=frames[0].value._meta,
        )
        parts.append(together.to_delayed())
        names.append(tuple(one.names for one in frames))
    blocks = []
    for place, own in enumerate(zip(*parts, strict=True)):
        blocks.append(DaskBlock("+".join(str(part.key) for part in own), own, tuple(names), f"partition {place}"))
    return blocks


def _together(*parts: Any) -> tuple[Any, ...]:
    return parts


def _align(given: list[Given]) -> None:
    """Give the collections the same partitions along the samples, and one along all other axes."""
    import dask.array as da

    frames = [one for one in given if one.lazy and not one.array]
    if frames:
        _repartition(frames)
    arrays = [one for one in given if one.array or not one.lazy]
    sized = next((one for one in given if one.lazy and one.rows is not None), None)
    for one in arrays:
        if not one.lazy:
            if sized is None or frames:
                raise DataError(
                    f"{one.what}: is in memory, but {next(o.what for o in given if o.lazy)} is a Dask collection "
                    "whose chunk sizes are unknown. Call its compute_chunk_sizes() (of a DataFrame: "
                    "to_dask_array(lengths=True)), or give both as Dask collections."
                )
            values = one.value if not hasattr(one.value, "to_numpy") else one.value.to_numpy()
            one.value = da.from_array(values, chunks=(sized.value.chunks[0], *map(int, values.shape[1:])))
        others = {axis: -1 for axis in range(1, one.value.ndim) if len(one.value.chunks[axis]) > 1}
        if others:
            one.value = one.value.rechunk(others)
        if sized is not None and one.rows is not None and one.value.chunks[0] != sized.value.chunks[0]:
            logger.warning("%s has other chunks than %s, and is rechunked.", one.what, sized.what)
            one.value = one.value.rechunk({0: sized.value.chunks[0]})
    counts = [one.value.numblocks[0] if one.array else one.value.npartitions for one in given]
    for one, number in zip(given, counts, strict=True):
        if number != counts[0]:
            raise DataError(
                f"{given[0].what} has {counts[0]} partitions, but {one.what} has {number}, and the rows of them are "
                "unknown. Repartition one like the other, or call compute_chunk_sizes()."
            )


def _repartition(frames: list[Given]) -> None:
    first = frames[0].value
    for one in frames[1:]:
        if first.known_divisions and one.value.known_divisions and first.divisions != one.value.divisions:
            logger.warning("%s has other divisions than %s, and is repartitioned.", one.what, frames[0].what)
            one.value = one.value.repartition(divisions=first.divisions)
