"""Every kernel that layers and updaters use, written for any array library with NumPy's interface."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import psutil  # type: ignore[import-untyped]

from singa_dask.ops.activation import ActivationOps
from singa_dask.ops.arrays import ArrayOps
from singa_dask.ops.attention import AttentionOps
from singa_dask.ops.convolution import ConvolutionOps
from singa_dask.ops.copies import Copies
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
    AttentionOps,
    UpdateOps,
):
    """The array library `xp` and the kernels over it.

    Complete in plain NumPy: the reference for CpuOps and GpuOps, which override the kernels that Numba and CuPy run
    faster. Kernels write into `out` arrays of the caller, C-contiguous like their inputs, so that buffers are reused
    from step to step; they allocate small arrays only.
    """

    device: ClassVar[str] = "cpu"
    device_id: int = 0
    xp: Any = np

    def __init__(self, dtype: Any = np.float32):
        self.dtype = np.dtype(dtype)

    def use(self) -> None:
        """Make this the calling thread's device. Call it once in every thread but the one that created the object."""

    def held_memory(self) -> int:
        """Bytes that arrays of this process take, or have taken, on its GPU; 0 on the CPU."""
        return 0

    def copies(self, memory: np.ndarray) -> Copies:
        """Copies of arrays of this device to a part of this memory of the host."""
        return Copies()

    def free_memory(self) -> tuple[int | None, int]:
        """Bytes that new arrays can take: by a limit of this process, None where it has none, and on the device."""
        return None, psutil.virtual_memory().available

    def sixteen_bits(self, kind: str) -> Any:
        """The kernels of the codecs kHalf ("half") and kBFloat16 ("bfloat16") on this device."""
        from singa_dask.ops.cpu.elementwise.codec_kernels import BFLOAT16, HALF

        return {"half": HALF, "bfloat16": BFLOAT16}[kind]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.dtype})"
