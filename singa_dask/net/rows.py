"""Whether the rows of a layer's output depend on each other: found by trying, since a layer cannot tell."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from singa_dask.job.job_pb2 import Phase
from singa_dask.layers.base import Layer, LossLayer, OutputLayer
from singa_dask.layers.context import Context, Step
from singa_dask.layers.param import Shape
from singa_dask.net.flat import FlatParams

logger = logging.getLogger(__name__)

_ROWS = 4
Forward = Callable[[Sequence[np.ndarray]], list[np.ndarray]]


def mixes(forward: Forward, x: Sequence[np.ndarray]) -> bool:
    """Whether the first or the last row of an output changes where it stands in place of all other rows.

    False if two equal calls differ.
    """
    y, again = forward(x), forward(x)
    return _alike(y, again, slice(None)) and not all(
        _alike(y, forward([np.repeat(each[row : row + 1 or None], len(each), axis=0) for each in x]), row)
        for row in (0, -1)
    )


def _alike(some: Sequence[np.ndarray], others: Sequence[np.ndarray], rows: int | slice) -> bool:
    pairs = zip(some, others, strict=True)
    return all(np.allclose(a[rows], b[rows], rtol=1e-4, atol=1e-6, equal_nan=True) for a, b in pairs)


def mixing(net: Any) -> list[str]:
    """The functions and layers of the user's own in a net whose rows depend on each other in its phase, also losses.
    Of a partitioned net, functions alone."""
    found = []
    for name, layer in net.layers.items():
        shapes = [net.source_shape(name, i) for i in range(len(layer.proto.srclayers))]
        if layer.mixes_rows or (shapes and not net.partitioned and must_see_all(layer, shapes, net.phase)):
            found.append(name)
    return found


def warn_of_mixing(net: Any) -> None:
    """Log that evaluations of the net depend on the mini-batches, if its rows depend on each other."""
    for name in mixing(net):
        told = (
            "layer %r: its rows depend on each other, so evaluations are means over mini-batches, and depend on the "
        )
        logger.warning(told + "batchsize of the input layers", name)


def must_see_all(layer: Layer, sources: Sequence[Shape], phase: int = Phase.kTrain) -> bool:
    """Whether a layer of the user's own must get the rows of all workers: one of its rows, or of the gradient of a
    loss, depends on others in a phase, for numbers that are drawn. sources: their shapes.

    Layers that declare `takes`, that exchange values with other workers, and that cannot compute drawn numbers decide
    for themselves.
    """
    own = layer.type == Layer.type and not isinstance(layer, OutputLayer)  # what these write is no trial
    if not own or layer.declares_takes or layer.recurrent or layer.steps > 1:
        return False
    from singa_dask.ops import Ops  # the reference, so that all workers find the same

    draw, ops = np.random.default_rng(0), Ops(np.float64)
    labels = layer.label_positions - layer.targets.keys()
    x = [
        draw.integers(0, 2, _ROWS) if i in labels else draw.uniform(0.25, 0.75, (_ROWS, *shape))
        for i, shape in enumerate(sources)
    ]
    tried = type(layer).from_proto(layer.proto)
    tried.targets = layer.targets
    ctx = Context(ops, step=Step(phase, total_rows=_ROWS), group=None)  # type: ignore[arg-type]

    def forward(x: Sequence[np.ndarray]) -> list[np.ndarray]:
        y = tried.forward(ctx, *(each.copy() for each in x))
        if isinstance(tried, LossLayer):
            y = tried.backward(ctx, None)
        return [np.array(each) for each in (y if isinstance(y, tuple) else (y,)) if each is not None]

    try:
        tried.setup(*sources)
        FlatParams.of(tried.params, ops)
        for param in tried.params:
            param.value[...] = draw.uniform(0.25, 0.75, param.shape)
        with np.errstate(all="ignore"):
            return mixes(forward, x)
    except Exception:  # of the user's code, which was not written for these numbers
        return False
