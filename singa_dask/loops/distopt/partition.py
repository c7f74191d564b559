"""Which samples of a data set a rank trains on."""

from __future__ import annotations

from typing import Any

from singa_dask.errors import ConfigError, DataError, Problem


def data_partition(x: Any, y: Any, rank: int, world_size: int) -> tuple[Any, Any]:
    """Rank's run of the samples: len(x) // world_size of them on every rank, so that all ranks make as many steps.

    x, y: anything that can be sliced; y may be None. Raises DataError where they do not fit each other or the ranks.

    >>> data_partition([10, 11, 12, 13, 14], [0, 1, 2, 3, 4], rank=1, world_size=2)
    ([12, 13], [2, 3])
    """
    if not 0 <= rank < world_size:
        raise ConfigError(Problem("rank", f"must be from 0 to {world_size - 1}, world_size - 1", str(rank)))
    if y is not None and len(x) != len(y):
        raise DataError(f"x and y must have as many samples. Received: {len(x)} and {len(y)}.")
    each = len(x) // world_size
    if not each:
        raise DataError(f"{len(x)} samples are too few for {world_size} ranks; every rank needs one")
    own = slice(rank * each, (rank + 1) * each)
    return x[own], None if y is None else y[own]
