"""Which parameters are one: `share_from` inside a net, and a test or validation net's use of the training net's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from singa_dask.errors import ConfigError, Problem, nearest
from singa_dask.layers.param import Param


def resolve_sharing(params: Iterable[Param], outer: Mapping[str, Param] | None = None) -> list[Param]:
    """Set every parameter's `owner` and return the owners, in order.

    outer: the training net's parameters by name; every parameter of a net that has an outer one is one of those.

    Raises ConfigError for repeated names, a `share_from` that names nothing or leads in a circle, shapes that differ,
    and parameters that the training net lacks.
    """
    own: dict[str, Param] = {}
    problems: list[Problem] = []
    for param in params:
        if param.name in own:
            problems.append(
                Problem(
                    f"param {param.name!r}.name",
                    "two parameters have this name",
                    hint="Give each its own name; to use one array twice, name it in the other's share_from.",
                )
            )
        own[param.name] = param
    for param in own.values():
        found = _outer_owner(param, outer) if outer is not None else _owner(param, own)
        if isinstance(found, Problem):
            problems.append(found)
            continue
        if found.shape != param.shape:
            problems.append(_shapes_differ(param, found))
        param.owner = found
    if problems:
        raise ConfigError(problems)
    return list(dict.fromkeys(param.owner for param in own.values()))


def _owner(param: Param, own: Mapping[str, Param]) -> Param | Problem:
    """Follow share_from to the parameter that shares from none."""
    at, path = param, [param.name]
    while at.proto.share_from:
        source = at.proto.share_from
        if source not in own:
            return Problem(
                f"param {at.name!r}.share_from",
                "no parameter has this name",
                source,
                nearest(source, set(own) - {at.name}),
            )
        if source in path:
            return Problem(f"param {at.name!r}.share_from", "sharing leads in a circle", " <- ".join([*path, source]))
        at = own[source]
        path.append(source)
    return at


def _outer_owner(param: Param, outer: Mapping[str, Param]) -> Param | Problem:
    for name in (param.name, param.proto.share_from):
        if name in outer:
            return outer[name].owner
    return Problem(
        f"param {param.name!r}",
        "the training net has no such parameter, so nothing would train it",
        hint=nearest(param.name, outer) + " Or let its layer into phase kTrain too.",
    )


def _shapes_differ(param: Param, owner: Param) -> Problem:
    hint = "Shared parameters must have one shape."
    if param.shape == owner.shape[::-1]:
        hint = "One is the other's transpose: set innerproduct_conf.transpose on one of the two layers."
    return Problem(
        f"param {param.name!r}",
        f"its shape {param.shape} differs from {owner.shape}, the shape of {owner.name!r} which it shares",
        hint=hint,
    )
