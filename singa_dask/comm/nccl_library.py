"""CuPy and its NCCL: where they are, and the ids by which ranks and GPUs know each other."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np

from singa_dask.errors import ClusterError
from singa_dask.ops.gpu import visible

UNIQUE_ID_NBYTES = 128


class UnlistedStatus(Exception):
    """NCCL returned a status that CuPy does not list."""


@contextmanager
def listed() -> Iterator[None]:
    """Inside, a status that CuPy does not list, which is a KeyError of CuPy's, is an UnlistedStatus."""
    try:
        yield
    except KeyError as error:
        raise UnlistedStatus(f"NCCL returned status {error}, which this version of CuPy does not know") from error


def libraries() -> tuple[Any, Any]:
    """CuPy and its NCCL. Raises ClusterError if one is missing."""
    try:
        cupy, nccl = import_module("cupy"), import_module("cupy.cuda.nccl")
    except ImportError as error:
        raise ClusterError(
            f"NCCL needs CuPy and the NCCL library: {error}. Run `pip install '.[gpu]'` in a clone of singa_dask."
        ) from error
    if not getattr(nccl, "available", True):
        raise ClusterError("CuPy finds no NCCL library. Install nvidia-nccl-cu13, or the system's libnccl.")
    return cupy, nccl


def unique_id() -> bytes:
    """The id of a new communicator: one rank makes it for all. Raises ClusterError without NCCL."""
    return bytes(libraries()[1].get_unique_id())


def shared_id(maker: bool, spread: Callable[[np.ndarray], np.ndarray]) -> bytes:
    """The unique id that one rank makes, on every rank. Collective. spread: returns that rank's array on all ranks.

    Raises ClusterError on all ranks if it could not be made.
    """
    own, fault = np.zeros(UNIQUE_ID_NBYTES, np.uint8), None
    if maker:
        try:
            own[:] = np.frombuffer(unique_id(), np.uint8)
        except Exception as error:
            fault = error
    found = spread(own)
    if not found.any():
        why = f": {fault}" if fault else " on the first rank, whose error says why"
        raise ClusterError(f"NCCL made no unique id{why}") from fault
    return found.tobytes()


def device_identity(device: int) -> int:
    """A number that no other GPU of any machine has; 0 without NCCL."""
    try:
        libraries()
    except ClusterError:
        return 0
    known = visible.visible_gpus()[device].identity
    return int.from_bytes(hashlib.sha256(known.encode()).digest()[:7], "big") + 1
