"""The base classes of layers.

A layer has two roles. As a *description* it wraps a LayerProto: job files and Python build the same message, and
keyword arguments are fields of the layer's `*_conf`. In a net, `setup` fixes shapes and declares parameters;
`forward` and `backward` compute with `ctx.ops` and keep intermediate arrays in `ctx`.

    class InnerProduct(Layer): ...
    InnerProduct("ip1", "conv2", num_output=500)            # in Python; also InnerProduct(num_output=500)(conv2)
    layer { name: "ip1" type: kInnerProduct srclayers: "conv2" innerproduct_conf { num_output: 500 } }

Shapes omit the batch: (features,), or (height, width, channels) for images.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, ClassVar, Self

from singa_dask.errors import ConfigError, Problem
from singa_dask.job.description import Description
from singa_dask.job.job_pb2 import LayerProto, ParamProto
from singa_dask.job.layer_types import parameter_roles
from singa_dask.job.unroll import origin
from singa_dask.layers.context import Context, Metric
from singa_dask.layers.param import Param, Shape, param_message
from singa_dask.layers.partition import Form, LayerPartition, Portion
from singa_dask.ops.arrays import Array

# Keyword arguments of every layer that set fields of LayerProto itself.
_WIRING = (
    *("include", "exclude", "partition_dim", "share_params"),
    *("unroll_len", "unroll_conn_type", "shift", "unroll_source", "share_src_blobs"),
)

# The outermost module that is being called, and its `layers`.
_called_module: ContextVar[tuple[Any, Mapping[int, tuple[str, Any]]] | None] = ContextVar("module", default=None)


class Layer(Description):
    """Base of every layer.

    type, conf_field: of LayerType and LayerProto; see Description.
    label_sources: positions in srclayers from which this layer reads labels instead of features.
    undivided_sources: positions in srclayers that it reads whole where it reads the features of others in COLUMNS.
    target_sources: positions from which it reads the target if that source has one, else features. A target is what
    the labels are called if they are numbers to predict (store_conf.target_shape); `setup` gets the target's shape.
    passes_labels: whether the layer passes on the labels of its first source; makes_labels: whether it creates labels.
    stops_gradient: whether no gradient flows through the layer; parameters below it then cannot be trained.
    multiple_outputs: whether forward returns a tuple with one array per destination (Slice, Split). Backward then gets
    a tuple, and setup may return a tuple of shapes.
    num_sources: minimum and maximum number of srclayers; None for no maximum.
    output_sources: positions of the sources that its output depends on; None for all but labels and targets.
    rowwise: whether each output row depends only on the same input row (for `recurrent` layers also on its earlier
    time steps, for layers `across_steps` on all of them). The time steps of an unrolled net can then be rows of one
    call.
    across_steps: whether it computes all time steps in one call. Its net must allow that (net/fold.py).
    keeps_order: whether y = f(x) is elementwise and monotonic, and backward needs only y. A net may then compute it
    after a max-pooling that reads it.
    takes: the forms of its sources with which the layer computes; its output has the same form. Without COLUMNS it
    gets all features, and under `partition_dim: 1` all rows too (WHOLE) if it takes those.
    splits_features: whether `partition_dim: 1` splits the layer itself: it reads WHOLE, makes COLUMNS, and declares
    its parameters with the axis that is split.
    known_by_type: whether the loader or the net recognises the layer by its type. User classes cannot derive from it.

    A user class that overrides `forward` does not inherit `rowwise` and `keeps_order`. One that overrides `forward` or
    `backward` does not inherit `splits_features`, and of `takes` only what every layer of its kind takes.
    partition: set before `setup`, whose shapes are those of this worker. targets: set before `setup`: the shapes of
    the targets that the layer reads, by position.

    As a description: srclayers are names or layers, stored in `inputs`. In a list, a layer without sources chooses
    them by `follow`. Layers without a name are named when the net is assembled. param: messages or mappings of their
    fields, where `init` may be a user function(param, rng). template: the layer that was called, if not this one;
    module: the Module in whose `forward` that was.
    """

    type: ClassVar[str] = "kUserLayer"
    label_sources: ClassVar[tuple[int, ...]] = ()
    undivided_sources: ClassVar[tuple[int, ...]] = ()
    target_sources: ClassVar[tuple[int, ...]] = ()
    passes_labels: ClassVar[bool] = False
    multiple_outputs: ClassVar[bool] = False
    num_sources: ClassVar[tuple[int, int | None]] = (1, 1)
    output_sources: ClassVar[tuple[int, ...] | None] = None
    rowwise: ClassVar[bool] = False
    recurrent: ClassVar[bool] = False
    across_steps: ClassVar[bool] = False
    makes_labels: ClassVar[bool] = False
    stops_gradient: ClassVar[bool] = False

    known_by_type: ClassVar[bool] = False

    takes: ClassVar[tuple[Form, ...]] = (Form.ROWS, Form.WHOLE)
    splits_features: ClassVar[bool] = False

    keeps_order: bool = False
    inputs: tuple[str | Layer, ...]
    template: Layer | None = None
    module: Any = None
    _called = False
    partition: LayerPartition = LayerPartition()
    targets: Mapping[int, Shape] = MappingProxyType({})

    def __init__(
        self,
        name: str | None = None,
        srclayers: str | Layer | Sequence[str | Layer] = (),
        *,
        param: ParamProto | Mapping[str, Any] | Sequence[ParamProto | Mapping[str, Any]] = (),
        include: Sequence[Any] = (),
        exclude: Sequence[Any] = (),
        partition_dim: int | None = None,
        **conf: Any,
    ):
        if name is not None and not isinstance(name, str):
            fields = getattr(LayerProto(), self.conf_field).DESCRIPTOR.fields if self.conf_field else ()
            hint = f"Write {fields[0].name}={name!r}." if fields else None
            raise ConfigError(Problem(type(self).__name__, "the first argument must be the name", repr(name), hint))
        proto, where = LayerProto(name=name), name or type(self).__name__
        for i, p in enumerate([param] if isinstance(param, ParamProto | Mapping) else param):
            proto.param.append(param_message(p, f"{where}.param[{i}]"))
        wiring = {"include": include, "exclude": exclude, "partition_dim": partition_dim}
        given = {key: value for key, value in wiring.items() if value is not None}
        self._describe(proto, Layer, where, {**conf, **given}, _WIRING)
        self._adopt(proto)
        self._read((srclayers,) if isinstance(srclayers, str | Layer) else tuple(srclayers))

    def __call__(self, *sources: Any) -> Any:
        """The layer with these sources, so that calls can be nested: SoftmaxLoss()(ReLU()(x), data).

        The first call sets the sources of this layer. A further one, and one in the `forward` of a Module, returns
        another node of the net, which shares the parameters of the first. On arrays or tensors it computes (see
        singa_dask.autograd).
        """
        if sources and not any(isinstance(source, str | Layer) for source in sources):
            from singa_dask import autograd

            return autograd.computed(self, sources)
        if not sources or self.num_sources[1] == 0:
            hint = "An input layer has no sources." if self.num_sources[1] == 0 else "Call it on its source layers."
            raise self.problem(f"{type(self).__name__} cannot be called on these sources", _named(sources), hint)
        if self.inputs and not self._called:
            raise self.problem("has srclayers and cannot be called", _named(self.inputs), "Leave out one of them.")
        check_attribute(self, parameter_roles(self.proto) or ())
        again = self._called or _called_module.get() is not None
        node = self._node(node_name(self)) if again else self
        node._called = True
        node._read(sources)
        return node

    def _node(self, name: str) -> Self:
        """Another node of the net that computes what this layer computes."""
        node, proto = copy.copy(self), LayerProto()
        proto.CopyFrom(self.proto)
        proto.ClearField("srclayers")
        proto.name = name
        node._adopt(proto)
        node.template = self if self.template is None else self.template
        node.module = (_called_module.get() or (None,))[0]
        return node

    def __bool__(self) -> bool:
        """True. Raises ConfigError for a source or an output of layers in the `forward` of a Module."""
        if _called_module.get() is not None and (self.inputs or self.num_sources == (0, 0)):
            hint = "Let if and while depend on attributes of the module only: the net is the same for all samples."
            raise self.problem("has no value in forward, which runs once to build the net", repr(self), hint)
        return True

    def __add__(self, other: Any) -> Any:
        return self._combined("Add", other)

    def __sub__(self, other: Any) -> Any:
        return self._combined("Sub", other)

    def __mul__(self, other: Any) -> Any:
        return self._combined("Mul", other)

    def __truediv__(self, other: Any) -> Any:
        return self._combined("Div", other)

    def _combined(self, kind: str, other: Any) -> Any:
        """The elementwise combination of two layers."""
        from singa_dask.layers import elementwise

        return getattr(elementwise, kind)()(self, other) if isinstance(other, Layer) else NotImplemented

    def _read(self, sources: tuple[str | Layer, ...]) -> None:
        for source in sources:
            if not isinstance(source, str | Layer):
                raise self.problem("sources must be layers or names of layers", repr(source))
        self.inputs = sources
        names = [s.name if isinstance(s, Layer) else s for s in sources]
        if all(names):  # unnamed layers get a name when the net is assembled
            self.proto.srclayers[:] = names

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        overridden = {"forward", "backward"} & vars(cls).keys()
        if cls.type == Layer.type and overridden:
            base = next(base for base in cls.__mro__ if issubclass(base, Layer) and base.__module__ == __name__)
            takes = cls.takes if isinstance(cls.takes, tuple) else base.takes  # a property depends on settings
            common = tuple(form for form in base.takes if form in takes)
            promises: dict[str, Any] = {"takes": common or base.takes, "splits_features": False}
            if "forward" in overridden:
                promises |= {"rowwise": False, "keeps_order": False}
            for promise in promises.keys() - vars(cls).keys():
                setattr(cls, promise, promises[promise])

    def _adopt(self, proto: LayerProto) -> None:
        super()._adopt(proto)
        if self.known_by_type and proto.user_type:
            hint = "Derive it from Layer and let it read a kRecordInput; `singa-dask shard` converts other data."
            raise self.problem("cannot derive from a layer that the loader recognises by type", proto.user_type, hint)
        self.inputs = tuple(proto.srclayers)
        self.params: list[Param] = []

    @property
    def name(self) -> str:
        """The name; empty before the net is assembled if none was given."""
        return self.proto.name

    @property
    def steps(self) -> int:
        """Time steps that one call computes as consecutive blocks of rows; 1 except in a folded net."""
        return self.proto.unroll_len

    @property
    def output_steps(self) -> int:
        """Time steps that the rows of its output have."""
        return self.steps

    @property
    def units(self) -> int | None:
        """What `partition_dim: 1` divides, if that is not the features of the layer's output."""
        return None

    @property
    def label_positions(self) -> set[int]:
        """The positions among the actual srclayers from which the layer reads labels or a target."""
        return self._positions(self.label_sources) | self.targets.keys()

    @property
    def target_positions(self) -> set[int]:
        """The positions among the actual srclayers from which the layer reads a target if the source has one."""
        return self._positions((*self.label_sources, *self.target_sources))

    @property
    def output_positions(self) -> set[int]:
        """The positions among the actual srclayers of those that its output depends on."""
        if self.output_sources is not None:
            return self._positions(self.output_sources)
        return set(range(len(self.proto.srclayers))) - self.target_positions

    def _positions(self, declared: tuple[int, ...]) -> set[int]:
        count = len(self.proto.srclayers)
        return {position % count for position in declared if -count <= position < count}

    def passed_target(self, shape: Shape) -> Shape:
        """The shape of the target that a layer with `passes_labels` passes on. shape: of its first source's target."""
        return shape

    def declare(
        self,
        role: str,
        shape: Shape,
        fan_in: int,
        fan_out: int,
        value: float | None = None,
        *,
        axis: int | None = None,
        outer: int = 1,
    ) -> Param:
        """Declare the next parameter, with the settings of the layer's next `param` block.

        shape: of the whole array, as are the fans. axis: the one that is split over the workers of the group, None if
        every worker has the whole array; outer: see Portion. The parameter's own `shape` is that of this worker.

        Its name is `<layer>_<role>` unless the job sets one. value: the initial value if the job has no `init`. The
        instances of an unrolled layer share the parameters of the first one.
        """
        index = len(self.params)
        proto = ParamProto()
        if index < len(self.proto.param):
            proto.CopyFrom(self.proto.param[index])
        if value is not None and not proto.HasField("init"):
            proto.init.type, proto.init.value = proto.init.kConstant, value
        name = proto.name or f"{origin(self.proto)}_{role}"
        if self.proto.share_params and not proto.share_from:
            proto.share_from = f"{self.proto.share_params}_{role}"
        if self.proto.unroll_index:
            proto.share_from, name = name, f"{self.proto.unroll_index}#{name}"
        portion = None
        if axis is not None and self.partition.size > 1:
            bounds = self.partition.bounds(shape[axis] // outer)
            portion = Portion(shape, axis, bounds, self.partition.rank, outer)
        param = Param(proto, name, shape, fan_in, fan_out, portion)
        self.params.append(param)
        return param

    def problem(self, message: str, received: Any = None, hint: str | None = None) -> ConfigError:
        """An error that names this layer."""
        key = f"layer {self.name or type(self).__name__!r}"
        return ConfigError(Problem(key, message, None if received is None else str(received), hint))

    def sources(self, src: tuple[Shape, ...]) -> tuple[Shape, ...]:
        """`src`, for the start of `setup`. Raises ConfigError if the number of sources is wrong."""
        least, most = self.num_sources
        if len(src) < least or (most is not None and len(src) > most):
            wanted = f"{least}" if least == most else f"at least {least}" if most is None else f"{least} to {most}"
            received = ", ".join(self.proto.srclayers) or "none"
            hint = None
            if self.type == Layer.type:
                hint = f"Set the class attribute num_sources = ({len(src)}, {len(src)}) if it reads that many."
            raise self.problem(f"{type(self).__name__} takes {wanted} srclayers", received, hint)
        return src

    def follow(self, before: Sequence[Any]) -> tuple[Layer, ...]:
        """The sources of a layer that names none, in a list after the layers `before`.

        The first source is the last layer that passes on data. A second source for labels or a target is the last
        input layer, or the layer that made labels from it. Raises ConfigError if a source is missing.
        """
        least, most = self.num_sources
        if most == 0 or (least == 0 and not before):
            return ()
        flow = data_before(before)
        if not flow or not isinstance(flow[-1], Layer):
            hint = "Start the list with an input layer, call the layer on its sources, or name them in srclayers."
            raise self.problem("has no sources, and no layer precedes it", hint=hint)
        labelled = labels_before(before)
        if least <= 1:
            return (flow[-1],)
        if least == 2 and labelled and (self.label_sources == (1,) or isinstance(self, LossLayer)):
            return flow[-1], labelled[-1]
        raise self.problem(f"takes {least} srclayers", hint="Call it on them, or name them in srclayers.")

    def forms(self, dim: int, sources: Sequence[Form], axis: int | None = None) -> tuple[Form, Form]:
        """The forms of its sources and of its output with this `partition_dim`. sources: the forms that they make.
        axis: the one along which another layer, whose parameters it shares, splits them.

        Raises ConfigError for a layer that passes on labels and does not take ROWS.
        """
        takes = self.takes
        rows = Form.ROWS if Form.ROWS in takes else takes[0]
        labels = self.passes_labels or self.makes_labels
        if labels and rows is not Form.ROWS:
            received = ", ".join(takes)
            raise self.problem("passes on labels, so it must take rows", received, "Add Form.ROWS to its `takes`.")
        if dim != 1 or labels:
            form = rows
        elif self.splits_features:
            return Form.WHOLE, Form.COLUMNS
        elif Form.COLUMNS in takes:
            follows = next((source for source in sources if source in takes), rows)
            form = follows if axis is None else Form.COLUMNS
        else:
            form = Form.WHOLE if Form.WHOLE in takes else rows
        return form, form

    # What a subclass implements:

    def setup(self, *src: Shape) -> Any:
        """Fix shapes and declare parameters. src: sample shapes of the sources. Returns the output's sample shape.

        Raises ConfigError if the shapes do not fit.
        """
        raise NotImplementedError

    def forward(self, ctx: Context, *x: Array) -> Any:
        """Compute the output from the sources' outputs (batch first). Its rows have the shape that setup returned.

        Must not modify its inputs. Arrays between layers are C-contiguous.
        """
        raise NotImplementedError

    def backward(self, ctx: Context, dy: Any) -> Any:
        """Fill the parameters' gradients (see `Param.claim`) and return the gradient for the source.

        Several sources get a tuple, with None for a source that needs no gradient. `ctx.needs_input_grad` is False if
        no layer below needs the gradient. The callee may overwrite `dy`, return it, and overwrite the arrays of the
        forward call. Called at most once per forward call.
        """
        raise NotImplementedError

    def metrics(self, ctx: Context) -> dict[str, Metric]:
        """The metrics of the last forward call; empty for most layers."""
        return {}

    @property
    def sent(self) -> tuple[float, float]:
        """Values that a worker sends to others, forward and backward, per row of the mini-batch and time step."""
        return 0.0, 0.0

    def __repr__(self) -> str:
        return f"{type(self).__name__}({repr(self.name) if self.name else ''})"


class LossLayer(Layer):
    """A layer that starts the backward pass: `backward(ctx, None)`.

    Its gradient is that of (sum over rows of the loss) / ctx.step.total_rows. The sum of all workers' gradients is
    then the gradient of the group's mean loss, for any division of the mini-batch. On WHOLE every worker would compute
    the gradient of all rows, and their sum would be too large.

    compares: "classes" or "values" if metrics by name can be computed from `compared`, else "".
    """

    compares: ClassVar[str] = ""
    takes: ClassVar[tuple[Form, ...]] = (Form.ROWS,)

    def compared(self, ctx: Context) -> tuple[Array, Array, Array]:
        """Prediction, target, and weights (None for 1) of the last forward call.

        Of classes: probabilities (B, N) in the form that the layer makes, labels (B,), and (B,). Of values: (B, ...),
        targets with as many elements, and weights that can be broadcast to these.
        """
        raise NotImplementedError


class OutputLayer(Layer):
    """A layer that measures or writes the output of a net. No gradient flows through it."""

    takes: ClassVar[tuple[Form, ...]] = (Form.ROWS,)
    stops_gradient: ClassVar[bool] = True

    def backward(self, ctx: Context, dy: Any) -> Any:
        return (None,) * len(self.proto.srclayers)

    def close(self) -> None:
        """Finish and close the layer's files. A later forward call rewrites them."""


def _named(layers: Sequence[Any]) -> str:
    return ", ".join(layer if isinstance(layer, str) else repr(layer) for layer in layers) or "nothing"


def data_before(before: Sequence[Any]) -> list[Any]:
    """The layers of a list that pass on data."""
    return [layer for layer in before if not isinstance(layer, OutputLayer) and not _labels_only(layer)]


def labels_before(before: Sequence[Any]) -> list[Any]:
    """The layers of a list that bring labels or make them."""
    return [layer for layer in before if layer.num_sources == (0, 0) or _labels_only(layer)]


@contextmanager
def calling(module: Any) -> Iterator[bool]:
    """Inside, each call of a layer makes a node of the net, named as the outermost module's `layers` say. Yields
    whether this is the outermost one."""
    outermost = _called_module.get() is None
    token = _called_module.set((module, module.layers)) if outermost else None
    try:
        yield outermost
    finally:
        if token is not None:
            _called_module.reset(token)


def check_attribute(layer: Layer, params: Collection[Any]) -> None:
    """Raise ConfigError if a module is being called, and a layer with parameters is not one of its layers."""
    called = _called_module.get()
    if params and called is not None and id(layer) not in called[1] and layer.template is None:
        kind = type(layer).__name__
        message = f"has parameters and is called in the forward of {type(called[0]).__name__}, but is not an attribute"
        name = layer.name or kind.lower()
        hint = f"Create it in __init__: self.{name} = {kind}(...). Lists and dicts may hold it too."
        raise layer.problem(message, repr(layer), hint)


def node_name(layer: Layer) -> str:
    """The name of a layer in the outermost module that is being called, or else its own."""
    _, names = _called_module.get() or (None, {})
    return names[id(layer)][0] if id(layer) in names else layer.name


def _labels_only(layer: Any) -> bool:
    return isinstance(layer, Layer) and layer.makes_labels
