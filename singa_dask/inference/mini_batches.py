"""The mini-batches in which a model predicts and evaluates arrays, on one rank or on all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

import numpy as np

from singa_dask.errors import CommTimeout, ConfigError, Problem
from singa_dask.exchange.ranks import Ranks
from singa_dask.inference.described import KnownData
from singa_dask.inference.feeding import is_finite, normalised, not_finite
from singa_dask.job.job_pb2 import Phase
from singa_dask.layers.context import Step
from singa_dask.net import Batch, Net
from singa_dask.net.setup import told_apart

# Rows of a pass that predicts: the output of the widest layer then has PASS_ELEMENTS, and stays in a cache.
PASS_ELEMENTS = 1 << 18
LEAST_ROWS, MOST_ROWS = 500, 4096


def rows_of_a_pass(net: Net) -> int:
    """By the widths of the layers."""
    made = ((layer, net.shapes[name]) for name, layer in net.layers.items())
    widest = max(prod(shape[0] if told_apart(layer, shape) else shape) for layer, shape in made)
    return max(LEAST_ROWS, min(MOST_ROWS, PASS_ELEMENTS // widest))


def step_of(ranks: Ranks, phase: int, number: int, seed: int, counts: tuple[int, ...]) -> Step:
    """The step of this rank in a mini-batch of so many rows by rank."""
    return Step(phase, number, seed, sum(counts[: ranks.rank]), sum(counts), counts)


def mini_batches(
    known: KnownData, ranks: Ranks, seed: int, feed: Mapping[str, Batch], rows: int, batchsize: int
) -> Iterator[tuple[dict[str, Batch], Step]]:
    """Test data, `batchsize` rows at a time. Of a partitioned net, all ranks get as many mini-batches, the last ones
    maybe without rows. Raises ConfigError for a wrong batchsize, DataError for values that are not finite."""
    if batchsize < 1:
        raise ConfigError(Problem("batchsize", "must be at least 1", str(batchsize)))
    net = known.net
    for call, step in enumerate(_steps(ranks if net.parameter_net.partitioned else None, seed, rows, batchsize)):
        some = slice(call * batchsize, (call + 1) * batchsize)
        part = {
            name: Batch(batch.features[some], None if batch.labels is None else batch.labels[some])
            for name, batch in feed.items()
        }
        with np.errstate(over="ignore"):
            ready = normalised(known, part)
        for name in ready.keys() & set(known.needed):
            if not is_finite(net, ready[name]):
                raise not_finite(known, name, feed[name].features, ready[name].features, some.start)
        yield ready, step


def _steps(ranks: Ranks | None, seed: int, rows: int, batchsize: int) -> Iterator[Step]:
    """ranks: over which the net is partitioned."""
    if ranks is None:
        for start in range(0, rows, batchsize):
            yield Step(Phase.kTest, 0, seed, start, min(batchsize, rows - start))
        return
    try:
        every = tuple(zip(ranks.numbers(rows), ranks.numbers(batchsize), strict=True))
    except CommTimeout as error:
        what = f"The model is partitioned: evaluate() and predict() are calls of all {ranks.size} ranks."
        raise CommTimeout(f"{error}. {what}") from error
    for call in range(max(-(-count // size) for count, size in every)):
        counts = tuple(min(max(count - call * size, 0), size) for count, size in every)
        yield step_of(ranks, Phase.kTest, 0, seed, counts)
