"""Matrices as kernels pass them on: by address."""

from __future__ import annotations

from typing import NamedTuple


class StridedRows(NamedTuple):
    """Contiguous rows of float32: the address of the first one, and the bytes from row to row."""

    address: int
    step: int
