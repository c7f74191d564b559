"""Where tensors live: the CPU, or a GPU. The names are Apache SINGA's."""

from __future__ import annotations

import logging
from functools import cache, cached_property
from typing import Any

from singa_dask.ops import get_ops

log = logging.getLogger(__name__)


class Device:
    """kind: "cpu" or "gpu". id: of the GPU. ops: what computes there."""

    def __init__(self, kind: str, device_id: int = 0) -> None:
        self.kind, self.id = kind, device_id

    @cached_property
    def ops(self) -> Any:
        return get_ops(self.kind, device_id=self.id)

    def SetRandSeed(self, seed: int) -> None:
        """Seed initial parameters and dropout of what is created from now on; see autograd.set_seed."""
        from singa_dask import autograd

        autograd.set_seed(seed)

    def __repr__(self) -> str:
        return self.kind if self.kind == "cpu" else f"gpu:{self.id}"


@cache
def get_default_device() -> Device:
    """The CPU."""
    return Device("cpu")


@cache
def create_cuda_gpu_on(device_id: int) -> Device:
    """GPU number `device_id` of this machine. On a machine without GPUs it is the CPU, and a warning says so."""
    try:
        import cupy

        if cupy.cuda.runtime.getDeviceCount() > 0:
            return Device("gpu", device_id)
    except Exception as error:  # CuPy is missing, or its driver
        log.debug("no GPU: %s", error)
    log.warning("this machine has no GPU that CuPy can use: computing on the CPU")
    return get_default_device()


def create_cuda_gpu() -> Device:
    """The first GPU; see create_cuda_gpu_on."""
    return create_cuda_gpu_on(0)
