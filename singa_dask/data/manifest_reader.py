"""Reads a manifest, which may come from anywhere: every field is checked."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from singa_dask.data.columns import (
    DTYPES,
    MAX_RANK,
    MAX_SAMPLE_NBYTES,
    NAME_RULE,
    Channels,
    Column,
    Fill,
    Role,
    is_name,
)
from singa_dask.data.encoders import Encoders
from singa_dask.data.manifest import FORMAT, HASH, WAY_OUT, Manifest, Shard
from singa_dask.data.schema import DTYPES as COORDINATES
from singa_dask.data.schema import MAX_PLACES, TYPES, VERSION, Coordinates, Reading, Schema
from singa_dask.errors import DataError

_SHARD_NAME = re.compile(r"shard-\d{5,}\.h5")
_DIGEST = re.compile(r"[0-9a-f]{32}")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 62


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_date(value: object) -> bool:
    try:
        return isinstance(value, str) and not np.isnat(np.datetime64(value, "us"))
    except ValueError:
        return False


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _by_name(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())


# What fields hold: the test, and its sentence.
Rule = tuple[Callable[[Any], bool], str]
TEXT: Rule = (lambda v: isinstance(v, str), "must be text")
TEXTS: Rule = (_is_texts, "must be a list of texts")
COUNT: Rule = (_is_count, "must be a positive integer")
FLAG: Rule = (lambda v: isinstance(v, bool), "must be true or false")
OF_COLUMNS: Rule = (_by_name, "must hold a text for each column")


def _one_of(values: Any) -> Rule:
    return lambda v: v in list(values), f"must be one of {', '.join(values)}"


def _finite(*counts: int) -> Rule:
    shown = " or ".join(map(str, sorted({*counts})))
    return (
        lambda v: isinstance(v, list) and len(v) in counts and all(map(_is_finite, v)),
        f"must be {shown} finite number(s)",
    )


def read_manifest(path: Path, fields: Any) -> Manifest:
    """The manifest at `path` with these fields. Raises DataError that names the field and the received value."""
    top = _Fields(path, fields)
    top.take("format", lambda v: v == FORMAT, f"must be {FORMAT!r}")
    top.take("version", *COUNT)
    _check_version(f"{path}: ", fields, "Write it again with `singa-dask shard`.")
    top.take("hash", lambda v: v == HASH, f"must be {HASH!r}")
    schema = _schema(top)
    window = top.take("window", *COUNT)
    notes = top.take("notes", *TEXTS)
    order = top.take("order", *TEXT)
    in_place = top.take("in_place", *FLAG)
    shards = _shards(top, window, in_place)
    total = sum(shard.samples for shard in shards)
    top.take("total", lambda v: _is_count(v) and v == total, f"must be the sum of the shards' samples, {total}")
    return Manifest(total, schema, window, shards, order, in_place, tuple(notes), path.parent)


def read_description(text: str) -> Schema:
    """The schema in `Manifest.description`, which a checkpoint keeps. Raises DataError."""
    try:
        top = _Fields(Path("description"), json.loads(text))
    except (ValueError, RecursionError) as error:
        raise DataError(f"the description of the data is not JSON ({error}).") from error
    _check_version("the description of the data ", top.fields, "Train again.")
    return _schema(top)


def _check_version(where: str, fields: Any, remedy: str) -> None:
    version = fields.get("version", 0)
    if version != VERSION:
        other = "an older" if isinstance(version, int) and version < VERSION else "a newer"
        way = remedy if other == "an older" else "Install that one."
        raise DataError(f"{where}was written by {other} version of singa_dask. {way}")


def _schema(top: _Fields) -> Schema:
    columns = _columns(top)
    entries = top.take(
        "encoders",
        lambda v: isinstance(v, list) and all(isinstance(entry, dict) for entry in v),
        "must be a list of JSON objects",
    )
    try:
        encoders = Encoders.from_json(entries)
    except DataError as error:
        raise DataError(f"{top.path}: {error}") from None
    fields = top.take("reading", lambda v: isinstance(v, dict), "must be a JSON object")
    reading = _reading(_Fields(top.path, fields, "reading"))
    return Schema(columns, encoders, reading, top.take("fitted", *TEXT))


def _reading(entry: _Fields) -> Reading:
    return Reading(
        entry.take("format", *TEXT),
        entry.take("separator", lambda v: isinstance(v, str) and len(v) < 2, "must be one character, or none"),
        entry.take("header", *FLAG),
        entry.take("dates", *OF_COLUMNS),
        entry.take(
            "types",
            lambda v: _by_name(v) and {*v.values()} <= {*TYPES},
            f"must hold one of {', '.join(TYPES)} for each column",
        ),
        entry.take("datasets", *OF_COLUMNS),
        entry.take("dimensions", *OF_COLUMNS),
        {name: _coordinates(each) for name, each in entry.by_name("coordinates").items()},
        entry.take("units", *OF_COLUMNS),
        entry.take(
            "scalars",
            lambda v: isinstance(v, dict) and all(map(_by_name, v.values())),
            "must hold texts by name for each column",
        ),
        entry.take("resized", *FLAG),
    )


def _coordinates(entry: _Fields) -> Coordinates:
    kind = entry.take("type", *_one_of(COORDINATES))
    size = entry.take("size", *COUNT)
    count = {size} if size <= MAX_PLACES else {1, 2}
    is_value = _is_finite if kind == "number" else _is_date if kind == "date" else lambda v: isinstance(v, str)
    values = entry.take(
        "values",
        lambda v: isinstance(v, list) and len(v) in count and all(map(is_value, v)),
        f"must be {min(size, max(count))} of the type {kind}",
    )
    return Coordinates(kind, size, tuple(map(float, values) if kind == "number" else values))


class _Fields:
    """The fields of a JSON object. Every error names the file, the field and the received value."""

    def __init__(self, path: Path, fields: Any, key: str = ""):
        self.path, self.key = path, key
        if not isinstance(fields, dict):
            raise self._fault(key or "manifest", "must be a JSON object", type(fields).__name__)
        self.fields: dict[str, Any] = fields

    def take(self, name: str, valid: Callable[[Any], bool], expected: str, default: Any = None) -> Any:
        """The value of a field; one that is missing has the default, if it is not None."""
        if name not in self.fields and default is not None:
            return default
        value = self.fields.get(name)
        if name not in self.fields or not valid(value):
            raise self.fault(name, expected, value if name in self.fields else "nothing")
        return value

    def by_name(self, name: str) -> dict[str, _Fields]:
        """The objects in an object, by name."""
        entries = self.take(name, lambda v: isinstance(v, dict), "must be a JSON object")
        return {key: _Fields(self.path, entry, f"{self.key}.{name}.{key}") for key, entry in entries.items()}

    def entries(self, name: str) -> list[_Fields]:
        """The entries of a list of objects."""
        entries = self.take(name, lambda v: isinstance(v, list) and bool(v), "must be a list of at least one object")
        return [_Fields(self.path, entry, f"{name}[{i}]") for i, entry in enumerate(entries)]

    def fault(self, name: str, expected: str, received: object) -> DataError:
        return self._fault(f"{self.key}.{name}" if self.key else name, expected, received)

    def _fault(self, key: str, expected: str, received: object) -> DataError:
        text = repr(received)
        return DataError(
            f"{self.path}: {key} {expected}. Received: {text if len(text) < 80 else text[:77] + '...'}. {WAY_OUT}"
        )


def _columns(top: _Fields) -> tuple[Column, ...]:
    columns = tuple(_column(entry) for entry in top.entries("columns"))
    names = [column.name for column in columns]
    if len(set(names)) != len(names):
        raise top.fault("columns", "must have distinct names", names)
    roles = [column.role.value for column in columns]
    if Role.FEATURE not in roles:
        raise top.fault("columns", "must have one with the role feature", roles)
    if Role.FILE in roles and Role.ROW not in roles:
        raise top.fault("columns", "must have one with the role row, as they have one with the role file", roles)
    return columns


def _column(entry: _Fields) -> Column:
    name = entry.take("name", is_name, f"must be {NAME_RULE}")
    role = Role(entry.take("role", *_one_of(Role)))
    dtype = entry.take("dtype", *_one_of(DTYPES))
    shape = tuple(
        entry.take(
            "shape",
            lambda v: isinstance(v, list) and len(v) <= MAX_RANK and all(map(_is_count, v)),
            f"must be at most {MAX_RANK} positive integers",
        )
    )
    channels = Channels(entry.take("channels", *_one_of(Channels)))
    if (channels is not Channels.NONE and len(shape) < 3) or (channels is Channels.NONE and len(shape) == MAX_RANK):
        raise entry.fault("channels", f"does not suit samples of {len(shape)} dimensions", channels.value)
    classes = entry.take(
        "classes",
        lambda v: v is None or _is_count(v) or (_is_texts(v) and 0 < len(v) == len(set(v))),
        "must be a list of distinct names, a positive number or null",
    )
    names = entry.take("names", *TEXTS, [])
    dataset = entry.take(
        "dataset",
        lambda v: isinstance(v, str) and all(part not in ("", ".", "..") for part in v.split("/")),
        "must be the path of a dataset",
        "",
    )
    bare = Column(name, role, dtype, shape, channels)
    if role is Role.LABEL and (dtype.startswith("float") or not (bare.values == 1 or bare.of_positions)):
        message = "of labels must be one value or one of each position, of integers"
        raise entry.fault("shape", message, f"{list(shape)}, {dtype}")
    if role in (Role.ROW, Role.FILE) and (dtype.startswith("float") or shape):
        raise entry.fault("shape", f"of the role {role} must be one integer", f"{list(shape)}, {dtype}")
    if role is Role.TIME and (shape or dtype not in ("int64", "float64")) and (shape, dtype) != ((2,), "int64"):
        message = "of times must be one number, or days and nanoseconds, int64"
        raise entry.fault("shape", message, f"{list(shape)}, {dtype}")
    if role is Role.LABEL and channels is not Channels.NONE:
        raise entry.fault("channels", "of labels must be none", channels.value)
    if bare.nbytes > MAX_SAMPLE_NBYTES:
        raise entry.fault("shape", f"must describe a sample of at most {MAX_SAMPLE_NBYTES >> 20} MiB", list(shape))
    if names and (len(shape) > 1 or len(names) != math.prod(shape)):
        raise entry.fault("names", "must name every value of a vector, or the only value", names)
    mean, std = (tuple(map(float, entry.take(key, *_finite(bare.num_statistics)))) for key in ("mean", "std"))
    fill = _fill(entry, bare) if "fill" in entry.fields else None
    return Column(
        name,
        role,
        dtype,
        shape,
        channels,
        tuple(classes) if isinstance(classes, list) else classes,
        mean,
        std,
        tuple(names),
        dataset,
        fill,
        entry.take("coded", lambda v: isinstance(v, bool), "must be true or false", False),
    )


def _fill(entry: _Fields, column: Column) -> Fill:
    own = _Fields(entry.path, entry.fields["fill"], f"{entry.key}.fill")
    flags = own.take("flags", *FLAG)
    if column.role is not Role.FEATURE:
        raise own.fault("values", "must be those of a feature", column.role.value)
    if flags and (not column.has_channels or column.shape[column.channel_axis] % 2):
        raise own.fault("flags", "need as many further channels, or values of a vector", list(column.shape))
    values = own.take("values", *_finite(1, column.num_statistics // (1 + flags)))
    return Fill(tuple(map(float, values)), flags)


def _shards(top: _Fields, window: int, in_place: bool) -> tuple[Shard, ...]:
    shards = []
    name: Rule = (lambda v: isinstance(v, str) and Path(v).is_absolute(), "must be an absolute path")
    if not in_place:
        name = lambda v: isinstance(v, str) and bool(_SHARD_NAME.fullmatch(v)), "must be named like shard-00000.h5"
    for entry in top.entries("shards"):
        file, samples = entry.take("file", *name), entry.take("samples", *COUNT)
        hashes = entry.take(
            "windows",
            partial(_are_hashes, count=-(-samples // window)),
            f"must be {-(-samples // window)} hashes of 32 hex digits",
        )
        shards.append(Shard(file, samples, tuple(hashes)))
    if len({shard.file for shard in shards}) != len(shards):
        raise top.fault("shards", "must name each file once", [shard.file for shard in shards])
    return tuple(shards)


def _are_hashes(value: Any, count: int) -> bool:
    return _is_texts(value) and len(value) == count and all(map(_DIGEST.fullmatch, value))
