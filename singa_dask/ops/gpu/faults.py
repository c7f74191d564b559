"""Faults of a GPU after which the process that had them can compute on it no more."""

from __future__ import annotations

import sys
from collections.abc import Iterator

# Of cudaError_t and CUresult, which agree in these: illegal and misaligned addresses, failed launches, memory that
# cannot be corrected. Every later call of the process returns them again.
_STICKY = frozenset({214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721})


def gpu_is_lost(error: BaseException) -> bool:
    """Whether an error, or what it came from, has left this process without its GPU."""
    cupy = sys.modules.get("cupy")
    if cupy is None:
        return False
    kinds = cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError
    return any(isinstance(each, kinds) and each.status in _STICKY for each in _origins(error))


def _origins(error: BaseException) -> Iterator[BaseException]:
    """The error, and those from which it was raised."""
    seen: set[int] = set()
    rest: list[BaseException | None] = [error]
    while rest:
        each = rest.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            yield each
            rest += [each.__cause__, each.__context__]
