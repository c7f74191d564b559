"""From what the loaders have read to what a net is fed."""

from __future__ import annotations

from collections.abc import Mapping

from singa_dask.data import Loader
from singa_dask.layers.base import Step
from singa_dask.net import Batch
from singa_dask.ops import Ops


def next_feed(
    loaders: Mapping[str, Loader], ops: Ops, phase: int, number: int, seed: int
) -> tuple[dict[str, Batch], Step]:
    """The next mini-batch of every input layer, on the device of `ops`, and where in the run it stands."""
    feed = {}
    step = Step(phase, number, seed)
    for name, loader in loaders.items():
        loaded = loader.next()
        labels = None if loaded.labels is None else ops.asarray(loaded.labels)
        feed[name] = Batch(ops.asarray(loaded.features), labels)
        step = Step(phase, number, seed, loaded.first_row, loaded.total_rows)
    return feed, step
