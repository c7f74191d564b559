"""Samples that are written like those of a folder: with its encoders and classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from singa_dask.data.columns import IDENTITY, Column, Role, Y
from singa_dask.data.ingest.options import Encoding
from singa_dask.data.manifest import Manifest
from singa_dask.data.schema import check_courses
from singa_dask.data.sources.source import Source
from singa_dask.errors import DataError, nearest


def prepared_like(source: Source, like: Manifest) -> tuple[Source, Encoding]:
    """The source with the columns, roles and classes of a folder. Raises DataError for absent columns, and for samples
    along other dimensions or coordinates."""
    encoders, reading = like.encoders, like.schema.reading
    for name, own in source.reading.dimensions.items():
        if (trained := reading.dimensions.get(name)) and own != trained:
            told = f"has samples along {own}, but in {_named(like)} along {trained}"
            raise DataError(f"{source.name}: {name!r} {told}. Rename or transpose the dimensions.")
    check_courses(reading.coordinates, source.reading.coordinates, source.name)
    for encoder in encoders:
        if encoder.column not in source.x:
            hint = nearest(encoder.column, source.x)
            raise DataError(f"column {encoder.column!r}: is not there, but {_named(like)} has it. {hint}")
    classes, roles = dict(source.classes), dict(source.roles)
    answers = [column for column in like.columns if column.role in (Role.LABEL, Role.TARGET)]
    for name in source.y:
        own = Y if len(source.y) == 1 else name
        for column in answers:
            if column.name == own:
                roles[name] = column.role
                if column.role is Role.LABEL and column.classes is not None:
                    given = column.classes
                    classes[name] = given if isinstance(given, tuple) else tuple(map(str, range(given)))
    x = tuple(encoder.column for encoder in encoders) if encoders else source.x
    encode = {encoder.column: encoder.kind for encoder in encoders if encoder.categorical}
    return replace(source, x=x, classes=classes, roles=roles), Encoding(encode=encode)


def columns_like(columns: Sequence[Column], like: Manifest) -> tuple[Column, ...]:
    """The columns with the classes of the folder. Raises DataError if they differ in more than type and values."""
    made = []
    for column in columns:
        if column.role in IDENTITY:
            made.append(column)
            continue
        before = like.column(column.name)
        for what in ("role", "shape", "channels", "names"):
            ours, theirs = getattr(column, what), getattr(before, what)
            if ours != theirs:
                raise DataError(f"column {column.name!r}: has the {what} {ours}, but in {_named(like)} {theirs}.")
        made.append(replace(column, classes=before.classes))
    return tuple(made)


def _named(like: Manifest) -> str:
    return str(like.folder or "the training data")
