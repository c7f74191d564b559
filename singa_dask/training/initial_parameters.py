"""The parameters that a net begins with: those of checkpoints, and of PyTorch's files."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Set
from pathlib import Path
from typing import Any

from singa_dask.convert.parts import some
from singa_dask.convert.tensor_file import SUFFIX
from singa_dask.convert.torch_state import parameters_of, tensors_of
from singa_dask.errors import CheckpointError
from singa_dask.net import Net
from singa_dask.training.checkpoint import Checkpoint, find, load

logger = logging.getLogger(__name__)


def load_parameters(
    paths: Iterable[str], net: Net, saw: Callable[[Path, Checkpoint], object] = lambda path, checkpoint: None
) -> dict[str, Any]:
    """The trained parameters of several checkpoints (files or workspaces), or of PyTorch in .safetensors files, for
    this net. Later ones override earlier ones. saw: is called with each checkpoint.

    Raises ConfigError for tensors that do not fit.
    """
    parameters: dict[str, Any] = {}
    for path in map(Path, paths):
        if path.suffix == SUFFIX:
            found, left = parameters_of(net, tensors_of(path), strict=False)
            parameters.update(found)
            if left.unused:
                logger.warning("%s: tensors that this net does not use: %s", path, some(left.unused))
        else:
            checkpoint = load(find(path))
            saw(path, checkpoint)
            parameters.update(checkpoint.trained)
    return parameters


def fitting(given: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], drawn: Set[str]) -> dict[str, Any]:
    """The given parameters that initialise a net, matched by name.

    shapes: of the net's parameters; drawn: names of those with an `init` block, which need no given value. Raises
    CheckpointError with everything that is missing or has the wrong shape.
    """
    missing = [name for name in shapes if name not in given and name not in drawn]
    unused = [name for name in given if name not in shapes]
    faults = [
        f"{name} has shape {given[name].shape}, in this net {shape}"
        for name, shape in shapes.items()
        if name in given and given[name].shape != shape
    ]
    if missing:
        faults.append(f"neither given nor initialised by an init block: {', '.join(missing)}")
    if not faults and not given.keys() & shapes.keys():
        faults.append(f"none belongs to this net, which has {', '.join(shapes)}")
    if faults:
        rest = [f"not in this net: {', '.join(unused)}"] if unused else []
        raise CheckpointError(f"checkpoint_path: its parameters do not fit. {'; '.join([*faults, *rest])}.")
    return {name: given[name] for name in shapes if name in given}
