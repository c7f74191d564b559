"""Drawn samples: two containers that take them make the same shards."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gate.cells import SAME, compared, taken
from gate.containers import CONTAINERS
from gate.samples import Situation

N = 12
TABLES = [each for each in CONTAINERS if "numbers" not in each.lacks]
FIELDS = [each for each in TABLES if "images" not in each.lacks]
WORDS = st.text("abcxyz é,;'", min_size=1, max_size=6).filter(lambda text: text.strip() == text)
# Of each kind, what a container must be able to hold.
KINDS = {
    "integer": (st.integers(-(2**15), 2**15 - 1), ("int16", "int32", "int64"), ()),
    "number": (st.integers(-800, 800).map(lambda eighths: eighths / 8), ("float32", "float64"), ()),
    "holes": (st.sampled_from([0.5, 1.5, float("nan")]), ("float64",), ("missing",)),
    "truth": (st.booleans(), ("bool",), ("columns",)),
    "text": (WORDS, ("object",), ("text",)),
    "date": (st.integers(0, 40_000).map(lambda day: np.datetime64(day, "D")), ("datetime64[s]",), ("date",)),
}


def lists(values):
    return st.lists(values, min_size=N, max_size=N)


@st.composite
def tables(draw):
    """A table of a few columns of any kind, what it needs, and the options of a table with holes."""
    columns, needs = {}, []
    for place in range(draw(st.integers(1, 3))):
        values, types, needed = KINDS[draw(st.sampled_from(sorted(KINDS)))]
        columns[f"col{place}"] = pd.Series(draw(lists(values)), dtype=draw(st.sampled_from(types)))
        needs += needed
    answers = draw(lists(st.integers(0, 3)))
    options = {"missing": draw(st.sampled_from([0.0, "mean"]))} if "missing" in needs else {}
    return Situation("drawn", "shard", pd.DataFrame(columns), np.array(answers), (*needs, "numbers"), options=options)


@st.composite
def images(draw):
    """Images with one, three or four channels, first or last."""
    sizes = draw(st.lists(st.integers(5, 9), min_size=2, max_size=2, unique=True))
    pixels = np.random.default_rng(draw(st.integers(0, 99))).integers(
        0, 255, (N, *sizes, draw(st.sampled_from([1, 3])))
    )
    x = pixels.astype(draw(st.sampled_from(["uint8", "int32", "float32", "float64"])))
    first = draw(st.booleans())
    return Situation("drawn", "shard", x.transpose(0, 3, 1, 2) if first else x, np.arange(N) % 3, ("images",))


def check(draw_from, pair, situation):
    holding = [draw_from[place] for place in pair if not draw_from[place].lacks.keys() & set(situation.needs)]
    made = [(container, taken(container, situation)) for container in holding]
    for container, found in made[1:]:
        (first, reference), *_ = made
        if not isinstance(found, str) and not isinstance(reference, str):
            assert compared(found, reference, first.name).startswith(SAME), (container.name, first.name)


quick = settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@pytest.mark.filterwarnings("ignore")
@quick
@given(st.lists(st.integers(0, len(TABLES) - 1), min_size=3, max_size=3, unique=True), tables())
def test_tables_are_the_same_from_any_container(pair, situation):
    check(TABLES, pair, situation)


@pytest.mark.filterwarnings("ignore")
@quick
@given(st.lists(st.integers(0, len(FIELDS) - 1), min_size=2, max_size=2, unique=True), images())
def test_images_are_the_same_from_any_container(pair, situation):
    check(FIELDS, pair, situation)
