"""Nets written as classes: layers as attributes, wired by `forward`."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from types import FunctionType
from typing import Any

import numpy as np

from singa_dask.errors import ConfigError, Problem
from singa_dask.job.layer_types import parameter_roles
from singa_dask.layers.base import Layer, data_before, labels_before
from singa_dask.layers.computing import as_tensors, on_host
from singa_dask.layers.kept import parameters_of
from singa_dask.layers.naming import calling
from singa_dask.tensors.state import called_by, state
from singa_dask.tensors.tensor import Parameter, Tensor


class Module:
    """A part of a net, or all of it, as a class.

        class Net(Module):
            def __init__(self):
                self.conv = Convolution(num_filters=20, kernel=5)
                self.fc = InnerProduct(num_output=10)

            def forward(self, x):
                return self.fc(autograd.relu(self.conv(x)))

        Job(layers=[RecordInput(...), Net(), SoftmaxLoss()])

    A module stands wherever a layer stands: in a list, called on layers, inside another module. Called on layers, it
    runs `forward` once and returns the layers of its outputs, so the net is the same as if it were written as a list
    or a job file. Called on arrays or tensors, it computes (see singa_dask.autograd).

    Layers are named after their attributes: "conv", in lists and modules "blocks.0.conv". A layer that `forward` calls
    several times shares its parameters between the calls.

    name: goes in front of the names of its layers, if it is set.
    """

    name: str = ""

    def forward(self, *x: Any) -> Any:
        """The output layers, or output arrays, for the sources x. To be implemented."""
        raise NotImplementedError(f"{type(self).__name__} needs a method forward(self, x)")

    def __call__(self, *x: Any) -> Any:
        """The outputs of `forward`. Raises ConfigError if it returns anything but layers when called on layers."""
        with calling(self) as outermost:
            arrays = outermost and any(isinstance(each, np.ndarray) for each in x)
            if arrays and not any(isinstance(each, Tensor | Layer | str) for each in x):
                layers = (layer for _, layer in self.named_layers().values())
                y = on_host(self.forward(*as_tensors(x, layers)))
            elif outermost and any(isinstance(each, Layer | str) for each in x):
                with called_by("forward", remembers=True):
                    y = self.forward(*x)
            else:
                y = self.forward(*x)
        if outermost and x and all(isinstance(source, Layer | str) for source in x):
            outputs = y if isinstance(y, tuple | list) else (y,)
            if not outputs or not all(isinstance(output, Layer) for output in outputs):
                hint = "Return the result of the last layer: return self.fc(x)."
                raise self._problem("forward must return layers", repr(y), hint)
        return y

    def train(self, mode: bool = True) -> None:
        """Sets autograd.training: whether calls on arrays are those of training. It applies to all modules."""
        state.training = mode

    def eval(self) -> None:
        """Sets autograd.training to False."""
        self.train(mode=False)

    def __deepcopy__(self, memo: dict[int, Any]) -> Module:
        """Raises ConfigError if a function has layers in its closure, which Python does not copy."""
        made = memo[id(self)] = type(self).__new__(type(self))
        vars(made).update(deepcopy(vars(self), memo))
        if shared := made.named().keys() & self.named().keys():
            names = ", ".join(self.named()[part][0] for part in shared)
            raise self._problem("cannot be copied with layers in closures", names, "Hold them in a list or a Module.")
        return made

    def named(self) -> Mapping[int, tuple[str, Layer | Tensor]]:
        """Name and object of every layer, and of every tensor that is a parameter itself, of this module and of those
        inside, by the object's id."""
        found: dict[int, tuple[str, Layer | Tensor]] = {}
        for path, part in _walk(vars(self), (), (self,)):
            *before, last = (self.name, *path) if self.name else path
            own = part.name if isinstance(part, Layer) else ""
            found.setdefault(id(part), (".".join((*before, own or last)), part))
        return found

    def named_layers(self) -> Mapping[int, tuple[str, Layer]]:
        """Name and layer of every layer of this module and of those inside, by the layer's id."""
        return {key: (name, part) for key, (name, part) in self.named().items() if isinstance(part, Layer)}

    def state_dict(self) -> dict[str, np.ndarray]:
        """Copies of the parameters, by name, of a module that has been called on arrays. Raises ConfigError if it has
        not."""
        return {name: parameter.to_numpy() for name, parameter in self._parameters().items()}

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Set the parameters of a module that has been called on arrays. Raises ConfigError if it has not, or if names
        differ, DataError for another shape."""
        parameters = self._parameters()
        if differ := sorted(parameters.keys() ^ state.keys()):
            raise self._problem("has other parameters than the given state", ", ".join(differ))
        for name, parameter in parameters.items():
            parameter.copy_from_numpy(state[name])

    def parameters(self) -> list[Tensor]:
        """The parameters of a module that has been called on arrays. Raises ConfigError if it has not."""
        return list(self._parameters().values())

    def _parameters(self) -> dict[str, Tensor]:
        """By name. Raises ConfigError for two of one name."""
        layers = parameters_of(layer for _, layer in self.named_layers().values())
        if not layers and any(parameter_roles(layer.proto) != () for _, layer in self.named_layers().values()):
            raise self._problem("has no parameters yet", hint="Call it on an array once: net(x).")
        tensors = [(name, part) for name, part in self.named().values() if isinstance(part, Tensor)]
        every = [*((parameter.name, parameter) for parameter in layers), *tensors]
        if not every:
            raise self._problem("has no parameters", hint="Give it layers with parameters as attributes.")
        if twice := [name for name, count in Counter(name for name, _ in every).items() if count > 1]:
            raise self._problem("has two parameters of one name", ", ".join(twice), "Rename an attribute or a module.")
        return dict(every)

    def placed(self, before: Sequence[Any]) -> tuple[Layer, ...]:
        """The outputs of the module in a list, after the layers `before`. Its first source is the last layer that
        passes on data; a second one is the last layer with labels. Raises ConfigError where it needs more."""
        signature = inspect.signature(self.forward)
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        needed = [p for p in signature.parameters.values() if p.kind in kinds and p.default is p.empty]
        flow, labelled = data_before(before), labels_before(before)
        if not flow or not isinstance(flow[-1], Layer):
            raise self._problem("has no sources", hint="Put it behind an input layer, or call it on its sources.")
        if len(needed) > 2 or (len(needed) == 2 and not labelled):
            raise self._problem(f"takes {len(needed)} sources", str(signature), "Call it on them: Net()(a, b).")
        outputs = self(*(flow[-1], *labelled[-1:])[: max(1, len(needed))])
        return tuple(outputs) if isinstance(outputs, tuple | list) else (outputs,)

    def _problem(self, message: str, received: str | None = None, hint: str | None = None) -> ConfigError:
        return ConfigError(Problem(f"module {self.name or type(self).__name__}", message, received, hint))


def _walk(
    values: Mapping[str, Any], path: tuple[str, ...], inside: tuple[Any, ...]
) -> Iterator[tuple[tuple[str, ...], Layer | Tensor]]:
    """The layers in these values, the tensors that are parameters, and their paths. inside: the modules, containers
    and functions around them."""
    for name, value in values.items():
        here = *path, str(name)
        if isinstance(value, Layer):
            yield here, value
        elif isinstance(value, Tensor):
            if value.stores_grad and not isinstance(value, Parameter):
                yield here, value
        elif isinstance(value, Module | Mapping | list | tuple | FunctionType) and all(
            value is not each for each in inside
        ):
            held: Mapping[Any, Any]
            if isinstance(value, Module):
                here, held = (*path, value.name or str(name)), vars(value)
            elif isinstance(value, FunctionType):
                held = _closed_over(value)
            else:
                held = value if isinstance(value, Mapping) else dict(enumerate(value))
            yield from _walk(held, here, (*inside, value))


def _closed_over(function: FunctionType) -> dict[str, Any]:
    """The variables of other functions that it reads, as far as they have values."""
    held = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):
            held[name] = cell.cell_contents
    return held
