"""The layers of a net that have parameters, as PyTorch's tensors see them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from singa_dask.convert.axes import Turn
from singa_dask.convert.table import Form, Row, forms_of
from singa_dask.errors import ConfigError, Problem
from singa_dask.job.unroll import origin
from singa_dask.layers.base import Layer
from singa_dask.layers.inner_product import InnerProduct
from singa_dask.layers.param import Param, Shape
from singa_dask.net import Net

# What a recurrent PyTorch module calls its layers and directions.
_LAYER_THERE = re.compile(r"(?:(.*)\.)?(l\d+(?:_reverse)?)")


@dataclass(frozen=True)
class Part:
    """A layer with parameters. shape: of its first source. params: by role."""

    name: str
    layer: Layer
    shape: Shape
    params: Mapping[str, Param]

    @property
    def forms(self) -> tuple[Form, ...]:
        """In which its parameters can be in PyTorch, without those that it has not. Raises ConfigError for a layer
        without a counterpart there, and for one that has parameters which its forms do not name."""
        forms = tuple(tuple(row for row in form if row.roles[0] in self.params) for form in forms_of(self.layer))
        named = {role for row in (forms[0] if forms else ()) for role in row.roles}
        if rest := self.params.keys() - named:
            hint = f"names={{{self.name!r}: None}} leaves the layer out."
            if self.layer.type == Layer.type:
                hint = (
                    f"Give its class torch_axes = {{{min(rest)!r}: 'O I -> I O'}} with the axes there and here. {hint}"
                )
            message = f"{type(self.layer).__name__} has no counterpart in PyTorch"
            raise self.layer.problem(message, ", ".join(sorted(rest)), hint)
        return forms

    def tensors(self, form: Form, module: str) -> dict[str, Shape]:
        """Names and shapes of the tensors there, of this PyTorch module."""
        return {name: self.turn(row).shape_there for row in form for name in names_there(row, module) if name}

    def turn(self, row: Row) -> Turn:
        """The axes of these parameters."""
        shape = self.params[row.roles[0]].whole_shape
        sizes = {"g": len(row.roles)}
        if isinstance(self.layer, InnerProduct):
            sizes |= {"C": self.shape[-1], **{f"*{i}": size for i, size in enumerate(self.shape[:-1])}}
        if self.layer.units:  # heads
            sizes["N"] = self.layer.units
        return Turn.of(row.axes, (len(row.roles), *shape) if row.gates else shape, sizes, len(self.shape) - 1)

    def from_there(self, form: Form, module: str, state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The parameters by role, of those tensors of this PyTorch module that there are. Raises ConfigError for what
        the layer cannot have."""
        found: dict[str, np.ndarray] = {}
        for row in form:
            name, added = names_there(row, module)
            if name not in state or (added and added not in state):
                continue
            turn = self.turn(row)
            array = turn.to_here(state[name])
            if added:
                more = turn.to_here(state[added])
                if row.apart and np.any(more[row.roles.index(row.apart)]):
                    message = f"has no bias that is added before the reset gate is applied, and {added!r} has one"
                    hint = "Train the net with zeros there, the last third of the tensor, or use LSTM."
                    raise self.layer.problem(message, "values other than 0", hint)
                array = array + more
            found |= zip(row.roles, array if row.gates else [array], strict=True)
        return found

    def to_there(self, form: Form, module: str, arrays: Mapping[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
        """The tensors of this PyTorch module, by name. arrays: the parameters by name."""
        for row in form:
            name, added = names_there(row, module)
            every = [arrays[self.params[role].owner.name] for role in row.roles]
            array = self.turn(row).to_there(np.stack(every) if row.gates else every[0])
            yield name, np.ascontiguousarray(array)
            if added:
                yield added, np.zeros_like(array)


def names_there(row: Row, module: str) -> tuple[str, str]:
    """The names of a row's tensors in PyTorch; the second is empty if there is only one. module: "rnn.l1" and
    "rnn.l0_reverse" are a layer and a direction of a recurrent module."""
    where = "l0"
    if "{l}" in row.tensor and (found := _LAYER_THERE.fullmatch(module)):
        module, where = found[1] or "", found[2]
    name, added = (each.replace("{l}", where) for each in (row.tensor, row.added))
    return joined(module, name), joined(module, added) if added else ""


def joined(*names: str) -> str:
    """Names with points between them."""
    return ".".join(name for name in names if name)


def parts_of(net: Net) -> list[Part]:
    """The layers of a net that have parameters, in order; an unrolled one once."""
    found = []
    for name, layer in net.layers.items():
        if layer.params and not layer.proto.unroll_index:
            shape = layer.partition.sources[0] if layer.partition.sources else net.source_shape(name, 0)
            found.append(Part(origin(layer.proto), layer, shape, {param.role: param for param in layer.params}))
    return found


def exactly(array: Any, dtype: Any, name: str) -> np.ndarray:
    """A tensor of PyTorch, or an array, with numbers of this type. Raises ConfigError if it has values that the type
    does not hold."""
    if hasattr(array, "detach"):
        array = array.detach().cpu()
        array = array.float() if str(array.dtype) == "torch.bfloat16" else array
    given = np.asarray(array)
    with np.errstate(over="ignore"):
        held = given.astype(dtype)
    if given.dtype.kind != "f" or not np.array_equal(held.astype(given.dtype), given, equal_nan=True):
        wanted = np.dtype(dtype).name
        hint = f"Convert it to {wanted} before, if rounding is meant."
        raise ConfigError(
            Problem(f"state[{name!r}]", f"has values that {wanted} does not hold", str(given.dtype), hint)
        )
    return held
