"""The transitions of a run and of its members. test_state_properties.py plays that no events lead outside of them."""

from itertools import product

import pytest

from singa_dask.supervision.phases import (
    TRANSITIONS,
    CheckpointSearch,
    Course,
    Lead,
    Operation,
    Phase,
    Status,
    Track,
    moved,
)

KINDS = (Phase, Course, Operation, Status, CheckpointSearch, Lead)


@pytest.mark.parametrize("kind", KINDS)
def test_every_phase_is_reached_from_the_first_and_only_the_last_is_final(kind):
    first, *_, last = kind
    own = {(before, after) for (before, _), after in TRANSITIONS.items() if isinstance(before, kind)}
    assert all(isinstance(after, kind) for _, after in own)
    reached = {first}
    for _ in kind:
        reached |= {after for before, after in own if before in reached}
    assert reached == set(kind)
    final = {phase for phase in kind if phase not in {before for before, _ in own}}
    assert final == ({last} if kind in (Phase, Course) else set())


@pytest.mark.parametrize("kind", KINDS)
def test_there_is_no_other_way(kind):
    events = {what for of, what in TRANSITIONS if isinstance(of, kind)}
    for phase, what in {*product(kind, events)} - {*TRANSITIONS}:
        track = Track(phase)
        with pytest.raises(KeyError):
            track.move(what)
        assert track.phase is phase


def test_a_move_is_to_the_phase_of_the_table():
    assert moved(Lead.TOLD, "restart") is Lead.MISTAKEN
