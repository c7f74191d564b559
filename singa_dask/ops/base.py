"""Every kernel that layers and updaters use, written for any array library with NumPy's interface."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from singa_dask.ops.activation import ActivationOps
from singa_dask.ops.arrays import ArrayOps
from singa_dask.ops.convolution import ConvolutionOps
from singa_dask.ops.loss import LossOps
from singa_dask.ops.normalisation import NormalisationOps
from singa_dask.ops.pooling import PoolingOps
from singa_dask.ops.random import RandomOps
from singa_dask.ops.recurrent import RecurrentOps
from singa_dask.ops.update import UpdateOps


class Ops(
    ArrayOps,
    ConvolutionOps,
    PoolingOps,
    ActivationOps,
    NormalisationOps,
    LossOps,
    RandomOps,
    RecurrentOps,
    UpdateOps,
):
    """The array library `xp` and the kernels over it.

    Complete in plain NumPy: the reference that CpuOps and GpuOps are compared with, which override what Numba and
    CuPy do better. Kernels write into arrays that the caller passes as `out`, C-contiguous like their inputs, so that
    buffers are reused from step to step; they allocate only what is small.
    """

    device: ClassVar[str] = "cpu"
    xp: Any = np

    def __init__(self, dtype: Any = np.float32):
        self.dtype = np.dtype(dtype)

    def use(self) -> None:
        """Make the calling thread work on this device; once in every thread but the one that made the object."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.dtype})"
