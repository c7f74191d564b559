"""Nodes in columns; no line crosses a node."""

from itertools import combinations, pairwise

import pytest

from singa_dask.monitor.columns import draw

CHAIN = ["data", *(f"l{i}" for i in range(28)), "loss"]
RESIDUAL = [("x", "a1"), ("a1", "a2"), ("a2", "s"), ("x", "s"), ("s", "b1"), ("b1", "t"), ("s", "t")]
BRANCHES = [("x", name) for name in "abc"] + [(name, "cat") for name in "abc"] + [("cat", "l1"), ("cat", "l2")]
GRAPHS = {
    "chain": [*pairwise(CHAIN), ("data", "loss")],
    "residual": RESIDUAL,
    "branches": [*BRANCHES, ("x", "l1"), ("x", "l2")],
    "siamese": [("x1", "a1"), ("x2", "a2"), ("a1", "d"), ("a2", "d")],
}


def drawn(edges, tallest=10_000.0):
    names = dict.fromkeys(name for edge in edges for name in edge)
    return draw({n: (60.0 if len(n) == 1 else 100.0, 30.0) for n in names}, edges, tallest)


def overlap(a, b):
    return a.left < b.right and b.left < a.right and a.top < b.bottom and b.top < a.bottom


@pytest.mark.parametrize("tallest", [10_000.0, 400.0, 120.0])
@pytest.mark.parametrize("graph", GRAPHS)
def test_nothing_overlaps_and_lines_cross_no_node(graph, tallest):
    edges = GRAPHS[graph]
    drawing = drawn(edges, tallest)
    boxes = drawing.boxes.values()
    assert not [pair for pair in combinations(boxes, 2) if overlap(*pair)]
    for (source, target), line in zip(edges, drawing.lines, strict=True):
        (x0, y0), (x1, y1) = line[0], line[-1]
        start, end = drawing.boxes[source], drawing.boxes[target]
        assert (x0, y0) == (start.x, start.bottom) or (x0 == start.right and start.top < y0 < start.bottom)
        assert (x1, y1) == (end.x, end.top) or (x1 in (end.left, end.right) and end.top < y1 < end.bottom)
        for (x0, y0), (x1, y1) in pairwise(line):
            assert x0 == x1 or y0 == y1
            for box in boxes:
                beside = max(x0, x1) <= box.left or min(x0, x1) >= box.right
                assert beside or max(y0, y1) <= box.top or min(y0, y1) >= box.bottom, (source, target)
    for x, y in [point for line in drawing.lines for point in line] + [(box.right, box.bottom) for box in boxes]:
        assert 0 <= x <= drawing.width and 0 <= y <= drawing.height


@pytest.mark.parametrize("graph", GRAPHS)
def test_lines_of_two_sources_share_no_track(graph):
    edges = GRAPHS[graph]
    upright = [
        (source, x0, *sorted((y0, y1)))
        for (source, _), line in zip(edges, drawn(edges, 300.0).lines, strict=True)
        for (x0, y0), (x1, y1) in pairwise(line)
        if x0 == x1 and len(line) > 2
    ]
    for one, other in combinations(upright, 2):
        apart = one[1] != other[1] or one[3] <= other[2] or other[3] <= one[2]
        assert one[0] == other[0] or apart


def test_a_branch_stands_below_its_source_until_it_ends():
    boxes = drawn([("x", "a"), ("x", "b"), ("a", "a2"), ("b", "b2"), ("a2", "sum"), ("b2", "sum")]).boxes
    assert sorted(boxes, key=lambda name: boxes[name].top) == ["x", "a", "a2", "b", "b2", "sum"]


def test_a_tall_graph_continues_in_columns_of_similar_height():
    tall, folded = drawn(GRAPHS["chain"]), drawn(GRAPHS["chain"], 500.0)
    columns = {}
    for box in folded.boxes.values():
        columns.setdefault(round(box.x), []).append(box)
    assert len(columns) == 3
    lengths = [len(column) for column in columns.values()]
    assert max(lengths) - min(lengths) <= 2
    assert folded.height < 0.4 * tall.height
