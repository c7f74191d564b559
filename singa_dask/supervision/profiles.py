"""The profile of a cluster's machines for a plan: what the cache has, and what is measured for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from singa_dask.cluster.workers import answering
from singa_dask.errors import ConfigError
from singa_dask.job.code_bundle import CodeBundle
from singa_dask.planning.costs import conditions
from singa_dask.planning.prediction import Candidate, Machines
from singa_dask.planning.profile import Profile
from singa_dask.profiling.cluster import (
    busy_beside,
    local_missing,
    local_workers,
    machines_of,
    missing_of,
    profile_cluster,
)
from singa_dask.profiling.facts import facts_here
from singa_dask.profiling.jobs import lacking, lacks_own, measure_jobs, measure_own
from singa_dask.profiling.store import key_of, load, locked, save

if TYPE_CHECKING:
    from distributed import Client

Note = Callable[[str], None]

# Of measuring a machine that has no profile, the layers of a job, and one of its candidates.
MACHINE_S, LAYERS_S, TRIAL_S = 60.0, 3.0, 1.0


class Profiler:
    """What is known of the machines of a client's workers, or of this machine. A context: it measures what is missing,
    for which it may start workers, and keeps it. Nobody else on this machine measures for the same profile meanwhile.

    Raises ClusterError where workers cannot measure, ConfigError where the cache is damaged.
    """

    def __init__(self, client: Client | None, note: Note) -> None:
        self._client, self._note, self._stack = client, note, ExitStack()
        self._left_s, self._said = LAYERS_S, set[str]()
        self.profile = self._new = Profile()

    def __enter__(self) -> Profiler:
        with ExitStack() as stack:
            self._stack = stack
            machines = facts_here() if self._client is None else machines_of(self._client)
            key = key_of(machines)
            stack.enter_context(locked(key, self._note))
            stack.callback(self._save, key)
            self._new = replace(machines, layers=[], curves={})
            self.profile = load(key) or replace(machines, layers=[], curves={})
            self._learn_machine()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def _save(self, key: str) -> None:
        if self._new.layers or self._new.curves:
            try:
                save(key, self._new)
            except ConfigError as error:
                self._note(f"what was measured is not kept: {error}")

    def _learn_machine(self) -> None:
        known = self.profile
        if not (local_missing(known) if self._client is None else missing_of(self._client, known)):
            return
        what = f"measuring {known.hosts} host{'s' * (known.hosts > 1)} like {known.host}"
        self._note(f"{what}, once for all later plans: up to {MACHINE_S:.0f} s")
        self._measure(lambda client: profile_cluster(client, budget_s=MACHINE_S, known=known, progress=self._note))

    @property
    def workers(self) -> Client:
        """The client, or one of a local cluster."""
        if self._client is None:
            self._client = self._stack.enter_context(local_workers())
        return self._client

    def learn(self, candidates: Iterable[Candidate], machines: Machines, code: CodeBundle | None) -> None:
        """Measure the updaters, codecs and layers of candidates that the profile lacks, in order, for as long as
        LAYERS_S allows: at first what nothing similar is known of."""
        if self._client is not None and all(info.group for info in answering(self._client)[0]):
            self._say("all workers are in use: what was not measured before is estimated")
            return
        found = list(candidates)
        self._learn_own(found, machines, code)
        tried: set[int] = set()
        for exact in (False, True):
            for i, candidate in enumerate(found):
                concurrency, threads = self._conditions(candidate, machines)
                settings: dict[str, Any] = {"concurrencies": [concurrency], "threads": threads, "exact": exact}
                if self._left_s <= 0:
                    return
                if i in tried or not any(lacking([candidate.job], self.profile, cores=self.profile.cores, **settings)):
                    continue
                tried.add(i)
                self._say(f"measuring the layers of {candidate.job.name}, for a few seconds")
                measure = partial(
                    measure_jobs, jobs=[candidate.job], known=self.profile, code=code, budget_s=TRIAL_S, **settings
                )
                self._left_s -= self._measure(measure)

    def _learn_own(self, found: Iterable[Candidate], machines: Machines, code: CodeBundle | None) -> None:
        """Without these there is no prediction, so that they are measured however long the layers take."""
        tried = set()
        for candidate in found:
            concurrency, threads = self._conditions(candidate, machines)
            key = candidate.topology.codec, candidate.topology.sparsity, concurrency
            if key not in tried and any(lacks_own(candidate.job, self.profile, concurrency)):
                tried.add(key)  # there may be fewer workers than the concurrency
                self._say(f"measuring the updater and the codecs of {candidate.job.name}")
                measure = partial(
                    measure_own, job=candidate.job, known=self.profile, concurrency=concurrency, threads=threads
                )
                self._measure(partial(measure, budget_s=TRIAL_S, code=code))

    def _conditions(self, candidate: Candidate, machines: Machines) -> tuple[int, int]:
        """(concurrency, threads) with which the cost model looks up a candidate on the machines that are here."""
        concurrency, threads = conditions(candidate.job, replace(machines, cores=self.profile.cores))
        return max(1, min(concurrency, self.profile.cores)), threads

    def _measure(self, measure: Callable[[Client], Profile]) -> float:
        """Add what is measured. Returns the seconds that it took.

        What a run on the same hosts may have slowed down serves this plan and is not kept."""
        client, began = self.workers, time.monotonic()
        busy = busy_beside(client)
        found = measure(client)
        busy = busy or busy_beside(client)
        self.profile.merge(found)
        if busy:
            used = ", ".join(map(str, busy))
            self._say(f"what was measured is not kept, as workers of the same hosts are in use: {used}")
        else:
            self._new.merge(found)
        return time.monotonic() - began

    def _say(self, text: str) -> None:
        """Once."""
        if text not in self._said:
            self._said.add(text)
            self._note(text)
