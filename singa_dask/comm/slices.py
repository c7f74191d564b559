"""How soon a thread that wakes gets the core that another one computes on."""

from __future__ import annotations

import ctypes
import os
import platform

# Linux's least. Since 6.12 a thread that wakes interrupts one whose slice is longer; else it waits until that one has
# had its slice, up to 3 ms, in which nobody looks whether an exchange goes on.
SLICE_S = 1e-4
_SET, _GET = {"x86_64": (314, 315), "aarch64": (274, 275)}.get(platform.machine(), (0, 0))


class _Attributes(ctypes.Structure):
    """struct sched_attr of sched_setattr(2), in its first version."""

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
    """Ask Linux for short slices for this thread: it gets no more of a core, but what it gets sooner.

    Kernels before 6.12, other systems and sandboxes that forbid it leave things as they are.
    """
    attributes = _attributes()
    if attributes is not None and attributes.policy == 0:  # SCHED_OTHER: what others have somebody chose
        attributes.runtime = round(SLICE_S * 1e9)
        ctypes.CDLL(None).syscall(_SET, 0, ctypes.byref(attributes), 0)


def slice_s() -> float:
    """Seconds of this thread's slices; 0 where the kernel does not say."""
    attributes = _attributes()
    return attributes.runtime / 1e9 if attributes is not None else 0.0


def _attributes() -> _Attributes | None:
    """Of this thread; None where they cannot be had."""
    if os.name != "posix" or platform.system() != "Linux" or not _GET:
        return None
    attributes = _Attributes()
    size = ctypes.sizeof(attributes)
    failed = ctypes.CDLL(None).syscall(_GET, 0, ctypes.byref(attributes), size, 0)
    return None if failed else attributes
