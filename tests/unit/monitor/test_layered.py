"""Nodes in ranks and columns; no line crosses a node."""

from itertools import combinations, pairwise

import pytest

from singa_dask.monitor.layered import draw

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
    order = []
    while len(order) < len(names):
        order += [n for n in names if n not in order and all(s in order for s, t in edges if t == n)]
    return draw({n: (60.0 if len(n) == 1 else 100.0, 30.0) for n in order}, edges, tallest)


def overlap(a, b):
    return a.left < b.right and b.left < a.right and a.top < b.bottom and b.top < a.bottom


@pytest.mark.parametrize("tallest", [10_000.0, 400.0])
@pytest.mark.parametrize("graph", GRAPHS)
def test_nothing_overlaps_and_lines_cross_no_node(graph, tallest):
    edges = GRAPHS[graph]
    drawing = drawn(edges, tallest)
    assert not [pair for pair in combinations(drawing.boxes, 2) if overlap(*(drawing.boxes[name] for name in pair))]
    for (source, target), line in zip(edges, drawing.lines, strict=True):
        assert line[0][1] == pytest.approx(drawing.boxes[source].bottom)
        assert line[-1][1] == pytest.approx(drawing.boxes[target].top)
        for (x0, y0), (x1, y1) in pairwise(line):
            for box in drawing.boxes.values():
                beside = max(x0, x1) <= box.left or min(x0, x1) >= box.right
                above_or_below = max(y0, y1) <= box.top + 1e-9 or min(y0, y1) >= box.bottom - 1e-9
                assert beside or above_or_below, (source, target)
    for box in drawing.boxes.values():
        assert box.left >= 0 and box.right <= drawing.width + 1e-9 and box.top >= 0 and box.bottom <= drawing.height
    for x, y in (point for line in drawing.lines for point in line):
        assert 0 <= x <= drawing.width + 1e-9 and 0 <= y <= drawing.height + 1e-9


def test_sources_are_above_and_branches_side_by_side():
    boxes = drawn(GRAPHS["branches"]).boxes
    assert boxes["x"].bottom < boxes["a"].top == boxes["b"].top == boxes["c"].top < boxes["cat"].top
    assert boxes["b"].x == pytest.approx(boxes["x"].x) == pytest.approx(boxes["cat"].x)


def test_a_chain_is_straight_beside_the_lines_that_pass_it():
    boxes = drawn(RESIDUAL).boxes
    assert len({round(box.x, 3) for box in boxes.values()}) == 1


def test_a_tall_graph_continues_in_columns_of_similar_height():
    tall, folded = drawn(GRAPHS["chain"]), drawn(GRAPHS["chain"], 500.0)
    columns = {}
    for box in folded.boxes.values():
        columns.setdefault(round(box.x), []).append(box)
    assert len(columns) == 3
    lengths = [len(column) for column in columns.values()]
    assert max(lengths) - min(lengths) <= 2
    assert folded.height < 0.4 * tall.height


def test_crossings_are_removed():
    boxes = drawn([("a", "c"), ("b", "d"), ("d", "u"), ("c", "v")]).boxes
    assert boxes["a"].x == pytest.approx(boxes["c"].x) == pytest.approx(boxes["v"].x)
    assert boxes["b"].x == pytest.approx(boxes["d"].x) == pytest.approx(boxes["u"].x)
