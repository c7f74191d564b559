"""Parameters of a Module's own."""

from __future__ import annotations

import numpy as np

from singa_dask.tensors.device import get_default_device
from singa_dask.tensors.tensor import Tensor


def parameter(*shape: int) -> Tensor:
    """A tensor that is trained, of ones; its type is that of the default device."""
    made = Tensor.of(np.ones(shape), get_default_device())
    made.stores_grad = True
    return made
