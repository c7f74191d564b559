"""Layer objects become the messages of a net: their order and their names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any

from singa_dask.errors import ConfigError, Problem
from singa_dask.job.job_pb2 import LayerProto, Phase
from singa_dask.job.layer_types import parameter_roles
from singa_dask.job.phases import runs_in


def assemble(layers: Iterable[Any], named: dict[Any, str] | None = None) -> list[LayerProto]:
    """The messages of these layers and of all their sources, sources first.

    named: gets the name of each layer object, of several nodes of one layer the first one's.

    What the `forward` of a Module has called is in the order of these calls.

    layers: messages, or descriptions with `.proto`; or a single one, the last layer. A description may have `.inputs`,
    its sources as layers or names, and `.follow(before)`, which chooses the sources from the layers listed before it.
    An object with `.placed(before)`, a Module, stands for the layers that this returns. Descriptions of one
    `.template` share its parameters. If layers of two modules, `.module`, have the same names, those of the second get
    a prefix: "block2.".
    A layer without a name is named after its class in lower case, numbered from 1. Adjacent input layers of different
    phases share a name.
    Raises ConfigError if a layer is listed twice, or has no sources and cannot follow the layers before it.
    """
    order: list[Any] = []
    reads: dict[int, tuple[Any, ...]] = {}
    listed: set[int] = set()
    every = [layers] if hasattr(layers, "proto") or hasattr(layers, "placed") else list(layers)
    together = all(getattr(layer, "inputs", ()) for layer in every)
    for i, layer in enumerate(every):
        if id(layer) in listed:
            hint = "Create a second layer; share_params=NAME shares the weights."
            raise ConfigError(Problem(f"layers[{i}]", "this layer is listed twice", repr(layer), hint))
        listed.add(id(layer))
        tops = layer.placed(order) if hasattr(layer, "placed") else (layer,)
        for each in (*_called(every if together else tops), *tops):
            _collect(each, order, reads)
    first: dict[int, Any] = {}  # of each template
    for layer in order:
        first.setdefault(_template(layer), layer)
    names = _names(order, reads, first)
    messages = [_message(layer, reads[id(layer)], names) for layer in order]
    if named is not None:
        named |= {_holder(layer): names[id(layer)] for layer in reversed(order)}
    held: set[int] = set()  # parameters that are of a Module itself
    for layer, message in zip(order, messages, strict=True):
        if (owner := first[_template(layer)]) is not layer:
            _share(message, names[id(owner)])
            continue
        for tensor, param in zip(getattr(layer, "tensors", ()), message.param, strict=False):
            if id(tensor) in held:
                param.share_from = param.name
                param.ClearField("name")
            held.add(id(tensor))
    return messages


def _called(tops: Iterable[Any]) -> list[Any]:
    """What the `forward` of a Module has called to compute these layers, in this order."""
    found: dict[int, Any] = {}
    left = list(tops)
    while left:
        layer = left.pop()
        if not isinstance(layer, str) and id(layer) not in found:
            found[id(layer)] = layer
            left += getattr(layer, "inputs", ())
    inside = (layer for layer in found.values() if getattr(layer, "module", None) is not None)
    return sorted(inside, key=lambda layer: layer.number)


def _collect(top: Any, order: list[Any], reads: dict[int, tuple[Any, ...]]) -> None:
    """Append a layer to the order, after all its sources."""
    stack, entered = [top], {id(layer) for layer in order}
    while stack:
        layer = stack[-1]
        if id(layer) not in reads:
            reads[id(layer)] = _sources(layer, order if layer is top else ())
        # The two layers of an RBM read each other: do not wait for a layer that was entered.
        entered.add(id(layer))
        waiting = [s for s in reads[id(layer)] if not isinstance(s, str) and id(s) not in entered]
        if waiting:
            stack.append(waiting[0])
            continue
        stack.pop()
        if all(layer is not other for other in order):
            order.append(layer)


def _sources(layer: Any, before: Sequence[Any]) -> tuple[Any, ...]:
    inputs = tuple(getattr(layer, "inputs", ()))
    if inputs or not hasattr(layer, "follow"):
        return inputs
    return tuple(layer.follow(before))


def _names(order: Sequence[Any], reads: dict[int, tuple[Any, ...]], first: dict[int, Any]) -> dict[int, str]:
    again = {id(layer) for layer in order if first[_template(layer)] is not layer}
    prefixes = _prefixes([layer for layer in order if id(layer) not in again and _proto(layer).name])
    given = {id(layer): prefixes[id(layer)] + _proto(layer).name if id(layer) in prefixes else "" for layer in order}
    taken, counts = {*given.values()}, Counter[str]()
    together: list[Any] = []  # adjacent inputs, at most one per phase
    for layer in order:
        named = bool(given[id(layer)])
        joins = not reads[id(layer)] and all(_apart(layer, other) for other in together)
        if joins and together and not named:
            given[id(layer)] = given[id(together[-1])]
        while not given[id(layer)]:
            kind = type(layer).__name__.lower()
            if id(layer) in again:
                kind = f"{given[id(first[_template(layer)])]}_"
                counts[kind] = counts[kind] or 1
            counts[kind] += 1
            if f"{kind}{counts[kind]}" not in taken:
                given[id(layer)] = f"{kind}{counts[kind]}"
        if reads[id(layer)]:
            together = []
        else:
            same = joins and together and given[id(layer)] == given[id(together[-1])]
            together = [*together, layer] if same else [layer]
    return given


def _prefixes(layers: Sequence[Any]) -> dict[int, str]:
    """What goes in front of the name of each layer, by its id: "block2." where it is of a module, here a Block, whose
    names others have already."""
    held: dict[int | None, list[Any]] = {None: []}
    for layer in layers:
        module = getattr(layer, "module", None)
        held.setdefault(None if module is None else id(module), []).append(layer)
    taken, found = set[str](), dict[int, str]()
    for owner, inside in held.items():
        prefix, names = "", {_proto(layer).name for layer in inside}
        numbers = count(2)
        while owner is not None and not taken.isdisjoint(prefix + name for name in names):
            prefix = f"{type(inside[0].module).__name__.lower()}{next(numbers)}."
        taken |= {prefix + name for name in names}
        found |= {id(layer): prefix for layer in inside}
    return found


def _apart(one: Any, other: Any) -> bool:
    """Whether the two share no phase."""
    return not any(runs_in(_proto(one), phase) and runs_in(_proto(other), phase) for phase in Phase.values())


def _template(layer: Any) -> int:
    return id(getattr(layer, "template", None) or layer)


def _holder(layer: Any) -> Any:
    """The layer object that has the parameters of a node."""
    return layer if getattr(layer, "tensors", ()) else getattr(layer, "template", None) or layer


def _share(message: LayerProto, owner: str) -> None:
    """Let a layer use the parameters of the layer `owner`, whose settings it has."""
    if parameter_roles(message) == ():
        return
    message.share_params = owner
    for param in message.param:
        if param.name and not param.share_from:
            param.share_from = param.name
        param.ClearField("name")


def _message(layer: Any, sources: Sequence[Any], names: dict[int, str]) -> LayerProto:
    message = LayerProto()
    message.CopyFrom(_proto(layer))
    message.name = names[id(layer)] or message.name
    if sources and not (message.srclayers and all(isinstance(s, str) for s in sources)):
        message.srclayers[:] = [s if isinstance(s, str) else names[id(s)] for s in sources]
    return message


def _proto(layer: Any) -> LayerProto:
    return getattr(layer, "proto", layer)
