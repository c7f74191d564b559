"""What a sample is, as text: of shards, of the data that a net was trained on, or of a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import h5py
import numpy as np

from singa_dask.data import Manifest, resolve
from singa_dask.data.columns import IDENTITY, Channels, Column, Role
from singa_dask.data.encoders import DATES, Encoder
from singa_dask.data.manifest import MANIFEST_FILE
from singa_dask.data.manifest_reader import read_description
from singa_dask.data.resolve import SCHEME
from singa_dask.data.schema import Reading, Schema
from singa_dask.errors import CheckpointError, DataError
from singa_dask.inference.sources import format_of
from singa_dask.training import checkpoint as checkpoints

_SHOWN = 6
_ROWS_SHOWN = 60


def describe(what: str) -> Iterator[str]:
    """Lines that describe a folder of shards or of their splits, a named data set, the workspace or the checkpoint of
    a run, or a file of a format of `singa-dask shard`. Raises DataError, ConfigError and CheckpointError."""
    path = Path(what).expanduser()
    if what.startswith(SCHEME) or (path / MANIFEST_FILE).exists():
        yield from _of_manifest(Manifest.load(resolve(what)))
    elif path.is_dir() and (splits := sorted(path.glob(f"*/{MANIFEST_FILE}"))):
        for split in splits:
            yield from _of_manifest(Manifest.load(split.parent))
    elif _is_run(path):
        yield from _of_checkpoint(checkpoints.find(path))
    elif not path.exists() and not any(sign in what for sign in "*?["):
        raise DataError(f"{what}: does not exist. Name a folder of shards, the folder of a run, or a file.")
    elif (kind := format_of(path, "describe")).contents:
        yield f"{what}: {kind.name}. `singa-dask shard {kind.name} --source {what} --out FOLDER` writes shards of it."
        yield kind.listing(what)
    else:
        raise DataError(f"{what}: a folder of {kind.name} has no columns. Describe the shards that are made of it.")


def _is_run(path: Path) -> bool:
    """Whether this is a checkpoint, or a folder that should hold one."""
    if path.is_dir():
        return (path / "checkpoint").is_dir() or any(path.glob("step-*.h5")) or (path / checkpoints.BEST).exists()
    try:
        with h5py.File(path, "r") as file:
            return str(file.attrs.get("format", "")).startswith("singa_dask checkpoint")
    except OSError:
        return False


def _of_checkpoint(path: Path) -> Iterator[str]:
    checkpoint = checkpoints.load(path)
    if not checkpoint.described:
        raise CheckpointError(
            f"{path}: describes no data. Its input layers generate their samples, or it was written by an older "
            "version of singa_dask: train again."
        )
    yield f"{path}: after {checkpoint.step:,} steps, trained on:"
    for layer, text in checkpoint.described.items():
        yield f"layer {layer!r}"
        yield from describe_schema(read_description(text))


def _of_manifest(manifest: Manifest) -> Iterator[str]:
    count = len(manifest.shards)
    what = (
        f"{count} file{'s' * (count > 1)}, read in place" if manifest.in_place else f"{count} shard{'s' * (count > 1)}"
    )
    yield f"{manifest.folder}: {manifest.total:,} samples in {what}; order: {manifest.order or 'unknown'}"
    yield from describe_schema(manifest.schema)
    for note in manifest.notes:
        yield f"  note: {note}"


def describe_schema(schema: Schema) -> Iterator[str]:
    """Lines that describe the columns of shards, and how their source was read."""
    columns = [column for column in schema.columns if column.role not in IDENTITY]
    width = max(len(column.name) for column in columns)
    for column in columns:
        yield f"  {column.name:{width}}  {column.role.value:7}  {_column(column)}"
        yield from _of_encoders(schema.encoders if column.role is Role.FEATURE else ())
    yield from (f"  {line}" for line in _reading(schema.reading))
    if schema.fitted:
        yield f"  fitted: {schema.fitted}"


def _of_encoders(encoders: Sequence[Encoder]) -> Iterator[str]:
    width = max((len(encoder.column) for encoder in encoders), default=0)
    for encoder in encoders[:_ROWS_SHOWN]:
        yield f"    {encoder.column:{width}}  {_encoder(encoder)}"
    if len(encoders) > _ROWS_SHOWN:
        yield f"    and {len(encoders) - _ROWS_SHOWN:,} more"


def _column(column: Column) -> str:
    text = f"{column.dtype} {column.shape or ''}".rstrip()
    if len(column.shape) > 2:
        text += ", no channels" if column.channels is Channels.NONE else f", channels {column.channels}"
    if column.num_classes is not None:
        names = column.classes if isinstance(column.classes, tuple) else ()
        text += f", {column.num_classes:,} classes{_first(names)}"
    elif len(column.names) == 1 and column.shape == ():
        text += f", {column.names[0]!r}"
    if column.role in (Role.FEATURE, Role.TARGET) and len(column.mean) == 1:
        text += f", mean {column.mean[0]:.5g}, deviation {column.std[0]:.5g}"
    if column.fill is not None:
        text += f"; missing: {column.fill}"
    return text


def _encoder(encoder: Encoder) -> str:
    text = encoder.kind
    if encoder.categorical:
        kind = "one-hot" if encoder.kind == "onehot" else "numbered"
        unknown = "an error" if encoder.unknown == "error" else "zeros" if kind == "one-hot" else "-1"
        text = f"{len(encoder.categories):,} categories, {kind}{_first(encoder.categories)}; others are {unknown}"
    elif encoder.kind in DATES:
        zone = " in UTC" if encoder.kind == "zoned date" else ""
        text += f", days{zone} since {np.datetime64(int(encoder.origin), 'D')}"
    elif encoder.kind == "timedelta":
        text += ", days"
    fill = encoder.fill if encoder.categorical else encoder.fill_of_number
    return text + ("; missing: an error" if encoder.fill is None else f"; missing: {fill}")


def _reading(reading: Reading) -> Iterator[str]:
    if not reading.format:
        return
    text = f"read from: {reading.format}"
    if reading.format == "csv":
        text += f", separator {reading.separator!r}, {'with' if reading.header else 'without'} a header"
    yield text + ", resized" * reading.resized
    if reading.types:
        types = [f"{name} {kind}" for name, kind in reading.types.items()]
        yield "types: " + ", ".join(types[:_ROWS_SHOWN]) + ", ..." * (len(types) > _ROWS_SHOWN)
    if reading.dates:
        yield "formats of dates: " + ", ".join(f"{name}={form}" for name, form in reading.dates.items())


def _first(names: Sequence[str]) -> str:
    return (": " + ", ".join(names[:_SHOWN]) + ", ..." * (len(names) > _SHOWN)) if names else ""
