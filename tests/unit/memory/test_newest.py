"""Which saved state a run continues from: what must hold for whatever nannies hold."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from singa_dask.comm.shared_memory import MemoryAddress
from singa_dask.memory.newest import Newest, complete, newest
from singa_dask.memory.owner import CHECKPOINT, SERVERS, WORKERS, Owner, Saved, Version, outlived
from singa_dask.memory.region import RegionsAddress

RUN, START = "job/folder#id", "job/folder#id.2"
RUNS = [START, f"{RUN}.0", f"{RUN}.1", "job/folder#other.3"]
GROUPS = [(SERVERS, 0), (SERVERS, 1), (WORKERS, 0)]
SIZE = 2


def saved(kind, group, rank, run, generation, number, holder="nanny", model=0):
    owner = Owner(kind, group, rank, 1 if kind == CHECKPOINT else SIZE)
    where = (RegionsAddress(MemoryAddress(0, 0, 0, 8), ()),)
    return Saved(owner, Version(run, generation, number), where, model, holder=holder)


@st.composite
def holdings(draw):
    """What nannies list of some starts of two runs: of a generation, more or fewer of the processes."""
    listed = []
    for run in draw(st.lists(st.sampled_from(RUNS), unique=True, max_size=4)):
        first = 10 * RUNS.index(run)
        for (kind, group), at in product(GROUPS, range(2)):
            numbers = draw(st.lists(st.lists(st.integers(0, 2), unique=True, max_size=2), min_size=2, max_size=2))
            succeeded = draw(st.integers(0, 7)) == 0
            for rank, of in enumerate(numbers):
                listed += [
                    replace(saved(kind, group, rank, run, first + at, number), succeeded=succeeded) for number in of
                ]
        for at, number in draw(st.lists(st.tuples(st.integers(0, 1), st.integers(1, 3)), unique=True, max_size=3)):
            model = draw(st.integers(0, 3))
            listed += [saved(CHECKPOINT, 0, 0, run, first + at, number, nanny, model) for nanny in ("near", "far")]
    return draw(st.permutations(listed))


FILES = st.sampled_from([(), *((replace(saved(CHECKPOINT, 0, 0, "", 0, number), regions=()),) for number in (1, 2))])


def fits(saved):
    return saved.model != 3


def check(listed: list[Saved], earlier: bool, files: tuple[Saved, ...], found: Newest) -> None:
    """What must hold."""
    ours = [each for each in listed if each.version.run in (RUNS[:3] if earlier else [START])]
    state = [each for each in ours if each.owner.kind != CHECKPOINT]
    copies = {(each.version, each.holder) for each in ours if each.owner.kind == CHECKPOINT and fits(each)}
    last = max(((of.generation, of.number) for of, _ in copies), default=None)
    told = {(of.version, of.holder) for of in found.checkpoint}
    in_memory = {copy for copy in copies if (copy[0].generation, copy[0].number) == last}
    ahead = in_memory and max(of.number for of, _ in in_memory) > max((of.version.number for of in files), default=0)
    assert told == (in_memory if ahead else {(of.version, of.holder) for of in files})

    def sets(run, name):
        """The generations of which there is everything."""
        there = {
            (of.version.generation, of.owner.rank) for of in state if (of.version.run, of.owner.name) == (run, name)
        }
        return {generation for generation, _ in there if {(generation, rank) for rank in range(SIZE)} <= there}

    def named(run):
        return {of.owner.name for of in state if of.version.run == run}

    runs, names = {of.version.run for of in state}, {of.owner.name for of in state}
    whole = {run for run in runs if all(sets(run, name) for name in names)}
    usable = whole | {each.version.run for each in ours if each.succeeded}
    assert bool(found.run) == bool(usable), "none only if there is none"
    if not found.run:
        return
    assert found.run == (START if START in usable else max(usable)), "the last start that counts"
    assert found.groups.keys() == {name for name in named(found.run) if sets(found.run, name)}
    assert found.groups.keys() | {*found.torn} == named(found.run) and not found.groups.keys() & {*found.torn}
    for name, images in found.groups.items():
        assert [of.owner.rank for of in images] == list(range(SIZE)), "of each process one"
        assert {(of.version.run, of.owner.name) for of in images} == {(found.run, name)}
        assert {of.version.generation for of in images} == {max(sets(found.run, name))}, "the last that is complete"
        for of in images:
            others = [
                each.version.number
                for each in state
                if replace(each.version, number=0) == replace(of.version, number=0) and each.owner == of.owner
            ]
            assert of.version.number == (0 if 0 in others else max(others)), (
                "what it wrote itself, or its last replica"
            )


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(holdings(), st.booleans(), FILES)
def test_what_a_run_continues_from_is_complete_its_own_and_the_newest(listed, earlier, files):
    check(listed, earlier, files, newest(listed, START, earlier=earlier, files=files, fits=fits))


@pytest.mark.parametrize(
    ("numbers", "options", "found"),
    [
        ((0, 2), {}, True),
        ((0, 2), {"since": 7}, True),
        ((0, 2), {"since": 8}, False),
        ((0, 2), {"outdated": {(7, 1): 2}}, False),
        ((0, 3), {"outdated": {(7, 1): 2}}, True),
        ((0, 2), {"outdated": {(7, 0): 2}}, True),
        ((0, 2), {"outdated": {(6, 1): 2}}, True),
    ],
    ids=["all", "of this generation", "too old", "lost replica", "the next one", "of itself", "of another generation"],
)
def test_state_that_is_too_old_does_not_count_nor_do_replicas_that_are_lost(numbers, options, found):
    images = [saved(SERVERS, 0, rank, START, 7, number) for rank, number in enumerate(numbers)]
    assert complete(images, **options) == (tuple(images) if found else ())


LATER = {"memory": (SERVERS, 0, 1, START, 7, 0), "replica": (SERVERS, 0, 1, START, 7, 3)}
LATER["checkpoint"] = (CHECKPOINT, 0, 0, START, 7, 3)


@pytest.mark.parametrize(
    ("later", "former", "gone"),
    [
        ("memory", (SERVERS, 0, 0, START, 6, 0), True),
        ("memory", (SERVERS, 0, 0, START, 6, 2), True),
        ("memory", (SERVERS, 0, 0, START, 7, 0), False),
        ("memory", (SERVERS, 0, 0, START, 8, 0), False),
        ("memory", (SERVERS, 1, 1, START, 6, 0), False),
        ("memory", (WORKERS, 0, 1, START, 6, 0), False),
        ("memory", (SERVERS, 0, 1, RUNS[1], 6, 0), False),
        ("replica", (SERVERS, 0, 1, START, 7, 2), True),
        ("replica", (SERVERS, 0, 1, START, 6, 4), True),
        ("replica", (SERVERS, 0, 1, START, 7, 4), False),
        ("replica", (SERVERS, 0, 1, START, 6, 0), False),
        ("replica", (SERVERS, 0, 0, START, 6, 2), False),
        ("replica", (SERVERS, 0, 1, RUNS[1], 6, 2), False),
        ("checkpoint", (CHECKPOINT, 0, 0, START, 7, 2), True),
        ("checkpoint", (CHECKPOINT, 0, 0, RUNS[1], 6, 9), True),
        ("checkpoint", (CHECKPOINT, 0, 0, START, 7, 4), False),
        ("checkpoint", (CHECKPOINT, 0, 0, RUNS[3], 6, 2), False),
    ],
)
def test_what_is_not_needed_once_later_state_has_succeeded(later, former, gone):
    assert outlived(saved(*former).place, saved(*LATER[later]).place) == gone
