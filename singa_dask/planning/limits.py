"""What a step spends its time on, and what a worker sends, in words and by layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from singa_dask.errors import enumerated
from singa_dask.planning.candidates import worth_a_choice
from singa_dask.planning.collectives import Collectives
from singa_dask.planning.prediction import Candidate, Machines, Prediction, duration
from singa_dask.planning.profile import Profile
from singa_dask.planning.work import NBYTES, planned_nets, worker_step
from singa_dask.training.memory import format_nbytes

SHOWN = 0.02  # of a step: smaller parts are summed up
SLOWER = 1.1  # times as long as with one worker: a smaller loss is not explained
REST = 0.01  # of a step: a smaller rest is not mentioned

WORDS = {
    "layers": "computing in the layers",
    "transitions": "sending activations between split layers",
    "exchange": "the exchange of gradients and parameters",
    "codec": "the codec",
    "update": "the update of the parameters",
    "servers": "waiting for the servers",
    "loading": "loading the data",
    "loop": "the training loop around the layers",
}
# What limits a step, and the parts that it shows in.
LIMITS = {
    "computing": ("layers", "codec", "update", "loading", "loop"),
    "what its workers send each other": ("transitions", "exchange"),
    "its servers": ("servers",),
}


@dataclass(frozen=True)
class LayerAdvice:
    """What speaks for splitting a layer with parameters, and against it.

    partition: what is divided: "batch", "features" or "input features". gradients: bytes that a worker sends in a step
    for a layer that is not split, activations: for one that is. chosen: whether the cost model has tried to split it.
    """

    layer: str
    type: str
    parameters: int
    partition: str
    gradients: float
    activations: float
    chosen: bool = False

    @property
    def split(self) -> bool:
        return self.partition != "batch"


def percent(share: float) -> str:
    """
    >>> percent(0.214)
    '21 %'
    """
    return f"{100 * share:.0f} %"


def limit(prediction: Prediction, base: Prediction, machines: Machines) -> str:
    """What takes most of the step, its parts, and what is sent. base: of one worker."""
    parts = {part: s for part, s in prediction.parts.items() if s >= SHOWN * prediction.step_s}
    sums = {what: sum(parts.get(part, 0.0) for part in of) for what, of in LIMITS.items()}
    most = max(sums, key=sums.__getitem__)
    several = f", {_share(sums[most], prediction)} of it" if len(parts.keys() & set(LIMITS[most])) > 1 else ""
    ordered = sorted(parts, key=lambda part: (part not in LIMITS[most], -parts[part]))
    takes = f"A step takes {duration(prediction.step_s)}. It is limited by {most}{several}"
    sentences = [f"{takes}: {enumerated([*_parts(prediction, ordered)])}."]
    if prediction.candidate.topology.nworkers_per_group > 1:
        if most == "computing":
            sentences += _slower(prediction, base, machines)
        sentences += _sending(prediction, machines)
    return " ".join(sentences)


def _slower(prediction: Prediction, base: Prediction, machines: Machines) -> Iterator[str]:
    """How much longer the layers take than with one worker, where they take longer."""

    def cost(each: Prediction) -> float:
        """Seconds of cores for a mini-batch."""
        topology = each.candidate.topology
        cores = machines.computing(topology.nprocesses) / topology.nprocesses
        return topology.nworkers_per_group * cores * each.parts.get("layers", 0.0)

    if cost(prediction) > SLOWER * cost(base) > 0:
        work = worker_step(prediction.candidate.job)
        longer = f"{cost(prediction) / cost(base):.2g} times as long as with one worker"
        samples = f"{work.rows:,} sample{'s' * (work.rows > 1)}"
        yield f"Each worker computes {samples}; per sample and core, the layers take {longer}."


def _sending(prediction: Prediction, machines: Machines) -> Iterator[str]:
    """What a worker sends in a step, and what of it computing hides."""
    activations, gradients = prediction.activations, prediction.sent - prediction.activations
    if prediction.shares:
        if activations:
            yield f"A worker sends {format_nbytes(activations)} of activations per step."
        would = f"a worker would send {format_nbytes(gradients)} of gradients per step"
        yield f"Workers share memory; without it, {would}."
        return
    if prediction.sent:
        text = f"A worker sends {format_nbytes(prediction.sent)} per step"
        if machines.bandwidth and machines.hosts_for(prediction.candidate.topology.nprocesses) > 1:
            text += f": {duration(Collectives(Profile(), machines).wire(prediction.sent))} by bandwidth alone"
        both = f" ({format_nbytes(activations)} of activations, {format_nbytes(gradients)} of gradients)"
        yield f"{text}{both if activations and gradients else ''}."
    hidden = prediction.hidden_s
    if hidden >= SHOWN * prediction.step_s:
        share = percent(hidden / (hidden + prediction.parts.get("exchange", 0.0)))
        yield f"A further {duration(hidden)} of the exchange ({share}) run beside computing."


def _parts(prediction: Prediction, parts: Sequence[str]) -> Iterator[str]:
    """Parts of a step in words, and the sum of the others."""
    for part in parts:
        text = f"{_share(prediction.parts[part], prediction)} is {WORDS[part]}"
        own = {layer.name for layer in prediction.candidate.job.neuralnet.layer}
        layers = {each: ways for each, ways in prediction.layers.items() if each.rpartition("#")[2] in own}
        if part == "layers" and layers:
            slow, ways = max(layers.items(), key=lambda item: sum(item[1]))
            text += f" ({_share(sum(ways), prediction)} in {slow!r} alone)"
        elif part == "servers" and prediction.server_load:
            text += f" (the busiest one works {percent(prediction.server_load)} of the time)"
        yield text
    rest = prediction.step_s - sum(prediction.parts[part] for part in parts)
    if rest >= REST * prediction.step_s:
        yield f"{_share(rest, prediction)} is the rest"


def _share(seconds: float, prediction: Prediction) -> str:
    return percent(seconds / prediction.step_s)


def layers_of(candidate: Candidate) -> Iterator[LayerAdvice]:
    """The layers with parameters of a candidate whose groups have several workers.

    Not split, the gradients and the values of a layer cross the group: 2 (n - 1) / n of them. Split by features, its
    source and the gradient for that do; by input features, its output and its gradient.
    """
    topology, size = candidate.topology, candidate.topology.nworkers_per_group
    if size == 1:
        return
    chosen = candidate.partition != "job" and topology in worth_a_choice(topology.nworkers)
    planned = planned_nets(candidate.job, size)
    share = 2 * (size - 1) / size * NBYTES
    for row in planned.net.describe():
        if row.parameters:
            sources = planned.net.layers[row.layer].partition.sources
            crossing = row.shape if row.partition == "input features" else sources[0]
            activations = share * planned.batch * row.steps * prod(crossing)
            gradients = share * row.parameters
            yield LayerAdvice(row.layer, row.type, row.parameters, row.partition, gradients, activations, chosen)
