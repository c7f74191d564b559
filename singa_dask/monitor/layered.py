"""The drawing of a directed graph without cycles: nodes in ranks from top to bottom, branches side by side.

Sugiyama, Tagawa & Toda 1981: ranks by the longest path, few crossings by barycentres, then positions. An edge over
several ranks occupies a place in each of them, so that it crosses no node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

Point = tuple[float, float]
Size = tuple[float, float]

SWEEPS = 13  # the last one goes downwards
RANK_GAP, NODE_GAP, COLUMN_GAP = 20.0, 14.0, 30.0
TRACK = 7.0  # between two lines that run side by side
PORT = 12.0  # from the corner of a node to the first line


@dataclass(frozen=True)
class Box:
    """The rectangle of a node; y grows downwards."""

    left: float
    top: float
    width: float
    height: float

    @property
    def x(self) -> float:
        return self.left + self.width / 2

    @property
    def right(self) -> float:
        return self.left + self.width

    @property
    def bottom(self) -> float:
        return self.top + self.height


@dataclass(frozen=True)
class Drawing:
    """boxes: of the nodes. lines: of the edges, as points; a line bends between points that share neither x nor y."""

    boxes: dict[str, Box]
    lines: list[tuple[Point, ...]]
    width: float
    height: float


@dataclass(eq=False)
class _Place:
    """A place in a rank: of a node, or of an edge (`name` is None) that passes it."""

    name: str | None
    width: float
    height: float
    rank: int
    above: list[_Place] = field(default_factory=list)
    below: list[_Place] = field(default_factory=list)
    x: float = 0.0


def draw(sizes: Mapping[str, Size], edges: Sequence[tuple[str, str]], tallest: float) -> Drawing:
    """Place the nodes, given in topological order. edges: (source, target).

    A drawing that would be taller than `tallest` continues in further columns.
    """
    ranks, paths = _ranks(sizes, edges)
    _order(ranks)
    _align(ranks, max((width for width, _ in sizes.values()), default=0.0))
    return _columns(ranks, paths, tallest)


def _ranks(
    sizes: Mapping[str, Size], edges: Sequence[tuple[str, str]]
) -> tuple[list[list[_Place]], list[list[_Place]]]:
    """The places by rank, and those of each edge from source to target."""
    level = dict.fromkeys(sizes, 0)
    for name in sizes:
        level[name] = max((level[source] + 1 for source, target in edges if target == name), default=0)
    for name in reversed(list(sizes)):  # inputs stand next to what reads them
        readers = [level[target] for source, target in edges if source == name]
        if readers and all(target != name for _, target in edges):
            level[name] = min(readers) - 1
    ranks: list[list[_Place]] = [[] for _ in range(max(level.values(), default=-1) + 1)]
    places = {}
    for name, (width, height) in sizes.items():
        places[name] = _Place(name, width, height, level[name])
        ranks[level[name]].append(places[name])
    passing: dict[tuple[str, int], _Place] = {}
    paths = []
    for source, target in edges:
        path = [places[source]]
        for rank in range(level[source] + 1, level[target]):
            if (source, rank) not in passing:  # the edges of a node share their places
                passing[source, rank] = _Place(None, 0.0, 0.0, rank)
                ranks[rank].append(passing[source, rank])
            path.append(passing[source, rank])
        path.append(places[target])
        for upper, lower in pairwise(path):
            if lower not in upper.below:
                upper.below.append(lower)
                lower.above.append(upper)
        paths.append(path)
    return ranks, paths


def _order(ranks: list[list[_Place]]) -> None:
    """Order the places of every rank by the barycentres of their neighbours; keep the order with fewest crossings."""
    best, fewest = [list(rank) for rank in ranks], _crossings(ranks)
    for sweep in range(SWEEPS):
        downwards = sweep % 2 == 0
        for rank in ranks if downwards else reversed(ranks):
            index = {place: i for other in ranks for i, place in enumerate(other)}
            centre = {}
            for place in rank:
                beside = [index[other] for other in (place.above if downwards else place.below)]
                centre[place] = sum(beside) / len(beside) if beside else index[place]
            rank.sort(key=centre.__getitem__)
        crossings = _crossings(ranks)
        if crossings < fewest:
            best, fewest = [list(rank) for rank in ranks], crossings
    for rank, order in zip(ranks, best, strict=True):
        rank[:] = order


def _crossings(ranks: list[list[_Place]]) -> int:
    count = 0
    for upper, lower in pairwise(ranks):
        index = {place: i for i, place in enumerate(lower)}
        ends: list[int] = []
        for place in upper:
            own = [index[other] for other in place.below]
            count += sum(end > mine for mine in own for end in ends)
            ends += own
    return count


def _align(ranks: list[list[_Place]], room: float) -> None:
    """Set the x of every place: near its neighbours, nodes before passing edges, and none over another.

    room: the width that is kept free for every node, so that lines pass narrow nodes straight.
    """
    for sweep in range(SWEEPS):
        downwards = sweep % 2 == 0
        for rank in ranks if downwards else reversed(ranks):
            wanted = []
            for place in rank:
                beside = place.above if downwards else place.below
                beside = [other for other in beside if other.name or not place.name] or beside
                wanted.append(sum(other.x for other in beside) / len(beside) if beside else place.x)
            for place, x in zip(rank, _apart(rank, wanted, room), strict=True):
                place.x = x


def _apart(rank: Sequence[_Place], wanted: Sequence[float], room: float) -> list[float]:
    """The positions nearest to the wanted ones (least squares) that keep the order and the gaps."""
    offsets = [0.0]
    for left, right in pairwise(rank):
        nodes = bool(left.name) + bool(right.name)
        offsets.append(offsets[-1] + nodes * room / 2 + (NODE_GAP if nodes else TRACK))
    groups: list[tuple[float, float, int]] = []  # weight, mean of the positions less their offsets, places
    for place, x, offset in zip(rank, wanted, offsets, strict=True):
        group = (1.0 if place.name else 1e-9, x - offset, 1)
        while groups and groups[-1][1] > group[1]:
            weight, mean, count = groups.pop()
            total = weight + group[0]
            group = (total, (weight * mean + group[0] * group[1]) / total, count + group[2])
        groups.append(group)
    starts = [mean for _, mean, count in groups for _ in range(count)]
    return [start + offset for start, offset in zip(starts, offsets, strict=True)]


def _columns(ranks: list[list[_Place]], paths: list[list[_Place]], tallest: float) -> Drawing:
    """Put the ranks below each other, in columns."""
    heights = [max(place.height for place in rank) for rank in ranks]
    top = left = bottom = 0.0
    boxes: dict[str, Box] = {}
    where: dict[_Place, tuple[float, float, float]] = {}  # x, top, bottom
    turns: dict[int, _Turn] = {}  # after a rank
    for ranks_of_column in _cut(ranks, heights, tallest):
        column = ranks[ranks_of_column]
        shift = left - min(place.x - place.width / 2 for rank in column for place in rank)
        crossing = turns.get(ranks_of_column.start - 1)
        top = len(crossing.order) * TRACK + RANK_GAP / 2 if crossing else 0.0
        for i, rank in enumerate(column, ranks_of_column.start):
            for place in rank:
                x, middle = place.x + shift, top + heights[i] / 2
                where[place] = x, middle - place.height / 2, middle + place.height / 2
                if place.name:
                    boxes[place.name] = Box(x - place.width / 2, where[place][1], place.width, place.height)
                else:
                    where[place] = x, top, top + heights[i]
            top += heights[i] + RANK_GAP
        right = max(place.x + place.width / 2 for rank in column for place in rank) + shift
        last = ranks_of_column.stop - 1
        turns[last] = turn = _Turn([place for place in ranks[last] if place.below], top - RANK_GAP / 2, right)
        tracks = len(turn.order) if last + 1 < len(ranks) else 0
        bottom = max(bottom, top - RANK_GAP + (tracks * TRACK + RANK_GAP / 2 if tracks else 0.0))
        left = right + COLUMN_GAP + tracks * TRACK if tracks else right
    lines = [tuple(_line(path, where, turns)) for path in paths]
    return Drawing(boxes, lines, left, bottom)


@dataclass(frozen=True)
class _Turn:
    """Where lines leave a column for the next one. order: places of the last rank with lines, from left to right."""

    order: list[_Place]
    bottom: float
    right: float

    def points(self, place: _Place, start: float, end: float) -> Iterator[Point]:
        """The line of `place` from x = start to the top of the next column at x = end, beside the other lines."""
        track = (len(self.order) - 1 - self.order.index(place)) * TRACK
        low, across, high = self.bottom + track, self.right + COLUMN_GAP / 2 + track, track
        yield from ((start, low), (across, low), (across, high), (end, high))


def _cut(ranks: list[list[_Place]], heights: Sequence[float], tallest: float) -> Iterator[slice]:
    """The ranks of each column: about equally tall, cut where few lines pass."""
    total = sum(heights) + RANK_GAP * len(ranks)
    count = max(1, round(total / tallest + 0.3))
    start, drawn, first = 0, 0.0, 0.0
    candidates: list[tuple[float, int]] = []
    for i, height in enumerate(heights):
        drawn += height + RANK_GAP
        remaining = (total - first) / count
        lines = sum(1 for place in ranks[i] if place.below)
        candidates.append((lines + 6 * abs(drawn - first - remaining) / remaining, i))
        if count > 1 and drawn - first > 1.2 * remaining:
            end = min(candidates)[1] + 1
            yield slice(start, end)
            first = sum(heights[:end]) + RANK_GAP * end
            start, count = end, count - 1
            candidates = [c for c in candidates if c[1] >= end]
    yield slice(start, len(ranks))


def _line(
    path: Sequence[_Place], where: Mapping[_Place, tuple[float, float, float]], turns: Mapping[int, _Turn]
) -> Iterator[Point]:
    """The points of an edge. It leaves and reaches a node opposite to the next place, as far as the node is wide."""
    for upper, lower in pairwise(path):
        (upper_x, _, bottom), (lower_x, top, _) = where[upper], where[lower]
        turn = turns.get(upper.rank)
        start, end = (
            _port(upper, upper_x, upper_x if turn else lower_x),
            _port(lower, lower_x, lower_x if turn else upper_x),
        )
        yield start, bottom
        if turn:
            yield from turn.points(upper, start, end)
        yield end, top


def _port(place: _Place, x: float, target: float) -> float:
    reach = max(place.width / 2 - PORT, 0.0)
    return min(max(target, x - reach), x + reach)
