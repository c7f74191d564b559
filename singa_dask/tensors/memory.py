"""Memory of a process that computes in a loop."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import cache

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)


@cache
def keep_memory() -> None:
    """Let the C library keep up to a gigabyte that arrays give back, for those of the next step.

    Otherwise the system may get it back after each array, and clears it before it gives it out anew, which takes as
    long as a layer that computes little.
    """
    with suppress(OSError, AttributeError):  # another C library than glibc
        set_option = ctypes.CDLL(None).mallopt
        set_option(_MMAP_THRESHOLD, 1 << 25)
        set_option(_TRIM_THRESHOLD, 1 << 30)
