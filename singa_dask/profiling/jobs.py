"""What a profile lacks of jobs, measured on a Dask cluster's own workers: their layers, updater and codec."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from singa_dask.job import ClusterTopology
from singa_dask.job.code_bundle import CodeBundle, unpacked
from singa_dask.job.job_pb2 import JobProto, LRGenProto
from singa_dask.planning.profile import LayerSample, Profile, coding_name, rule_name
from singa_dask.planning.work import Work, worker_step
from singa_dask.profiling.cluster import LEAD_S, PATIENCE_S, free_workers, medians, on_workers
from singa_dask.profiling.facts import by_host, facts_here, facts_of
from singa_dask.profiling.kernels import LATEST_S, measure_kernels
from singa_dask.profiling.layers import RATE, measure_layers

Progress = Callable[[str], None]


def measure_jobs(
    client: Any,
    jobs: Iterable[JobProto],
    *,
    concurrencies: Sequence[int],
    threads: int | None = None,
    budget_s: float = 30.0,
    code: CodeBundle | None = None,
    known: Profile | None = None,
    exact: bool = False,
    progress: Progress | None = None,
) -> Profile:
    """Samples of the layers of jobs, each on `concurrency` workers of one host at once: medians over them.

    jobs: prepared. concurrencies: larger ones than workers on a host are left out. threads: of each process; by
    default an equal share of the host's cores. code: the jobs' user code. known: a profile whose layers
    need not be measured. exact: as in `lacking`.
    Raises ClusterError as `profile_cluster` does.
    """
    workers = next(iter(by_host(free_workers(client)).values()))
    (here,) = on_workers(client, workers[:1], facts_here, timeout_s=PATIENCE_S)
    profile = facts_of(here, workers)
    fitting = [concurrency for concurrency in concurrencies if concurrency <= len(workers)]
    trials = list(
        lacking(jobs, known or Profile(), concurrencies=fitting, cores=profile.cores, threads=threads, exact=exact)
    )
    for i, trial in enumerate(trials):
        if progress is not None:
            progress(f"layers of the job, {i + 1} of {len(trials)}")
        seconds = min(1.0, budget_s / len(trials) / 2)
        results = on_workers(
            client,
            workers[: trial.concurrency],
            partial(_measure_job, trial.job.SerializeToString(), code),
            timeout_s=2 * seconds + PATIENCE_S,
            threads=trial.threads,
            concurrency=trial.concurrency,
            seconds=seconds,
            start_at=time.time() + LEAD_S,
        )
        profile.merge(medians([Profile(layers=samples) for samples in results]))
    return profile


@dataclass(frozen=True)
class JobTrial:
    """A job to measure in `concurrency` processes at once."""

    job: JobProto
    concurrency: int
    threads: int


def lacking(
    jobs: Iterable[JobProto],
    known: Profile,
    *,
    concurrencies: Sequence[int],
    cores: int,
    threads: int | None,
    exact: bool = False,
) -> Iterator[JobTrial]:
    """What must be measured: a job is left out whose layers `known` or the jobs before it have.

    Rows between two that were measured, and up to twice the most, are known: a mini-batch that takes too long is
    measured at two smaller ones. exact: those between two are to be measured too.
    """
    rows: defaultdict[tuple[int, int, Work], set[int]] = defaultdict(set)
    for sample in known.layers:
        rows[sample.concurrency, sample.threads, replace(sample.work, rows=0)].add(sample.work.rows)
    for job in jobs:
        works = {call.work for call in worker_step(job).calls}
        for concurrency in concurrencies:
            each = threads or max(1, cores // concurrency)
            measured = {work: rows[concurrency, each, replace(work, rows=0)] for work in works}
            if all(_is_known(work.rows, found, exact) for work, found in measured.items()):
                continue
            for work, found in measured.items():
                found.add(work.rows)
            yield JobTrial(job, concurrency, each)


def _is_known(rows: int, found: set[int], exact: bool) -> bool:
    if rows in found or len(found) < 2:
        return rows in found
    return max(found) < rows <= 2 * max(found) or (min(found) < rows < max(found) and not exact)


def _measure_job(job: bytes, code: CodeBundle | None, start_at: float, **settings: Any) -> list[LayerSample]:
    with unpacked(code):
        return measure_layers(JobProto.FromString(job), start_at=min(start_at, time.time() + LATEST_S), **settings)


def measure_own(
    client: Any,
    job: JobProto,
    known: Profile,
    *,
    concurrency: int,
    threads: int,
    budget_s: float,
    code: CodeBundle | None,
) -> Profile:
    """Curves of the job's updater and codec that `known` lacks, on `concurrency` workers of one host at once: medians.

    Raises ClusterError as `profile_cluster` does.
    """
    workers = next(iter(by_host(free_workers(client)).values()))
    results = on_workers(
        client,
        workers[:concurrency],
        partial(_measure_own, job.SerializeToString(), code, *lacks_own(job, known, concurrency)),
        timeout_s=budget_s + PATIENCE_S,
        threads=threads,
        concurrency=min(concurrency, len(workers)),
        seconds=budget_s,
    )
    return medians(results)


def lacks_own(job: JobProto, known: Profile, concurrency: int) -> tuple[bool, bool]:
    """Whether a profile lacks the job's updater, and its codec."""
    topology = ClusterTopology.from_proto(job.cluster)

    def lacks(name: str) -> bool:
        return max(known.numbers(name), default=0) < concurrency

    coded = topology.codec != "kFull" and lacks(f"encode {coding_name(topology.codec, topology.sparsity)}")
    return lacks(f"update {rule_name(job.updater)}"), coded


def _measure_own(message: bytes, code: CodeBundle | None, rule: bool, coding: bool, **settings: Any) -> Profile:
    with unpacked(code):
        job = JobProto.FromString(message)
        job.updater.learning_rate.CopyFrom(LRGenProto(type=LRGenProto.kFixed, base_lr=RATE))
        topology = ClusterTopology.from_proto(job.cluster)
        codings = [(topology.codec, topology.sparsity)] if coding else []
        return measure_kernels(
            **settings, rules=[job.updater] if rule else [], codings=codings, grid=False, rest=False
        )
