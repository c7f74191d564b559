"""The assignment of GPUs to Dask workers. No IO."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from singa_dask.cluster.addresses import natural
from singa_dask.errors import enumerated
from singa_dask.job.gpus import on_cpus
from singa_dask.ops.gpu.visible import Gpu

if TYPE_CHECKING:
    from singa_dask.cluster.workers import WorkerInfo

# One of the places for workers on a GPU: its identity, and a number from 0 on.
_Place = tuple[str, int]
_NAMED = 4  # workers in an error


@dataclass(frozen=True)
class GpuReport:
    """What a Dask worker says of GPUs.

    seen: by its process, in the order of their numbers. cupy: whether CuPy is installed. resource: its Dask resource
    `GPU`, None where it declares none. used: the identity of the GPU on which a rank of it computes, "" for none.
    """

    seen: tuple[Gpu, ...] = ()
    cupy: bool = True
    resource: float | None = None
    used: str = ""


def chosen(listed: Sequence[int], workers: Iterable[WorkerInfo]) -> tuple[int, ...] | None:
    """From which GPUs the workers of a run get theirs: the numbers that its job lists, () for all; None for a run on
    CPUs, which the job wants (`gpu: -1`) or which has no GPU."""
    if on_cpus(listed):
        return None
    return tuple(listed) if listed or assign(workers) else None


def lacking(needed: int, listed: Sequence[int], workers: Sequence[WorkerInfo]) -> int:
    """How many workers with a GPU are missing, of those that other runs use, to have so many; 0 where all together
    have too few."""
    picked = chosen(listed, workers)
    if picked is None:
        return 0
    gpus = assign(workers, picked)
    free = sum(not info.group for info in workers if info.address in gpus)
    return max(0, needed - free) if len(gpus) >= needed else 0


def assign(
    workers: Iterable[WorkerInfo], listed: Sequence[int] = (), held: Mapping[str, str] | None = None
) -> dict[str, Gpu]:
    """The GPU of each Dask worker that gets one, by address.

    A GPU has one place, or as many as `listed` names it times, and as many workers get one as is possible. They choose
    by turns, in the order of their nannies: each the first free place, in the order of its own devices or of `listed`.
    A worker keeps the GPU on which it computes, or has by `held` (identity by address). Where any worker of a machine
    has the Dask resource `GPU`, the others of this machine get none.
    """
    workers = sorted(workers, key=lambda info: natural(info.nanny or info.address))
    declared = {info.node for info in workers if info.gpus.resource is not None}
    willing = [info for info in workers if info.node not in declared or (info.gpus.resource or 0) > 0]
    seeing = any(info.gpus.seen for info in willing)
    places = {info.address: _places(info, listed, seeing=seeing) for info in willing}
    assignment = _Assignment({address: list(of) for address, of in places.items()})
    for info in workers:
        if identity := info.gpus.used or (held or {}).get(info.address, ""):
            assignment.hold(info.address, identity)
    for info in willing:
        assignment.take(info.address)
    found = {address: places.get(address, {}).get(place) for place, address in assignment.holders.items()}
    return {address: gpu for address, gpu in found.items() if gpu is not None}


def assigned(
    workers: Iterable[WorkerInfo], chosen: Sequence[int] | None, held: Mapping[str, str] | None = None
) -> list[WorkerInfo]:
    """The same Dask workers with the GPUs that they get in a run; see `chosen` and `assign`."""
    workers = list(workers)
    gpus = {} if chosen is None else assign(workers, chosen, held)
    return [replace(info, gpu=gpus.get(info.address)) for info in workers]


def _places(info: WorkerInfo, listed: Sequence[int], *, seeing: bool) -> dict[_Place, Gpu]:
    """The places that a worker can have, the first one first. A device that is listed and is not there counts, where
    the worker sees others or nobody sees any: its rank then says what is missing."""
    seen = {gpu.number: gpu for gpu in info.gpus.seen}
    if not listed:
        return {(gpu.identity, 0): gpu for gpu in info.gpus.seen} if info.gpus.cupy else {}
    if seeing and not seen:
        return {}
    before, places = Counter[int](), dict[_Place, Gpu]()
    for number in listed:
        gpu = seen.get(number) or Gpu(number, f"{info.address}/device {number}")
        places[gpu.identity, before[number]] = gpu
        before[number] += 1
    return places


class _Assignment:
    """places: that each worker can have, the first one first. holders: of places, by address. Those that are kept stay
    so; others move for a worker that would get none (Kuhn's algorithm)."""

    def __init__(self, places: Mapping[str, Sequence[_Place]]) -> None:
        self._places = places
        self.holders: dict[_Place, str] = {}
        self._kept = set[_Place]()

    def hold(self, address: str, identity: str) -> None:
        """A worker keeps this GPU, whether or not it could choose it."""
        own = [place for place in self._places.get(address, ()) if place[0] == identity]
        beyond = (identity, 1 + max((number for _, number in own), default=-1))
        place = next((place for place in [*own, (identity, 0), beyond] if place not in self._kept), beyond)
        self.holders[place] = address
        self._kept.add(place)

    def take(self, address: str) -> None:
        """Find a place for a worker, if there is one and it has none."""
        if address not in self.holders.values():
            self._take(address, set())

    def _take(self, address: str, tried: set[_Place]) -> bool:
        places = self._places[address]
        for place in places:
            if place not in self.holders:
                self.holders[place] = address
                return True
        for place in places:
            if place not in tried and place not in self._kept:
                tried.add(place)
                if self._take(self.holders[place], tried):
                    self.holders[place] = address
                    return True
        return False


def in_words(chosen: Sequence[WorkerInfo]) -> str:
    """The GPUs of workers, by machine: "3 workers on GPUs 0, 1 and 2 of node1 (NVIDIA H100)"."""
    machines: defaultdict[str, list[Gpu]] = defaultdict(list)
    for info in sorted(chosen, key=lambda info: info.gpu.number if info.gpu else -1):
        if info.gpu is not None:
            machines[_machine(info)].append(info.gpu)
    parts = []
    for machine, gpus in machines.items():
        named = dict.fromkeys(_name(gpu, gpus) for gpu in gpus)
        models = ", ".join(dict.fromkeys(gpu.name for gpu in gpus if gpu.name))
        count = f"{len(gpus)} worker{'s' * (len(gpus) > 1)}"
        which = f"GPU{'s' * (len(named) > 1)} {enumerated([*named])}"
        parts.append(f"{count} on {which} of {machine}{f' ({models})' * bool(models)}")
    return "; ".join(parts)


def unused(workers: Iterable[WorkerInfo]) -> str:
    """Why GPUs that are there are not used, though the job says nothing of them; "" where there are none."""
    without = {_machine(info): info.gpus for info in workers if info.gpus.seen and not info.gpus.cupy}
    if not without:
        return ""
    machine, report = next(iter(without.items()))
    count = len(report.seen)
    there = f"{machine} has {count} GPU{'s' * (count > 1)} and no CuPy"
    return f"computing on CPUs: {there}; `pip install '.[gpu]'` in a clone of singa_dask installs it"


def too_few(needed: int, workers: Sequence[WorkerInfo]) -> str:
    """Why so many workers cannot have a GPU each, and what to do."""
    having, lacking = ([info for info in workers if (info.gpu is None) is none] for none in (False, True))
    have = "; ".join(f"{info.address} has {_one(info)}" for info in having[:_NAMED])
    lack = ", ".join(info.address for info in lacking[:_NAMED]) + ", ..." * (len(lacking) > _NAMED)
    there = f"{have}{'; ...' * (len(having) > _NAMED)}. Without a GPU: {lack}"
    sharing = max((_sharing(needed, workers, node) for node in {info.node for info in workers}), key=len)
    fewer = f"train with {len(having)} worker{'s' * (len(having) > 1)}, " if having else ""
    share = f"gpu=[{','.join(map(str, sharing))}]"
    return (
        f"{needed} workers need a GPU each, and {len(having)} can have one: {there}. Use more GPUs, {fewer}let "
        f"workers share by naming a GPU once for each ({share}), or compute on CPUs (gpu=[])."
    )


def _sharing(needed: int, workers: Collection[WorkerInfo], node: str) -> list[int]:
    """What to list for workers of this machine that share its GPUs."""
    here = [info for info in workers if info.node == node]
    seen = max((len(info.gpus.seen) for info in here), default=0)
    return sorted(i % seen for i in range(min(needed, len(here)))) if seen else []


def _one(info: WorkerInfo) -> str:
    assert info.gpu is not None
    model = f" ({info.gpu.name})" if info.gpu.name else ""
    return f"GPU {info.gpu.number} of {_machine(info)}{model}"


def _machine(info: WorkerInfo) -> str:
    return info.node.partition("/")[0] or info.host


def _name(gpu: Gpu, gpus: Iterable[Gpu]) -> str:
    """Its number, with the end of its uuid where processes give the number to several."""
    alike = {other.identity for other in gpus if other.number == gpu.number}
    return f"{gpu.number}" if len(alike) == 1 else f"{gpu.number} (uuid ...{gpu.identity[-6:]})"
