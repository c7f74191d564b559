"""The GPUs that this process sees, as CUDA's driver lists them: without CuPy, and without taking memory on one."""

from __future__ import annotations

import ctypes
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

_LIBRARY = "libcuda.so.1"
_BOOT = Path("/proc/sys/kernel/random/boot_id")  # the same in all containers of a machine


@dataclass(frozen=True)
class Gpu:
    """A GPU as one process sees it.

    number: CUDA's, which CUDA_VISIBLE_DEVICES changes. identity: of the machine and the GPU, in every process alike.
    name: of the model.
    """

    number: int
    identity: str
    name: str = ""


@cache
def visible_gpus() -> tuple[Gpu, ...]:
    """All of them, in the order of their numbers; none without a driver. A process keeps what it has seen first."""
    try:
        driver = ctypes.CDLL(_LIBRARY)
    except OSError:
        return ()
    return () if driver.cuInit(0) else tuple(_listed(driver))


def identity_of(number: int | None) -> str:
    """Of the GPU with this number, "" if this process sees none."""
    return next((gpu.identity for gpu in visible_gpus() if gpu.number == number), "")


def in_words(number: int) -> str:
    """Of the GPU with this number: "GPU 0 of node1 (NVIDIA H100)"."""
    name = next((gpu.name for gpu in visible_gpus() if gpu.number == number), "")
    return f"GPU {number} of {socket.gethostname()}{f' ({name})' if name else ''}"


@cache
def has_cupy() -> bool:
    """Whether CuPy is installed. It is not imported."""
    return find_spec("cupy") is not None


@cache
def machine() -> str:
    """An id of this machine since it was started."""
    with suppress(OSError):
        return _BOOT.read_text(encoding="utf-8").strip()
    return socket.gethostname()


def _listed(driver: ctypes.CDLL) -> Iterator[Gpu]:
    count = ctypes.c_int()
    if driver.cuDeviceGetCount(ctypes.byref(count)):
        return
    # Of a part of a GPU (MIG), only the second version returns the part's own.
    get_uuid = getattr(driver, "cuDeviceGetUuid_v2", None) or driver.cuDeviceGetUuid
    for number in range(count.value):
        device, uuid, name = ctypes.c_int(), (ctypes.c_ubyte * 16)(), ctypes.create_string_buffer(256)
        driver.cuDeviceGet(ctypes.byref(device), number)
        get_uuid(ctypes.byref(uuid), device)
        driver.cuDeviceGetName(name, len(name), device)
        yield Gpu(number, f"{machine()}/{bytes(uuid).hex()}", name.value.decode(errors="replace"))
