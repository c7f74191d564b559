"""What a nanny holds, of several runs."""

import asyncio
import os
from types import SimpleNamespace

import pytest

from singa_dask.cluster import held
from singa_dask.cluster.held import Owner
from singa_dask.comm.shared_memory import Memory


@pytest.fixture
def nanny(monkeypatch):
    monkeypatch.setattr(held, "_held", type(held._held)(dict))
    return SimpleNamespace(address="nanny")


def hold(nanny, run, generation=1, *, own=True, only=False, orphan_s=60.0):
    memory = Memory.create(64)
    owner = Owner(f"{run}/folder#1", "server group 0", generation, 0, 1, os.getpid())
    return held._hold(owner, b"", [memory.address], only, orphan_s, own, nanny)


def runs(nanny):
    return sorted((owner.run[0], owner.generation) for owner in held._held[nanny.address])


def test_a_run_whose_worker_another_run_has_taken_may_still_go_on_from_memory(nanny):
    """It has just lost a process, say, and forms again on others."""

    async def play():
        assert hold(nanny, "a", orphan_s=0.05) and hold(nanny, "b", orphan_s=0.05)
        assert runs(nanny) == [("a", 1), ("b", 1)]
        await asyncio.sleep(0.1)
        assert runs(nanny) == [("b", 1)], "its process lives, but is of another run by now"

    asyncio.run(play())


def test_memory_of_another_worker_of_the_machine_stays(nanny):
    async def play():
        hold(nanny, "a", own=False, orphan_s=0.05)
        hold(nanny, "b", orphan_s=0.05)
        hold(nanny, "a", own=False, orphan_s=0.05)
        await asyncio.sleep(0.1)
        assert runs(nanny) == [("a", 1), ("b", 1)]

    asyncio.run(play())


def test_former_generations_stay_until_all_processes_of_the_group_have_theirs(nanny):
    async def play():
        hold(nanny, "a", 1), hold(nanny, "b", 1), hold(nanny, "a", 2)
        assert runs(nanny) == [("a", 1), ("a", 2), ("b", 1)]
        hold(nanny, "a", 2, only=True)
        assert runs(nanny) == [("a", 2), ("b", 1)]

    asyncio.run(play())


def test_memory_that_is_gone_is_not_held(nanny):
    async def play():
        memory = Memory.create(64)
        address = memory.address
        del memory
        owner = Owner("a/folder#1", "server group 0", 1, 0, 1, os.getpid())
        assert not held._hold(owner, b"", [address], False, 60.0, True, nanny) and runs(nanny) == []

    asyncio.run(play())
