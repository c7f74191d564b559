"""Shared memory that MPI leaves in /dev/shm when its processes are killed."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

import psutil  # type: ignore[import-untyped]

_SEGMENT = re.compile(r"/dev/shm/mpich_shm_\w+$")
_ORPHAN = re.compile(r"mpich_shm_|ucx_shm_posix_")


def unlink_segments(kvsname: str = "", process: int | str = "self") -> None:
    """Remove the names of MPICH's shared memory: of a process (by pid), and of the world `kvsname`.

    Once every rank of a machine has attached, names serve nothing, and a killed group would leave them (3 MB each).
    """
    with open(f"/proc/{process}/maps", encoding="utf-8") as maps:
        paths = {line.split(maxsplit=5)[-1].strip() for line in maps if "/dev/shm/" in line}
    paths = {path for path in paths if _SEGMENT.match(path)}
    if kvsname:
        paths.add(f"/dev/shm/{segment_name(kvsname)}")
    for path in paths:
        with suppress(FileNotFoundError):
            os.unlink(path)


def unlink_orphans() -> None:
    """Remove segments of MPICH and UCX that nobody holds any more, on this machine.

    Their names are removed right after all who use them have opened them. Processes that are killed in between leave
    them, and only they knew the names. Whoever else is in between has the file open: what nobody has open is left for
    ever.
    """
    mine = {str(path) for path in Path("/dev/shm").iterdir() if _ORPHAN.match(path.name) and _is_mine(path)}
    if not mine:
        return
    held: set[str] = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            held.update(os.readlink(link) for link in Path(f"/proc/{process.pid}/fd").iterdir())
            held.update(region.path for region in process.memory_maps())
    for path in mine - held:
        with suppress(FileNotFoundError):
            os.unlink(path)


def _is_mine(path: Path) -> bool:
    try:
        return path.stat().st_uid == os.geteuid()
    except FileNotFoundError:
        return False


def segment_name(kvsname: str) -> str:
    """How MPICH 5 names the shared memory of a world: by the FNV-1a hash of its kvsname.

    >>> segment_name("kvs_abc")
    'mpich_shm_79f992aa_0'
    """
    value = 0x811C9DC5
    for byte in kvsname.encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return f"mpich_shm_{value:x}_0"
