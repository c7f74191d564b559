"""What a machine lacks, for this process alone: room on the disk, open files, memory."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import psutil


@contextmanager
def small_disk(nbytes: int) -> Iterator[None]:
    """No file grows beyond `nbytes`: writing fails with EFBIG, as it fails with ENOSPC on a full disk."""
    with _limited(resource.RLIMIT_FSIZE, nbytes):
        yield


@contextmanager
def few_files(more: int = 0) -> Iterator[None]:
    """So many more files can be opened than are open now."""
    probe = os.open(os.devnull, os.O_RDONLY)
    os.close(probe)  # the lowest number that is free
    with _limited(resource.RLIMIT_NOFILE, probe + more):
        yield


@contextmanager
def little_memory(nbytes: int) -> Iterator[None]:
    """So many more bytes of address space can be had than are used now."""
    with _limited(resource.RLIMIT_AS, psutil.Process().memory_info().vms + nbytes):
        yield


@contextmanager
def _limited(kind: int, limit: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (soft, hard))
