"""The profile of a cluster's machines for a plan: what the cache has, and what is measured for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from singa_dask.job.code_bundle import CodeBundle
from singa_dask.planning.prediction import Candidate, Machines
from singa_dask.planning.profile import Profile
from singa_dask.profiling.cluster import lacking, local_workers, machines_of, measure_jobs, profile_cluster
from singa_dask.profiling.facts import facts_here
from singa_dask.profiling.store import key_of, load, save

if TYPE_CHECKING:
    from distributed import Client

Note = Callable[[str], None]

# Of measuring a machine that has no profile, the layers of a job, and one of its candidates.
MACHINE_S, LAYERS_S, TRIAL_S = 60.0, 3.0, 1.0


class Profiler:
    """What is known of the machines of a client's workers, or of this machine. A context, since it may start workers.

    Raises ClusterError where workers cannot measure, ConfigError where the cache is damaged.
    """

    def __init__(self, client: Client | None, note: Note) -> None:
        self._client, self._note, self._stack = client, note, ExitStack()
        machines = facts_here() if client is None else machines_of(client)
        self._key = key_of(machines)
        self._left_s, self._learned = LAYERS_S, False
        self.profile = load(self._key) or self._measured_machine(machines)

    def __enter__(self) -> Profiler:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()
        if self._learned:
            save(self._key, self.profile)

    def _measured_machine(self, machines: Profile) -> Profile:
        what = f"measuring {machines.hosts} host{'s' * (machines.hosts > 1)} like {machines.host}"
        self._note(f"{what}, once for all later plans: up to {MACHINE_S:.0f} s")
        profile = profile_cluster(self.workers, budget_s=MACHINE_S, progress=self._note)
        save(self._key, profile)
        return profile

    @property
    def workers(self) -> Client:
        """The client, or one of a local cluster."""
        if self._client is None:
            self._client = self._stack.enter_context(local_workers())
        return self._client

    def learn(self, candidates: Iterable[Candidate], machines: Machines, code: CodeBundle | None) -> None:
        """Measure the layers of candidates that the profile lacks, in order, for as long as LAYERS_S allows."""
        cores = self.profile.cores
        for candidate in candidates:
            crowd = min(machines.crowd(candidate.topology.nworkers), cores)
            if self._left_s <= 0:
                break
            if any(lacking([candidate.job], self.profile, crowds=[crowd], cores=cores, threads=None)):
                self._measure(candidate, crowd, code)

    def _measure(self, candidate: Candidate, crowd: int, code: CodeBundle | None) -> None:
        if not self._learned:
            self._note(f"measuring the layers of {candidate.job.name}, for a few seconds")
        client, began = self.workers, time.monotonic()
        found = measure_jobs(client, [candidate.job], crowds=[crowd], budget_s=TRIAL_S, code=code, known=self.profile)
        self._left_s -= time.monotonic() - began
        self.profile.merge(found)
        self._learned = True
