"""The drawing of a directed graph without cycles: nodes below each other in columns, lines to others beside them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

Point = tuple[float, float]
Size = tuple[float, float]

GAP = 20.0  # between two nodes
MARGIN = 16.0  # between a column and the lines beside it
TRACK = 7.0  # between two lines that run side by side
PORT = 10.0  # from the top of a node to where lines reach it, and from its bottom to where they leave it
FROM_LEFT = -4.0  # to where lines from another column reach a node, so that they lie on none that end there


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
    """boxes: of the nodes. lines: of the edges, as points, which are joined by horizontal and vertical lines."""

    boxes: dict[str, Box]
    lines: list[tuple[Point, ...]]
    width: float
    height: float


def draw(sizes: Mapping[str, Size], edges: Sequence[tuple[str, str]], tallest: float) -> Drawing:
    """Place the nodes, given in topological order. edges: (source, target).

    A drawing that would be taller than `tallest` continues in further columns. A line runs straight to the node below;
    to others in a track between the columns, which all lines of its source share, and over columns that it passes.
    """
    columns = _cut(_order(sizes, edges), sizes, tallest)
    column_of = {name: column for column, names in enumerate(columns) for name in names}
    straight = {pair for names in columns for pair in pairwise(names)}
    far = list(dict.fromkeys(source for source, target in edges if column_of[target] > column_of[source] + 1))
    over = {source: TRACK * i for i, source in enumerate(far)}
    tops = {}
    for names in columns:
        top = TRACK * len(far)
        for name in names:
            tops[name], top = top, top + sizes[name][1] + GAP
    used: dict[tuple[str, int], list[float]] = {}  # the heights of a source's lines, by the column left of them
    for source, target in edges:
        if (source, target) not in straight:
            here, there = column_of[source], max(column_of[source], column_of[target] - 1)
            passing = [over[source]] if there > here else []
            used.setdefault((source, here), []).extend([tops[source] + sizes[source][1], *(passing or [tops[target]])])
            used.setdefault((source, there), []).extend([*passing, tops[target]])
    tracks = _tracks(used)
    left, boxes, right_of = 0.0, dict[str, Box](), list[float]()
    for column, names in enumerate(columns):
        widest = max(sizes[name][0] for name in names)
        for name in names:
            width, height = sizes[name]
            boxes[name] = Box(left + (widest - width) / 2, tops[name], width, height)
        right_of.append(left + widest + MARGIN)
        count = max((track + 1 for (_, place), track in tracks.items() if place == column), default=0)
        left = right_of[-1] + TRACK * max(0, count - 1) + MARGIN

    def track(source: str, column: int) -> float:
        return right_of[column] + TRACK * tracks[source, column]

    def line(source: str, target: str) -> tuple[Point, ...]:
        start, end = boxes[source], boxes[target]
        if (source, target) in straight:
            return (start.x, start.bottom), (end.x, end.top)
        here, there = column_of[source], max(column_of[source], column_of[target] - 1)
        leaves, reaches = start.bottom - PORT, end.top + PORT
        first, last = track(source, here), track(source, there)
        passing = [(first, over[source]), (last, over[source])] if there > here else []
        side = end.right
        if there < column_of[target]:
            side, reaches = end.left, reaches + FROM_LEFT
        return (start.right, leaves), (first, leaves), *passing, (last, reaches), (side, reaches)

    lines = [line(*edge) for edge in edges]
    width = max((x for points in lines for x, _ in points), default=0.0)
    width, height = max([width, *(box.right for box in boxes.values())]), max(box.bottom for box in boxes.values())
    return Drawing(boxes, lines, width, height)


def _order(names: Iterable[str], edges: Sequence[tuple[str, str]]) -> list[str]:
    """Sources before what reads them, and a node right below one of its sources where that can be."""
    waiting = {name: {source for source, target in edges if target == name} for name in names}
    order: dict[str, None] = {}
    last = ""
    while waiting:
        ready = [name for name, sources in waiting.items() if sources <= order.keys()]
        last = next((name for name in ready if last in waiting[name]), ready[0])
        del waiting[last]
        order[last] = None
    return list(order)


def _cut(order: Sequence[str], sizes: Mapping[str, Size], tallest: float) -> list[list[str]]:
    """Columns that are about equally tall."""
    total, drawn = sum(sizes[name][1] + GAP for name in order), 0.0
    columns: list[list[str]] = [[] for _ in range(max(1, round(total / tallest + 0.3)))]
    for name in order:
        columns[int(len(columns) * drawn / total)].append(name)
        drawn += sizes[name][1] + GAP
    return columns


def _tracks(used: Mapping[tuple[str, int], Sequence[float]]) -> dict[tuple[str, int], int]:
    """The track of each source in each place: the first one that nobody else uses at these heights. The shortest lines
    come first, nearest to their column."""
    taken: dict[tuple[int, int], list[tuple[float, float]]] = {}
    tracks = {}
    for (source, column), heights in sorted(used.items(), key=lambda item: max(item[1]) - min(item[1])):
        low, high, track = min(heights), max(heights), 0
        while any(low < other[1] and other[0] < high for other in taken.get((column, track), ())):
            track += 1
        taken.setdefault((column, track), []).append((low, high))
        tracks[source, column] = track
    return tracks
