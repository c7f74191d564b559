"""Classes in files of predictions: as the data have them, integers where all of them are, else text or flags."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from singa_dask.data.columns import Column

logger = logging.getLogger(__name__)


def as_in_data(names: Sequence[str]) -> np.ndarray:
    """Classes by their names: (K,) int64, or text as objects."""
    try:
        whole = np.array([int(name) for name in names], np.int64)
    except (ValueError, OverflowError):
        return np.array([*names], object)
    return whole if [*map(str, whole.tolist())] == [*names] else np.array([*names], object)


def labels_of_shards(places: np.ndarray, column: Column) -> np.ma.MaskedArray:
    """Labels of shards, which are the places of their classes; negative ones are missing."""
    missing = places < 0
    if not isinstance(column.classes, tuple):
        return np.ma.array(places.astype(np.int64), mask=missing)
    return np.ma.array(as_in_data(column.classes)[np.where(missing, 0, places)], mask=missing)


def labels_of_data(values: np.ndarray, column: Column) -> np.ma.MaskedArray:
    """Labels of raw data. NaN, None and negative numbers of no class are missing. column: of the training data."""
    names = column.classes if isinstance(column.classes, tuple) else ()
    classes = as_in_data(names) if names else np.empty(0, np.int64)
    missing = np.asarray(values != values) if values.dtype.kind in "fO" else np.zeros(values.shape, bool)
    if values.dtype.kind == "O":
        missing |= np.asarray(values == np.array(None))
    values = _simplified(np.where(missing, 0, values) if missing.any() else values, classes)
    if values.dtype.kind != "i":
        return np.ma.array(values, mask=missing)
    if classes.dtype.kind == "i" and not column.coded:
        return np.ma.array(values, mask=missing | ((values < 0) & ~np.isin(values, classes)))
    texts = values.astype(str).astype(object)
    if not column.coded and np.isin(texts[~missing], classes).all():
        return np.ma.array(texts, mask=missing)
    known = values < len(names)
    named = labels_of_shards(np.where(known & ~missing, values, -1), column)
    return named if known.all() else np.ma.array(np.where(known, named.data, texts), mask=missing | (values < 0))


def without_missing(labels: np.ndarray, classes: np.ndarray) -> tuple[np.ndarray, dict[str, int]]:
    """Labels as an array file holds them, and its attributes: text is empty where it is missing, and integers are the
    greatest negative number below all classes, `_FillValue`."""
    if labels.dtype.kind != "i":
        return np.ma.filled(labels, "" if labels.dtype.kind == "O" else None), {}
    fill = min(-1, int(classes.min()) - 1)
    return np.ma.filled(labels, fill), {"_FillValue": fill} if np.ma.is_masked(labels) else {}


def flags_of(classes: np.ndarray) -> dict[str, Any]:
    """The attributes by which the CF conventions name the classes 0, 1, ...; none of classes that are integers."""
    if classes.dtype.kind == "i":
        return {}
    meanings = " ".join("_".join(name.split()) for name in classes)
    return {"flag_values": np.arange(len(classes), dtype=np.int32), "flag_meanings": meanings}


def as_flags(labels: np.ndarray, classes: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
    """The places of labels among the classes, and the attribute `_FillValue` of those that are missing: also those of
    other classes, with a warning."""
    places = {name: place for place, name in enumerate(classes)}
    missing, texts = np.ma.getmaskarray(labels), np.ma.getdata(labels).astype(str)
    found = np.array([places.get(text, -1) for text in texts.ravel()], np.int32).reshape(texts.shape)
    if len(others := np.unique(texts[(found < 0) & ~missing])):
        told = ", ".join(map(repr, others[:4].tolist()))
        message = "labels of other classes than those of the net, %s, are missing in the netCDF file: CSV keeps them"
        logger.warning(message, told)
    found[missing] = -1
    return found, {"_FillValue": np.int32(-1)} if (found < 0).any() else {}


def _simplified(values: Any, classes: np.ndarray) -> np.ndarray:
    """Labels as int64 if they are integers, and not text among classes that are; else as they are, text as objects."""
    if values.dtype.kind == "b" and classes.dtype.kind == "O":
        return values.astype(str).astype(object)
    if values.dtype.kind == "f":
        return values.astype(np.int64) if (values == np.floor(values)).all() else values
    if values.dtype.kind in "biu":
        return values.astype(np.int64)
    found, places = np.unique(values.astype(str), return_inverse=True)
    texts = as_in_data(found.tolist()) if classes.dtype.kind == "i" else found.astype(object)
    return texts[places].reshape(values.shape)
