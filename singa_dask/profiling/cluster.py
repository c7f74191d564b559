"""Profiles of a Dask cluster's machines, measured on its own workers."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from singa_dask.cluster import WorkerInfo, form_group, local_cluster
from singa_dask.cluster.remote import alive, run_each
from singa_dask.cluster.workers import answering, place
from singa_dask.comm.communicator import Communicator
from singa_dask.errors import ClusterError, SingaError
from singa_dask.job import ClusterTopology
from singa_dask.planning.profile import Curve, LayerSample, Point, Profile
from singa_dask.profiling.collectives import CollectivesPlan, measure_collectives
from singa_dask.profiling.facts import by_host, facts_here, facts_of
from singa_dask.profiling.kernels import measure_kernels
from singa_dask.profiling.loop import LoopPlan, measure_loop
from singa_dask.profiling.round_trips import exchange_neighbours, round_trips

Progress = Callable[[str], None]

# Shares of the budget. The rest is for starting, forming groups and compiling.
_KERNELS, _LOOP, _COLLECTIVES, _SERVERS = 0.15, 0.05, 0.2, 0.18
# Tasks that are to begin together begin so long after they were sent.
LEAD_S = 0.5
# Beyond the time that a task was given: for machines that are busy. Once more while a worker computes, and compiles.
PATIENCE_S = 60.0
_COMPILING_S = 600.0
_COMPUTES = 0.1
_ANSWER_S = 2.0
_LOOK_EVERY_S = 1.0
# Of as many workers the barriers of every number are measured, which do not grow evenly with it.
_MOST_BARRIERS = 16


def profile_cluster(
    client: Any, *, budget_s: float = 60.0, known: Profile | None = None, progress: Progress | None = None
) -> Profile:
    """The profile of the hosts of a client's Dask workers, which are taken to be alike.

    budget_s: what it takes, about. known: what need not be measured. progress: is told what is measured. Workers that
    a run uses are left alone, and no process is replaced.
    Raises ClusterError, which names the worker, if one fails or does not answer, and if none is free.
    """
    return _Profiling(client, budget_s, known or Profile(), progress or (lambda text: None)).run()


def machines_of(client: Any) -> Profile:
    """An empty profile of the hosts of a client's Dask workers, as the key of a kept one. Raises ClusterError."""
    workers, silent = answering(client)
    if not workers:
        raise ClusterError(f"no Dask worker answers. {silent}".strip())
    (here,) = on_workers(client, workers[:1], facts_here, timeout_s=PATIENCE_S)
    return facts_of(here, workers)


def busy_beside(client: Any) -> list[WorkerInfo]:
    """The workers in use on hosts that have free ones: what is measured there is too slow to be kept."""
    workers, _ = answering(client)
    hosts = {info.host for info in workers if not info.group}
    return [info for info in workers if info.group and info.host in hosts]


@dataclass(frozen=True)
class MissingMeasurements:
    """What a profile lacks of some workers.

    concurrencies, loops: of processes that compute, and that train. groups, servers: (where, how many ranks, or
    clients of a server). neighbours: where two servers exchange."""

    concurrencies: list[int]
    loops: list[int]
    groups: list[tuple[str, int]]
    servers: list[tuple[str, int]]
    neighbours: list[str]

    def __bool__(self) -> bool:
        return bool(self.concurrencies or self.loops or self.groups or self.servers or self.neighbours)


def missing(known: Profile, concurrency: int, joining: Mapping[str, int]) -> MissingMeasurements:
    """concurrency: workers on a host, at most as many as it has cores. joining: of the workers that can join a group,
    those on one host ("machine") and those on a host each ("network")."""

    def reaching(name: str, wanted: Iterable[int]) -> list[int]:
        most = max(known.numbers(name), default=0)
        return [number for number in wanted if number > most]

    def both(name: str, wanted: Callable[[int], Iterable[int]]) -> list[tuple[str, int]]:
        return [(where, n) for where in _WHERE for n in reaching(f"{name} {where}", wanted(joining[where]))]

    return MissingMeasurements(
        reaching("sum", sorted({1, concurrency})),
        reaching("loop", sorted({1, concurrency})),
        both("all_reduce", rank_numbers),
        both("round_trip", lambda most: range(1, min(3, most))),
        [where for where, _ in both("exchange_neighbours", lambda most: [2] if most > 1 else [])],
    )


def missing_of(client: Any, known: Profile) -> MissingMeasurements:
    """What a profile lacks of the free workers of a client, if there are any."""
    workers = [info for info in answering(client)[0] if not info.group]
    concurrency = min(max(map(len, by_host(workers).values()), default=0), known.cores)
    return missing(known, concurrency, _numbers(of_one_world(workers))) if workers else missing(known, 1, _numbers([]))


def _numbers(workers: Sequence[WorkerInfo]) -> dict[str, int]:
    hosts = by_host(workers)
    return {"machine": max(map(len, hosts.values()), default=0), "network": len(hosts)}


def local_missing(known: Profile) -> MissingMeasurements:
    """What a profile of this machine lacks for `local_workers`."""
    return missing(known, known.cores, {"machine": _local_count(), "network": 1})


def _local_count() -> int:
    return max(2, len(os.sched_getaffinity(0)))


@contextmanager
def local_workers(count: int | None = None) -> Iterator[Any]:
    """A client of a local Dask cluster of `count` workers, by default one for each core, and at least 2."""
    with local_cluster(count or _local_count()) as client:
        yield client


class _Profiling:
    """One profile on its way."""

    def __init__(self, client: Any, budget_s: float, known: Profile, progress: Progress) -> None:
        self._client, self._budget_s, self._progress = client, budget_s, progress
        self._profile = machines_of(client)
        self._free = free_workers(client)
        self._joining = of_one_world(self._free)
        concurrency = min(max(map(len, by_host(self._free).values())), self._profile.cores)
        self._missing = missing(known, concurrency, _numbers(self._joining))

    def run(self) -> Profile:
        self._measure_kernels()
        self._measure_loops()
        self._measure_collectives()
        self._measure_servers()
        return self._profile

    def _measure_kernels(self) -> None:
        workers = next(iter(by_host(self._free).values()))
        for concurrency in self._missing.concurrencies:
            seconds = _KERNELS * self._budget_s / len(self._missing.concurrencies)
            self._progress(f"computing in {concurrency} process{'es' * (concurrency > 1)}")
            measured = on_workers(
                self._client,
                workers[:concurrency],
                measure_kernels,
                timeout_s=seconds + PATIENCE_S,
                threads=max(1, self._profile.cores // concurrency),
                concurrency=concurrency,
                seconds=seconds,
                start_at=time.time() + LEAD_S,
            )
            self._profile.merge(medians(measured))

    def _measure_loops(self) -> None:
        """Workers of one host that train at once, each on its own."""
        workers = next(iter(by_host(self._free).values()))
        for concurrency in self._missing.loops:
            self._progress(f"training in {concurrency} process{'es' * (concurrency > 1)}")
            self._profile.curves[f"loop {concurrency}"] = self._loop(workers[:concurrency])

    def _loop(self, workers: Sequence[WorkerInfo]) -> Curve:
        concurrency = len(workers)
        seconds = _LOOP * self._budget_s / len(self._missing.loops)
        plan = LoopPlan(max(1, self._profile.cores // concurrency), seconds, time.time() + LEAD_S * concurrency)
        with ExitStack() as stack:
            groups = [
                stack.enter_context(form_group(self._client, [info.address], measure_loop, plan, name="profile"))
                for info in workers
            ]
            found = [results_of(self._client, group, seconds)[0] for group in groups]
        return Curve.middle(found)

    def _measure_collectives(self) -> None:
        groups = self._missing.groups
        total = sum(ranks for _, ranks in groups)
        left_out = len(self._free) - len(self._joining)
        if left_out:
            self._progress(f"{left_out} workers are left out: only fresh processes of theirs could join the others")
        if groups:  # the world of all of them serves every group; one of a few would have to be left for the next one
            run_group(self._client, [info.address for info in self._joining], _meet, None, 0.0)
        for where, ranks in groups:
            self._progress(f"collectives of {ranks} workers, {_WHERE[where]}")
            chosen = place(ClusterTopology(nworkers_per_group=ranks), self._workers(where)).workers[0]
            plan = CollectivesPlan(where, self._profile.cores, _COLLECTIVES * self._budget_s * ranks / total)
            self._profile.curves |= run_group(self._client, chosen, measure_collectives, plan, plan.seconds)[0]
        largest = max((ranks for where, ranks in groups if where == "machine"), default=0)
        for ranks in sorted(set(range(2, min(largest, _MOST_BARRIERS + 1))) - set(rank_numbers(largest))):
            self._progress(f"barriers of {ranks} workers, {_WHERE['machine']}")
            addresses = [info.address for info in self._workers("machine")[:ranks]]
            plan = CollectivesPlan("machine", self._profile.cores, 0.0, operations=())
            self._profile.curves |= run_group(self._client, addresses, measure_collectives, plan, 0.0)[0]

    def _measure_servers(self) -> None:
        """Round trips of one and of two clients, and the exchange of two servers, as far as there are workers."""
        trials, places = self._missing.servers, self._missing.neighbours
        seconds = _SERVERS * self._budget_s / max(1, len(trials) + len(places))
        for where, count in trials:
            self._progress(f"a server of {count} worker{'s' * (count > 1)}, {_WHERE[where]}")
            *clients, server = [info.address for info in self._workers(where)[: count + 1]]
            self._profile.curves |= round_trips(self._client, server, clients, where, seconds)
        for where in places:
            self._progress(f"two servers, {_WHERE[where]}")
            left, right = [info.address for info in self._workers(where)[:2]]
            self._profile.curves |= exchange_neighbours(self._client, left, right, where, seconds)

    def _workers(self, where: str) -> list[WorkerInfo]:
        """Workers that can join a group as they are: those of one host, or one of each host."""
        hosts = by_host(self._joining).values()
        return next(iter(hosts), []) if where == "machine" else [workers[0] for workers in hosts]


def _meet(comm: Communicator, plan: None) -> None:
    comm.barrier()


_WHERE = {"machine": "on one host", "network": "on a host each"}


def rank_numbers(most: int) -> list[int]:
    """2, 4, 8, ... and the largest number itself.

    >>> rank_numbers(6), rank_numbers(1)
    ([2, 4, 6], [])
    """
    return [*(1 << power for power in range(1, most.bit_length()) if 1 << power < most), *([most] if most > 1 else [])]


def free_workers(client: Any) -> list[WorkerInfo]:
    """The Dask workers that answer and that no run uses. Raises ClusterError if there are none."""
    workers, silent = answering(client)
    free = [info for info in workers if not info.group]
    if not free:
        used = f" These are in use: {', '.join(info.address for info in workers)}." if workers else ""
        mute = f" Not counted: {silent}." if silent else ""
        raise ClusterError(f"no Dask worker is free to measure.{used}{mute} Wait for the runs on them, or start more.")
    return free


def of_one_world(workers: Sequence[WorkerInfo]) -> list[WorkerInfo]:
    """Those of the workers that form any group among them without fresh processes: of the MPI world that most of them
    share, else all that belong to none."""
    worlds: dict[str, list[WorkerInfo]] = {}
    for info in workers:
        if not (info.mpi.ours and info.mpi.spent):
            worlds.setdefault(info.mpi.world, []).append(info)
    fresh = worlds.pop("", [])
    largest: list[WorkerInfo] = max(worlds.values(), key=len, default=[])
    return largest if len(largest) > 1 else fresh


def on_workers(
    client: Any, workers: Sequence[WorkerInfo], function: Callable[..., Any], *, timeout_s: float, **settings: Any
) -> list[Any]:
    """What `function(**settings)` returned on each of these workers, which run it at once.

    timeout_s: more if they compute then. Raises ClusterError, which names the worker, if one fails or has not returned
    in time.
    """
    futures = [
        client.submit(function, **settings, workers=[info.address], allow_other_workers=False, pure=False, retries=0)
        for info in workers
    ]
    patience = Patience(client, [info.address for info in workers], timeout_s)
    try:
        return [_result(client, info, future, patience) for info, future in zip(workers, futures, strict=True)]
    finally:
        client.cancel([future for future in futures if not future.done()], force=True)


def _result(client: Any, info: WorkerInfo, future: Any, patience: Patience) -> Any:
    while True:
        try:
            return future.result(timeout=min(_LOOK_EVERY_S, patience.left_s))
        except TimeoutError as error:
            if future.status == "error":  # the task itself ended so
                raise ClusterError(f"{info} could not measure: {error!r}") from error
            if not alive(client, [info.address]):
                raise ClusterError(f"{info} was lost while it measured: its process died. Start it again.") from error
            if patience.ended():
                what = f"{info} has not measured within {patience.given_s:.0f} s: it is stopped or busy"
                raise ClusterError(f"{what}. Restart it, or leave it out.") from error
        except Exception as error:
            what = str(error) if isinstance(error, SingaError) else f"{type(error).__name__}: {error}"
            raise ClusterError(f"{info} could not measure: {what}") from error


class Patience:
    """The time that workers have to measure. While one of them computes they get more, up to a limit: with a cold
    cache it compiles kernels, and the others wait for it.

    given_s: so far.
    """

    def __init__(self, client: Any, addresses: Sequence[str], seconds: float) -> None:
        self._client, self._addresses, self.given_s = client, addresses, seconds
        self._began, self._most_s = time.monotonic(), seconds + _COMPILING_S
        self._computed, self._computed_at = self._look(), self._began

    @property
    def left_s(self) -> float:
        """Until it is to be looked again."""
        return max(0.1, self._began + self.given_s - time.monotonic())

    def ended(self) -> bool:
        """Whether the time is over, and none of the workers has computed for most of it."""
        now = time.monotonic()
        if now <= self._began + self.given_s:
            return False
        computed = self._look()
        spent = max((computed.get(a, 0.0) - self._computed.get(a, 0.0) for a in self._addresses), default=0.0)
        busy = spent > _COMPUTES * (now - self._computed_at)
        self._computed, self._computed_at = computed, now
        self.given_s = min(self.given_s + PATIENCE_S, self._most_s) if busy else self.given_s
        return now > self._began + self.given_s

    def _look(self) -> dict[str, float]:
        """Processor time of each worker that answers."""
        answers = run_each(self._client, _processor_s, dict.fromkeys(self._addresses, ()), _ANSWER_S)
        return {address: s for address, s in answers.items() if not isinstance(s, Exception)}


def _processor_s(dask_worker: Any = None) -> float:
    return time.process_time()


def results_of(client: Any, group: Any, seconds: float) -> list[Any]:
    """What every rank of a group returned that measures for so long. Raises ClusterError as a group does."""
    patience = Patience(client, group.addresses, seconds + PATIENCE_S)
    while not group.wait(min(_LOOK_EVERY_S, patience.left_s)):
        if patience.ended():
            break
    return list(group.results(_ANSWER_S))


def run_group(
    client: Any, addresses: Sequence[str], function: Callable[..., Any], plan: Any, seconds: float
) -> list[Any]:
    """What every rank of a group of these workers returned. Raises ClusterError as a group does."""
    with form_group(client, addresses, function, plan, name="profile") as group:
        return results_of(client, group, seconds)


def medians(profiles: Sequence[Profile]) -> Profile:
    """Of profiles that were measured at once: the median of each sample and of each point of a curve."""
    samples: defaultdict[tuple, list[LayerSample]] = defaultdict(list)
    points: defaultdict[str, list[Point]] = defaultdict(list)
    notes: dict[str, Any] = {}
    for profile in profiles:
        notes |= profile.notes
        for sample in profile.layers:
            samples[sample.work, sample.concurrency, sample.threads].append(sample)
        for name, curve in profile.curves.items():
            points[name] += curve.points
    layers = [
        replace(of[0], forward=median(s.forward for s in of), backward=median(s.backward for s in of))
        for of in samples.values()
    ]
    return Profile(layers=layers, curves={name: Curve.medians(of) for name, of in points.items()}, notes=notes)
