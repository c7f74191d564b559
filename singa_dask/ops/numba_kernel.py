"""How every Numba kernel of this package is compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])

FASTMATH = {"contract", "reassoc", "nsz", "arcp"}


def kernel(function: Function) -> Function:
    """Compile on first use and keep the result on disk; release the GIL.

    Sums may be reordered and multiplications fused, so that loops vectorise, but infinities and NaN keep their
    meaning: a diverging net must show.
    """
    return cast(Function, njit(cache=True, nogil=True, error_model="numpy", fastmath=FASTMATH)(function))
