"""Attention: large scores, and memory that is linear in the number of positions."""

import tracemalloc

import numpy as np
import pytest

from singa_dask.layers import Attention, Context, Step
from singa_dask.ops import get_ops


def attention(steps, causal):
    """What computes a forward and a backward pass over so many positions, and returns the output."""
    ops, rows, draw = get_ops("cpu", np.float32), 2, np.random.default_rng(0)
    layer = Attention("a", "x", num_heads=2, causal=causal, unroll_len=steps)
    layer.setup((8,))
    for param in layer.params:
        param.bind(draw.standard_normal(param.shape).astype(np.float32), ops.zeros(param.shape))
    x, ctx = draw.standard_normal((steps * rows, 8)).astype(np.float32), Context(ops, Step(total_rows=rows))

    def both():
        y = layer.forward(ctx, x)
        layer.backward(ctx, np.ones_like(y))
        return y

    return both


@pytest.mark.parametrize("causal", [False, True])
def test_long_sequences_need_no_array_of_all_pairs(causal):
    steps = 1200
    attention(8, causal)()  # compiles the kernels
    both = attention(steps, causal)
    tracemalloc.start()
    y = both()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < steps * steps * 4 / 4  # a quarter of one matrix of weights
    assert np.isfinite(y).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_large_scores_do_not_overflow(dtype):
    ops, draw = get_ops("cpu", dtype), np.random.default_rng(0)
    q, k, v = (draw.standard_normal((1, 1, 200, 4)).astype(dtype) for _ in range(3))
    q *= 1e6
    out, log_sums = np.empty_like(v), np.empty((1, 1, 200), dtype)
    ops.attention((q, k, v), out, log_sums, causal=False)
    largest = (q[0, 0].astype(float) @ k[0, 0].T.astype(float)).argmax(axis=1)
    np.testing.assert_allclose(out[0, 0], v[0, 0][largest], rtol=1e-5)
