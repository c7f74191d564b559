"""What a layer is.

A layer has two lives. As a *description* it wraps a LayerProto: job files and Python build the same message,
and keyword arguments are the fields of the layer's `*_conf`. Inside a net, `setup` fixes its shapes and declares
its parameters, and `forward` / `backward` compute on `ctx.ops`, leaving what they need later in `ctx`.

    class InnerProduct(Layer): ...
    InnerProduct("ip1", "conv2", num_output=500)            # Python; InnerProduct(num_output=500)(conv2) too
    layer { name: "ip1" type: kInnerProduct srclayers: "conv2" innerproduct_conf { num_output: 500 } }

Shapes leave out the batch: (features,) or, for images, (height, width, channels).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from singa_dask.errors import ConfigError, Problem
from singa_dask.job.description import Description
from singa_dask.job.job_pb2 import LayerProto, ParamProto
from singa_dask.job.unroll import origin
from singa_dask.layers.context import Context, Metric
from singa_dask.layers.param import Param, Shape, param_message
from singa_dask.ops.arrays import Array

# Keyword arguments of every layer that are fields of LayerProto itself.
_WIRING = (
    *("include", "exclude", "partition_dim"),
    *("unroll_len", "unroll_conn_type", "shift", "unroll_source", "share_src_blobs"),
)


class Layer(Description):
    """Base of every layer.

    type, conf_field: of LayerType and LayerProto; see Description.
    label_sources: positions in srclayers whose labels, not features, this layer reads.
    passes_labels: True if this layer hands on the labels of its first source; makes_labels: if it gives them alone.
    stops_gradient: whether none flows through it, so that a net cannot train parameters below it by a loss above it.
    multiple_outputs: True if forward returns a tuple, one array per destination (Slice, Split); backward then gets a
    tuple, and setup may return a tuple of shapes.
    num_sources: least and most srclayers; None for any number.
    rowwise: whether each row of the output depends on the same row of the inputs alone (or, if `recurrent`, on earlier
    time steps of it), so that the steps of an unrolled net can be computed together, as rows of one call.
    keeps_order: whether y = f(x) element by element, f(a) <= f(b) for all a <= b, and backward needs y alone, so that
    a net may compute it behind the max-pooling that reads it.

    known_by_type: whether loading or wiring goes by its type, so that no class of the user's own can derive from it.

    A class of the user's own with another `forward` has what it says of `rowwise` and `keeps_order`, not what it
    inherits.

    As a description: srclayers are names or other layers, in `inputs`; a list chains layers that have none (`follow`),
    and those without a name get one when the net is put together. param: messages, or mappings of their fields, in
    which `init` may be a function(param, rng) of one's own.
    """

    type: ClassVar[str] = "kUserLayer"
    label_sources: ClassVar[tuple[int, ...]] = ()
    passes_labels: ClassVar[bool] = False
    multiple_outputs: ClassVar[bool] = False
    num_sources: ClassVar[tuple[int, int | None]] = (1, 1)
    rowwise: ClassVar[bool] = False
    recurrent: ClassVar[bool] = False
    makes_labels: ClassVar[bool] = False
    stops_gradient: ClassVar[bool] = False

    known_by_type: ClassVar[bool] = False

    keeps_order: bool = False
    inputs: tuple[str | Layer, ...]

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
            raise ConfigError(Problem(type(self).__name__, "its first argument is its name", repr(name), hint))
        proto, where = LayerProto(name=name), name or type(self).__name__
        for i, p in enumerate([param] if isinstance(param, ParamProto | Mapping) else param):
            proto.param.append(param_message(p, f"{where}.param[{i}]"))
        wiring = {"include": include, "exclude": exclude, "partition_dim": partition_dim}
        given = {key: value for key, value in wiring.items() if value is not None}
        self._describe(proto, Layer, where, {**conf, **given}, _WIRING)
        self._adopt(proto)
        self._read((srclayers,) if isinstance(srclayers, str | Layer) else tuple(srclayers))

    def __call__(self, *sources: str | Layer) -> Self:
        """Let the layer read these; returns it, so that calls can be nested: SoftmaxLoss()(ReLU()(x), data).

        Raises ConfigError where it reads something already: a layer is one node of the net.
        """
        if self.inputs:
            hint = "Make another one; with param=[{'share_from': NAME}] it has the same weight."
            raise self.problem("reads its sources already, and cannot be called again", _named(self.inputs), hint)
        if not sources or self.num_sources[1] == 0:
            hint = "An input begins the net." if self.num_sources[1] == 0 else "Call it on the layers that it reads."
            raise self.problem(f"{type(self).__name__} cannot be called on this", _named(sources), hint)
        self._read(sources)
        return self

    def _read(self, sources: tuple[str | Layer, ...]) -> None:
        for source in sources:
            if not isinstance(source, str | Layer):
                raise self.problem("reads layers, or names of layers", repr(source))
        self.inputs = sources
        names = [s.name if isinstance(s, Layer) else s for s in sources]
        if all(names):  # others get theirs when the net is put together
            self.proto.srclayers[:] = names

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        if cls.type == Layer.type and "forward" in vars(cls):
            for promise in {"rowwise", "keeps_order"} - vars(cls).keys():
                setattr(cls, promise, False)

    def _adopt(self, proto: LayerProto) -> None:
        super()._adopt(proto)
        if self.known_by_type and proto.user_type:
            hint = "Derive it from Layer and let it read a kRecordInput; `singa-dask shard` converts other data."
            raise self.problem("derives from a layer that nets and loaders know by its type", proto.user_type, hint)
        self.inputs = tuple(proto.srclayers)
        self.params: list[Param] = []

    @property
    def name(self) -> str:
        """Empty until the net is put together, where none was given."""
        return self.proto.name

    @property
    def steps(self) -> int:
        """Time steps that one call computes, whose rows lie one step after another; 1 but in a folded net."""
        return self.proto.unroll_len

    @property
    def label_positions(self) -> set[int]:
        """`label_sources`, counted from the first of the srclayers that there are."""
        count = len(self.proto.srclayers)
        return {position % count for position in self.label_sources} if count else set()

    def declare(self, role: str, shape: Shape, fan_in: int, fan_out: int, value: float | None = None) -> Param:
        """Declare the next parameter; its settings are the next `param` block of the job, named
        `<layer>_<role>` unless the job names it. value: initial value where the job has no `init`. The instances of
        an unrolled layer share the parameters of the first."""
        index = len(self.params)
        proto = ParamProto()
        if index < len(self.proto.param):
            proto.CopyFrom(self.proto.param[index])
        if value is not None and not proto.HasField("init"):
            proto.init.type, proto.init.value = proto.init.kConstant, value
        name = proto.name or f"{origin(self.proto)}_{role}"
        if self.proto.unroll_index:
            proto.share_from, name = name, f"{self.proto.unroll_index}#{name}"
        param = Param(proto, name, shape, fan_in, fan_out)
        self.params.append(param)
        return param

    def problem(self, message: str, received: Any = None, hint: str | None = None) -> ConfigError:
        """An error that names this layer."""
        key = f"layer {self.name or type(self).__name__!r}"
        return ConfigError(Problem(key, message, None if received is None else str(received), hint))

    def sources(self, src: tuple[Shape, ...]) -> tuple[Shape, ...]:
        """`src`, if it has as many shapes as this layer takes sources; for the start of `setup`.

        Raises ConfigError where it has not.
        """
        least, most = self.num_sources
        if len(src) < least or (most is not None and len(src) > most):
            wanted = f"{least}" if least == most else f"at least {least}" if most is None else f"{least} to {most}"
            raise self.problem(
                f"{type(self).__name__} takes {wanted} srclayers", received=", ".join(self.proto.srclayers) or "none"
            )
        return src

    def follow(self, before: Sequence[Any]) -> tuple[Layer, ...]:
        """What it reads behind these layers of a list, where it names nothing: the last one through which data flow
        and, where it takes a second one for labels or a target, the last input, or what has made labels of it.

        Raises ConfigError where that is not there, or not enough.
        """
        least, most = self.num_sources
        if most == 0 or (least == 0 and not before):
            return ()
        flow = [layer for layer in before if not isinstance(layer, OutputLayer) and not _labels_only(layer)]
        if not flow or not isinstance(flow[-1], Layer):
            hint = "Begin the list with an input layer, call it on its sources, or name them in srclayers."
            raise self.problem("reads nothing, and follows no layer object", hint=hint)
        labelled = [layer for layer in before if isinstance(layer, InputLayer) or _labels_only(layer)]
        if least <= 1:
            return (flow[-1],)
        if least == 2 and labelled and (self.label_sources == (1,) or isinstance(self, LossLayer)):
            return flow[-1], labelled[-1]
        raise self.problem(f"takes {least} srclayers", hint="Call it on them, or name them in srclayers.")

    # What a layer writes:

    def setup(self, *src: Shape) -> Any:
        """Fix shapes and declare parameters. src: sample shapes of the sources; returns the own sample shape.

        Raises ConfigError where the shapes do not fit.
        """
        raise NotImplementedError

    def forward(self, ctx: Context, *x: Array) -> Any:
        """Compute the output, rows of the shape that setup returned, from the sources' outputs (batch first).

        Must not modify its inputs. Arrays between layers are C-contiguous.
        """
        raise NotImplementedError

    def backward(self, ctx: Context, dy: Any) -> Any:
        """Fill the parameters' gradients (see `Param.claim`) and return the gradient for the source (a tuple, if there
        are several; None for a source that needs none).

        `ctx.needs_input_grad` is False where no layer below wants it. `dy` belongs to the callee, which may
        overwrite it and return it. Called at most once after a forward call, whose arrays it may overwrite too.
        """
        raise NotImplementedError

    def metrics(self, ctx: Context) -> dict[str, Metric]:
        """What the last forward call measured; empty for most layers."""
        return {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({repr(self.name) if self.name else ''})"


class InputLayer(Layer):
    """A layer without sources: `forward(ctx, features)` gets what the loader feeds."""

    num_sources: ClassVar[tuple[int, int | None]] = (0, 0)

    @property
    def sample_shape(self) -> Shape:
        """Own sample shape, from store_conf.shape: (C, H, W) -> (H, W, C), (H, W) -> (H, W, 1), (D,) -> (D,).

        Raises ConfigError where it is missing or not positive.
        """
        shape = tuple(self.proto.store_conf.shape)
        if not 1 <= len(shape) <= 3 or min(shape) < 1:
            raise self.problem(
                "store_conf.shape must be features; height, width; or channels, height, width",
                received=list(shape) or "none",
                hint="Set it, or let the shards say it (check without --no-data).",
            )
        if len(shape) == 3:
            return *shape[1:], shape[0]
        return (*shape, 1) if len(shape) == 2 else shape


class LossLayer(Layer):
    """A layer that starts the backward pass: `backward(ctx, None)`.

    Its gradient is of (sum over rows of the loss) / ctx.step.total_rows, so that the sum of all workers' gradients is
    the gradient of the group's mean loss, whatever share of the batch each of them has.
    """


class OutputLayer(Layer):
    """A layer that measures or writes what comes out of a net: no gradient flows back through it."""

    stops_gradient: ClassVar[bool] = True

    def backward(self, ctx: Context, dy: Any) -> Any:
        return (None,) * len(self.proto.srclayers)

    def close(self) -> None:
        """Complete and close the files that the layer writes; a later forward call starts them afresh."""


def _named(layers: Sequence[Any]) -> str:
    return ", ".join(layer if isinstance(layer, str) else repr(layer) for layer in layers) or "nothing"


def _labels_only(layer: Any) -> bool:
    return isinstance(layer, Layer) and layer.makes_labels
