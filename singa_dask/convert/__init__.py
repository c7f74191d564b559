"""Parameters of nets from other programs, and for them."""

from __future__ import annotations

from singa_dask.convert.torch_state import Left, from_torch, to_torch

__all__ = ["Left", "from_torch", "to_torch"]
