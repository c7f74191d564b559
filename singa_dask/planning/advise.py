"""Which of the predicted candidates to take, and why."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from singa_dask.errors import ConfigError, Problem
from singa_dask.job import ClusterTopology, Strategy
from singa_dask.planning.limits import LayerAdvice, layers_of, limit, percent
from singa_dask.planning.prediction import Candidate, Machines, Prediction
from singa_dask.training.memory import format_nbytes

NAMES = {Strategy.HOGWILD: "Hogwild"}
ALLOW = ("asynchronous", "codec")
SAME = 0.01  # of the samples/s: closer than this, the simpler candidate is taken
EXTRAPOLATED = 0.05  # of a step: what rests on more than this is marked


@dataclass(frozen=True)
class FreeMemory:
    """Bytes that are free on a host, and that Dask allows a process; None for unknown and for any number."""

    host: float | None = None
    process: float | None = None

    def of_worker(self, topology: ClusterTopology, machines: Machines) -> float | None:
        """Bytes for each worker of a job."""
        bounds = [] if self.host is None else [self.host / machines.packed(topology)]
        return min([*bounds, *([] if self.process is None else [self.process])], default=None)


UNBOUNDED = FreeMemory()


@dataclass(frozen=True)
class Advice:
    """recommended: of `predictions`, which are sorted by workers, then by samples/s. reason: one or two sentences.
    limit: sentences on what the step spends its time on. layers: of the recommended candidate. memory, allow: as
    given to `advise`."""

    predictions: tuple[Prediction, ...]
    recommended: Prediction
    reason: str
    limit: str
    layers: tuple[LayerAdvice, ...]
    machines: Machines
    memory: FreeMemory = UNBOUNDED
    allow: tuple[str, ...] = ()

    @property
    def base(self) -> Prediction:
        """Of one worker."""
        return self.predictions[0]

    def speedup(self, prediction: Prediction) -> float:
        """Samples/s against one worker."""
        return prediction.samples_per_s / self.base.samples_per_s

    def cores(self, candidate: Candidate) -> float:
        """The cores that workers and servers compute on, against those of one worker."""
        return self.machines.computing(candidate.topology.nprocesses) / self.machines.computing(1)

    def fits(self, prediction: Prediction) -> bool:
        """Whether the hosts have memory for it."""
        return _missing(prediction, self.machines, self.memory) <= 0


def advise(
    predictions: Sequence[Prediction],
    machines: Machines,
    *,
    memory: FreeMemory = UNBOUNDED,
    allow: Collection[str] = (),
    unpredicted: Sequence[str] = (),
) -> Advice:
    """Recommend the candidate with the highest samples/s among those that compute what one worker computes.

    allow: "asynchronous" and "codec" admit what computes something else. unpredicted: why other candidates could not
    be predicted.
    Raises ConfigError if no candidate fits the memory.
    """
    ordered = sorted(predictions, key=lambda each: (each.candidate.topology.nworkers, -each.samples_per_s))
    fitting = [each for each in ordered if _missing(each, machines, memory) <= 0]
    admitted = [each for each in fitting if admits(each.candidate, allow)]
    if not admitted:
        raise ConfigError(_too_large(ordered, machines, memory, allow))
    best = max(each.samples_per_s for each in admitted)
    chosen = min((each for each in admitted if each.samples_per_s >= (1 - SAME) * best), key=_effort)
    base = next(each for each in ordered if each.candidate.topology.nworkers == 1)
    ordered.remove(base)
    return Advice(
        predictions=(base, *ordered),
        recommended=chosen,
        reason=" ".join(_reason(chosen, base, admitted, fitting, predictions, unpredicted, allow)),
        limit=limit(chosen, base, machines),
        layers=tuple(layers_of(chosen.candidate)),
        machines=machines,
        memory=memory,
        allow=tuple(allow),
    )


def admits(candidate: Candidate, allow: Collection[str]) -> bool:
    """Whether a candidate computes what one worker computes, or in what it differs is allowed."""
    topology = candidate.topology
    return (topology.strategy.synchronous or "asynchronous" in allow) and (
        topology.codec == "kFull" or "codec" in allow
    )


def _effort(prediction: Prediction) -> tuple[int, int, bool, int]:
    """Less for simpler candidates."""
    topology = prediction.candidate.topology
    return topology.nprocesses, topology.nworkers, prediction.candidate.partition != "dim 0", topology.bucket_size


def _missing(prediction: Prediction, machines: Machines, memory: FreeMemory) -> float:
    """Bytes that a host or a process lacks; 0 or less if they have enough."""
    host, process = needs(prediction, machines)
    return max(host - (memory.host or host), process - (memory.process or process))


def needs(prediction: Prediction, machines: Machines) -> tuple[int, int]:
    """Bytes that a candidate needs on the host, and in the process, that has most of it."""
    topology, worker = prediction.candidate.topology, prediction.memory
    server = prediction.server_memory * topology.nservers_per_procs
    workers, processes = machines.packed(topology), topology.nserver_processes
    if not topology.server_worker_separate:
        return workers * worker + min(processes, workers) * server, worker + server
    room = machines.workers_per_host or machines.concurrency(topology.nprocesses)
    if machines.hosts_for(topology.nprocesses) == 1:
        room = topology.nprocesses
    beside = workers * worker + min(processes, room - workers) * server
    return max(beside, min(processes, room) * server), max(worker, server)


def _too_large(
    predictions: Sequence[Prediction], machines: Machines, memory: FreeMemory, allow: Collection[str]
) -> Problem:
    admitted = [each for each in predictions if admits(each.candidate, allow)]
    nearest = min(admitted or predictions, key=lambda each: _missing(each, machines, memory))
    workers = nearest.candidate.topology.nworkers
    host, process = needs(nearest, machines)
    in_process = memory.process is not None and process > memory.process
    needed, where, bound = (
        (process, "in a process", memory.process) if in_process else (host, "on a host", memory.host)
    )
    message = f"no candidate fits: the smallest, {name(nearest.candidate)}, needs {format_nbytes(needed)} {where}"
    hint = f"Plan for more hosts (--workers {2 * workers} --workers-per-host 1), or use a smaller batchsize."
    return Problem("memory", message, format_nbytes(bound or 0.0), hint)


def strategy(topology: ClusterTopology) -> str:
    """A strategy's name."""
    return NAMES.get(topology.strategy, topology.strategy.value)


def name(candidate: Candidate) -> str:
    """In words: "AllReduce with 4 workers (partition auto)"."""
    topology, special = candidate.topology, []
    if topology.codec != "kFull":
        special.append(topology.codec)
    if topology.one_behind:
        special.append("one behind")
    if topology.nworkers_per_group > 1:
        as_given = candidate.partition == "job"
        special.append("partitioned as in the job" if as_given else f"partition {candidate.partition}")
    text = f"{strategy(topology)} with {counts(candidate)}"
    return f"{text} ({', '.join(special)})" if special else text


def counts(candidate: Candidate) -> str:
    """Workers and separate servers in words."""
    topology = candidate.topology
    workers = f"{topology.nworkers:,} worker{'s' * (topology.nworkers > 1)}"
    if topology.nworker_groups > 1 and topology.nworkers_per_group > 1:
        workers = f"{topology.nworker_groups:,} groups of {topology.nworkers_per_group:,} workers"
    if not topology.server_worker_separate:
        return workers
    return f"{workers} and {topology.nservers:,} server{'s' * (topology.nservers > 1)}"


def _reason(
    chosen: Prediction,
    base: Prediction,
    admitted: Sequence[Prediction],
    fitting: Sequence[Prediction],
    every: Sequence[Prediction],
    unpredicted: Sequence[str],
    allow: Collection[str],
) -> Iterator[str]:
    """Against the next best candidate; then against one worker, fewer workers and what was not admitted."""
    rest = [each for each in admitted if name(each.candidate) != name(chosen.candidate)]
    rival = max(rest, key=lambda each: each.samples_per_s, default=None)
    among = (
        "Of all candidates that are allowed" if allow else "Of all candidates that compute what one worker computes"
    )
    if rival is None:
        only = f"{name(chosen.candidate)} trains {rate(chosen)} samples/s"
        yield f"{only}, and no other candidate {_absent(fitting, every, unpredicted)}."
    elif _gain(chosen, rival) > SAME:
        fastest = f"{among}, {name(chosen.candidate)} is the fastest: {rate(chosen)} samples/s"
        yield f"{fastest}, {_more(chosen, rival)} {name(rival.candidate)}, the next one."
    else:
        simple = ", but less simple" * (_effort(rival) > _effort(chosen))
        none = f"{among}, none is faster than {name(chosen.candidate)}: {rate(chosen)} samples/s"
        yield f"{none}; {name(rival.candidate)} is as fast{simple}."
    clauses = [_scaling(chosen, base, rival, admitted)]
    faster = max(fitting, key=lambda each: each.samples_per_s)
    if _gain(faster, chosen) > SAME:
        more = f"{_more(faster, chosen)} the recommendation ({rate(faster)} samples/s)"
        clauses.append(f"{name(faster.candidate)} would train {more}, but {_drawback(faster)}")
    elif left_out := len(every) - len(fitting):
        clauses.append(f"{left_out} {'candidate does' if left_out == 1 else 'candidates do'} not fit the memory")
    if second := "; ".join(filter(None, clauses)):
        yield f"{second}."


def _scaling(chosen: Prediction, base: Prediction, rival: Prediction | None, admitted: Sequence[Prediction]) -> str:
    """What more workers gain, unless the rival has shown it."""
    if chosen is base:
        more = any(each.candidate.topology.nworkers > 1 for each in admitted)
        return "More workers would not be faster" if more else "What more workers would gain is not known"
    if rival is not None and rival.candidate.topology.nworkers == 1:
        return ""
    text = f"That is {chosen.samples_per_s / base.samples_per_s:.3g} times as many as one worker"
    topology = chosen.candidate.topology
    fewer = [
        each
        for each in admitted
        if 1 < each.candidate.topology.nworkers < topology.nworkers
        and each.candidate.topology.strategy is topology.strategy
    ]
    nearest = max(fewer, key=lambda each: (each.candidate.topology.nworkers, each.samples_per_s), default=None)
    if nearest is None or nearest is rival:
        return text
    return f"{text} and {_more(chosen, nearest)} with {nearest.candidate.topology.nworkers:,} workers"


def _absent(fitting: Sequence[Prediction], every: Sequence[Prediction], unpredicted: Sequence[str]) -> str:
    """Why there is no other candidate."""
    if unpredicted:
        return f"could be predicted ({unpredicted[0].rstrip('.')})"
    return "fits the memory" if len(fitting) < len(every) else "is asked for"


def rate(prediction: Prediction, about: str = "about ") -> str:
    """Samples/s. about: the mark of what rests on what was not measured."""
    text = f"{prediction.samples_per_s:,.0f}" if prediction.samples_per_s >= 10 else f"{prediction.samples_per_s:.2g}"
    return f"{about}{text}" if prediction.extrapolated > EXTRAPOLATED else text


def _gain(one: Prediction, other: Prediction) -> float:
    return one.samples_per_s / other.samples_per_s - 1


def _more(one: Prediction, other: Prediction) -> str:
    """How the rate of one compares with that of another: "25 % more than" or "2.5 times as many as"."""
    gain = _gain(one, other)
    return f"{percent(gain)} more than" if gain < 1 else f"{1 + gain:.3g} times as many as"


def _drawback(prediction: Prediction) -> str:
    """In what a candidate that is not admitted differs from one worker."""
    topology, differs = prediction.candidate.topology, []
    if not topology.strategy.synchronous:
        old = f"{prediction.staleness:,.0f} updates old" if prediction.staleness else "of copies that differ"
        differs.append(f"its gradients would be {old} (--allow asynchronous)")
    if topology.codec != "kFull":
        differs.append(f"{topology.codec} alters the gradients (--allow codec)")
    return " and ".join(differs)
