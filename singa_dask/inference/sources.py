"""Samples in files of the formats that `singa-dask shard` reads, as blocks to predict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from singa_dask.data.columns import Column, Role, X, Y
from singa_dask.data.ingest.write import write
from singa_dask.data.manifest import MANIFEST_FILE, Manifest
from singa_dask.data.resolve import resolve
from singa_dask.data.schema import Reading
from singa_dask.data.sharding import FORMATS
from singa_dask.data.sources import grids
from singa_dask.data.sources.datasets import NoDataset
from singa_dask.data.sources.files import Block as RawBlock
from singa_dask.data.sources.files import RowsBlock
from singa_dask.data.sources.grids import Grid
from singa_dask.data.sources.source import TABLE, Format, Source
from singa_dask.errors import ConfigError, Problem
from singa_dask.files import FILE, FOLDER, kind_of
from singa_dask.inference.blocks import Blocks, Samples, channels_last, check_described, shard_blocks
from singa_dask.inference.classes import labels_of_data
from singa_dask.inference.described import Described, KnownData, numbers, raw_name
from singa_dask.inference.model import Model
from singa_dask.job.stores import reads_windows


def blocks_of(
    model: Model, data: str, x: Sequence[str] = (), y: Sequence[str] = (), scratch: Path | None = None, **reading: Any
) -> Blocks:
    """The samples of `data`: a folder of shards, a named data set, a file or folder of any format, or a pattern.

    x, y: columns or datasets with features, and with labels or targets to be written beside the predictions; by
    default those of the training data, or of the usual names. scratch: an empty folder for records of which the
    net reads windows, as long as the blocks are used. reading: options of `csv.load`: date, category, header
    and separator; by default a CSV file is read as the training data were. Raises ConfigError, DataError.
    """
    folder = Path(data).expanduser()
    if data.startswith("dataset:") or kind_of(folder / MANIFEST_FILE):
        return shard_blocks(model, dict.fromkeys(_readable(model, resolve(data)), resolve(data)), held_out=False)
    if (kind := kind_of(folder)) not in (None, FILE, FOLDER):
        raise ConfigError(Problem("--data", f"is {kind}, neither a file nor a folder", data))
    if kind is None and not any(sign in data for sign in "*?["):
        raise ConfigError(Problem("--data", "does not exist", data, "Name a file, a folder, or dataset:NAME/SPLIT."))
    check_described(model)
    source = _source(model, data, _images_of(model, folder) or format_of(folder), x, y, reading)
    layers = model.known.needed
    if not source.table and len(source.x) != len(layers):
        hint = (
            f"Name a dataset for each of the input layers {', '.join(layers)}: {' '.join('--x NAME' for _ in layers)}."
        )
        raise ConfigError(Problem("--x", f"the net has {len(layers)} input layers", ", ".join(source.x), hint))
    columns = {name: column for name, column in source.stored.items() if name in source.x}
    if reads_windows(model.known.store(layers[0])) and _are_records(model, source):
        return _windows_of(model, source, data, scratch)
    for layer, column in () if source.table else zip(layers, columns.values(), strict=True):
        if (known := model.known.inputs.get(layer)) is not None:
            source.reading.along(column).warn_of_places(known.along(known.column), data)
    dimensions = {name: source.reading.dimensions.get(column, "") for name, column in source.stored.items()}
    units = {name: source.reading.units.get(column, "") for name, column in source.stored.items()}
    named = replace(source.reading, dimensions=dimensions, units=units)
    own = (FileBlock(block, source.x, source.y, source.table, source.classes, named) for block in source.blocks)
    return Blocks(own, source.reading, source)


def _are_records(model: Model, source: Source) -> bool:
    """Whether the samples of a source are single records, and not whole windows."""
    known = model.known.inputs.get(model.known.needed[0])
    if source.table or known is None or not source.blocks:
        return True
    return np.ndim(source.blocks[0].read()[source.x[0]]) == 1 + len(known.column.raw.shape)


def _windows_of(model: Model, source: Source, data: str, scratch: Path | None) -> Blocks:
    """The windows of the records of a source, which become shards like those of the training data."""
    layer = model.known.needed[0]
    if scratch is None or layer not in model.known.inputs:
        hint = "Give shards in the order of time."
        raise ConfigError(Problem("--data", f"is a file, and layer {layer!r} reads windows of records", data, hint))
    like, folder = Manifest(0, model.known.inputs[layer].schema, 1, ()), scratch / "records"
    write(source, folder, like=like, shuffle=False, durable=False, progress=False)
    windows = shard_blocks(model, dict.fromkeys(_readable(model, folder), folder), held_out=False, given=data)
    return Blocks(windows, source.reading, source)


@dataclass(frozen=True)
class FileBlock:
    """Samples of a source. x, y: its columns. table: whether x are the columns of a table. classes: as in `Source`.
    reading: how they were read; its dimensions and units by the columns of the source."""

    block: RawBlock
    x: tuple[str, ...]
    y: tuple[str, ...]
    table: bool
    classes: Mapping[str, Sequence[str]]
    reading: Reading

    @property
    def files(self) -> Sequence[Path]:
        return self.block.files

    @property
    def spans(self) -> Sequence[tuple[Path, int | None]]:
        return self.block.spans

    def read(self, model: Model) -> Samples:
        raw, known = self.block.read(), model.known
        described, table = known.inputs, {name: raw[name] for name in self.x}
        x, answers, filled = {}, {}, Counter[str]()
        for i, layer in enumerate(known.needed):
            if not self.table:
                flat = len(known.store(layer).shape) == 1  # such a net reads the values in the stored order
                x[layer] = self._arranged(raw, self.x[i], known, layer, flat=flat)
                if layer in described and described[layer].fill is not None:
                    filled[self.x[i]] = int(np.isnan(x[layer]).reshape(len(x[layer]), -1).any(axis=1).sum())
            else:
                of = filled if i == 0 else None
                x[layer] = described[layer].features(table, of) if layer in described else numbers(table, self.x)
        for layer in known.answering if self.y else ():
            column = described[layer].answers if layer in described else None
            name = raw_name(column) if column is not None and raw_name(column) in self.y else self.y[0]
            values = self._arranged(raw, name, known, layer, answers=True)
            own = Column(name, Role.TARGET, "float32", values.shape[1:])
            if column is not None and column.role is Role.TARGET and prod(own.shape) % prod(column.shape):
                known.comparable(layer, own, self.files[0])
                continue
            answers[layer] = self._answers(name, values, column)
        return Samples(None, x, answers, filled=filled)

    def _arranged(
        self,
        raw: Mapping[str, Any],
        name: str,
        known: KnownData,
        layer: str,
        *,
        answers: bool = False,
        flat: bool = False,
    ) -> np.ndarray:
        """The values of a dataset with the dimensions as in training, and the channels last unless the net reads them
        flat. Raises DataError."""
        values, described = np.asarray(raw[name]), known.inputs.get(layer)
        column = None if described is None else described.answers if answers else described.column
        if column is None:
            return values
        trained = known.along(layer, answers=answers)
        values = self.reading.along(name).turn_to(trained, f"{self.files[0]}: {name}").of(values)
        return values if flat or values.shape[1:] != column.raw.shape else channels_last(values, column)

    def _answers(self, name: str, values: np.ndarray, column: Column | None) -> np.ndarray:
        """Labels as in `classes`, and targets as they are."""
        if name in self.classes:
            values = np.array([*self.classes[name], None], object)[np.where(values < 0, -1, values)]
        return values if column is None or column.role is not Role.LABEL else labels_of_data(values, column)


def grid_of(blocks: Blocks) -> Grid | None:
    """Where the samples of netCDF files and Zarr stores lie; None of others. Raises DataError."""
    source = blocks.source
    own = [] if source is None else [block for block in source.blocks if isinstance(block, RowsBlock)]
    if source is None or not own:
        return None
    names = [own[0].columns[name] for name in (*source.y, *source.x)]
    files = [*dict.fromkeys(rows.path for block in own for rows in block.rows)]
    grid = grids.grid_of(files, names, source.reading.format)
    longest = max((dims.split("/") for dims in source.reading.dimensions.values()), key=len, default=[])
    return None if grid is None else grid.in_order(longest)


def format_of(path: Path, option: str = "--data") -> Format:
    """The format of a file, a folder or a pattern, which `option` names. Raises ConfigError."""
    known = [each for each in FORMATS.values() if each.columns]
    suffixes = {suffix: each for each in known for suffix in each.suffixes}
    images = FORMATS["images"]
    if path.suffix.lower() in suffixes:
        return suffixes[path.suffix.lower()]
    if path.is_dir():
        inside = sorted(file for file in path.rglob("*") if file.suffix.lower() in suffixes)
        return suffixes[inside[0].suffix.lower()] if inside else images
    if path.suffix.lower() in images.suffixes:
        return images
    hint = f"Known: {', '.join((*suffixes, *images.suffixes))}; a folder of shards, or of images."
    raise ConfigError(Problem(option, "has a suffix of no known format", str(path), hint))


def _images_of(model: Model, folder: Path) -> Format | None:
    """The format of images, if the net was trained with images and the folder has some, whatever else is in it."""
    known, images = (model.known.inputs.get(layer) for layer in model.known.needed), FORMATS["images"]
    trained = any(one is not None and one.schema.reading.format == images.name for one in known)
    return images if trained and any(file.suffix.lower() in images.suffixes for file in folder.rglob("*")) else None


def _readable(model: Model, folder: Path) -> list[str]:
    """The input layers that can read these shards: those that only have targets need not."""
    known, names = model.known, {column.name for column in Manifest.load(folder).columns}
    return [name for name in known.read if name in known.needed or known.store(name).column in names]


def _source(
    model: Model, data: str, kind: Format, x: Sequence[str], y: Sequence[str], reading: Mapping[str, Any]
) -> Source:
    load = kind.load
    given = {key: value for key, value in reading.items() if value is not None and value != ()}
    if given and kind.name != "csv":
        key, value = next(iter(given.items()))
        raise ConfigError(Problem(f"--{key}", "is for CSV files", str(value), f"Leave it out for {kind.name}."))
    if kind.name == "images":
        first = model.known.inputs.get(model.known.needed[0])
        shape = first.column.net_shape if first else ()
        resized = first is not None and first.schema.reading.resized
        splits = load(data, form=shape if len(shape) == 3 else None, resized=resized)
    elif kind.columns == TABLE:
        given = _read_as_before(model, given) if kind.name == "csv" else {}
        splits = _table(model, data, load, tuple(x), tuple(y), given)
    else:
        splits = _arrays(model, data, load, tuple(x), tuple(y))
    if len(splits) > 1:
        hint = "Name the features of one of them with --x."
        raise ConfigError(Problem("--data", "has several splits", ", ".join(splits), hint))
    return next(iter(splits.values()))


def _arrays(model: Model, data: str, load: Any, x: tuple[str, ...], y: tuple[str, ...]) -> dict[str, Source]:
    """Features by the names that they had in training; by the usual ones, or in their order, where none are known."""
    known, described = model.known, model.known.inputs
    trained = [_path(described[layer], described[layer].column) for layer in known.needed if layer in described]
    told = (described[layer] for layer in known.answering if layer in described)
    answers = dict.fromkeys(
        path for of in told if of.answers and (path := _path(of, of.answers)) not in ("", *trained)
    )
    if table := _columns_of_table(model):
        trained = list(table)
    whole = len(x) == 1 < len(table)  # all columns of a table, as a matrix
    if x and trained and all(trained) and not whole:
        given = {name: own or name for name, _, own in (each.strip("/").partition("=") for each in x)}
        if {*given} != {*trained}:
            lacking = [name for name in trained if name not in given] or trained
            strange = [name for name in given if name not in trained] or ["OTHER"]
            hint = f"Give the name that one has here behind its own: --x {lacking[0]}={strange[0]}."
            message = f"must name the columns of the training data, {', '.join(trained)}"
            raise ConfigError(Problem("--x", message, ", ".join(x), hint))
        return load(data, x=tuple(given[name] for name in trained), y=y or None)
    if x:
        return load(data, x=x, y=y or None)
    for wanted in (y or tuple(answers), y) if trained and all(trained) else ():
        try:
            return load(data, x=tuple(trained), y=wanted or None)
        except NoDataset as lacking:
            if lacking.name in y and lacking.name not in trained:
                raise
    return load(data, x=table or None, y=y or None)


def _path(described: Described, column: Column) -> str:
    """The dataset that a column was in training, or its name; "" if that is not known."""
    return described.schema.reading.datasets.get(column.name, "" if column.name in (X, Y) else column.name)


def _columns_of_table(model: Model) -> tuple[str, ...]:
    """The columns that the features of the needed input layers are made of, where they are those of a table."""
    described = [one for layer in model.known.needed if (one := model.known.inputs.get(layer)) and one.schema.encoders]
    return tuple(dict.fromkeys(name for one in described for name in one.raw_names))


def _read_as_before(model: Model, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options for a CSV file: those given, and else those with which the training data were read."""
    options: dict[str, Any] = {}
    types: dict[str, str] = {}
    dates: dict[str, str] = {}
    for layer in model.known.read:
        if (known := model.known.inputs.get(layer)) is None:
            continue
        if (reading := known.schema.reading).format == "csv":
            options |= {"separator": reading.separator, "header": reading.header}
            types, dates = {**reading.types, **types}, {**reading.dates, **dates}
        else:
            types = {**known.texts_and_dates, **types}
    told = {entry.partition("=")[0] for entry in (*given.get("date", ()), *given.get("category", ()))}
    dates = {name: form for name, form in dates.items() if name not in told}
    types = {name: kind for name, kind in types.items() if name not in told | dates.keys()}
    date = (*given.get("date", ()), *(f"{name}={form}" for name, form in dates.items()))
    return {**options, **given, "types": types, "date": date}


def _table(
    model: Model, data: str, load: Any, x: tuple[str, ...], y: tuple[str, ...], options: Mapping[str, Any]
) -> dict[str, Source]:
    known, described = model.known, model.known.inputs
    if not x:
        needed = [described[layer] for layer in known.needed if layer in described]
        x = tuple(dict.fromkeys(name for one in needed for name in one.raw_names))
    if not y:
        told = ((layer, described[layer].answers) for layer in known.answering if layer in described)
        wanted = [(layer, one) for layer, one in told if one is not None and one.role in (Role.LABEL, Role.TARGET)]
        held = {name for source in load(data, label="none", **options).values() for name in source.x}
        columns = [(layer, Column(raw_name(one), one.role, one.dtype, ())) for layer, one in wanted]
        there = [(layer, column) for layer, column in columns if column.name in held and column.name not in x]
        y = tuple(column.name for layer, column in there if known.comparable(layer, column, data))
    return load(data, x=x or None, y=y, **options) if y else load(data, x=x or None, label="none", **options)
