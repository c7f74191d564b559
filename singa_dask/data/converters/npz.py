"""NumPy archives: x and y, or x_train, y_train, x_test, y_test."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from singa_dask.data.converters.split import Split
from singa_dask.errors import DataError

_LAYOUTS = {
    "": (("x", "y"), ("features", "labels"), ("data", "target")),
    "train": (("x_train", "y_train"),),
    "test": (("x_test", "y_test"),),
}


def load(source: Path) -> dict[str, Split]:
    """The arrays of an .npz file: x (N, H, W, C) or (N, H, W) uint8 or (N, D) numbers, y (N,) or (N, 1) whole numbers.

    y may be missing. Nothing is unpickled. Raises DataError.
    """
    try:
        archive = np.load(source, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError("it holds one array without a name")
        with archive:
            keys = {key.lower(): key for key in archive.files}
            splits = {}
            for name, pairs in _LAYOUTS.items():
                for x, y in pairs:
                    if x in keys and name not in splits:
                        labels = archive[keys[y]] if y in keys else None
                        splits[name] = _split(source, archive[keys[x]], labels)
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise DataError(f"{source}: cannot be read as an .npz file ({error}). Write it with numpy.savez.") from error
    if not splits:
        found = ", ".join(keys.values()) or "nothing"
        raise DataError(f"{source}: needs the arrays x and y, or x_train and y_train. Found: {found}.")
    if "" in splits and len(splits) > 1:
        raise DataError(f"{source}: has both x and x_train. Keep one of them.")
    return splits


def _split(source: Path, x: np.ndarray, y: np.ndarray | None) -> Split:
    if x.ndim == 4 and x.dtype == np.uint8 and x.shape[1] in (1, 3) and x.shape[3] not in (1, 3, 4):
        raise DataError(
            f"{source}: x of shape {x.shape} looks channels-first; images are (N, height, width, channels). "
            "Save x.transpose(0, 2, 3, 1)."
        )
    if x.ndim == 3 and x.dtype == np.uint8:
        x = x[..., np.newaxis]
    elif x.ndim > 2 and not (x.ndim == 4 and x.dtype == np.uint8):
        x = x.reshape(len(x), -1)
    if y is None:
        return Split(x, None)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.dtype.kind == "f" and y.ndim == 1 and np.array_equal(y, np.rint(y)):
        y = y.astype(np.int64)
    if y.ndim != 1 or len(y) != len(x) or y.dtype.kind not in "bui":
        raise DataError(
            f"{source}: labels must be {len(x)} whole numbers. Received: {y.dtype} {y.shape}. "
            "One-hot labels: save y.argmax(1) instead."
        )
    classes = int(y.max()) + 1 if y.size and y.min() >= 0 else None
    return Split(x, y, classes)
