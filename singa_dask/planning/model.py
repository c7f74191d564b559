"""The cost model: what a candidate costs on given machines."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from singa_dask.job.job_pb2 import AlgProto, JobProto
from singa_dask.planning.asynchronous import group_rates
from singa_dask.planning.costs import Costs, conditions
from singa_dask.planning.prediction import Candidate, Machines, Prediction
from singa_dask.planning.profile import Profile
from singa_dask.planning.step import GroupStep
from singa_dask.planning.work import ScheduledCall, WorkerStep, server_memory, worker_step


def predict(candidate: Candidate, profile: Profile, machines: Machines, work: WorkerStep | None = None) -> Prediction:
    """What a candidate costs on these machines. work: of its job, if that is known.

    Raises ConfigError where the profile lacks what the candidate needs.
    """
    job, topology = candidate.job, candidate.topology
    work = work or worker_step(job)
    step = group_step(job, work, profile, machines)
    clock, overlaps = step.run()
    parts, step_s = dict(clock.parts), clock.now
    staleness = server_load = to_neighbours = 0.0
    if topology.nworker_groups > 1:
        rates = group_rates(step, clock, machines)
        step_s, staleness, server_load = rates.step_s, rates.staleness, rates.server_load
        to_neighbours = rates.sent
        # Beside others a step takes longer, which wait for cores and servers that it uses. With one_behind it may be
        # shorter: then it does not wait for its servers.
        parts["servers"] = parts.get("servers", 0.0) + step_s - clock.now
    return Prediction(
        candidate=candidate,
        step_s=step_s,
        samples_per_s=topology.nworker_groups * work.batch / step_s,
        parts={name: seconds for name, seconds in parts.items() if seconds > 0},
        sent=step.sent + to_neighbours,
        activations=step.activations,
        shares=step.shares,
        memory=(work.shared_need if step.shares else work.need).total,
        server_memory=server_memory(job, work),
        layers=_layers(step),
        hidden_s=clock.hidden,
        overlaps=overlaps,
        staleness=staleness,
        server_load=server_load,
        extrapolated=_extrapolated(step, step_s),
    )


def group_step(job: JobProto, work: WorkerStep, profile: Profile, machines: Machines) -> GroupStep:
    """The step of one group of a job."""
    topology = Candidate(job).topology
    concurrency, _ = conditions(job, machines)
    if topology.nworker_groups > 1:  # cores that several processes share are counted in group_rates
        machines = replace(machines, cores=max(1.0, machines.cores))
        concurrency = max(1, min(concurrency, int(machines.cores)))
    costs = Costs(job, work, profile, machines, concurrency)
    return GroupStep.of(work, costs, own_algorithm=job.train_one_batch.alg == AlgProto.kUserAlg)


def _calls(step: GroupStep) -> Iterator[tuple[ScheduledCall, int, float]]:
    """Every call of a layer; 0 for forward, 1 for backward; its seconds."""
    for way, calls in enumerate((step.work.forward, step.work.backward)):
        yield from ((call, way, step.seconds(call)[way]) for call in calls)


def _layers(step: GroupStep) -> dict[str, tuple[float, float]]:
    found: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for call, way, seconds in _calls(step):
        sent = sum(step.costs.collectives.cost(c.operation, c.nbytes, step.size).seconds for c in call.collectives)
        found[call.layer][way] += seconds + sent
    return {name: (forward, backward) for name, (forward, backward) in found.items()}


def _extrapolated(step: GroupStep, step_s: float) -> float:
    """The share of a step in layers that were not measured."""
    return min(1.0, sum(s for call, _, s in _calls(step) if not step.costs.layer(call.work).known) / step_s)
