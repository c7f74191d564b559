"""How every Numba kernel of this package is compiled."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar, cast

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])

FASTMATH = {"contract", "reassoc", "nsz", "arcp"}


def kernel(function: Function) -> Function:
    """Compile on first use and keep the result on disk; release the GIL.

    Sums may be reordered and multiplications fused, so that loops vectorise, but infinities and NaN keep their
    meaning: a diverging net must show.
    """
    made = njit(cache=True, nogil=True, error_model="numpy", fastmath=FASTMATH)(function)
    # Numba looks at the kernel's own file alone, but intrinsics and sizes of tiles come from others: machine code made
    # for tiles of another size would write beyond its arrays.
    kept = getattr(getattr(made, "_cache", None), "_cache_file", None)  # None where Numba compiles nothing
    if kept is not None:
        kept._source_stamp = (kept._source_stamp, _sources())
    return cast(Function, made)


@cache
def _sources() -> str:
    """A digest of all that the package's kernels are made of."""
    found = sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()
