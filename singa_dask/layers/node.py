"""Layers as descriptions: nodes of the graph that a job file or Python describes.

InnerProduct("ip1", "conv2", num_output=500)            # in Python; also InnerProduct(num_output=500)(conv2)
layer { name: "ip1" type: kInnerProduct srclayers: "conv2" innerproduct_conf { num_output: 500 } }
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar, Self

from singa_dask.errors import ConfigError, Problem
from singa_dask.functions import equal, not_equal
from singa_dask.functions.operators import Operators, is_operand
from singa_dask.job.description import Description
from singa_dask.job.job_pb2 import LayerProto, ParamProto
from singa_dask.job.layer_types import parameter_roles
from singa_dask.layers.computing import computed
from singa_dask.layers.kept import Kept
from singa_dask.layers.naming import called_module, check_attribute, node_name
from singa_dask.layers.param import param_message
from singa_dask.tensors.tensor import NO_NUMBERS, WRITE_FUNCTIONS

# Keyword arguments of every layer that set fields of LayerProto itself.
WIRING = (
    *("include", "exclude", "partition_dim", "share_params"),
    *("unroll_len", "unroll_conn_type", "shift", "unroll_source", "share_src_blobs"),
)
_numbers = count(1)


class Node(Operators, Description):
    """What every layer is as a description: a message, sources and calls.

    num_sources: minimum and maximum number of srclayers; None for no maximum. srclayers are names or layers, stored in
    `inputs`. In a list, a layer without sources chooses them by `Layer.follow`. Layers without a name are named when
    the net is assembled. param: messages or mappings of their fields, where `init` may be a user function(param, rng).
    template: the layer that was called, if not this one; module: the Module in whose `forward` that was. source_size:
    how many "channels" or "features" arrays of the first source must have. kept: of a layer that was called on arrays.
    tensors: the parameters of a Module itself that a function reads. number: grows from call
    to call; 0 without sources.
    """

    type: ClassVar[str] = "kUserLayer"
    num_sources: ClassVar[tuple[int, int | None]] = (1, 1)

    inputs: tuple[str | Node, ...]
    template: Node | None = None
    module: Any = None
    source_size: tuple[int, str] | None = None
    kept: Kept | None = None
    tensors: Sequence[Any] = ()
    number = 0
    _called = False

    def __init__(
        self,
        name: str | None = None,
        srclayers: str | Node | Sequence[str | Node] = (),
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
        layer = next(kind for kind in reversed(type(self).__mro__) if issubclass(kind, Node) and kind is not Node)
        self._describe(proto, layer, where, {**conf, **given}, WIRING)
        self._adopt(proto)
        self._read((srclayers,) if isinstance(srclayers, str | Node) else tuple(srclayers))

    def __call__(self, *sources: Any) -> Any:
        """The layer with these sources, so that calls can be nested: SoftmaxLoss()(ReLU()(x), data).

        The first call sets the sources of this layer. A further one, and one in the `forward` of a Module, returns
        another node of the net, which shares the parameters of the first. On arrays or tensors it computes (see
        singa_dask.autograd).
        """
        if sources and not any(isinstance(source, str | Node) for source in sources):
            return self._computed(sources)
        if not sources or self.num_sources[1] == 0:
            hint = "An input layer has no sources." if self.num_sources[1] == 0 else "Call it on its source layers."
            raise self.problem(f"{type(self).__name__} cannot be called on these sources", _named(sources), hint)
        if self.inputs and not self._called:
            raise self.problem("has srclayers and cannot be called", _named(self.inputs), "Leave out one of them.")
        check_attribute(self, parameter_roles(self.proto) or ())
        again = self._called or called_module() is not None
        node = self._node(node_name(self)) if again else self
        node._called = True
        if called_module() is not None:
            node._in_module()
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
        node.module, node.kept = called_module(), None
        return node

    def _in_module(self) -> None:
        """Read samples as tensors are read in a training loop."""

    def _computed(self, sources: tuple[Any, ...]) -> Any:
        """The output for arrays or tensors."""
        return computed(self, sources)

    def __bool__(self) -> bool:
        """True. Raises ConfigError for a source or an output of layers in the `forward` of a Module."""
        if called_module() is not None and (self.inputs or self.num_sources == (0, 0)):
            hint = "Let if and while depend on attributes of the module only: the net is the same for all samples."
            raise self.problem("has no value in forward, which runs once to build the net", repr(self), hint)
        return True

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raises AttributeError, which says of what depends on the samples why it is not there."""
            if name in ("shape", "ndim", "size"):
                raise AttributeError(
                    f"a layer has no {name} in forward, which runs once before samples come: write -1 for the rows in "
                    f"reshape, and other sizes as numbers ({self!r})"
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def to_numpy(self) -> Any:
        """Raises ConfigError: what `forward` computes from numbers it would compute once."""
        raise self.problem(NO_NUMBERS, repr(self), WRITE_FUNCTIONS)

    __iter__ = None  # a layer has indices, and no length

    def _node_of(self, function: Callable[..., Any], operands: Sequence[Any], settings: Mapping[str, Any]) -> Node:
        """The node that computes a function of layers; see layers/formula.py."""
        raise NotImplementedError

    def _grad_nodes(self, outputs: Any, inputs: Any, factors: Any, *, create_graph: bool) -> list[Node]:
        """The nodes that compute gradients of layers; see layers/gradient.py."""
        raise NotImplementedError

    def __eq__(self, other: object) -> Any:
        return self._compared(equal, other)

    def __ne__(self, other: object) -> Any:
        return self._compared(not_equal, other)

    __hash__ = object.__hash__

    def _compared(self, function: Callable[..., Any], other: Any) -> Any:
        """Whether its elements are equal to numbers, and in `forward` to those of another layer."""
        if not is_operand(other) or (isinstance(other, Node) and called_module() is None):
            return NotImplemented
        return function(self, other)

    def _read(self, sources: tuple[str | Node, ...]) -> None:
        for source in sources:
            if not isinstance(source, str | Node):
                raise self.problem("sources must be layers or names of layers", repr(source))
        self.inputs = sources
        self.number = next(_numbers) if sources else 0
        names = [s.name if isinstance(s, Node) else s for s in sources]
        if all(names):  # unnamed layers get a name when the net is assembled
            self.proto.srclayers[:] = names

    @property
    def name(self) -> str:
        """The name; empty before the net is assembled if none was given."""
        return self.proto.name

    def problem(self, message: str, received: Any = None, hint: str | None = None) -> ConfigError:
        """An error that names this layer."""
        key = f"layer {self.name or type(self).__name__!r}"
        return ConfigError(Problem(key, message, None if received is None else str(received), hint))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({repr(self.name) if self.name else ''})"

    def _adopt(self, proto: LayerProto) -> None:
        super()._adopt(proto)
        self.inputs = tuple(proto.srclayers)


def _named(layers: Sequence[Any]) -> str:
    return ", ".join(layer if isinstance(layer, str) else repr(layer) for layer in layers) or "nothing"
