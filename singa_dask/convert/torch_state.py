"""A PyTorch state_dict as parameters of a net, and back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from singa_dask.convert.parts import matched, own_tensors, parts_of, some
from singa_dask.convert.table import COUNTERS
from singa_dask.convert.tensor_file import read_tensors, write_tensors
from singa_dask.errors import ConfigError, Problem
from singa_dask.layers.module import Module
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
    """Set the parameters of a net from PyTorch's, by the table of docs/reference/pytorch-weights.md.

    net: a Model, or a Module that has been called on arrays. state: a state_dict, tensors or arrays by name, or the
    path of a .safetensors file. names: of PyTorch's modules, by those of layers, where they differ; also of what
    stands before them, as in {"": "backbone"}. None leaves a layer out. Other names that differ are matched if shapes
    allow one match only. names="order": layers of the same shapes are in the order of PyTorch's modules. strict: every
    parameter and every tensor must have its counterpart.

    Returns what was left. Raises ConfigError for what does not fit; nothing has changed then.
    """
    if names == "order" and isinstance(state, str | Path):
        hint = "Give names by layers, or a state_dict."
        raise ConfigError(Problem("names", "the tensors of a file are in no order", repr(names), hint))
    arrays, left = parameters_of(getattr(net, "net", net), tensors_of(state), strict=strict, names=names)
    net.load_state_dict({**net.state_dict(), **arrays})
    return left


def to_torch(
    net: Any, path: str | Path | None = None, *, names: Mapping[str, str | None] | None = None
) -> dict[str, np.ndarray]:
    """The parameters of a net as a PyTorch state_dict of arrays; path: of a .safetensors file to write them to.

    net, names: as in `from_torch`. In PyTorch, module.load_state_dict(safetensors.torch.load_file(path)).
    Raises ConfigError for a layer without a counterpart there, and if the file cannot be written.
    """
    held, state = net.state_dict(), dict[str, np.ndarray]()
    for part in parts_of(getattr(net, "net", net)):
        if (module := _module(part.name, names or {})) is not None:
            state |= part.at(module, {}).to_there(held)
    for name in own_tensors(getattr(net, "net", net)):
        state |= {module: held[name]} if (module := _module(name, names or {})) is not None else {}
    if path is not None:
        write_tensors(Path(path), state)
    return state


def tensors_of(state: State) -> dict[str, Any]:
    """The tensors of a state_dict or a file, without those that count."""
    tensors = read_tensors(Path(state)) if isinstance(state, str | Path) else state
    return {name: tensor for name, tensor in tensors.items() if name.rpartition(".")[2] not in COUNTERS}


def parameters_of(
    net: Net | Module, state: Mapping[str, Any], *, strict: bool = True, names: Names = None
) -> tuple[dict[str, np.ndarray], Left]:
    """Parameters of a net, by name, from a state_dict, and what was left. Raises ConfigError for what does not fit."""
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    given = {} if names is None or isinstance(names, str) else names
    every, tensors = parts_of(net), own_tensors(net)
    known = [*(part.name for part in every), *tensors]
    if unknown := [name for name in given if not any(_begins(part, name) for part in known)]:
        hint = f"Layers with parameters: {some(known)}."
        raise ConfigError(Problem("names", "must have names of layers with parameters", some(unknown), hint))
    modules = [(part, _module(part.name, given)) for part in every]
    parts = [part.at(module, shapes) for part, module in modules if module is not None]
    own = {name: module for name in tensors if (module := _module(name, given)) is not None}
    if strict:
        parts = matched(parts, shapes, in_order=names == "order")
    arrays: dict[str, np.ndarray] = {}
    for part in parts:
        wanted = {name: shape for name, shape in part.tensors if name in state}
        for name, shape in wanted.items():
            _check_shape(part.name, name, shape, shapes[name])
        for name, array in part.to_here({name: _exactly(state[name], part.dtype, name) for name in wanted}):
            if not np.array_equal(arrays.setdefault(name, array), array, equal_nan=True):
                hint = f"names={{{part.name!r}: None}} takes the values of the other layer."
                message = "shares a parameter with another layer, for which the state has other values"
                raise part.layer.problem(message, name, hint)
    needed = {name: shape for part in parts for name, shape in part.tensors}
    missing = [name for part in parts for name in part.missing(arrays, shapes)]
    for name, there in own.items():
        needed[there] = tensors[name].shape
        missing += [there] if there not in state else []
        _check_shape(name, there, tensors[name].shape, shapes.get(there, tensors[name].shape))
        arrays |= {name: _exactly(state[there], tensors[name].dtype, there)} if there in state else {}
    left = Left(tuple(missing), tuple(name for name in shapes if name not in needed))
    hints = {"missing": 'Give names={"layer": "module of PyTorch"}, None for a layer to leave out, or strict=False.'}
    problems = [
        Problem("state", said, some(f"{name} {(shapes | needed)[name]}" for name in those), hint)
        for those, said, hint in (
            (left.missing, "lacks tensors that the net needs", hints["missing"]),
            (left.unused, "has tensors for which the net has no place", "Remove them, or give strict=False."),
        )
        if strict and those
    ]
    if problems:
        raise ConfigError(problems)
    return arrays, left


def _check_shape(name: str, there: str, shape: Shape, given: Shape) -> None:
    if given != shape:
        hint = f"names={{{name!r}: None}} leaves it out. In a job, give it another name and init blocks."
        raise ConfigError(Problem(f"state[{there!r}]", f"must have shape {shape} for {name!r}", str(given), hint))


def _module(name: str, names: Mapping[str, str | None]) -> str | None:
    """The module of a layer: its longest beginning that `names` has is replaced. None: it is left out."""
    for begin in sorted(names, key=len, reverse=True):
        if _begins(name, begin):
            there = names[begin]
            rest = name[len(begin) :].lstrip(".")
            return None if there is None else ".".join(filter(None, (there, rest)))
    return name


def _begins(name: str, begin: str) -> bool:
    return not begin or name == begin or name.startswith(f"{begin}.")


def _exactly(tensor: Any, dtype: Any, name: str) -> np.ndarray:
    """A tensor, or an array, with numbers of this type. Raises ConfigError if the type does not hold its values."""
    if hasattr(tensor, "detach"):
        tensor = tensor.detach().cpu()
        tensor = tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor
    given = np.asarray(tensor)
    with np.errstate(over="ignore"):
        held = given.astype(dtype)
    if given.dtype.kind != "f" or not np.array_equal(held.astype(given.dtype), given, equal_nan=True):
        wanted = np.dtype(dtype).name
        hint = f"Convert it to {wanted} before, if rounding is meant."
        raise ConfigError(
            Problem(f"state[{name!r}]", f"has values that {wanted} does not hold", str(given.dtype), hint)
        )
    return held
