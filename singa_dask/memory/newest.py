"""Which saved state a run continues from: pure functions of what nannies hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from singa_dask.memory.owner import CHECKPOINT, Saved, Version, same_run


@dataclass(frozen=True)
class Newest:
    """What a run continues from.

    run: the key of the start that has left it, "" if there is nothing. groups: by the group's name, in the order of
    the processes; torn: the groups of which something is missing. checkpoint: copies of the newest one, in memory or
    in a file. nannies: those that have said what they hold; silent: those that have not in time, and may hold more.
    """

    run: str = ""
    groups: Mapping[str, tuple[Saved, ...]] = field(default_factory=dict)
    torn: tuple[str, ...] = ()
    checkpoint: tuple[Saved, ...] = ()
    nannies: frozenset[str] = frozenset()
    silent: frozenset[str] = frozenset()


def newest(
    listed: Iterable[Saved],
    run: str,
    *,
    earlier: bool = False,
    files: tuple[Saved, ...] = (),
    fits: Callable[[Saved], bool] = lambda saved: True,
) -> Newest:
    """What of all this the last complete generation of each group of a run has left, and its newest checkpoint.

    earlier: whether earlier starts of the run count too. All groups continue from the same start, as their exchanges
    would not match otherwise: the last one of which a group has taken over from former ones, or of which all groups
    are complete. files: copies of the newest checkpoint in a file, which counts if none in memory has more steps.
    fits: whether a checkpoint in memory is of what is trained now.
    """
    ours = [
        each
        for each in listed
        if (of := each.version.run) == run or (earlier and same_run(of, run))  # and not another run's
    ]
    copies = [each for each in ours if each.owner.kind == CHECKPOINT and fits(each)]
    last = max(map(_age, copies), default=None)
    checkpoint = tuple(saved for saved in copies if _age(saved) == last)
    if files and not any(saved.version.number > files[0].version.number for saved in checkpoint):
        checkpoint = files
    starts: dict[str, list[Saved]] = {}
    for each in ours:
        if each.owner.kind != CHECKPOINT:
            starts.setdefault(each.version.run, []).append(each)
    names = {each.owner.name for start in starts.values() for each in start}

    def by_age(key: str) -> tuple[bool, int]:
        return key == run, max(each.version.generation for each in starts[key])

    for key in sorted(starts, key=by_age, reverse=True):
        there = {each.owner.name for each in starts[key]}
        sets = {name: complete(each for each in starts[key] if each.owner.name == name) for name in there}
        groups = {name: images for name, images in sets.items() if images}
        if groups.keys() == names or any(each.succeeded for each in starts[key]):
            return Newest(key, groups, tuple(sorted(there - groups.keys())), checkpoint)
    return Newest(checkpoint=checkpoint)


def complete(
    saved: Iterable[Saved], *, since: int = 0, outdated: Mapping[tuple[int, int], int] | None = None
) -> tuple[Saved, ...]:
    """The newest complete set of a group's state: of each process, in their order, that of the same generation; ()
    without one. What a process itself has written counts before its replicas, and of these the last one.

    since: earlier generations do not count. outdated: by generation and rank, the last replica that a process has
    lost: it and former ones do not count.
    """
    found: dict[int, dict[int, Saved]] = {}
    for each in saved:
        of, rank = each.version, each.owner.rank
        lost = (outdated or {}).get((of.generation, rank), 0)
        if of.generation >= since and (of.number == 0 or of.number > lost):
            ranks = found.setdefault(of.generation, {})
            if rank not in ranks or _nearness(of) > _nearness(ranks[rank].version):
                ranks[rank] = each
    for generation in sorted(found, reverse=True):
        ranks = found[generation]
        if len(ranks) == next(iter(ranks.values())).owner.size:
            return tuple(ranks[rank] for rank in sorted(ranks))
    return ()


def _age(saved: Saved) -> tuple[int, int]:
    return saved.version.generation, saved.version.number


def _nearness(of: Version) -> tuple[bool, int]:
    return of.number == 0, of.number
