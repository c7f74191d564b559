"""What the driver knows of the Dask workers: which are free, which are being replaced. No IO."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from singa_dask.cluster.gpus import assigned
from singa_dask.ops.gpu.visible import Gpu
from singa_dask.supervision.members import Members
from singa_dask.supervision.phases import Phase

if TYPE_CHECKING:
    from singa_dask.cluster import WorkerInfo


class Processes:
    """The processes of a run. pids: by address, of those that have a nanny; replaced: (address, pid) of those that
    nannies were asked to replace. gpus: of those that have one, by address.

    chosen: from which GPUs its workers get theirs (gpus.chosen); None for a run on CPUs.
    """

    def __init__(self, chosen: Sequence[int] | None = None) -> None:
        self._chosen = chosen
        self.gpus: dict[str, Gpu] = {}
        self.pids: dict[str, int] = {}
        self.replaced: set[tuple[str, int]] = set()
        self._nannies: dict[str, str] = {}
        self._machines: dict[str, str] = {}  # of nannies
        self._latest: set[str] = set()  # nannies whose workers answered the last status request

    def there(
        self, workers: Iterable[WorkerInfo], used: Collection[str] = ()
    ) -> tuple[list[WorkerInfo], dict[str, int]]:
        """The Dask workers to count on, of those that answer, with their GPUs; and the processes, pid by address, that
        answer although they are being replaced, as they may when a cut network is back: their nannies are to be asked
        again. used: those of members, which keep their GPUs."""
        held = {address: self.gpus[address].identity for address in used if address in self.gpus}
        workers = assigned(workers, self._chosen, held)
        back = {info.address: info.pid for info in workers if (info.address, info.pid) in self.replaced}
        there = [info for info in workers if info.address not in back]
        self.gpus = {info.address: info.gpu for info in workers if info.gpu is not None}
        self._nannies |= {info.address: info.nanny for info in there if info.nanny}
        self._machines |= {info.nanny: info.node for info in there if info.nanny}
        self.pids |= {info.address: info.pid for info in there if info.nanny}
        self._latest = {info.nanny for info in there if info.nanny}
        return there, back

    def moved(self, moved: Mapping[str, str]) -> None:
        """Nannies have started processes: old address -> new one."""
        self.gpus |= {new: self.gpus[old] for old, new in moved.items() if old in self.gpus}
        self._nannies |= {new: self._nannies[old] for old, new in moved.items() if old in self._nannies}

    def place(self, address: str) -> str:
        """What starts processes in the place of this one: its nanny. Its own address where it has none."""
        return self._nannies.get(address, address)

    def free(self, there: Iterable[WorkerInfo], members: Members) -> list[WorkerInfo]:
        """The Dask workers that nobody has. Those of what is being formed may come back under unknown addresses."""
        used = members.used()
        forming = {address for m in members.all() if m.phase is Phase.FORMING for address in m.where}
        restarted = {self._nannies.get(address) for address in forming} - {None}
        return [i for i in there if i.address not in used and not i.group and i.nanny not in restarted]

    def suits(self, info: WorkerInfo) -> bool:
        """Whether it can be a worker of this run: on GPUs, those without one can only have servers."""
        return self._chosen is None or info.gpu is not None

    def gpus_of(self, where: Sequence[str]) -> tuple[int | None, ...]:
        """As GroupPlan.gpus: of workers in these processes."""
        if self._chosen is None:
            return ()
        gpus = (self.gpus.get(address) for address in where)
        return tuple(None if gpu is None else gpu.number for gpu in gpus)

    @property
    def nannies(self) -> frozenset[str]:
        """All nannies that were ever seen."""
        return frozenset(self._nannies.values())

    def also(self, address: str, used: Iterable[str]) -> str:
        """Another nanny of the machine of a Dask worker, of the used ones, "" for none: they take turns."""
        own = self._nannies.get(address, "")
        there = sorted(n for n in self.nannies_of(used) | {own} if self._machines.get(n) == self._machines.get(own))
        behind = there[there.index(own) + 1 :] + there[: there.index(own)] if own else []
        return next(iter(behind), "")

    def keeps_replica(self, address: str, used: Iterable[str], number: int, *, wanted: int | None) -> str:
        """The nanny that keeps the next replica of the server at this address, "" for none: of another machine, of the
        used ones first. number: of those that servers beside it have, and that it has lost: nannies take turns.

        wanted: server_replicas of the topology. 1: by any nanny, if there is no other machine.
        """
        own = self._nannies.get(address, "")
        others = {n for n in self._latest if n != own}
        away = {n for n in others if self._machines.get(n) != self._machines.get(own)}
        first = sorted(away & self.nannies_of(used))
        more = sorted(away - set(first)) or ([] if first else sorted(others))
        turns = first or (more if wanted == 1 else [])
        return turns[number % len(turns)] if own and wanted != 0 and turns else ""

    def keeps_checkpoint(self, address: str, used: Iterable[str]) -> tuple[tuple[str, str], ...]:
        """The machines and addresses of the nannies that may keep the newest checkpoint of a group with a process at
        this address: its own, then those of the used processes."""
        own = self._nannies.get(address, "")
        known = sorted(self.nannies_of(used), key=lambda nanny: (nanny != own, nanny))
        return tuple((self._machines[n], n) for n in known if n in self._machines) if own else ()

    def by_nanny(self, addresses: Iterable[str]) -> dict[str, tuple[str, int]]:
        """By nanny, the address and the number of its process, of those of these processes that have one."""
        known = (address for address in addresses if address in self._nannies and address in self.pids)
        return {self._nannies[address]: (address, self.pids[address]) for address in known}

    def coming(self, missing: Iterable[str], there: Iterable[WorkerInfo], nannies: frozenset[str]) -> set[str]:
        """The nannies, of those that answer, that are starting a process in the place of a missing one."""
        return (self.nannies_of(missing) & nannies) - {info.nanny for info in there}

    def nearest(
        self, missing: Sequence[str], free: Sequence[WorkerInfo], training: Collection[str] = ()
    ) -> dict[str, str]:
        """The free Dask workers that take the place of missing ones, by address, as far as they suffice: each gets one
        of its nanny, where its memory is, else one of its machine, else any other. training: the processes that have
        workers. They come first, as these need GPUs; servers leave them those that have some."""
        left, taken = sorted(free, key=lambda info: info.gpu is not None), dict[str, str]()
        missing = sorted(missing, key=lambda address: address not in training) if self._chosen is not None else missing
        near = (
            lambda info, nanny: info.nanny == nanny,
            lambda info, nanny: info.node == self._machines.get(nanny),
            lambda info, nanny: True,
        )
        for is_near in near:
            for address in missing:
                nanny = self._nannies.get(address, "")
                fitting = (info for info in left if address not in training or self.suits(info))
                found = next((info for info in fitting if is_near(info, nanny)), None)
                if address not in taken and found is not None:
                    left.remove(found)
                    taken[address] = found.address
        return taken

    def nannies_of(self, addresses: Iterable[str]) -> set[str]:
        """The nannies of these processes."""
        return {self._nannies[address] for address in addresses if address in self._nannies}

    def stuck(self, missing: Iterable[str], *, again: bool) -> dict[str, int]:
        """Processes to replace among those that do not answer: a process that was stopped lives, and its nanny is
        content with it. again: also those that are being replaced."""
        pids = {address: self.pids[address] for address in missing if address in self.pids}
        return {address: pid for address, pid in pids.items() if again or (address, pid) not in self.replaced}
