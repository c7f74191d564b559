"""From stored samples to the net's input: gather, convert and normalise rows in one pass over memory.

    y = (x - mean) / std

as in SINGA's record input, where `mean` and `std` are numbers or arrays of the whole sample shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

# R requested rows, N samples of a shard, D values of a sample, M rows of the output


@dataclass(frozen=True)
class Normaliser:
    """y = (x - mean) / std, computed in `dtype`; None skips a step.

    mean, std: one number, or (values of a sample,) in the stored order.
    """

    mean: float | np.ndarray | None = None
    std: float | np.ndarray | None = None
    dtype: Any = np.float32

    def gather(self, x_ND: np.ndarray, rows_R: np.ndarray, places_R: np.ndarray, out_MD: np.ndarray) -> None:
        """out[places[i]] = (x[rows[i]] - mean) / std. Releases the interpreter lock.

        Does not check rows and places: they must exist.
        """
        from singa_dask.data import numba_gather  # imports Numba, which commands without samples do not need

        cast = np.dtype(self.dtype).type
        if self.mean is None and self.std is None:
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

    def reference(self, x_ND: np.ndarray, rows_R: np.ndarray) -> np.ndarray:
        """The reference of `gather` in plain NumPy: (R, D)."""
        y_RD = x_ND[rows_R].astype(self.dtype)
        if self.mean is not None:
            y_RD = y_RD - np.asarray(self.mean, self.dtype)
        if self.std is not None:
            y_RD = y_RD / np.asarray(self.std, self.dtype)
        return y_RD

    def _full(self, value: float | np.ndarray | None, default: float, width: int) -> np.ndarray:
        if isinstance(value, np.ndarray):
            return value.astype(self.dtype, copy=False)
        return np.full(width, default if value is None else value, dtype=self.dtype)
