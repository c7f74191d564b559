"""Ops with a team of threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from singa_dask.ops.arrays import Array
from singa_dask.ops.base import Ops
from singa_dask.ops.cpu.toolkit.team import Team
from singa_dask.ops.cpu.toolkit.workspace import aligned


class ThreadedOps(Ops):
    """NumPy arrays aligned to cache lines, and a team of threads that share the work of a kernel."""

    # Elements on which an elementwise kernel takes some ten microseconds, as waking a thread does.
    _worth_a_thread: ClassVar[int] = 1 << 15

    def __init__(self, dtype: Any = np.float32, threads: int = 1):
        super().__init__(dtype)
        self._team = Team(threads)

    def empty(self, shape: tuple[int, ...], dtype: Any = None) -> Array:
        return aligned(np.empty, shape, self.dtype if dtype is None else dtype)

    def zeros(self, shape: tuple[int, ...], dtype: Any = None) -> Array:
        return aligned(np.zeros, shape, self.dtype if dtype is None else dtype)

    def _share(self, x: Array, task: Callable[[slice], None]) -> None:
        """Run task(rows) on shares of x's rows, in parallel where each is worth a thread."""
        rows = x.shape[0]
        count = max(1, min(self._team.size, rows, x.size // self._worth_a_thread))
        self._team.share(rows, count, task)

    def _summed(self, x: Array, task: Callable[[slice, Array], None], like: Array) -> Array:
        """The sum of what task(rows, own), own an array of zeros as `like`, adds to `own` for shares of x's rows. The
        order of the summands does not depend on the threads."""
        parts: dict[int, Array] = {}

        def share(n: slice) -> None:
            parts[n.start] = np.zeros(like.shape, like.dtype)
            task(n, parts[n.start])

        self._share(x, share)
        return np.sum([parts[start] for start in sorted(parts)], axis=0)
