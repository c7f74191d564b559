"""Files of tensors: safetensors."""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from singa_dask.errors import ConfigError, DataError, Problem, disk_full, no_room
from singa_dask.files import regular, replacing

SUFFIX = ".safetensors"
_BFLOAT16 = "BF16"  # the upper half of a float32
_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", _BFLOAT16: "<u2", "I64": "<i8", "I32": "<i4", "BOOL": "?"}


def read_tensors(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a .safetensors file, by name; bfloat16 as float32, which holds it exactly.

    Raises ConfigError if the file cannot be read, or has tensors of other types.
    """
    package = _safetensors(path)
    try:
        with open(path, "rb", opener=regular) as file:
            found = package.deserialize(file.read())
    except (OSError, package.SafetensorError) as error:
        hint = "In PyTorch, safetensors.torch.save_file(module.state_dict(), path) writes one."
        raise ConfigError(Problem(str(path), "is not a readable .safetensors file", _reason(error), hint)) from error
    return {name: _array(path, name, held) for name, held in sorted(found, key=itemgetter(0))}


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Write a .safetensors file. Raises ConfigError if it cannot be written, DataError if the disk is full."""
    _safetensors(path)
    from safetensors.numpy import save

    try:
        with replacing(path) as temporary:
            temporary.write_bytes(save({k: np.ascontiguousarray(a) for k, a in tensors.items()}, {"format": "pt"}))
    except OSError as error:
        if no_room(error):
            raise DataError(disk_full(path, error)) from error
        raise ConfigError(Problem(str(path), "cannot be written", _reason(error))) from error


def _array(path: Path, name: str, held: Mapping[str, Any]) -> np.ndarray:
    kind = held["dtype"]
    if kind not in _TYPES:
        hint = f"Convert it to one of {', '.join(_TYPES)} before."
        raise ConfigError(Problem(f"{path}: {name!r}", "has a type that is not read", kind, hint))
    array = np.frombuffer(held["data"], _TYPES[kind]).reshape(held["shape"])
    return (array.astype(np.uint32) << 16).view(np.float32) if kind == _BFLOAT16 else array


def _safetensors(path: Path) -> ModuleType:
    try:
        import safetensors
    except ImportError as error:
        hint = "Run `pip install '.[weights]'` in a clone of singa_dask."
        raise ConfigError(Problem(str(path), "needs the package safetensors", hint=hint)) from error
    return safetensors


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
