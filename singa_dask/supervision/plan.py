"""Planning a job: what each way to train it will cost on a cluster, and which one to take."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from singa_dask.cluster.gpus import chosen
from singa_dask.cluster.workers import WorkerInfo, answering
from singa_dask.errors import ConfigError, Problem, nearest
from singa_dask.job import Job, Strategy
from singa_dask.job.code_bundle import CodeBundle
from singa_dask.job.gpus import on_cpus
from singa_dask.job.job_pb2 import JobProto, NetProto
from singa_dask.monitor.figures import save_out
from singa_dask.monitor.plan_table import instructions, plan_html, plan_text
from singa_dask.ops.gpu.turns import places_here
from singa_dask.planning.advise import ALLOW, UNBOUNDED, Advice, FreeMemory, advise, name
from singa_dask.planning.candidates import Choose, candidates, with_cluster
from singa_dask.planning.model import predict
from singa_dask.planning.partition import choose_partition, is_open, partitioned_as
from singa_dask.planning.prediction import Candidate, Machines, Prediction
from singa_dask.planning.profile import Profile
from singa_dask.supervision.profiles import Note, Profiler
from singa_dask.training.dask_task import memory_limit
from singa_dask.training.memory import UNLIMITED, Free, free_here
from singa_dask.training.prepare import Prepared, prepare

if TYPE_CHECKING:
    from distributed import Client
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class Plan:
    """What the cost model says of a job on a cluster.

    given: the job that was planned.
    advice: the predictions and the recommendation.
    here: whether the recommended candidate can run on the cluster that was asked.
    """

    given: Job
    advice: Advice
    profile: Profile
    here: bool = True

    @property
    def predictions(self) -> tuple[Prediction, ...]:
        """Of every candidate: one worker first, then by workers and samples/s."""
        return self.advice.predictions

    @property
    def recommended(self) -> Prediction:
        """The prediction of the candidate to take."""
        return self.advice.recommended

    @property
    def reason(self) -> str:
        """One or two sentences."""
        return self.advice.reason

    @cached_property
    def job(self) -> Job:
        """The job with the recommended cluster block and partition."""
        return job_of(self.given, self.recommended.candidate)

    def figure(self) -> Figure:
        """Samples/s against workers, by strategy."""
        from singa_dask.monitor.plan_picture import plan_figure

        return plan_figure(self.advice, self.given.name)

    def draw(self, folder: str | Path) -> list[Path]:
        """Write the figure as plan.png and plan.svg. Raises ConfigError if they cannot be written."""
        paths = [Path(folder) / "plan.png", Path(folder) / "plan.svg"]
        save_out(self.figure(), *paths)
        return paths

    def instructions(self, job: str) -> str:
        """How to train as recommended. job: what the command line names it."""
        return instructions(self.recommended.candidate, job, here=self.here)

    def to_json(self) -> str:
        """All predictions and the recommendation; seconds and bytes."""
        machines, chosen = self.advice.machines, self.recommended
        return json.dumps(
            {
                "job": self.given.name,
                "machines": {**asdict(machines), "memory": self.advice.memory.host},
                "profile": {"host": self.profile.host, "cpu": self.profile.cpu, "cores": self.profile.cores},
                "recommended": self.predictions.index(chosen),
                "reason": self.reason,
                "limit": self.advice.limit,
                "layers": [asdict(layer) for layer in self.advice.layers],
                "predictions": [self._as_dict(prediction) for prediction in self.predictions],
            },
            indent=1,
        )

    def _as_dict(self, prediction: Prediction) -> dict[str, Any]:
        topology = prediction.candidate.topology
        return {
            "strategy": topology.strategy.name.lower(),
            "workers": topology.nworkers,
            "topology": asdict(topology),
            "partition": prediction.candidate.partition,
            "samples_per_s": prediction.samples_per_s,
            "speedup": self.advice.speedup(prediction),
            "step_s": prediction.step_s,
            "parts": prediction.parts,
            "hidden_s": prediction.hidden_s,
            "sent": prediction.sent,
            "activations": prediction.activations,
            "shares": prediction.shares,
            "memory": prediction.memory,
            "fits": self.advice.fits(prediction),
            "staleness": prediction.staleness,
            "server_load": prediction.server_load,
            "extrapolated": prediction.extrapolated,
            "layers": prediction.layers,
        }

    def __str__(self) -> str:
        return plan_text(self.advice, self.given.name)

    def __repr__(self) -> str:
        return f"<Plan of {self.given.name}: {self.reason}>"

    def _repr_html_(self) -> str:
        return plan_html(self.advice, self.given.name)


def plan(
    job: Job | JobProto | str | Path,
    client: Client | None = None,
    *,
    workers: Iterable[int] | None = None,
    bandwidth: float | None = None,
    latency: float | None = None,
    cores: int | None = None,
    workers_per_host: int | None = None,
    memory: float | None = None,
    allow: Collection[str] = (),
    strategies: Collection[Strategy | str] = tuple(Strategy),
    profile: Profile | None = None,
    with_data: bool = True,
    note: Note | None = None,
) -> Plan:
    """Predict what each strategy, topology, partition and codec will cost, and recommend one of them.

    job: a Job, its message, or the path of a job file.
    client: a client of the Dask cluster to plan for; None for a local one.
    workers: the numbers of workers to predict; by default powers of two, up to what the cluster has.
    bandwidth: bits/s of a host's network in each direction.
    latency: seconds that a message on that network takes; needs a bandwidth.
    cores: the cores of a host.
    workers_per_host: the largest number of workers on a host.
    memory: bytes of a host; by default what is free, unless cores or bandwidth describe other hosts.
    allow: what may be recommended besides: "asynchronous", "codec".
    strategies: the strategies to predict.
    profile: measurements of these machines; by default those in the cache, which are made first if they are missing.
    with_data: False if the job has the shapes of its data, which may then be absent.
    note: a function that is told what is being measured.

    bandwidth, cores, workers_per_host and memory may describe a cluster that does not exist.

    Raises ConfigError where the job is wrong or no candidate fits the memory.
    """
    loaded = as_job(job)
    listed = _strategies(strategies)
    for each in set(allow) - set(ALLOW):
        raise ConfigError(Problem("allow", "unknown", repr(each), nearest(each, ALLOW)))
    if latency is not None and bandwidth is None:
        hint = "Give the network's bandwidth too, for example --bandwidth 1Gbit (in Python: bandwidth=1e9)."
        raise ConfigError(Problem("latency", "needs a bandwidth", f"{latency:g} s", hint))
    there = Cluster.of(client)
    prepared = prepared_for_model(loaded, with_data=with_data, on_gpus=there.gpus)
    counts = _counts(workers, there)
    machines = there.described(max(counts), cores, workers_per_host, bandwidth, latency)
    free = FreeMemory(memory)
    if memory is None and cores is None and bandwidth is None:
        free = there.memory

    if is_open(loaded.proto):
        prepared.job.neuralnet.partition = NetProto.auto
    bound = None if machines.imagined else there.processes
    listed_by = partial(candidates, prepared.job, counts, machines, processes=bound, strategies=listed)
    with ExitStack() as stack:
        profiler = None if profile else stack.enter_context(Profiler(client, note or _silent))
        known, found = _profiled(listed_by, profile, profiler, machines, free, prepared.code)
    predictions, faults = _predicted(found, known, machines, note or _silent)
    advice = advise(predictions, machines, memory=free, allow=allow, unpredicted=faults)
    return Plan(loaded, advice, known, not machines.imagined)


def _profiled(
    listed_by: Callable[[Choose | None], list[Candidate]],
    profile: Profile | None,
    profiler: Profiler | None,
    machines: Machines,
    memory: FreeMemory,
    code: CodeBundle | None,
) -> tuple[Profile, list[Candidate]]:
    """The profile that predicts the candidates, and these, each with the partition that it finds the fastest.

    listed_by: the candidates, by the choice of their partitions."""
    if profiler is not None:
        profiler.learn(_by_weight(listed_by(None)), machines, code)
    known = profile or cast(Profiler, profiler).profile
    found = listed_by(partial(_with_chosen_partition, profile=known, machines=machines, memory=memory))
    if profiler is not None:
        profiler.learn((each for each in found if each.partition == "auto"), machines, code)
    return known, found


def _predicted(
    found: Iterable[Candidate], profile: Profile, machines: Machines, note: Note
) -> tuple[list[Prediction], list[str]]:
    """The predictions of candidates, and why others have none.

    What the profile cannot tell is noted, unless it is the cost of one worker.
    """
    predictions, faults = [], dict[str, Candidate]()
    for candidate in found:
        try:
            predictions.append(predict(candidate, profile, machines))
        except ConfigError as error:
            if candidate.topology.nworkers == 1:
                raise
            faults[str(error)] = candidate
    for fault, candidate in faults.items():
        note(f"not predicted: {name(candidate)} and the like: {fault}")
    return predictions, list(faults)


def _by_weight(found: Sequence[Candidate]) -> list[Candidate]:
    """One worker and the largest groups first: others lie between them."""
    first, *others = found
    return [first, *sorted(others, key=lambda each: (-each.topology.nworkers_per_group, each.topology.nworkers))]


def as_job(job: Job | JobProto | str | Path) -> Job:
    """A Job from whatever describes one."""
    if isinstance(job, JobProto):
        return Job.from_proto(job)
    return Job.from_file(job) if isinstance(job, str | Path) else job


def with_message(job: Job, message: JobProto) -> Job:
    """A job with another message, which reads its files as the given one does."""
    result = Job.from_proto(message, job.positions)
    result.folder = job.folder
    return result


def job_of(job: Job, candidate: Candidate) -> Job:
    """The job with the topology and the partition of a candidate, which was made from it."""
    message = with_cluster(job.proto, candidate.job.cluster)
    message.neuralnet.CopyFrom(job.net)
    return with_message(job, partitioned_as(candidate.job, message))


def _free(dask_worker: Any) -> Free:
    """What is free on the worker that this runs on; for Client.run."""
    return free_here(memory_limit(dask_worker.memory_manager))


@dataclass(frozen=True)
class Cluster:
    """The machines of a Dask cluster. processes: its workers; None for a local one, which has as many as a job needs.
    memory: free on the host and for the process that have least. gpus: whether jobs train on GPUs here by default."""

    cores: int
    hosts: int = 1
    workers_per_host: int | None = None
    processes: int | None = None
    memory: FreeMemory = UNBOUNDED
    gpus: bool = False

    @classmethod
    def of(cls, client: Client | None) -> Cluster:
        """Raises ConfigError where no worker answers."""
        if client is None:
            free = free_here()
            least = FreeMemory(min(nbytes for nbytes, _ in free.owners))
            return cls(len(os.sched_getaffinity(0)), memory=least, gpus=bool(places_here()))
        workers, silent = answering(client)
        if not workers:
            raise ConfigError(Problem("client", f"no Dask worker answers. {silent}".strip(), hint="Start workers."))
        by_host: dict[str, list[WorkerInfo]] = {}
        for info in workers:
            by_host.setdefault(info.host, []).append(info)
        cores = min(len(frozenset().union(*(info.cpus for info in infos))) for infos in by_host.values())
        free = client.run(_free, workers=[info.address for info in workers]).values()
        each = min(one.memory for one in free)
        host = min(nbytes for one in free for nbytes, _ in one.owners)
        memory = FreeMemory(host, None if each == UNLIMITED else each)
        gpus = chosen((), workers) is not None
        return cls(cores, len(by_host), max(map(len, by_host.values())), len(workers), memory, gpus)

    def described(
        self,
        most: int,
        cores: int | None,
        workers_per_host: int | None,
        bandwidth: float | None,
        latency: float | None,
    ) -> Machines:
        """This cluster with what is given in place of its own, for up to `most` workers."""
        there = Machines(self.cores, self.hosts, self.workers_per_host)
        wanted = replace(there, cores=cores or self.cores, bandwidth=bandwidth, latency=latency)
        if workers_per_host or bandwidth:
            wanted = replace(wanted, hosts=None, workers_per_host=workers_per_host or 1)
        elif self.processes is not None and most > self.processes:
            wanted = replace(wanted, hosts=None)
        return replace(wanted, imagined=wanted != there)

    def counts(self) -> list[int]:
        """Powers of two up to the number of workers, and that number."""
        most = self.processes or self.cores
        return sorted({*(1 << i for i in range(most.bit_length())), most})


def prepared_for_model(job: Job, *, with_data: bool, on_gpus: bool = False) -> Prepared:
    """The job with the shapes of its data, without a request to choose its partition. on_gpus: whether it trains on
    GPUs where it lists none.

    Raises ConfigError for jobs on GPUs.
    """
    listed = list(job.proto.gpu)
    if not on_cpus(listed) and (listed or on_gpus):
        hint = "Give the job a cluster block and each layer's partition_dim, or predict and train it on CPUs: gpu=[]."
        received = str(listed) if listed else "a job that says nothing of GPUs, where there are some"
        raise ConfigError(Problem("gpu", "cannot be predicted: the cost model knows CPUs only", received, hint))
    plain = with_message(job, job.proto)
    plain.proto.neuralnet.ClearField("partition")
    return prepare(plain, with_data=with_data)


def _strategies(strategies: Collection[Strategy | str]) -> list[Strategy]:
    names = {strategy.name.lower(): strategy for strategy in Strategy}
    wanted = [each.name.lower() if isinstance(each, Strategy) else each.lower() for each in strategies]
    for each in wanted:
        if each not in names:
            raise ConfigError(Problem("strategies", "unknown strategy", repr(each), nearest(each, names)))
    return [names[each] for each in wanted]


def _counts(workers: Iterable[int] | None, there: Cluster) -> list[int]:
    counts = there.counts() if workers is None else sorted(set(workers))
    wrong = [count for count in counts if not isinstance(count, int) or count < 1]
    if wrong or not counts:
        received = ", ".join(map(repr, wrong)) or "none"
        raise ConfigError(Problem("workers", "must be integers from 1 on", received, "For example [1, 2, 4]."))
    return counts


def _with_chosen_partition(job: JobProto, profile: Profile, machines: Machines, memory: FreeMemory) -> JobProto:
    each = memory.of_worker(Candidate(job).topology, machines)
    return choose_partition(job, profile, machines, each).job()


def _silent(text: str) -> None:
    return None
