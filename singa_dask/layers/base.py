"""The base classes of layers.

A layer has two roles. As a *description* it is a Node, which wraps a LayerProto. In a net, `setup` fixes shapes and
declares parameters; `forward` and `backward` compute with `ctx.ops` and keep intermediate arrays in `ctx`.

Shapes omit the batch: (features,), or (height, width, channels) for images.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

from singa_dask.job.job_pb2 import LayerProto, ParamProto
from singa_dask.job.unroll import origin
from singa_dask.layers.context import Context, Metric
from singa_dask.layers.node import Node
from singa_dask.layers.param import Param, Shape
from singa_dask.layers.partition import ArrayShard, LayerPartition, Sharding
from singa_dask.ops import Ops
from singa_dask.ops.arrays import Array


class Layer(Node):
    """Base of every layer.

    type, conf_field: of LayerType and LayerProto; see Description. As a description, see Node.
    label_sources: positions in srclayers from which this layer reads labels instead of features.
    undivided_sources: positions in srclayers that it reads undivided where it reads a share of the features of others.
    target_sources: positions from which it reads the target if that source has one, else features. A target is what
    the labels are called if they are numbers to predict (store_conf.target_shape); `setup` gets the target's shape.
    passes_labels: whether the layer passes on the labels of its first source; makes_labels: whether it creates labels.
    moves: set by `setup`: the settings by which training moves the positions of samples at random; empty if none.
    stops_gradient: whether no gradient flows through the layer; parameters below it then cannot be trained.
    multiple_outputs: whether forward returns a tuple with one array per destination (Slice, Split). Backward then gets
    a tuple, and setup may return a tuple of shapes.
    cut_off: set by `setup`: positions of sources that get no gradient, as what is detached.
    output_sources: positions of the sources that its output depends on; None for all but labels and targets.
    rowwise: whether each output row depends only on the same input row (for `recurrent` layers also on its earlier
    time steps, for layers `across_steps` on all of them). The time steps of an unrolled net can then be rows of one
    call.
    across_steps: whether it computes all time steps in one call. Its net must allow that (net/fold.py).
    keeps_order: whether y = f(x) is elementwise and monotonic, and backward needs only y. A net may then compute it
    after a max-pooling that reads it.
    takes: the shardings of its sources with which the layer computes; its output has the same sharding. Without
    FEATURES it gets all features, and under `partition_dim: 1` all rows too (REPLICATED) if it takes those.
    declares_takes: False for a user class without `takes` of its own. Such a layer gets all rows if they depend on
    each other (net/rows.py). mixes_rows: set by `setup`: whether a row of a function's output depends on others.
    splits_features: whether `partition_dim: 1` splits the layer itself: it reads REPLICATED, makes FEATURES, and
    declares its parameters with the axis that is split.
    is_loss: whether the backward pass starts from it. same_rows: whether its sources must have equally many rows.
    formula: the same as a function of tensors, the sources and then the parameters, for second derivatives.
    step_axes: in a training loop of one's own, the axes of a mini-batch of one step; with one more, it is one of
    sequences (B, T, ...), and the layer computes each step by itself. 0: it has no such steps.
    known_by_type: whether the loader or the net recognises the layer by its type. User classes cannot derive from it.

    A user class that overrides `forward` does not inherit `rowwise` and `keeps_order`. One that overrides `forward` or
    `backward` does not inherit `splits_features`, and of `takes` only what every layer of its kind takes.
    partition: set before `setup`, whose shapes are those of this worker. targets: set before `setup`: the shapes of
    the targets that the layer reads, by position.
    """

    label_sources: ClassVar[tuple[int, ...]] = ()
    undivided_sources: ClassVar[tuple[int, ...]] = ()
    target_sources: ClassVar[tuple[int, ...]] = ()
    passes_labels: ClassVar[bool] = False
    multiple_outputs: ClassVar[bool] = False
    output_sources: ClassVar[tuple[int, ...] | None] = None
    rowwise: ClassVar[bool] = False
    recurrent: ClassVar[bool] = False
    across_steps: ClassVar[bool] = False
    makes_labels: ClassVar[bool] = False
    stops_gradient: ClassVar[bool] = False
    is_loss: ClassVar[bool] = False
    cut_off: frozenset[int] = frozenset()
    moves: str = ""
    formula: ClassVar[Callable[..., Any] | None] = None
    same_rows: bool = True
    step_axes: ClassVar[int] = 0

    known_by_type: ClassVar[bool] = False

    takes: ClassVar[tuple[Sharding, ...]] = (Sharding.BATCH, Sharding.REPLICATED)
    splits_features: ClassVar[bool] = False

    keeps_order: bool = False
    partition: LayerPartition = LayerPartition()
    targets: Mapping[int, Shape] = MappingProxyType({})

    declares_takes: ClassVar[bool] = True
    mixes_rows: bool = False

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        overridden = {"forward", "backward"} & vars(cls).keys()
        if cls.type == Layer.type and {"takes", *overridden} & vars(cls).keys():
            cls.declares_takes = "takes" in vars(cls)
        if cls.type == Layer.type and overridden:
            base = next(base for base in cls.__mro__ if issubclass(base, Layer) and base.__module__ == __name__)
            takes = cls.takes if isinstance(cls.takes, tuple) else base.takes  # a property depends on settings
            common = tuple(sharding for sharding in base.takes if sharding in takes)
            promises: dict[str, Any] = {"takes": common or base.takes, "splits_features": False}
            if "forward" in overridden:
                promises |= {"rowwise": False, "keeps_order": False, "formula": None}
            for promise in promises.keys() - vars(cls).keys():
                setattr(cls, promise, promises[promise])

    def _adopt(self, proto: LayerProto) -> None:
        super()._adopt(proto)
        if self.known_by_type and proto.user_type:
            hint = "Derive it from Layer and let it read a kRecordInput; `singa-dask shard` converts other data."
            raise self.problem("cannot derive from a layer that the loader recognises by type", proto.user_type, hint)
        self.params: list[Param] = []

    def _in_module(self) -> None:
        if self.step_axes == 2 and "each_step" in self._own_fields:
            self.conf.each_step = True

    @property
    def _own_fields(self) -> Collection[str]:
        own = self._own(self.proto)
        return () if own is None else own.DESCRIPTOR.fields_by_name

    def lead(self, shape: Shape) -> Shape:
        """Of samples of this shape, the axes of which a layer with `each_step` computes each place by itself."""
        return shape[:-1] if len(shape) == 2 and self.conf.each_step else ()

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
    def counted_positions(self) -> set[int]:
        """The positions among the actual srclayers from which it reads which positions of a sample count: the number
        of the first ones, or 0 or 1 for each."""
        return set()

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
        every worker has the whole array; outer: see ArrayShard. The parameter's own `shape` is that of this worker.

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
        shard = None
        if axis is not None and self.partition.size > 1:
            bounds = self.partition.bounds(shape[axis] // outer)
            shard = ArrayShard(shape, axis, bounds, self.partition.rank, outer)
        param = Param(proto, name, shape, fan_in, fan_out, shard, role)
        self.params.append(param)
        return param

    def sources(self, src: tuple[Shape, ...]) -> tuple[Shape, ...]:
        """`src`, for the start of `setup`. Raises ConfigError if the number of sources is wrong."""
        least, most = self.num_sources
        if len(src) < least or (most is not None and len(src) > most):
            wanted = f"{least}" if least == most else f"at least {least}" if most is None else f"{least} to {most}"
            received = ", ".join(self.proto.srclayers) or "none"
            hint = self._for_sources(len(src))
            raise self.problem(f"{type(self).__name__} takes {wanted} srclayers", received, hint)
        return src

    def _for_sources(self, count: int) -> str | None:
        """The way out where it has so many sources, and takes another number."""
        own = f"Set the class attribute num_sources = ({count}, {count}) if it reads that many."
        return own if self.type == Layer.type else None

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
        loss = isinstance(self, LossLayer) and least in (2, 3)  # the third one are weights, which the samples have
        if labelled and (loss or (least == 2 and self.label_sources == (1,))):
            return flow[-1], labelled[-1]
        raise self.problem(f"takes {least} srclayers", hint="Call it on them, or name them in srclayers.")

    def shardings(self, dim: int, sources: Sequence[Sharding], axis: int | None = None) -> tuple[Sharding, Sharding]:
        """The shardings of its sources and of its output with this `partition_dim`. sources: the shardings that they
        make. axis: the one along which another layer, whose parameters it shares, splits them.

        Raises ConfigError for a layer that passes on labels and does not take BATCH.
        """
        takes = self.takes
        rows = Sharding.BATCH if Sharding.BATCH in takes else takes[0]
        labels = self.passes_labels or self.makes_labels
        if labels and rows is not Sharding.BATCH:
            received = ", ".join(takes)
            raise self.problem(
                "passes on labels, so it must take rows", received, "Add Sharding.BATCH to its `takes`."
            )
        if dim != 1 or labels:
            sharding = rows
        elif self.splits_features:
            return Sharding.REPLICATED, Sharding.FEATURES
        elif Sharding.FEATURES in takes:
            follows = next((source for source in sources if source in takes), rows)
            sharding = follows if axis is None else Sharding.FEATURES
        else:
            sharding = Sharding.REPLICATED if Sharding.REPLICATED in takes else rows
        return sharding, sharding

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

    def scratch_size(self, ops: Ops, rows: int) -> int:
        """Elements of `ctx.scratch` that a call for so many rows takes."""
        return 0

    def reads_pending(self) -> bool:
        """Whether `forward` takes its first source as Pending (singa_dask.ops.pending), too."""
        return False

    def kept_size(self, ops: Ops, rows: int) -> int:
        """Elements besides its output that a call for so many rows keeps for the backward call, and then needs no
        `ctx.scratch`."""
        return 0

    def metrics(self, ctx: Context) -> dict[str, Metric]:
        """The metrics of the last forward call; empty for most layers."""
        return {}

    def check(self, ctx: Context) -> None:
        """Raise DataError for values that the last forward call did not look at (`Ops.sees_values`); called where a
        metric is NaN."""

    @property
    def sent(self) -> tuple[float, float]:
        """Values that a worker sends to others, forward and backward, per row of the mini-batch and time step."""
        return 0.0, 0.0


class LossLayer(Layer):
    """A layer that starts the backward pass: `backward(ctx, None)`.

    Its gradient is that of (sum over rows of the loss) / ctx.step.total_rows. The sum of all workers' gradients is
    then the gradient of the group's mean loss, for any division of the mini-batch. On REPLICATED every worker would
    compute the gradient of all rows, and their sum would be too large.

    compares: "classes" or "values" if metrics by name can be computed from `compared`, else "". takes_shares: whether
    one that compares classes takes targets of the shape of its scores, the share of each class. takes_units: whether
    it takes targets in any units, so that they may be normalised.
    """

    compares: ClassVar[str] = ""
    takes_units: ClassVar[bool] = True
    takes_shares: ClassVar[bool] = False
    is_loss: ClassVar[bool] = True
    takes: ClassVar[tuple[Sharding, ...]] = (Sharding.BATCH,)

    @classmethod
    def reads_weights(cls, proto: LayerProto) -> bool:
        """Whether this layer, of two sources, takes weights or a mask as a third one."""
        return cls.num_sources == (2, 3)

    def compared(self, ctx: Context) -> tuple[Array, Array, Array]:
        """Prediction, target, and weights (None for 1) of the last forward call.

        Of classes: probabilities (B, N) in the sharding that the layer makes, labels (B,), and (B,). Of values: (B,
        ...), targets with as many elements, and weights that can be broadcast to these.
        """
        raise NotImplementedError


class OutputLayer(Layer):
    """A layer that measures or writes the output of a net. No gradient flows through it."""

    takes: ClassVar[tuple[Sharding, ...]] = (Sharding.BATCH,)
    stops_gradient: ClassVar[bool] = True

    def backward(self, ctx: Context, dy: Any) -> Any:
        return (None,) * len(self.proto.srclayers)

    def close(self) -> None:
        """Finish and close the layer's files. A later forward call rewrites them."""


def data_before(before: Sequence[Any]) -> list[Any]:
    """The layers of a list that pass on data."""
    return [layer for layer in before if not isinstance(layer, OutputLayer) and not _labels_only(layer)]


def labels_before(before: Sequence[Any]) -> list[Any]:
    """The layers of a list that bring labels or make them."""
    return [layer for layer in before if layer.num_sources == (0, 0) or _labels_only(layer)]


def _labels_only(layer: Any) -> bool:
    return isinstance(layer, Layer) and layer.makes_labels
