"""The class of each layer type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

from singa_dask.errors import ConfigError, Problem
from singa_dask.job.description import class_of
from singa_dask.job.job_pb2 import LayerProto, LayerType
from singa_dask.job.layer_types import DEPRECATED, SPELLINGS
from singa_dask.layers.base import Layer


@cache
def built_in() -> Mapping[str, type[Layer]]:
    """The built-in layers by type: the classes that `singa_dask.layers` exports."""
    classes = {cls.type: cls for cls in _derived(Layer) if cls.type != Layer.type}
    return classes | {spelling: classes[kind] for spelling, kind in SPELLINGS.items()}


def _derived(base: type[Layer]) -> Iterator[type[Layer]]:
    """The classes of this package that derive from a layer; those of one type after its first one."""
    for cls in base.__subclasses__():
        if cls.__module__.startswith(f"{__package__}."):
            yield from _derived(cls)
            yield cls


def layer_class(proto: LayerProto) -> type[Layer]:
    """The class of a layer's `type`, or of its `user_type` ("module:Class").

    Raises ConfigError for unavailable types, and for user layers that cannot be imported or do not derive from Layer.
    """
    name, key = LayerType.Name(proto.type), f"layer {proto.name!r}"
    if name in DEPRECATED:
        raise ConfigError(Problem(key, f"layer type {name} is not available", hint=DEPRECATED[name]))
    return class_of(proto, built_in(), Layer, key, example="kInnerProduct")
