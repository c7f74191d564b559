"""Whose saved state is, how recent it is, and where it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from singa_dask.comm.shared_memory import MemoryAddress
from singa_dask.memory.region import RegionsAddress

WORKERS, SERVERS, CHECKPOINT = "worker group", "server group", "checkpoint"


@dataclass(frozen=True)
class Owner:
    """Process `rank` of `size` of a group. kind: WORKERS or SERVERS, or CHECKPOINT for that of the whole run."""

    kind: str
    group: int = 0
    rank: int = 0
    size: int = 1

    @property
    def name(self) -> str:
        """Of the group, as the driver calls it."""
        return f"{self.kind} {self.group}"


@dataclass(frozen=True)
class Version:
    """How recent saved state is.

    run: the key of a start of the run. generation: of the group, growing from one start to the next. number: 0 for
    what the process itself writes; else of what it has others write: of a replica, or the step of a checkpoint.
    """

    run: str
    generation: int
    number: int = 0


Place: TypeAlias = tuple[Owner, Version]


@dataclass(frozen=True)
class Saved:
    """Saved state, as a successor of its owner finds it.

    regions: where it is; without layouts, the memory has plain bytes. model: identifies what is trained, on what, and
    how it is cut. note: what a successor must know besides, by the kind of the owner. holder: the nanny that holds the
    memory, once it does. succeeded: whether all processes of the group had theirs, so that it has taken over from
    former ones.
    """

    owner: Owner
    version: Version
    regions: tuple[RegionsAddress, ...]
    model: int = 0
    note: Any = None
    holder: str = ""
    succeeded: bool = False

    @property
    def place(self) -> Place:
        """By which it is found."""
        return self.owner, self.version

    @property
    def memories(self) -> tuple[MemoryAddress, ...]:
        """All memory that it takes."""
        return tuple(each.memory for each in self.regions)

    @property
    def nbytes(self) -> int:
        """Bytes of all memory."""
        return sum(memory.nbytes for memory in self.memories)

    def moved(self, memories: Sequence[MemoryAddress], holder: str) -> Saved:
        """The same, held by another process."""
        moved = zip(self.regions, memories, strict=True)
        return replace(self, regions=tuple(replace(of, memory=memory) for of, memory in moved), holder=holder)


def same_run(one: str, other: str) -> bool:
    """Whether two keys are of starts of one run.

    >>> same_run("digits/runs/digits#5e6f.1a2b", "digits/runs/digits#5e6f.3c4d")
    True
    """
    return one.rpartition(".")[0] == other.rpartition(".")[0]


def same_owner(one: Place, other: Place) -> bool:
    """Whether both are of one process of one start, or checkpoints of one run."""
    (owner, version), (other_owner, of) = one, other
    runs = version.run, of.run
    return owner == other_owner and (same_run(*runs) if owner.kind == CHECKPOINT else version.run == of.run)


def outlived(former: Place, by: Place) -> bool:
    """Whether former state is not needed any more, as later state has succeeded.

    What a process itself has saved succeeds that of all former generations of the group. A server has one replica, the
    last, and a run one checkpoint, whatever start it is of.
    """
    (owner, version), (of, before) = by, former
    if version.number:
        later = (before.generation, before.number) < (version.generation, version.number)
        return bool(before.number) and later and same_owner(former, by)
    same_group = (of.kind, of.group, before.run) == (owner.kind, owner.group, version.run)
    return same_group and before.generation < version.generation
