"""The cheapest partition of a net by an additive cost: dynamic programming over layers and their shardings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from singa_dask.errors import Problem
from singa_dask.job.unroll import origin
from singa_dask.planning.ways import MovedActivation, NotPartitioned, PartitionContext, PartitionedLayer, Way, Ways

# States of a net whose branches meet late; more of them are too slow, and only the cheapest go on.
MOST_STATES = 4096


@dataclass(frozen=True)
class Weights:
    """What counts in a search: the share of the exchange that nothing hides, and seconds per byte of memory."""

    exposed: float = 1.0
    memory: float = 0.0

    def cost(self, placed: PartitionedLayer) -> float:
        return placed.seconds + self.exposed * placed.exchange + self.memory * placed.nbytes


@dataclass(frozen=True)
class PartitionPlan:
    """A partition of every layer of a training net. ways: by the name that the job gives a layer; placed: by that
    of the net."""

    ways: dict[str, Way]
    placed: dict[str, PartitionedLayer]


@dataclass(frozen=True)
class _State:
    """Layers up to some place, partitioned. known: what later layers need to know of them. there: the transitions of
    layers that later ones read. last: name, way and partition of the last layer; before: the state without it."""

    known: dict[tuple[str, str], Any] = field(default_factory=dict)
    there: frozenset[MovedActivation] = frozenset()
    cost: float = 0.0
    last: tuple[str, Way, PartitionedLayer] | None = None
    before: _State | None = None


def cheapest(
    ways: Ways,
    weights: Weights,
    allowed: Callable[[str, Way, PartitionedLayer], bool] = lambda name, way, placed: True,
) -> PartitionPlan:
    """The assignment with the least sum of costs. allowed: whether a layer may be partitioned so.

    Raises NotPartitioned where what the job says of some layers allows none.
    """
    uses = _last_uses(ways)
    states, fault = [_State()], None
    for i, name in enumerate(ways.layers):
        following: list[_State] = []
        for state in states:
            for way in _open(ways, name, state):
                try:
                    placed = ways.place(name, way, _context(ways, name, state))
                except NotPartitioned as error:
                    fault = error
                    continue
                if allowed(name, way, placed):
                    following.append(_after(ways, state, way, placed, weights.cost(placed), uses, i))
        if not following:
            raise fault or NotPartitioned(Problem(f"layer {name!r}", "cannot be partitioned as required"))
        states = sorted(_undominated(following), key=lambda state: state.cost)[:MOST_STATES]
    return _assignment(ways, states[0])


def _last_uses(ways: Ways) -> dict[tuple[str, str], int]:
    """The number of the last layer that needs to know each thing."""
    uses = {}
    for i, layer in enumerate(ways.layers.values()):
        uses["way", origin(layer.proto)] = uses["first", origin(layer.proto)] = i
        uses |= {("sharding", source): i for source in layer.proto.srclayers}
        uses |= {("shard", param.owner.name): i for param in layer.params}
    return uses


def _open(ways: Ways, name: str, state: _State) -> tuple[Way, ...]:
    """The ways to partition a layer. All instances of an unrolled layer go one way."""
    chosen = state.known.get(("way", origin(ways.layers[name].proto)))
    return ways.of(name) if chosen is None else (chosen,)


def _context(ways: Ways, name: str, state: _State) -> PartitionContext:
    layer, known = ways.layers[name], state.known
    owners = dict.fromkeys(param.owner.name for param in layer.params)
    return PartitionContext(
        shardings=tuple(known["sharding", source] for source in layer.proto.srclayers),
        there=frozenset(moved for moved in state.there if moved.source in layer.proto.srclayers),
        shards=tuple((owner, known["shard", owner]) for owner in owners if ("shard", owner) in known),
        first=known.get(("first", origin(layer.proto))),
    )


def _after(
    ways: Ways,
    state: _State,
    way: Way,
    placed: PartitionedLayer,
    cost: float,
    uses: Mapping[tuple[str, str], int],
    i: int,
) -> _State:
    """The state after layer number i."""
    name, layer = list(ways.layers.items())[i]
    known = state.known | {("sharding", name): placed.makes, ("way", origin(layer.proto)): way}
    known |= {("shard", owner): shard for owner, shard in placed.shards}
    if name == f"0#{origin(layer.proto)}":
        known["first", origin(layer.proto)] = placed.shardings
    return _State(
        {key: value for key, value in known.items() if uses.get(key, -1) > i},
        frozenset(moved for moved in state.there | placed.moved if uses["sharding", moved.source] > i),
        state.cost + cost,
        (name, way, placed),
        state,
    )


def _undominated(states: Iterable[_State]) -> list[_State]:
    """Without those that know the same as another, cost no less, and have no transition that it lacks."""
    alike: dict[frozenset[Any], list[_State]] = {}
    for state in sorted(states, key=lambda state: state.cost):
        kept = alike.setdefault(frozenset(state.known.items()), [])
        if not any(state.there <= other.there for other in kept):
            kept.append(state)
    return [state for kept in alike.values() for state in kept]


def _assignment(ways: Ways, state: _State) -> PartitionPlan:
    chosen: dict[str, Way] = {}
    placed: dict[str, PartitionedLayer] = {}
    at: _State | None = state
    while at is not None and at.last is not None:
        name, way, placed[name] = at.last
        chosen[origin(ways.layers[name].proto)] = way
        at = at.before
    return PartitionPlan({name: chosen[name] for name in reversed(chosen)}, {n: placed[n] for n in ways.layers})
