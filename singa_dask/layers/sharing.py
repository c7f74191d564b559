"""Parameter sharing: `share_from` in a net, and test and validation nets that use the training net's parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from singa_dask.errors import ConfigError, Problem, nearest
from singa_dask.layers.param import Param


def resolve_sharing(params: Iterable[Param], outer: Mapping[str, Param] | None = None) -> list[Param]:
    """Set every parameter's `owner` and return the owners, in order.

    outer: the training net's parameters by name, if this net uses them. It must not have others.

    Raises ConfigError for duplicate names, unknown or cyclic `share_from`, different shapes, and parameters that the
    training net lacks.
    """
    own: dict[str, Param] = {}
    problems: list[Problem] = []
    for param in params:
        if param.name in own:
            hint = "Give each its own name. To share one array, name its parameter in share_from of the other."
            problems.append(Problem(f"param {param.name!r}.name", "two parameters have this name", hint=hint))
        own[param.name] = param
    for param in own.values():
        found = _outer_owner(param, outer) if outer is not None else _owner(param, own)
        if isinstance(found, Problem):
            problems.append(found)
            continue
        if found.whole_shape != param.whole_shape:
            problems.append(_shapes_differ(param, found))
        elif param.shard is not None and found.shard != param.shard:
            problems.append(_shards_differ(param, found))
        param.owner = found
    if problems:
        raise ConfigError(problems)
    return list(dict.fromkeys(param.owner for param in own.values()))


def _owner(param: Param, own: Mapping[str, Param]) -> Param | Problem:
    """Follow share_from to the owner."""
    at, path = param, [param.name]
    while at.proto.share_from:
        source = at.proto.share_from
        key = f"param {at.name!r}.share_from"
        if source not in own:
            return Problem(key, "no parameter has this name", source, nearest(source, set(own) - {at.name}))
        if source in path:
            return Problem(key, "share_from forms a cycle", " <- ".join([*path, source]))
        at = own[source]
        path.append(source)
    return at


def _outer_owner(param: Param, outer: Mapping[str, Param]) -> Param | Problem:
    for name in (param.name, param.proto.share_from):
        if name in outer:
            return outer[name].owner
    message = "the training net has no such parameter, so it would not be trained"
    hint = nearest(param.name, outer) + " Or include its layer in phase kTrain."
    return Problem(f"param {param.name!r}", message, hint=hint)


def _shapes_differ(param: Param, owner: Param) -> Problem:
    hint = "Shared parameters must have the same shape."
    if param.whole_shape == owner.whole_shape[::-1]:
        hint = "One is the other's transpose: set innerproduct_conf.transpose on one of the two layers."
    shapes = f"its shape {param.whole_shape} differs from that of {owner.name!r}, which it shares"
    return Problem(f"param {param.name!r}", f"{shapes}: {owner.whole_shape}", hint=hint)


def _shards_differ(param: Param, owner: Param) -> Problem:
    message = f"it shares {owner.name!r}, but its layer would split it otherwise"
    return Problem(f"param {param.name!r}", message, hint="Set partition_dim: 0 for both layers.")
