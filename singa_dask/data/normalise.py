"""From stored samples to the net's input: gather, convert and normalise rows in one pass over memory.

    y = (x - mean) / std

as in SINGA's record input, where `mean` and `std` are numbers or arrays of the whole sample shape.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from singa_dask.data.columns import MAX_SAMPLE_NBYTES, Channels, Column
from singa_dask.data.manifest import MANIFEST_FILE, STATISTICS_FILE
from singa_dask.data.resolve import resolve
from singa_dask.data.shards import read_small
from singa_dask.errors import ConfigError, DataError, Problem
from singa_dask.job.job_pb2 import StoreProto
from singa_dask.layers.normalisation import Normalisation, given_numbers

_CACHED_VALUES = 1 << 14

# R requested rows, N samples of a shard, D values of a sample, M rows of the output


@dataclass(frozen=True)
class Normaliser:
    """y = (x - mean) / std, computed in `dtype`; None skips a step.

    mean, std: one number, or (values of a sample,) in the stored order. planes: of samples that are stored channels
    first, the number of channels; y has them last. 0 keeps the stored order.
    """

    mean: float | np.ndarray | None = None
    std: float | np.ndarray | None = None
    dtype: Any = np.float32
    planes: int = 0

    def gather(self, x_ND: np.ndarray, rows_R: np.ndarray, places_R: np.ndarray, out_MD: np.ndarray) -> None:
        """out[places[i]] = (x[rows[i]] - mean) / std. Releases the interpreter lock.

        Does not check rows and places: they must exist.
        """
        from singa_dask.data import numba_gather  # imports Numba, which commands without samples do not need

        cast = np.dtype(self.dtype).type
        if x_ND.dtype == np.float16:  # which Numba does not compute with
            self._gather_halves(x_ND, rows_R, places_R, out_MD)
        elif self.planes > 1:
            mean_D, std_D = (self._full(value, i, x_ND.shape[1]) for i, value in enumerate((self.mean, self.std)))
            numba_gather.normalise_planes(x_ND, rows_R, places_R, mean_D, std_D, self.planes, out_MD)
        elif self.mean is None and self.std is None:
            numba_gather.gather(x_ND, rows_R, places_R, out_MD)
        elif isinstance(self.mean, np.ndarray) or isinstance(self.std, np.ndarray):
            mean_D = self._full(self.mean, 0, x_ND.shape[1])
            if self.std is None:
                numba_gather.subtract_D(x_ND, rows_R, places_R, mean_D, out_MD)
            else:
                numba_gather.normalise_D(
                    x_ND, rows_R, places_R, mean_D, self._full(self.std, 1, x_ND.shape[1]), out_MD
                )
        elif self.std is None:
            numba_gather.subtract(x_ND, rows_R, places_R, cast(self.mean), out_MD)
        else:
            numba_gather.normalise(x_ND, rows_R, places_R, cast(self.mean or 0), cast(self.std), out_MD)

    def _gather_halves(self, x_ND: np.ndarray, rows_R: np.ndarray, places_R: np.ndarray, out_MD: np.ndarray) -> None:
        """A few rows at a time, so that they stay in the cache."""
        from singa_dask.data import numba_gather

        count = max(1, _CACHED_VALUES // x_ND.shape[1])
        wide_RD = np.empty((count, x_ND.shape[1]), np.uint32)
        rows = np.arange(count)
        for start in range(0, len(rows_R), count):
            some = rows_R[start : start + count]
            numba_gather.widen(x_ND.view(np.uint16), some, wide_RD)
            places = places_R[start : start + count]
            self.gather(wide_RD.view(np.float32), rows[: len(some)], places, out_MD)

    def reference(self, x_ND: np.ndarray, rows_R: np.ndarray) -> np.ndarray:
        """The reference of `gather` in plain NumPy: (R, D)."""
        mean, std = (None if value is None else np.asarray(value) for value in (self.mean, self.std))
        y_RD = Normalisation(mean, std).apply(np, x_ND[rows_R].astype(self.dtype))
        if self.planes > 1:
            y_RD = y_RD.reshape(len(y_RD), self.planes, -1).transpose(0, 2, 1).reshape(y_RD.shape)
        return y_RD

    def _full(self, value: float | np.ndarray | None, default: float, width: int) -> np.ndarray:
        if isinstance(value, np.ndarray):
            return np.ascontiguousarray(value, self.dtype)
        return np.full(width, default if value is None else value, dtype=self.dtype)


def make_normaliser(store: StoreProto, column: Column, dtype: Any = np.float32) -> Normaliser:
    """(x - mean) / std for a layer's column, with the job's mean or mean_file or mean_value, and std likewise.

    Raises ConfigError if two of them are given or a std is 0, DataError for a bad file.
    """
    dtype = np.dtype(dtype).type
    mean, std = (
        value.astype(dtype) if isinstance(value, np.ndarray) else value
        for value in (_statistic(store, name, column) for name in ("mean", "std"))
    )
    return Normaliser(mean, std, dtype, 0 if len(store.shape) == 1 else _planes(column))


def make_target_normaliser(store: StoreProto, column: Column, dtype: Any = np.float32) -> Normaliser:
    """(t - target_mean) / target_std for the layer's targets."""
    dtype = np.dtype(dtype).type
    mean, std = (
        in_stored_order(values, column).astype(dtype) if values else None
        for values in (given_numbers(store, "target_mean"), given_numbers(store, "target_std"))
    )
    return Normaliser(mean, std, dtype, _planes(column))


def _planes(column: Column) -> int:
    return column.shape[0] if column.channels is Channels.FIRST else 0


def resolve_normalisation(store: StoreProto, column: Column, fitted: Column, targets: Column | None) -> None:
    """Put the numbers into `mean`, `std`, `target_mean` and `target_std`, in place of files and of `normalise`.

    column: of the layer. fitted, targets: the column and its targets in the training data; what is constant there is
    not scaled. Raises ConfigError, DataError.
    """
    make_normaliser(store, column)
    flat = len(store.shape) == 1
    for name in ("mean", "std"):
        if getattr(store, f"{name}_file"):
            values = read_statistic(getattr(store, f"{name}_file"), name, column)
            getattr(store, name)[:] = in_net_order(values, column, flat=flat)
            store.ClearField(f"{name}_file")
        elif flat and getattr(store, name):  # the net does not know the channels of flat samples
            values = in_stored_order(getattr(store, name), column, flat=True)
            getattr(store, name)[:] = in_net_order(values, column, flat=True)
    if store.normalise:
        _check_alone(store)
        for name, numbers in (("mean", fitted.mean), ("std", _scales(fitted))):
            values = in_stored_order(numbers, column)
            getattr(store, name)[:] = in_net_order(values, column, flat=flat)
    if store.normalise_target and targets is not None:
        store.target_mean[:], store.target_std[:] = targets.mean, _scales(targets)
    store.ClearField("normalise")
    store.ClearField("normalise_target")


def _check_alone(store: StoreProto) -> None:
    for name in ("mean_value", "std_value", "mean", "std"):
        if store.HasField(name) if name.endswith("value") else getattr(store, name):
            message = f"excludes {name}"
            raise ConfigError(Problem("store_conf.normalise", message, "true", "Leave one of them out."))


def _scales(column: Column) -> list[float]:
    """The standard deviations, 1 in place of 0."""
    return [value or 1.0 for value in column.std]


def in_stored_order(given: Sequence[float], column: Column, *, flat: bool = False) -> np.ndarray:
    """One value per value of a stored sample, (values,) float64, from one value, one per channel, or one per value in
    the net's order, which is the stored one if the job flattens the samples.

    Raises ConfigError for another number of values.
    """
    array = np.asarray(given, np.float64)
    net = column.net_shape
    if array.size not in (1, net[-1], math.prod(net)):
        message = f"must have one value, one per channel ({net[-1]}) or one per value of a sample ({math.prod(net)})"
        raise ConfigError(Problem("store_conf.mean and std", message, f"{array.size} values"))
    if flat and array.size == math.prod(net):
        return array
    whole = np.broadcast_to(array.reshape(net) if array.size == math.prod(net) else array, net)
    return np.ascontiguousarray(np.moveaxis(whole, -1, 0) if column.channels is Channels.FIRST else whole).reshape(-1)


def in_net_order(values: np.ndarray, column: Column, *, flat: bool = False) -> list[float]:
    """The reverse of `in_stored_order`, in as few values as say the same."""
    net = column.net_shape
    if flat and (values != values[0]).any():
        return values.tolist()
    if column.channels is Channels.FIRST:
        whole = np.moveaxis(values.reshape(column.shape), 0, -1)
    else:
        whole = values.reshape(net)
    if (whole == whole.reshape(-1)[0]).all():
        return whole.reshape(-1)[:1].tolist()
    channels = whole.reshape(-1, net[-1])
    return (channels[0] if (channels == channels[0]).all() else whole.reshape(-1)).tolist()


def _statistic(store: StoreProto, name: str, column: Column) -> float | np.ndarray | None:
    file = getattr(store, f"{name}_file")
    for other in (name, f"{name}_value") if file else ():
        if getattr(store, other) if other == name else store.HasField(other):
            hint = "Leave one of them out."
            raise ConfigError(Problem(f"store_conf.{name}_file", f"excludes {other}", repr(file), hint))
    values = given_numbers(store, name)
    if values:
        return values[0] if len(values) == 1 else in_stored_order(values, column, flat=len(store.shape) == 1)
    return read_statistic(file, name, column) if file else None


def statistics_path(path: str) -> Path:
    """The absolute path of a statistics file; a folder of shards or "dataset:NAME/SPLIT" means its statistics.h5.

    Raises DataError for a file of another format.
    """
    if path.startswith("dataset:"):
        return resolve(path.removesuffix(f"/{STATISTICS_FILE}")) / STATISTICS_FILE
    file = Path(path).expanduser().absolute()
    if (file / MANIFEST_FILE).exists():
        return file / STATISTICS_FILE
    if file.is_file() and not h5py.is_hdf5(file):
        raise DataError(f"{file}: is not an HDF5 file. Name a folder of shards: its statistics are then used.")
    return file


def read_statistic(path: str, name: str, column: Column) -> np.ndarray:
    """The dataset `name` ("mean" or "std") of an HDF5 file, with one value per value of a stored sample: (values,).

    path: the file; a folder of shards or "dataset:NAME/SPLIT" means its statistics.h5. The dataset has the stored
    sample shape, (channels,), or one value. Raises DataError.
    """
    file = statistics_path(path)
    array = read_small(file, name, 8 * MAX_SAMPLE_NBYTES)
    try:
        per_value = np.broadcast_to(_of_channels(array.astype(np.float64), column), column.shape)
    except ValueError:
        raise DataError(
            f"{file}: {name!r} has the shape {array.shape}, but the samples of {column.name!r} have {column.shape}. "
            "Use the statistics.h5 of the training shards."
        ) from None
    if not np.isfinite(per_value).all() or (name == "std" and (per_value == 0).any()):
        raise DataError(f"{file}: {name!r} holds values that are not finite, or a std of 0. Write 1 instead of 0.")
    return np.ascontiguousarray(per_value).reshape(-1)


def _of_channels(array: np.ndarray, column: Column) -> np.ndarray:
    """Values per channel as an array that can be broadcast over a stored sample."""
    if column.channels is Channels.FIRST and array.ndim == 1:
        return array.reshape(-1, *(1,) * (len(column.shape) - 1))
    return array
