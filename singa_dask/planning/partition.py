"""The choice of a net's partition: which layers of a job are split over the workers of a group, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from singa_dask.errors import ConfigError, Problem
from singa_dask.job.job_pb2 import JobProto, NetProto
from singa_dask.job.paths import layers_of
from singa_dask.layers.partition import Sharding
from singa_dask.planning.model import group_step, predict
from singa_dask.planning.partition_search import PartitionPlan, Weights, cheapest
from singa_dask.planning.prediction import Candidate, Machines, duration
from singa_dask.planning.profile import Profile
from singa_dask.planning.step import GroupStep
from singa_dask.planning.ways import NotPartitioned, PartitionedLayer, Shardings, Way, WayCosts, Ways
from singa_dask.planning.work import NBYTES, Collective, Work, worker_step
from singa_dask.training.memory import Need, format_nbytes, readable

# A split net must be this much faster than one that is divided by rows: predictions are not exact, and it waits for
# the slowest worker more often.
GAIN = 0.03
_EXPOSED = (1.0, 0.5, 0.0)


@dataclass(frozen=True)
class PartitionChoice:
    """The partition of a job's layers.

    prepared: the job. ways: what the job says of each layer, by name. shardings: what each layer of the training net
    reads and makes. seconds: of each of these, with the transitions before it, if nothing hides the exchange of its
    parameters. reasons: of each split layer. step_s: of a step; unsplit_s: without any split layer, None where that is
    impossible. need: memory of a worker.
    """

    prepared: JobProto
    ways: dict[str, Way] = field(default_factory=dict)
    shardings: dict[str, Shardings] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    step_s: float | None = None
    unsplit_s: float | None = None
    need: Need | None = None

    def job(self) -> JobProto:
        """The job with this partition."""
        return self.resolve(self.prepared)

    def __str__(self) -> str:
        if self.step_s is None or not self.reasons:
            return f"no layer is split, which would gain less than {GAIN:.0%}" if self.step_s else "no layer is split"
        text = f"split: {', '.join(self.reasons)}; a step takes {duration(self.step_s)}"
        return text if self.unsplit_s is None else f"{text}, undivided {duration(self.unsplit_s)}"

    def resolve(self, job: JobProto) -> JobProto:
        """A job with the same layers, with this partition."""
        resolved = _given(job)
        for _, layer in layers_of(resolved):
            self.ways.get(layer.name, Way()).write(layer)
        return resolved


def is_open(job: JobProto) -> bool:
    """Whether a job leaves the partition of its net to the cost model."""
    return job.neuralnet.partition == NetProto.auto


def partitioned_as(source: JobProto, job: JobProto) -> JobProto:
    """A job with the partition of the layers of `source` that have the same names."""
    result = PartitionChoice(source, {layer.name: Way.of(layer) for _, layer in layers_of(source)}).resolve(job)
    if source.neuralnet.HasField("partition_dim"):
        result.neuralnet.partition_dim = source.neuralnet.partition_dim
    return result


@dataclass(frozen=True)
class _Candidate:
    assignment: PartitionPlan
    step_s: float
    need: Need


def choose_partition(
    job: JobProto, profile: Profile, machines: Machines, memory: float | None = None
) -> PartitionChoice:
    """The partition of a job whose step the cost model predicts to be the fastest; see `choose`."""

    def evaluate(job: JobProto) -> tuple[float, Need]:
        work = worker_step(job)
        step = group_step(job, work, profile, machines)
        need = work.shared_need if step.shares and step.in_process else work.need
        return predict(Candidate(job, "auto"), profile, machines, work).step_s, need

    given = _given(job)
    return choose(given, StepCosts(group_step(given, worker_step(given), profile, machines)), evaluate, memory)


class StepCosts:
    """The costs of the parts of a job's step, as its `step` has them."""

    def __init__(self, step: GroupStep) -> None:
        self._costs, self._size = step.costs, step.size
        n, elements = step.size, max(1.0, step.work.replicated + step.size * step.work.own)
        self._update = step.costs.update(elements / n) / elements * n
        nbytes = NBYTES * elements
        if step.shares:
            seconds = (n - 1) * step.costs.add(nbytes / n)
        else:
            travels = step.costs.nbytes(elements)
            seconds = sum(
                step.costs.collectives.cost(op, travels, n).seconds for op in ("reduce_scatter", "all_gather")
            )
            seconds += sum(2 * step.costs.coding(way, elements) for way in ("encode", "decode"))
        self._exchange = seconds / nbytes

    def call(self, work: Work) -> tuple[float, float]:
        rate = self._costs.layer(work)
        return rate.forward, rate.backward

    def collective(self, collective: Collective) -> float:
        return self._costs.collectives.cost(collective.operation, collective.nbytes, self._size).seconds

    def exchange(self, nbytes: float) -> float:
        return self._exchange * nbytes

    def update(self, elements: float) -> float:
        return self._update * elements


Evaluate = Callable[[JobProto], tuple[float, Need]]


def choose(job: JobProto, costs: WayCosts, evaluate: Evaluate, memory: float | None = None) -> PartitionChoice:
    """The fastest partition of a job whose worker needs at most `memory` bytes.

    job: prepared. costs: of the parts of a step; a search minimises their sum. evaluate: seconds of a step of a job,
    overlap included, and memory of a worker; it decides between the results of searches.
    Raises ConfigError if none fits, or if the layers that the job partitions itself cannot be partitioned so.
    """
    job = _given(job)
    if job.cluster.nworkers_per_group == 1:
        return PartitionChoice(job, {}, worker_step(job).shardings)
    return _Chooser(job, costs, evaluate, memory).choose()


def _given(job: JobProto) -> JobProto:
    """The job without the request to choose a partition."""
    given = JobProto()
    given.CopyFrom(job)
    given.neuralnet.ClearField("partition")
    return given


class _Chooser:
    def __init__(self, job: JobProto, costs: WayCosts, evaluate: Evaluate, memory: float | None) -> None:
        self._job, self._evaluate, self._memory = job, evaluate, memory
        self._ways = Ways(job, costs)
        self._found: dict[frozenset[tuple[str, Way]], _Candidate] = {}

    def choose(self) -> PartitionChoice:
        unsplit = self._unsplit()
        for target in self._searches():
            self._candidate(target)
        if not self._fitting():
            self._search_memory()
        best = min(self._fitting(), key=lambda candidate: candidate.step_s)
        if unsplit is not None and self._fits(unsplit) and best.step_s > (1 - GAIN) * unsplit.step_s:
            best = unsplit
        placed = best.assignment.placed
        return PartitionChoice(
            self._job,
            best.assignment.ways,
            {name: each.shardings for name, each in placed.items()},
            {name: Weights().cost(each) for name, each in placed.items()},
            self._reasons(placed, unsplit),
            best.step_s,
            None if unsplit is None else unsplit.step_s,
            best.need,
        )

    def _unsplit(self) -> _Candidate | None:
        """Every layer divided by rows, unless the job says otherwise."""
        try:
            rows = cheapest(self._ways, Weights(), lambda name, way, placed: not way.dim)
        except NotPartitioned:
            return None
        return self._candidate(rows)

    def _searches(self) -> Iterator[PartitionPlan]:
        """partition_dim: 1 of the net, and what is cheapest if more or less of the exchange is hidden."""
        plain = _given(self._job)
        plain.neuralnet.partition_dim = 1
        with suppress(ConfigError):  # layers that cannot be split so
            shardings = worker_step(plain).shardings
            yield cheapest(self._ways, Weights(), lambda name, way, placed: placed.shardings == shardings[name])
        for exposed in _EXPOSED:
            yield cheapest(self._ways, Weights(exposed))

    def _candidate(self, assignment: PartitionPlan) -> _Candidate:
        key = frozenset(assignment.ways.items())
        if key not in self._found:
            job = PartitionChoice(self._job, assignment.ways).job()
            self._found[key] = _Candidate(assignment, *self._evaluate(job))
        return self._found[key]

    def _fits(self, candidate: _Candidate) -> bool:
        return self._memory is None or candidate.need.total <= self._memory

    def _fitting(self) -> list[_Candidate]:
        return [candidate for candidate in self._found.values() if self._fits(candidate)]

    def _search_memory(self) -> None:
        """Let bytes cost more and more seconds until the cheapest partition fits, then as little as that takes."""
        placed = next(iter(self._found.values())).assignment.placed.values()
        price = sum(map(Weights().cost, placed)) / sum(each.nbytes for each in placed) / 16
        low = 0.0
        for _ in range(12):
            if self._fits(self._candidate(cheapest(self._ways, Weights(memory=price)))):
                break
            low, price = price, 4 * price
        else:
            raise self._too_large()
        for _ in range(6):
            middle = (low + price) / 2
            fits = self._fits(self._candidate(cheapest(self._ways, Weights(memory=middle))))
            low, price = (low, middle) if fits else (middle, price)

    def _too_large(self) -> ConfigError:
        least = min(self._found.values(), key=lambda candidate: candidate.need.total)
        workers = self._ways.size
        message = f"needs {least.need} in the partition of least memory over {workers} workers"
        limit = f"{readable(self._memory or 0)} per worker"
        hint = "Use more workers per group (nworkers_per_group), a smaller batchsize, or workers with more memory."
        return ConfigError(Problem("neuralnet.partition", message, limit, hint))

    # Reasons

    def _reasons(self, placed: Mapping[str, PartitionedLayer], unsplit: _Candidate | None) -> dict[str, str]:
        forced = unsplit is None or not self._fits(unsplit)
        return {
            name: self._reason(name, placed, forced)
            for name, each in placed.items()
            if Sharding.FEATURES in each.shardings or Sharding.PARTIAL in each.shardings
        }

    def _reason(self, name: str, placed: Mapping[str, PartitionedLayer], forced: bool) -> str:
        layer = self._ways.layers[name]
        gradients = NBYTES * sum(param.size for param in layer.params if param.owner is param)
        if not gradients:
            return f"goes on with the features of {layer.proto.srclayers[0]!r}"
        moved = {each for other in placed.values() for each in other.moved if not each.backward}
        activations = sum(each.nbytes for each in moved if each.source == name or each in placed[name].moved)
        text = f"its gradients would be {format_nbytes(gradients)}, its activations are {format_nbytes(activations)}"
        if forced and self._memory is not None:
            return f"{text}; undivided, the net does not fit into {format_nbytes(self._memory)}"
        return text
