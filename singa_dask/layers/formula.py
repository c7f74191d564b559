"""Functions as layers: of a user, or those of singa_dask.functions that the `forward` of a Module calls on layers.

B rows, T time steps. A function sees tensors as in a training loop: (B, features), in a net over time (B, T,
features), images (B, C, H, W). It needs no backward pass, since it consists of functions that have one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import Parameter, signature
from math import prod
from typing import Any, ClassVar

import numpy as np

from singa_dask import functions
from singa_dask.functions.shapes import as_images, channels_last
from singa_dask.job.formulas import function_name, function_of
from singa_dask.job.job_pb2 import LayerProto, ParamProto
from singa_dask.layers.arguments import Arguments, called, read
from singa_dask.layers.base import Layer, LossLayer
from singa_dask.layers.context import Context, Metric
from singa_dask.layers.elementwise import Add, Div, Max, Mul, Sub
from singa_dask.layers.input import InputLayer
from singa_dask.layers.node import WIRING, Node
from singa_dask.layers.param import Shape
from singa_dask.layers.partition import Sharding
from singa_dask.ops.arrays import Array
from singa_dask.tensors.device import Device
from singa_dask.tensors.memory import keep_memory
from singa_dask.tensors.state import called_by
from singa_dask.tensors.tape import Tape
from singa_dask.tensors.tensor import Tensor

_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


class _Function(Layer):
    """Base of functions as layers.

    user_conf: function, "module:function"; settings, its keyword arguments; arguments, the positional ones if they are
    more than the sources; calls and parameters, what is computed from parameters of a Module itself, and their initial
    values. tensors: these parameters. classes: set before `setup`: positions of sources with several labels a sample.
    """

    across_steps: ClassVar[bool] = True
    classes: frozenset[int] = frozenset()
    _found: Callable[..., Any] | None = None  # the function

    def __init__(self, function: Any, name: str | None = None, srclayers: Any = (), **settings: Any) -> None:
        labels = settings.pop("_labels", None)
        wiring = {key: settings.pop(key) for key in WIRING & settings.keys()}
        conf: dict[str, Any] = {"function": function_name(function)}
        if labels is not None:
            conf["labels"] = labels
        if settings:
            conf["settings"] = {key: Arguments().written(value) for key, value in settings.items()}
        super().__init__(name, srclayers, **conf, **wiring)

    def _adopt(self, proto: LayerProto) -> None:
        super()._adopt(proto)
        self._given: dict[str, Any] | None = None

    @property
    def given(self) -> dict[str, Any]:
        """user_conf."""
        if self._given is None:
            self._given = self.user_conf
        return self._given

    @property
    def num_sources(self) -> tuple[int, int | None]:  # type: ignore[override]
        """As many as the function must be given."""
        function, settings = self.given.get("function"), self.given.get("settings", {})
        if function is None or "arguments" in self.given:
            return 1, None
        needed = [p for p in _positional(function, settings) if p.default is p.empty]
        return max(1, len(needed)), None

    def _for_sources(self, count: int) -> str | None:
        needed, name = self.num_sources[0], self.given.get("function")
        if isinstance(self, LossLayer) and count == 2 and needed == 3:
            return f"{name} takes weights: give sample_weight, or let the argument have a default, weight=None."
        return f"{name} takes {needed} arguments: call the layer on as many layers, or give the others as settings."

    def __call__(self, *sources: Any) -> Any:
        """As of every layer; beside layers, the arguments may be lists of them, numbers, arrays, and tensors that are
        parameters of the Module that is called."""
        if not any(map(_has_node, sources)) or all(isinstance(each, str | Node) for each in sources):
            return super().__call__(*sources)
        return self.node_of(sources)

    def node_of(self, arguments: Sequence[Any]) -> Any:
        """The node for these arguments, of which some are layers or have layers in them."""
        found = Arguments()
        more: dict[str, Any] = {"arguments": [found.written(each) for each in arguments]}
        node = super().__call__(*found.nodes)
        if found.parameters:
            more |= {"calls": found.calls, "parameters": [*map(_initial, found.parameters.values())]}
            node.tensors = tuple(found.parameters.values())
            node.proto.param.extend(ParamProto(name=name) for name in found.parameters)
        if labels := self.given.get("labels"):
            more["labels"] = [more["arguments"][i]["source"] for i in labels]
        node.proto.user_conf, node._given = json.dumps(self.given | more), None
        return node

    def _computed(self, sources: tuple[Any, ...]) -> Any:
        return self.formula(*sources)

    def formula(self, *tensors: Any) -> Any:
        """What the function gives for these sources and parameters."""
        given, count = self.given, len(tensors) - len(self.params)
        sources, own = tensors[:count], tensors[count:]
        calls = called(given.get("calls", ()), own)
        arguments = read(given["arguments"], sources, own, calls) if "arguments" in given else sources
        settings = {key: read(value) for key, value in given.get("settings", {}).items()}
        if self._found is None:
            self._found = function_of(given["function"])
        return self._found(*arguments, **settings)

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_found": None}

    def _declare_own(self) -> None:
        for i, written in enumerate(self.given.get("parameters", ())):
            value = read(written)
            self.declare(f"parameter{i}", value.shape, 1, 1).given = value

    def _tensors(self, ops: Any, x: Sequence[Array], own: Sequence[Array], wanted: Sequence[int]) -> list[Tensor]:
        """The sources as tensors of a training loop, and the parameters; gradients are wanted for some."""
        device = Device(ops.device, ops.device_id, ops.dtype)
        device.ops = ops
        arrays = [*map(self._turned, x), *own]
        return [Tensor.made(each, device, None, requires_grad=i in wanted) for i, each in enumerate(arrays)]

    def _turned(self, rows: Array) -> Array:
        """Rows as the function sees them: (B, ...), in a net over time (B, T, ...)."""
        if self.steps == 1:
            return as_images(rows)
        return rows.reshape(self.steps, -1, *rows.shape[1:]).swapaxes(0, 1)

    def _rows(self, y: Array) -> Array:
        """The inverse."""
        return channels_last(y) if self.steps == 1 else y.swapaxes(0, 1).reshape(-1, *y.shape[2:])

    def _tried(self, src: Sequence[Shape]) -> Iterator[Any]:
        """The results for two rows, for each of them alone, and for both twice, of numbers that are drawn."""
        from singa_dask.ops import Ops  # the reference, for shapes

        draw = np.random.default_rng(0)
        own = [draw.uniform(0.25, 0.75, param.shape) for param in self.params]
        x: list[Any] = [draw.uniform(0.25, 0.75, (self.steps, 2, *shape)) for shape in src]
        for i in {*self.label_sources} & {*range(len(x))}:
            x[i] = x[i].astype(np.int64)
        for rows in ([0, 1], [0], [1], [0, 1, 0, 1]):
            arrays = [np.ascontiguousarray(each[:, rows]).reshape(-1, *each.shape[2:]) for each in x]
            tensors = self._tensors(Ops(np.float64), arrays, own, self._learning(arrays))
            with called_by("function", remembers=True):
                y = self.formula(*tensors)
            if not isinstance(y, Tensor):
                raise self.problem("the function must return one tensor", repr(y))
            reached = Tape([y]).sources | {id(y)}  # it may be a source
            self.cut_off = frozenset(i for i in range(len(src)) if id(tensors[i]) not in reached)
            yield y.array

    def _check_samples(self, both: Array, single: Array, lead: int) -> None:
        """Raise ConfigError if samples of the result are of another shape where there are more rows."""
        if both.shape[lead:] != single.shape[lead:]:
            hint = "(B, 1) and (B,) give (B, B): give both the same axes. If that is meant, return the mean over it."
            received = f"{both.shape} for 2 rows, {single.shape} for one"
            raise self.problem("the result of the function has an axis that grows with the rows", received, hint)

    def _learning(self, x: Sequence[Array]) -> list[int]:
        """The numbers of the sources and parameters that may get gradients."""
        labels = self.label_positions
        sources = [i for i in range(len(x)) if x[i].dtype.kind == "f" and i not in labels]
        return [*sources, *range(len(x), len(x) + len(self.params))]

    def forward(self, ctx: Context, *x: Array) -> Array:
        keep_memory()
        x = tuple(each.astype(np.int64) if i in self.classes else each for i, each in enumerate(x))
        wanted = [i for i in self._learning(x) if i >= len(x) or ctx.needs_input_grad]
        ctx.tensors = self._tensors(ctx.ops, x, [param.value for param in self.params], wanted)
        with called_by("function", remembers=bool(wanted)):
            ctx.result = self.formula(*ctx.tensors)
        return self._output(ctx, x)

    def _output(self, ctx: Context, x: Sequence[Array]) -> Array:
        raise NotImplementedError

    def _gradients(self, ctx: Context, dy: Array) -> tuple[Array, ...]:
        """Of the sources, from that of the result; parameters get theirs."""
        tape, tensors = Tape([ctx.result]), ctx.tensors
        for _ in tape.backward([dy], keep=tensors):
            pass
        found = [tape.gradient_of(each) for each in tensors]
        count = len(found) - len(self.params)
        for param, gradient in zip(self.params, found[count:], strict=True):
            if gradient is not None:
                param.grad[...] = gradient + (param.grad if param.claim() else 0)
        ctx.tensors = ctx.result = None
        return tuple(None if each is None else self._rows(each) for each in found[:count])


class Lambda(_Function):
    """y = function(x_1, x_2, ..., **settings), a function of tensors   (B, ...) -> (B, ...), or in a net over time
    (B, T, ...) -> (B, T, ...).

        layers.Lambda(swish, factor=1.5)(x)       def swish(x, factor): return x * autograd.sigmoid(factor * x)

    In training loops it is a call of the function. In a net its shape is that of a call on numbers, and where a row of
    the result depends on other rows, every worker computes it for the rows of all. In jobs the function must be at the
    top level of a module or script.
    """

    rowwise: ClassVar[bool] = True

    @property
    def takes(self) -> tuple[Sharding, ...]:  # type: ignore[override]
        return (Sharding.REPLICATED,) if self.mixes_rows else (Sharding.BATCH, Sharding.REPLICATED)

    def setup(self, *src: Shape) -> Shape:
        self._declare_own()
        both, *each, _ = self._tried(self.sources(src))
        self.shapes = src
        lead = (2,) if self.steps == 1 else (2, self.steps)
        if both.shape[: len(lead)] != lead:
            message = f"the function must keep the rows{' and the time steps' * (self.steps > 1)} of its sources"
            raise self.problem(message, f"{both.shape} for {', '.join(str((*lead, *shape)) for shape in src)}")
        self._check_samples(both, each[0], len(lead))
        self.mixes_rows = not np.allclose(both, np.concatenate(each), equal_nan=True)
        return self._rows(both).shape[1:]

    def _output(self, ctx: Context, x: Sequence[Array]) -> Array:
        return self._rows(ctx.result.array.astype(ctx.ops.dtype, copy=False))

    def backward(self, ctx: Context, dy: Array) -> Any:
        if not ctx.result.requires_grad:
            return (None,) * len(self.proto.srclayers)
        return self._gradients(ctx, self._turned(dy))


class Loss(_Function, LossLayer):
    """The mean over the rows of a function of tensors, which gives (B,), (B, ...) whose mean over the further axes is
    meant, or the mean itself.   The output is that of the first source.

        layers.Loss(focal, labels=1)(scores, data)       def focal(x, y): ...

    labels: positions of sources whose labels are read; targets are read where a source has them. Weights or the mask
    of samples are its third argument, weights (B, 1). Where the loss of a row depends on other rows, every worker
    computes it for the rows of all.
    """

    output_sources: ClassVar[tuple[int, ...] | None] = (0,)
    rowwise: ClassVar[bool] = True

    def __init__(
        self, function: Any, *sources: Any, labels: int | Sequence[int] | None = None, **settings: Any
    ) -> None:
        given = None if labels is None else [labels] if isinstance(labels, int) else list(labels)
        super().__init__(function, *sources, _labels=given, **settings)

    @classmethod
    def reads_weights(cls, proto: LayerProto) -> bool:
        given = json.loads(proto.user_conf)
        if "arguments" in given:
            return False
        return len(_positional(given["function"], given.get("settings", {}))) > 2

    def check_sources(self, sources: Sequence[Layer]) -> None:
        """Raise ConfigError if it is not said whether the labels or the features of an input layer are read."""
        for i, source in enumerate(sources):
            asked = (
                i and isinstance(source, InputLayer) and source.proto.store_conf.has_label and i not in self.targets
            )
            if asked and "labels" not in self.user_conf:
                message = f"source {i} has features and labels, and the loss could read either"
                hint = f"Write labels={i} in Loss(...) to read its labels, or labels=() to read its features."
                raise self.problem(message, repr(source), hint)

    @property
    def label_sources(self) -> tuple[int, ...]:  # type: ignore[override]
        return tuple(self.given.get("labels", ()))

    @property
    def target_sources(self) -> tuple[int, ...]:  # type: ignore[override]
        return tuple(range(1, len(self.proto.srclayers)))

    @property
    def takes(self) -> tuple[Sharding, ...]:  # type: ignore[override]
        return (Sharding.REPLICATED,) if self.mixes_rows else (Sharding.BATCH,)

    def _computed(self, sources: tuple[Any, ...]) -> Any:
        return functions.mean(super()._computed(sources))

    def _tensors(self, ops: Any, x: Sequence[Array], own: Sequence[Array], wanted: Sequence[int]) -> list[Tensor]:
        """Targets of each step are (B, T, K), as the prediction is, and not images of one channel."""
        _, *steps = x[0].shape if x[0].ndim == 3 else (0, 0)
        of_steps = {i for i, shape in self.targets.items() if shape[:1] == (steps[0],) and shape[2:] == (1,)}
        return super()._tensors(ops, [v[..., 0] if i in of_steps else v for i, v in enumerate(x)], own, wanted)

    def setup(self, *src: Shape) -> Shape:
        self._declare_own()
        every = [
            () if i in self.label_sources and i not in self.targets else s for i, s in enumerate(self.sources(src))
        ]
        both, *each, twice = self._tried(every)
        if both.ndim and len(both) != 2:
            raise self.problem("the function must give a number, or one for each row", f"{both.shape} for 2 rows")
        self._check_samples(both, each[0], 1)
        self._check_mean(both, twice)
        self.mixes_rows = not np.allclose(both.mean(), (each[0].mean() + each[1].mean()) / 2, equal_nan=True)
        return src[0]

    def _check_mean(self, once: Array, twice: Array) -> None:
        """Raise ConfigError if the result is a sum over the rows, or over pairs of them, or is divided by their number
        once more: the mean for the same rows twice then differs by a power of 2."""
        mean, again = float(once.mean()), float(twice.mean())
        sums = (2, 4) if not once.ndim else ()  # numbers of rows may be sums over the other rows
        if mean and any(np.isclose(again, factor * mean, rtol=1e-6, atol=0) for factor in (0.5, *sums)):
            hint = "Return one number for each row, or the mean over the rows: mean(...) in place of sum(...)."
            received = f"{mean:.4g} for 2 rows, {again:.4g} for the same rows twice"
            raise self.problem("the result of the function depends on the number of rows", received, hint)

    def _output(self, ctx: Context, x: Sequence[Array]) -> Array:
        ctx.rows, y = len(x[0]) // self.steps, ctx.result.array
        # Of all rows every worker has the same loss: each counts its part.
        ctx.part = 1 / ctx.group.size if self.partition.size > 1 and self.mixes_rows else 1.0
        ctx.loss = float(y.mean(dtype="float64")) * ctx.rows * ctx.part if ctx.rows else 0.0
        return x[0]

    def backward(self, ctx: Context, dy: Any) -> Any:
        y = ctx.result.array
        if not ctx.result.requires_grad or not ctx.rows:
            return (None,) * len(self.proto.srclayers)
        each = ctx.part * ctx.rows / (ctx.step.total_rows * prod(y.shape))
        return self._gradients(ctx, ctx.ops.xp.full(y.shape, each, ctx.ops.dtype))

    def metrics(self, ctx: Context) -> dict[str, Metric]:
        return {"loss": Metric(ctx.loss, ctx.rows * ctx.part)}


_LAYERS: dict[Any, type[Layer]] = {
    functions.add: Add,
    functions.sub: Sub,
    functions.mul: Mul,
    functions.div: Div,
    functions.maximum: Max,
}


def node_of(self: Node, function: Callable[..., Any], operands: Sequence[Any], settings: Mapping[str, Any]) -> Any:
    """The node that computes a function of layers: the layer that is this function, or a Lambda."""
    if function in _LAYERS and all(isinstance(each, Node) for each in operands):
        return _LAYERS[function]()(*operands)
    if function is functions.split:
        x, axis, parts = operands
        count = parts if isinstance(parts, int) else len(parts)
        return tuple(node_of(self, functions.piece, (x, axis, parts, i), {}) for i in range(count))
    return Lambda(function, **settings).node_of(operands)


def _positional(function: str, settings: Mapping[str, Any]) -> list[Parameter]:
    """The arguments of a function that may be sources."""
    every = signature(function_of(function)).parameters.values()
    return [each for each in every if each.kind in _POSITIONAL and each.name not in settings]


def _has_node(value: Any) -> bool:
    return isinstance(value, Node) or (isinstance(value, list | tuple) and any(map(_has_node, value)))


def _initial(tensor: Tensor) -> Any:
    return Arguments().written(tensor.device.ops.to_host(tensor.array))


Node._node_of = node_of  # type: ignore[method-assign]
