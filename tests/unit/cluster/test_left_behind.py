"""What nannies hold of several starts of a run, and which of it counts."""

import asyncio
import os
import pickle
from types import SimpleNamespace

import pytest

from singa_dask.cluster import held
from singa_dask.cluster.held import Owner, left_behind, let_go
from singa_dask.comm.shared_memory import Memory
from singa_dask.server import KeptServer, ShadowAddress

RUN = "job/folder#id"
FIRST, SECOND, THIRD = (f"{RUN}.{start}" for start in range(3))


@pytest.fixture
def nannies(monkeypatch):
    """Two nannies; what is asked of them is done at once."""
    monkeypatch.setattr(held, "_held", type(held._held)(dict))
    nannies = {name: SimpleNamespace(address=name) for name in ("n0", "n1")}
    answers = lambda client, function, args, timeout_s: {  # noqa: E731
        name: function(*given, dask_worker=nannies[name]) for name, given in args.items()
    }
    monkeypatch.setattr(held, "ask_nannies", answers)
    return nannies


def hold(nannies, run, generation, group=0, ranks=(0, 1), *, settled=True):
    """Nanny i holds what server i of a group of two has left."""

    async def play():
        for rank in ranks:
            memory = Memory.create(64)
            described = KeptServer(rank, 2, generation, ShadowAddress(memory.address, (), (), ""))
            owner = Owner(run, f"server group {group}", generation, rank, 2, os.getpid())
            args = owner, pickle.dumps(described), [memory.address], settled, 60.0, True
            assert held._hold(*args, nannies[f"n{rank}"])

    asyncio.run(play())


def found(run=THIRD, *, earlier=True):
    left = left_behind(None, ["n0", "n1"], run, earlier=earlier)
    return left.run, {name: [kept.generation for kept in group] for name, group in left.groups.items()}, left.torn


def test_the_newest_start_counts_if_earlier_ones_do_at_all(nannies):
    hold(nannies, SECOND, 11)
    hold(nannies, FIRST, 1)
    assert found() == (SECOND, {"server group 0": [11, 11]}, ())
    assert found(earlier=False) == ("", {}, ())


def test_of_another_run_in_the_same_folder_nothing_counts(nannies):
    hold(nannies, "job/folder#other.5", 1)
    assert found() == ("", {}, ())


def test_a_start_that_was_lost_before_all_its_servers_were_there_has_left_nothing(nannies):
    """Neither has it acknowledged anything."""
    for group in (0, 1):
        hold(nannies, FIRST, 1, group)
    hold(nannies, SECOND, 11, 0, settled=False)
    hold(nannies, SECOND, 11, 1, (0,), settled=False)
    assert found() == (FIRST, {"server group 0": [1, 1], "server group 1": [1, 1]}, ())
    hold(nannies, SECOND, 11, 1, (1,), settled=False)
    assert found()[0] == SECOND, "all are there, with the same parameters"


def test_what_is_torn_is_not_replaced_by_older_memory(nannies):
    """Accounts of neighbours would not fit."""
    for group in (0, 1):
        hold(nannies, FIRST, 1, group)
    hold(nannies, SECOND, 11, 0)
    hold(nannies, SECOND, 12, 1, (1,))
    assert found() == (SECOND, {"server group 0": [11, 11]}, ("server group 1",))


def test_memory_that_is_held_again_stays_settled(nannies):
    hold(nannies, FIRST, 1)
    hold(nannies, FIRST, 1, settled=False)
    hold(nannies, SECOND, 11, ranks=(0,), settled=False)
    assert found()[0] == FIRST


def test_one_start_is_let_go_or_all_others_of_the_run(nannies):
    for run, generation in ((FIRST, 1), (SECOND, 11), (THIRD, 21), ("job/folder#other.5", 1)):
        hold(nannies, run, generation)
    let_go(None, ["n0", "n1"], THIRD, own=False, earlier=True)
    assert {owner.run for owner in held._held["n0"]} == {THIRD, "job/folder#other.5"}
    let_go(None, ["n0", "n1"], THIRD)
    assert {owner.run for owner in held._held["n1"]} == {"job/folder#other.5"}
