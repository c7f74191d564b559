"""A PyTorch state_dict as parameters of a net, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from singa_dask.convert.matching import Placed, matched, some
from singa_dask.convert.parts import exactly, joined, parts_of
from singa_dask.convert.table import COUNTERS
from singa_dask.convert.tensor_file import read_tensors, write_tensors
from singa_dask.errors import ConfigError, Problem
from singa_dask.layers.partition import Shape
from singa_dask.net import Net

State = Mapping[str, Any] | str | Path
Names = Mapping[str, str | None] | Literal["order"] | None


class Left(NamedTuple):
    """What a state_dict and a net do not have in common. missing: tensors that the net needs; unused: tensors for
    which it has no place."""

    missing: tuple[str, ...]
    unused: tuple[str, ...]


def from_torch(net: Any, state: State, *, strict: bool = True, names: Names = None) -> Left:
    """Set the parameters of a net from PyTorch's, by the table of docs/weights.md.

    net: a Model. state: a state_dict, tensors or arrays by name, or the path of a .safetensors file. names: of
    PyTorch's modules, by those of layers, where they differ; also of what stands before them, as in {"": "backbone"}.
    None leaves a layer out. Other names that differ are matched if shapes allow one match only. names="order": these
    layers are in the order of PyTorch's modules. strict: every parameter and every tensor must have its counterpart.

    Returns what was left. Raises ConfigError for what does not fit; nothing has changed then.
    """
    if names == "order" and isinstance(state, str | Path):
        hint = "Give names by layers, or a state_dict."
        raise ConfigError(Problem("names", "the tensors of a file are in no order", repr(names), hint))
    arrays, left = parameters_of(net.net, tensors_of(state), strict=strict, names=names)
    net.load_state_dict({**net.state_dict(), **arrays})
    return left


def to_torch(
    net: Any, path: str | Path | None = None, *, names: Mapping[str, str | None] | None = None
) -> dict[str, np.ndarray]:
    """The parameters of a net as a PyTorch state_dict of arrays; path: of a .safetensors file to write them to.

    net: a Model. names: as in `from_torch`. In PyTorch, module.load_state_dict(safetensors.torch.load_file(path)).
    Raises ConfigError for a layer without a counterpart there, and if the file cannot be written.
    """
    held, state = net.state_dict(), dict[str, np.ndarray]()
    for part in parts_of(net.net):
        module = renamed(part.name, names or {})
        if module is not None:
            state |= part.to_there(part.forms[0], module, held)
    if path is not None:
        write_tensors(Path(path), state)
    return state


def tensors_of(state: State) -> dict[str, Any]:
    """The tensors of a state_dict or a file, without those that count."""
    tensors = read_tensors(Path(state)) if isinstance(state, str | Path) else state
    return {name: tensor for name, tensor in tensors.items() if name.rpartition(".")[2] not in COUNTERS}


def parameters_of(
    net: Net, state: Mapping[str, Any], *, strict: bool = True, names: Names = None
) -> tuple[dict[str, np.ndarray], Left]:
    """Parameters of a net, by name, from a state_dict, and what was left. Raises ConfigError for what does not fit."""
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    placed = _placed(net, shapes, {} if names is None or isinstance(names, str) else names)
    if strict:
        placed = matched(placed, shapes, in_order=names == "order")
    arrays: dict[str, np.ndarray] = {}
    for part, form, module in placed:
        tensors = {}
        for name, shape in part.tensors(form, module).items():
            if name in state:
                _check_shape(part.name, name, shape, shapes[name])
                tensors[name] = exactly(state[name], net.ops.dtype, name)
        for role, array in part.from_there(form, module, tensors).items():
            name = part.params[role].owner.name
            if not np.array_equal(arrays.setdefault(name, array), array, equal_nan=True):
                hint = f"names={{{part.name!r}: None}} takes the values of the other layer."
                message = "shares a parameter with another layer, for which the state has other values"
                raise part.layer.problem(message, name, hint)
    missing = [name for each in placed for name in each.missing(arrays, shapes)]
    used = {name for part, form, module in placed for name in part.tensors(form, module)}
    left = Left(tuple(missing), tuple(name for name in shapes if name not in used))
    if strict and any(left):
        raise _misfit(left, placed, shapes)
    return arrays, left


def renamed(name: str, names: Mapping[str, str | None]) -> str | None:
    """The name of a layer in PyTorch: its longest beginning that `names` has is replaced. None: it has none."""
    for begin in sorted(names, key=len, reverse=True):
        if _begins(name, begin):
            there = names[begin]
            return None if there is None else joined(there, name[len(begin) :].lstrip("."))
    return name


def _begins(name: str, begin: str) -> bool:
    return not begin or name == begin or name.startswith(f"{begin}.")


def _placed(net: Net, shapes: Mapping[str, Shape], names: Mapping[str, str | None]) -> list[Placed]:
    """The layers with parameters, at the modules that have their names."""
    parts = parts_of(net)
    if unknown := [name for name in names if not any(_begins(part.name, name) for part in parts)]:
        hint = f"Layers with parameters: {some(part.name for part in parts)}."
        raise ConfigError(Problem("names", "must have names of layers with parameters", some(unknown), hint))
    modules = [(part, renamed(part.name, names)) for part in parts]
    return [Placed.of(part, module, shapes) for part, module in modules if module is not None]


def _check_shape(layer: str, name: str, wanted: Shape, shape: Shape) -> None:
    if shape != wanted:
        message = f"must have shape {wanted} for layer {layer!r}"
        hint = f"names={{{layer!r}: None}} leaves the layer out. In a job, give it another name and init blocks."
        raise ConfigError(Problem(f"state[{name!r}]", message, str(shape), hint))


def _misfit(left: Left, placed: Iterable[Placed], shapes: Mapping[str, Shape]) -> ConfigError:
    wanted = {name: shape for part, form, module in placed for name, shape in part.tensors(form, module).items()}
    problems = []
    if left.missing:
        listed = some(f"{name} {wanted[name]}" for name in left.missing)
        hint = 'Give names={"layer": "module of PyTorch"}, None for a layer to leave out, or strict=False.'
        problems.append(Problem("state", "lacks tensors that the net needs", listed, hint))
    if left.unused:
        listed = some(f"{name} {shapes[name]}" for name in left.unused)
        hint = "Remove them from the state, or give strict=False."
        problems.append(Problem("state", "has tensors for which the net has no place", listed, hint))
    return ConfigError(problems)
