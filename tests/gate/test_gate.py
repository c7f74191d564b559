"""No container is wrong in silence."""

import json
from collections import Counter

import pytest

from gate import cells
from gate.cells import CANNOT, DIFFERS, OUTCOMES, TRACEBACK
from gate.containers import CONTAINERS
from gate.page import PAGE, page
from gate.samples import SITUATIONS
from singa_dask.data.sharding import FORMATS

KNOWN = json.loads(OUTCOMES.read_text(encoding="utf-8"))


@pytest.mark.parametrize("container", CONTAINERS, ids=lambda container: container.name)
def test_a_container_is_kept_converted_or_refused(container):
    found = {situation.name: cells.outcome(container, situation) for situation in SITUATIONS}
    assert found == KNOWN[container.name], "look at each change, then run `python -m gate --write`"


def test_the_page_is_that_of_the_outcomes():
    assert PAGE.read_text(encoding="utf-8") == page(KNOWN), "run `python -m gate --write`"


def test_nothing_is_wrong_in_silence():
    wrong = {
        (container, situation): outcome
        for container, of in KNOWN.items()
        for situation, outcome in of.items()
        if outcome.startswith((DIFFERS, TRACEBACK))
    }
    assert not wrong


def test_every_format_has_a_column_and_most_cells_can_exist():
    assert {container.format for container in CONTAINERS if container.format} == FORMATS.keys()
    assert len(CONTAINERS) >= 15 and len(SITUATIONS) >= 25
    assert {situation.entry for situation in SITUATIONS} == set(cells.ENTRIES)
    counts = Counter(outcome.startswith(CANNOT) for of in KNOWN.values() for outcome in of.values())
    assert counts[True] <= (counts[True] + counts[False]) / 4
