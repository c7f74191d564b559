"""Arrays as shards, in the order of the samples unless a seed is given."""

from pathlib import Path
from typing import Any

import numpy as np

from singa_dask import shard
from singa_dask.data import Manifest
from singa_dask.data.columns import as_map, guess_channels


def write_shards(
    out: str | Path, x: Any, y: Any = None, nshards: int = 1, *, classes: Any = None, shuffle_seed=None, **options: Any
) -> Manifest:
    """classes: names, or the number of classes that labels keep theirs of. options: of `shard`; weight is short for
    sample_weight."""
    if y is not None:
        values = np.asarray(y)
        options["labels"] = values.dtype.kind in "biu" and as_map(values).ndim in (1, 3)
    options["outputs" if isinstance(classes, int) else "classes"] = classes
    options |= {"places": True, "shuffle": shuffle_seed is not None, "seed": shuffle_seed or 0, "durable": False}
    if x.dtype == np.uint8 and guess_channels(x.shape[1:]) is None:  # images
        options.setdefault("channels", "last")
    options["sample_weight"] = options.pop("weight", None)
    (made,) = shard(x, y, out, nshards=nshards, progress=False, **options).values()
    return made
