"""Transitions between shardings change neither the activation nor its gradient, as a whole."""

import numpy as np
import pytest

from singa_dask.comm.threads import run_threads
from singa_dask.errors import TrainingError
from singa_dask.exchange.executor import CollectiveExecutor
from singa_dask.exchange.group import CommGroup
from singa_dask.job.job_pb2 import LayerProto, LayerType
from singa_dask.layers import Context, Step
from singa_dask.layers.group import LayerGroup
from singa_dask.layers.partition import LayerPartition, Sharding, even_bounds
from singa_dask.layers.transition import LabelTransition, Transition
from singa_dask.ops import Ops

ROWS, WHOLE, COLUMNS, PARTIAL = Sharding
PAIRS = [
    *((ROWS, WHOLE), (ROWS, COLUMNS), (WHOLE, ROWS), (WHOLE, COLUMNS), (COLUMNS, WHOLE), (COLUMNS, ROWS)),
    *((PARTIAL, ROWS), (PARTIAL, WHOLE), (PARTIAL, COLUMNS)),
]
# Workers, time steps, rows, sample shape: uneven rows and columns, more workers than rows, than features.
CASES = {
    "even": (2, 1, 4, (6,)),
    "uneven": (3, 1, 5, (7,)),
    "over time": (3, 4, 5, (4,)),
    "images": (2, 1, 3, (2, 3, 5)),
    "images over time": (4, 2, 6, (2, 2, 5)),
    "more workers than rows": (4, 1, 2, (5,)),
    "more workers than rows, over time": (4, 3, 3, (6,)),
    "more workers than features": (3, 2, 4, (2,)),
    "one row": (3, 1, 1, (3,)),
}


def local(x, sharding, bounds, rank, size, draw):
    """A worker's array of the activation x, (T, B, ..., C), in a sharding."""
    if sharding is ROWS:
        return x[:, bounds[rank] : bounds[rank + 1]]
    if sharding is COLUMNS:
        columns = even_bounds(x.shape[-1], size)
        return x[..., columns[rank] : columns[rank + 1]]
    if sharding is WHOLE:
        return x
    parts = [draw.standard_normal(x.shape) for _ in range(size - 1)]
    return [x - sum(parts), *parts][rank]


def in_rows(x):
    """(T, B, ...) -> (T B, ...)."""
    return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])


def whole(arrays, sharding, shape, steps):
    """The activation, (T, B, ..., C), of which every worker has its array."""
    arrays = [array.reshape(steps, len(array) // steps, *array.shape[1:]) for array in arrays]
    if sharding is ROWS:
        return np.concatenate(arrays, axis=1)
    if sharding is COLUMNS:
        return np.concatenate(arrays, axis=-1)
    if sharding is WHOLE:
        for array in arrays[1:]:
            np.testing.assert_array_equal(array, arrays[0])
        return arrays[0]
    return sum(arrays)


def transition(comm, reads, makes, steps, bounds, sample, cls=Transition):
    """A worker's layer and context."""
    layer = cls.from_proto(LayerProto(name="t", type=LayerType.Value(cls.type), srclayers=["x"], unroll_len=steps))
    layer.partition = LayerPartition(reads, makes, (sample,), comm.rank, comm.size)
    layer.setup()
    counts = tuple(np.diff(bounds).tolist())
    first = bounds[comm.rank] if reads is ROWS else 0
    ctx = Context(Ops(np.float64), Step(first_row=first, total_rows=bounds[-1], counts=counts))
    ctx.group = CommGroup(CollectiveExecutor(comm, threaded=False), comm, ctx.ops)
    return layer, ctx


def run(comm, reads, makes, x, dy, steps, bounds):
    """Forward and backward; x, dy: (T, B, ..., C). Returns this worker's output and gradient."""
    layer, ctx = transition(comm, reads, makes, steps, bounds, x.shape[2:])
    own = np.ascontiguousarray(local(x, reads, bounds, comm.rank, comm.size, np.random.default_rng(1)))
    given = in_rows(own)
    before = given.copy()
    y = layer.forward(ctx, given)
    assert y.flags.c_contiguous
    assert ctx.output_step.first_row == (bounds[comm.rank] if makes is ROWS else 0)
    y = y.copy()
    np.testing.assert_array_equal(given, before)
    own = np.ascontiguousarray(local(dy, makes.of_gradient, bounds, comm.rank, comm.size, np.random.default_rng(2)))
    dx = layer.backward(ctx, in_rows(own))
    assert dx.flags.c_contiguous
    assert dx.shape == given.shape
    return y, dx.copy()


@pytest.mark.parametrize("even", [True, False])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("reads", "makes"), PAIRS, ids=lambda sharding: str(sharding))
def test_an_activation_and_its_gradient_stay_what_they_are(reads, makes, case, even):
    size, steps, rows, sample = CASES[case]
    draw = np.random.default_rng(0)
    bounds = even_bounds(rows, size) if even else (0, *sorted(draw.integers(0, rows + 1, size - 1).tolist()), rows)
    x, dy = draw.standard_normal((2, steps, rows, *sample))
    ran = run_threads(size, run, reads, makes, x, dy, steps, bounds)
    y = whole([y for y, _ in ran], makes, x.shape, steps)
    np.testing.assert_allclose(y, x, rtol=1e-12, atol=1e-14)
    dx = whole([dx for _, dx in ran], reads.of_gradient, x.shape, steps)

    np.testing.assert_allclose(dx, dy, rtol=1e-12, atol=1e-13)


def labels(comm, steps, bounds, given):
    layer, ctx = transition(comm, ROWS, WHOLE, steps, bounds, (), LabelTransition)
    first, last = bounds[comm.rank], bounds[comm.rank + 1]
    layer.forward(ctx, None if given is None else in_rows(np.ascontiguousarray(given[:, first:last])))
    return ctx.labels


@pytest.mark.parametrize("shape", [(), (1,), (2, 3)])
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("bounds", [(0, 2, 5), (0, 0, 4, 5)])
def test_labels_of_all_workers(bounds, steps, shape):
    given = np.random.default_rng(0).integers(0, 200, (steps, bounds[-1], *shape)).astype(np.uint8)
    for found in run_threads(len(bounds) - 1, labels, steps, bounds, given):
        np.testing.assert_array_equal(found, in_rows(given))
        assert found.dtype == given.dtype


def test_no_labels_are_no_labels():
    assert run_threads(2, labels, 1, (0, 1, 2), None) == [None, None]


def test_a_transition_alone_says_what_to_do():
    def alone(comm):
        layer, ctx = transition(comm, ROWS, WHOLE, 1, (0, 2, 4), (3,))
        ctx.group = LayerGroup()
        with pytest.raises(TrainingError, match=r"over 2 workers, and must be used by that many\. Received: 1"):
            layer.forward(ctx, np.zeros((2, 3)))

    run_threads(2, alone)
