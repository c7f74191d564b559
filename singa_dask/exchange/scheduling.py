"""How soon a thread that wakes gets the core that another one computes on."""

from __future__ import annotations

import ctypes
import platform
import sys
from contextlib import suppress

# Since Linux 6.12 a thread that wakes interrupts one whose slice is longer; else it waits until that one has had its
# slice, up to 3 ms, in which nobody looks whether an exchange goes on. One whose slice is over loses the core at the
# next tick, for 4 ms, be it in the middle of a bucket that it decodes, updates and encodes. A step of the MNIST CNN at
# 1 Gbit/s with kHalf, in turns: 14.3 ms with Linux's least, 0.1 ms; 13.7 with 0.7 and with 1; 14.1 with 1.2 or more.
SLICE_S = 7e-4
_RESET_ON_FORK = 1
# Numbers of sched_setattr(2) and sched_getattr(2), for which Python has no names.
_CALLS = {"x86_64": (314, 315), "aarch64": (274, 275)}


class Attributes(ctypes.Structure):
    """struct sched_attr of sched_setattr(2), in its first version. runtime: nanoseconds of a slice."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime", ctypes.c_uint64),
        ("deadline", ctypes.c_uint64),
        ("period", ctypes.c_uint64),
    )


def shorten_slices() -> None:
    """Ask Linux for short slices for this thread, not for those that it starts: it gets no more of a core, but what it
    gets sooner.

    Kernels before 6.12, other systems and sandboxes that refuse it leave things as they are.
    """
    attributes = scheduling()
    if attributes is None or attributes.policy != 0:  # what is not SCHED_OTHER somebody chose
        return
    attributes.runtime = round(SLICE_S * 1e9)
    attributes.flags |= _RESET_ON_FORK
    with suppress(OSError):
        ctypes.CDLL(None).syscall(_CALLS[platform.machine()][0], 0, ctypes.byref(attributes), 0)


def scheduling() -> Attributes | None:
    """How Linux schedules this thread; None where that cannot be had."""
    if not sys.platform.startswith("linux") or platform.machine() not in _CALLS or sys.maxsize < 1 << 32:
        return None
    attributes = Attributes()
    with suppress(OSError):
        number, size = _CALLS[platform.machine()][1], ctypes.sizeof(attributes)
        if ctypes.CDLL(None).syscall(number, 0, ctypes.byref(attributes), size, 0) == 0:
            return attributes
    return None
