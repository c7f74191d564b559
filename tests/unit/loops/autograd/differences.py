"""Gradients against differences of the loss, in float64."""

from __future__ import annotations

import numpy as np
import pytest

from singa_dask import autograd, device
from singa_dask.tensors.tensor import Tensor

DRAW = np.random.default_rng(7)
DOUBLE = device.Device("cpu", dtype=np.float64)


def in_float64(*shape: int) -> Tensor:
    return Tensor(data=DRAW.normal(size=shape), device=DOUBLE, dtype=np.float64, stores_grad=True)


def gradients_of(net, sources: list[Tensor], target: Tensor) -> dict[str, np.ndarray]:
    """The gradients of the mean square error by name, those of the sources by number, compared with differences at
    places of each."""

    def loss() -> float:  # not Tensor.item(), which is float32
        return float(((net(*sources).array - target.array) ** 2).mean())

    names, pairs = {id(source): str(number) for number, source in enumerate(sources)}, {}
    for owner, g in autograd.backward(autograd.mean_square_error(net(*sources), target)):
        if owner is not target:  # a loss gives none for its target
            pairs[names.get(id(owner)) or owner.name] = owner.data, g.data.copy()
    for name, (values, gradient) in pairs.items():
        places = list(np.ndindex(values.shape))
        for place in places[:: max(1, len(places) // 6)]:
            kept, losses = values[place], []
            for change in (1e-5, -1e-5):
                values[place] = kept + change
                losses.append(loss())
            values[place] = kept
            assert (losses[0] - losses[1]) / 2e-5 == pytest.approx(gradient[place], rel=1e-5, abs=1e-8), name
    return {name: gradient for name, (_, gradient) in pairs.items()}
