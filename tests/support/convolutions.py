"""Every pass of a convolution in float32, on memory whose ends are guarded, for comparison with plain NumPy."""

from __future__ import annotations

import numpy as np

from singa_dask.ops import Ops, Window
from singa_dask.ops.cpu.toolkit.team import Team

_GUARD = 64


class Guarded:
    """Arrays of NaN, each with numbers before and behind it that must stay."""

    def __init__(self) -> None:
        self._whole: list[np.ndarray] = []

    def array(self, *shape: int) -> np.ndarray:
        whole = np.full(int(np.prod(shape)) + 2 * _GUARD, 7, np.float32)
        whole[_GUARD:-_GUARD] = np.nan
        self._whole.append(whole)
        return whole[_GUARD:-_GUARD].reshape(shape)

    def check(self) -> None:
        for whole in self._whole:
            assert (whole[:_GUARD] == 7).all() and (whole[-_GUARD:] == 7).all()


def drawn(window: Window, shape: tuple[int, int, int, int], filters: int):
    """x, weight, bias, dy."""
    rng = np.random.default_rng(0)
    result = (shape[0], *window.output_size(*shape[1:3]), filters)
    shapes = shape, (*window.kernel, shape[3], filters), (filters,), result
    return [rng.standard_normal(s).astype(np.float32) for s in shapes]


def by_ops(ops: Ops, window: Window, x, weight, bias, dy):
    """What every pass of these Ops computes, from a workspace full of NaN."""
    x, weight, bias, dy = (a.astype(ops.dtype) for a in (x, weight, bias, dy))
    workspace = ops.empty(ops.workspace_shape(x.shape, window, weight.shape[-1], 1 << 20))
    workspace[...] = np.nan
    return [
        ops.convolve(x, weight, bias, window, ops.empty(dy.shape), workspace),
        ops.convolve(x, weight, None, window, ops.empty(dy.shape), workspace),
        ops.convolve_backward_weight(x, dy, window, ops.empty(weight.shape), workspace),
        ops.convolve_backward_weight(x, dy, window, weight.copy(), workspace, accumulate=True),
        ops.convolve_backward_input(dy, weight, window, ops.empty(x.shape), workspace),
    ]


def all_passes(kind, window: Window, threads: int, x, weight, bias, dy):
    """What every pass of a way to convolve computes."""
    convolution, guarded, team = kind.of(x.shape, window, dy.shape[-1], threads), Guarded(), Team(threads)
    buffer = guarded.array(convolution.elements)
    y, plain, dx = guarded.array(*dy.shape), guarded.array(*dy.shape), guarded.array(*x.shape)
    dweight, total = guarded.array(*weight.shape), guarded.array(*weight.shape)
    total[...] = weight
    convolution.forward(team, x, weight, bias, y, buffer)
    convolution.forward(team, x, weight, None, plain, buffer)
    convolution.backward_weight(team, x, dy, dweight, buffer, False)
    convolution.backward_weight(team, x, dy, total, buffer, True)
    convolution.backward_input(team, dy, weight, dx, buffer)
    guarded.check()
    return y, plain, dweight, total, dx


def assert_as_in_numpy(window: Window, arrays, found) -> None:
    for got, want in zip(found, by_ops(Ops(), window, *arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-5 * max(1.0, float(np.abs(want).max())))


def check(kind, window: Window, threads: int, shape: tuple[int, int, int, int], filters: int) -> None:
    """A way to convolve computes what NumPy computes."""
    arrays = drawn(window, shape, filters)
    assert_as_in_numpy(window, arrays, all_passes(kind, window, threads, *arrays))
