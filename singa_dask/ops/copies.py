"""Copies of arrays to memory of the host that outlives the process."""

from __future__ import annotations

import numpy as np

from singa_dask.ops.arrays import Array


class Copies:
    """Of arrays on the host: they are made at once. The override of a device copies beside its work."""

    def copy(self, source: Array, target: np.ndarray) -> None:
        """Copy an array, which must not change until `finish` has returned. Both are flat and of one dtype."""
        target[...] = source

    def finish(self) -> float:
        """Return once everything is copied. The seconds for which the device has waited for copies, where it copies
        beside its work: those of the time before, as they are known late."""
        return 0.0
