"""`neuralnet { partition: auto }`: the profile by which it is chosen, and what a run that resumes keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from singa_dask.job import Job, JobProto
from singa_dask.ops.gpu.turns import places_here
from singa_dask.planning.partition import PartitionChoice, choose_partition, partitioned_as
from singa_dask.planning.prediction import Candidate, Machines
from singa_dask.profiling.facts import facts_here
from singa_dask.profiling.store import key_of, load
from singa_dask.supervision.plan import Cluster, prepared_for_model, with_message
from singa_dask.supervision.profiles import Note, Profiler

if TYPE_CHECKING:
    from distributed import Client


def resolve_partition(job: Job, client: Client | None, note: Note, progress: Note) -> Job:
    """The job with the fastest partition on the cluster of a client, or of local workers.

    It rests on a profile from the cache, to which is added what it lacks. note: is told the choice, progress: what is
    measured. Raises ConfigError if the net fits in no partition.
    """
    if job.topology.nworkers_per_group == 1:
        return _with(job, PartitionChoice(job.proto))
    there = Cluster.of(client)
    prepared = prepared_for_model(job, with_data=True, on_gpus=there.gpus)
    topology = prepared.topology
    machines = there.described(topology.nprocesses, None, None, None, None)
    memory = there.memory.of_worker(topology, machines)
    with Profiler(client, progress) as profiler:
        profiler.learn([Candidate(prepared.job)], machines, prepared.code)
        choice = choose_partition(prepared.job, profiler.profile, machines, memory)
        if choice.reasons:  # by estimates of the split layers
            profiler.learn([Candidate(choice.job(), "auto")], machines, prepared.code)
            choice = choose_partition(prepared.job, profiler.profile, machines, memory)
    note(f"auto: {choice}")
    return _with(job, choice)


def resolve_by_cache(job: Job, note: Note, *, with_data: bool) -> Job:
    """The job with the fastest partition on this machine, if its profile is in the cache; else without split layers.

    note: is told which layers are split and why, or what is missing.
    """
    if job.topology.nworkers_per_group == 1:
        return _with(job, PartitionChoice(job.proto))
    prepared = prepared_for_model(job, with_data=with_data, on_gpus=bool(places_here()))
    facts = facts_here()
    profile = load(key_of(facts))
    if profile is None:
        note("partition: auto is chosen when the job is trained. To see it here, run `singa-dask profile` first.")
        return _with(job, PartitionChoice(job.proto))
    choice = choose_partition(prepared.job, profile, Machines(facts.cores))
    note(f"auto, with all workers on this machine: {choice}")
    for name, reason in choice.reasons.items():
        note(f"  {name}: {reason}")
    return _with(job, choice)


def as_before(job: Job, before: JobProto) -> Job | None:
    """The job with the partition of the run that it resumes; None for another number of workers in a group. before:
    the job of that run."""
    if before.cluster.nworkers_per_group != job.proto.cluster.nworkers_per_group:
        return None
    return with_message(job, partitioned_as(before, job.proto))


def _with(job: Job, choice: PartitionChoice) -> Job:
    return with_message(job, choice.resolve(job.proto))
