"""Worker groups, server groups and what they leave, which only say that they are there."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from singa_dask.cluster import GroupFailed, RankFailure, WorkerInfo
from singa_dask.comm.shared_memory import MemoryAddress
from singa_dask.errors import ClusterError
from singa_dask.memory.owner import CHECKPOINT, SERVERS, Owner, Saved, Version
from singa_dask.memory.region import RegionsAddress
from singa_dask.training.checkpoint import Found

if TYPE_CHECKING:
    from support.supervised import Run


def deposit(content: Any = None, nbytes: int = 8, holder: str = "") -> Saved:
    """A checkpoint in the memory of a nanny."""
    where = (RegionsAddress(MemoryAddress(0, 0, 0, nbytes), ()),)
    return Saved(Owner(CHECKPOINT), Version("run", 1, 1), where, note=content, holder=holder)


def in_file(path: Path) -> tuple[Saved, ...]:
    """A checkpoint in a file."""
    return (Saved(Owner(CHECKPOINT), Version("", 0, 1), (), holder=str(path)),)


def found(step: int, *deposits: Saved) -> Found:
    """A checkpoint: on the disk, or in memory."""
    of = Found(step, {}, {})
    return replace(of, copies=deposits or tuple(replace(at, note=of) for at in in_file(Path(f"step-{step}.h5"))))


def left_by(group: int, generation: int, *replicas: int) -> dict[str, tuple[Saved, ...]]:
    """What the servers of a group have left, each in its own memory (0) or in this replica."""
    address = RegionsAddress(MemoryAddress(0, 0, 0, 0), ())
    size = len(replicas)
    owners = (Owner(SERVERS, group, rank, size) for rank in range(size))
    versions = (Version("run", generation, number) for number in replicas)
    return {f"server group {group}": tuple(map(partial(Saved, regions=(address,)), owners, versions))}


def failed(exception: Exception | None = None, **about: Any) -> GroupFailed:
    """What a group raises whose rank 0 died, or raised `exception`."""
    return GroupFailed("group", RankFailure(0, WorkerInfo("w1"), "its process died", exception, **about))


class Group:
    """The ranks of a worker group. told: what they have heard; log: what else was done to them. poll: for a
    Supervisor; the lead ends when it hears that the others have."""

    def __init__(self, run, where, plan, in_use_s=None):
        self.run, self.plan, self.addresses, self.in_use_s = run, plan, tuple(where), in_use_s
        self.workers = tuple(run.there[address] for address in where)
        self.told, self.log, self.replaced, self.cancelled = [], [], {}, set()
        self.poll, self.looks = lambda: plan.group.number > 0, dict
        self.results = lambda: [{"step": 10, "of": "the first rank"}, {"step": 10}]

    def tell(self, name, value):
        self.told.append((name, value))
        if name == "others ended":
            self.poll = lambda: True
        return self.run.hears

    def stop(self):
        self.log.append("stop")
        self.poll = lambda: True

    def leave_after_step(self):
        self.tell("regroup", True)

    def abort(self, reason):
        self.log.append("abort")
        for address in self.addresses:
            if address in self.run.stuck and self.run.there[address].nanny:
                self.replaced[address] = self.run.there[address].pid

    def close(self):
        self.log.append("close")
        self.run.groups = [group for group in self.run.groups if group is not self]

    def replace_processes(self):
        self.log.append("replace")


@dataclass(eq=False)
class Servers:
    """A server group. parameters: where it has them from; met: the generation of the right one that it met."""

    run: Run
    number: int
    generation: int
    where: tuple[str, ...]
    plans: list[Any]
    parameters: str = "workers"
    met: int = 0
    stopped: bool = False
    dismissed: list[tuple[int, int]] = field(default_factory=list)
    replicas: list[str] = field(default_factory=list)

    @property
    def addresses(self):
        return tuple(f"{address}/{self.number}/{self.generation}" for address in self.where)

    def meet(self, right):
        assert right.number == self.number + 1 and not right.stopped and not self.stopped
        self.met = right.generation

    def take_over(self, neighbour):
        assert abs(neighbour.number - self.number) == 1 and not neighbour.stopped
        self.parameters = f"server group {neighbour.number}"

    def hand_on(self, neighbour):
        neighbour.take_over(self)

    def replicate(self, nannies):
        assert len(nannies) == len(self.where)
        self.replicas = list(nannies)

    def settle(self):
        return self.run.keeps

    def replica_lost(self, rank, replica, nanny):
        self.replicas[rank] = nanny

    def dismiss(self, group, generation):
        self.dismissed.append((group, generation))
        raise ClusterError("lost too")

    def flush(self):
        assert not self.stopped

    def stop(self):
        self.stopped = True
