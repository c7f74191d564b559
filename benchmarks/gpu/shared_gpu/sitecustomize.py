"""Lets workers that share a GPU form an NCCL group, for tests alone: each process passes for a host and a GPU."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any

MODULE = "singa_dask.comm.nccl_library"


def identity(device: int) -> int:
    """In place of that of the GPU. Workers are forked, so NCCL's name for the host is set when they ask for it."""
    os.environ["NCCL_HOSTID"] = f"process {os.getpid()}"
    return os.getpid()


class Loader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        vars(module)["device_identity"] = identity


class Finder(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name == MODULE else None
        if spec is not None and spec.origin:
            spec.loader = Loader(name, spec.origin)
        return spec


sys.meta_path.insert(0, Finder())
