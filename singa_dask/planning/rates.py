"""Seconds of a layer's calls, from samples of the same or of similar layers."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass, replace
from statistics import median
from typing import NamedTuple

from singa_dask.errors import ConfigError, Problem
from singa_dask.job.job_pb2 import AlgProto, JobProto
from singa_dask.planning.profile import LayerSample, Profile, rule_name
from singa_dask.planning.work import Work, WorkerStep

# Where no sample has several threads: the share of a call that they divide among them.
PARALLEL_SHARE = 0.9
# Neighbours that an unknown shape is estimated from.
NEIGHBOURS = 4
# Kinds whose parameters are looked up, not multiplied.
LOOKED_UP = ("Embedding",)


@dataclass(frozen=True)
class Rate:
    """Seconds of a layer's forward and backward call. known: whether this work was measured, or lies between two
    measured row counts."""

    forward: float
    backward: float
    known: bool = True

    def times(self, factor: float) -> Rate:
        """The rate of something similar, which takes `factor` times as long."""
        return Rate(self.forward * factor, self.backward * factor, known=False)


def passes_work(job: JobProto, step: WorkerStep) -> Work:
    """The key of what a step's algorithm does besides the calls of the layers: kind "Passes" and the algorithm.

    rows: the calls; positions: elements of all outputs. Of CD, which computes its gradients there: rows of the worker,
    elements of a row and of the parameters.
    """
    alg = job.train_one_batch
    if alg.alg == AlgProto.kCD:
        works = [call.work for call in step.forward]
        inputs, outputs = sum(work.inputs for work in works), sum(work.outputs for work in works)
        return Work(f"Passes kCD {alg.cd_conf.cd_k}", step.rows, inputs, outputs, params=step.replicated + step.own)
    name = alg.user_alg if alg.alg == AlgProto.kUserAlg else AlgProto.AlgType.Name(alg.alg)
    elements = sum(call.work.rows * call.work.outputs for call in step.forward)
    return Work(f"Passes {name}", len(step.calls), inputs=1, outputs=0, positions=elements)


def update_work(job: JobProto, step: WorkerStep) -> Work:
    """The key of an update of all elements that a worker has: kind "Update" and the rule, the elements as rows."""
    return Work(
        f"Update {rule_name(job.updater)}", step.replicated + step.own, inputs=1, outputs=1, positions=len(step.calls)
    )


def spread_work(job: JobProto, step: WorkerStep) -> Work:
    """The key of the standard deviation of the time of a step: kind "Spread", else as `passes_work`."""
    passes = passes_work(job, step)
    return replace(passes, kind=passes.kind.replace("Passes", "Spread"))


class _Shape(NamedTuple):
    """A Work without its rows."""

    kind: str
    inputs: int
    outputs: int
    positions: int
    params: int
    steps: int
    gradient: bool

    @classmethod
    def of(cls, work: Work) -> _Shape:
        return cls(work.kind, work.inputs, work.outputs, work.positions, work.params, work.steps, work.gradient)

    @property
    def per_row(self) -> float:
        """What the time of a row grows with: operations of layers with products, elements of others."""
        products = self.params and self.kind.split()[0] not in LOOKED_UP
        return self.positions * self.params if products else max(1, self.inputs + self.outputs)

    def distance(self, other: _Shape) -> float:
        """In logarithms of the sizes."""
        pairs = zip(self[1:6], other[1:6], strict=True)
        return math.sqrt(sum(math.log((1 + a) / (1 + b)) ** 2 for a, b in pairs))


class _Rows:
    """The samples of a shape: seconds against rows, forward and backward."""

    def __init__(self, samples: list[LayerSample]) -> None:
        ordered = sorted(samples, key=lambda sample: sample.work.rows)
        self.rows = [sample.work.rows for sample in ordered]
        self.seconds = [(sample.forward, sample.backward) for sample in ordered]

    def line(self, rows: int) -> tuple[float, float]:
        """By straight lines between the samples, and beyond them along the last one. One sample: in proportion."""
        first, last = self.rows[0], self.rows[-1]
        if len(self.rows) == 1:
            return _scaled(self.seconds[0], rows / first)
        if rows < first:  # no less than in proportion, no more than at the first
            return _between(rows, first, last, self.seconds[0], self.seconds[-1], least=rows / first)
        i = min(max(bisect_left(self.rows, rows), 1), len(self.rows) - 1)
        return _between(rows, self.rows[i - 1], self.rows[i], self.seconds[i - 1], self.seconds[i])


class _Conditions:
    """The samples taken with one crowd and one number of threads."""

    def __init__(self, samples: list[LayerSample]) -> None:
        by_shape: dict[_Shape, list[LayerSample]] = defaultdict(list)
        for sample in samples:
            by_shape[_Shape.of(sample.work)].append(sample)
        self.shapes = {shape: _Rows(of_shape) for shape, of_shape in by_shape.items()}
        self.exact = {sample.work: sample for sample in samples}
        self._alike: dict[str, list[_Shape]] = defaultdict(list)  # by kind, and by class
        for shape in self.shapes:
            for name in {shape.kind, shape.kind.split()[0]}:
                self._alike[name].append(shape)
        besides = ("Passes", "Update", "Spread")
        plain = [s for s in samples if not s.work.params and s.work.elements and s.work.kind.split()[0] not in besides]
        self._elementwise = _overall(plain or samples)
        self._neighbours: dict[_Shape, list[tuple[float, float, _Shape]]] = {}

    def rate(self, work: Work) -> Rate:
        """Measured; else by its rows; else by similar shapes."""
        if work in self.exact:
            sample = self.exact[work]
            return Rate(sample.forward, sample.backward)
        shape = _Shape.of(work)
        measured = self.shapes.get(shape)
        if measured is None:
            return Rate(*self._similar(shape, work.rows), known=False)
        line = measured.line(work.rows)
        if measured.rows[0] <= work.rows <= measured.rows[-1]:
            return Rate(*line)
        if len(measured.rows) > 1 and not (shape.params and shape.positions == 1):
            return Rate(*line, known=False)
        # A product with few rows takes as long as its parameters take to be read: others tell how it goes on.
        nearest = 0 if work.rows < measured.rows[0] else -1
        here, there = self._similar(shape, work.rows), self._similar(shape, measured.rows[nearest])
        factors = [a / b if b else work.rows / measured.rows[nearest] for a, b in zip(here, there, strict=True)]
        seconds = measured.seconds[nearest]
        return Rate(seconds[0] * factors[0], seconds[1] * factors[1], known=False)

    def _similar(self, shape: _Shape, rows: int) -> tuple[float, float]:
        """From the nearest shapes of its kind, which are other than this one, at the same rows."""
        if shape not in self._neighbours:
            self._neighbours[shape] = self._nearest(shape)
        neighbours = self._neighbours[shape]
        if not neighbours:
            elements = rows * (shape.inputs + shape.outputs)
            return elements * self._elementwise[0], elements * self._elementwise[1]
        forward = backward = total = 0.0
        for weight, scale, neighbour in neighbours:
            seconds = self.shapes[neighbour].line(rows)
            forward += weight * scale * seconds[0]
            backward += weight * scale * seconds[1] * _gradients(shape, neighbour)
            total += weight
        return forward / total, backward / total

    def _nearest(self, shape: _Shape) -> list[tuple[float, float, _Shape]]:
        """(weight, scale, shape) of the neighbours. Neither depends on rows, so that more rows never take less."""
        alike = self._alike.get(shape.kind) or self._alike.get(shape.kind.split()[0], [])
        alike = [other for other in alike if other != shape]
        alike = [other for other in alike if other.gradient == shape.gradient] or alike
        # A shape with a single sample does not tell how its time grows with rows.
        far = [(shape.distance(other) + (len(self.shapes[other].rows) == 1), other) for other in alike]
        far.sort(key=lambda pair: pair[0])
        return [(1 / (0.1 + d) ** 2, shape.per_row / other.per_row, other) for d, other in far[:NEIGHBOURS]]


class Rates:
    """What layers take on machines with `cores` cores, by default those of the profile.

    Raises ConfigError if the profile has no samples of layers.
    """

    def __init__(self, profile: Profile, cores: float | None = None) -> None:
        if not profile.layers:
            raise ConfigError(Problem("profile", "has no samples of layers", hint="Run `singa-dask profile`."))
        self._cores, self._measured_cores = cores or profile.cores, profile.cores
        by_conditions: dict[tuple[int, int], list[LayerSample]] = defaultdict(list)
        for sample in profile.layers:
            by_conditions[sample.crowd, sample.threads].append(sample)
        self._conditions = {key: _Conditions(samples) for key, samples in by_conditions.items()}
        self._known: dict[tuple[Work, int, int], Rate] = {}
        self._ratios: dict[tuple[str, tuple[int, int], tuple[int, int]], float] = {}

    def layer(self, work: Work, crowd: int = 1, threads: int = 1) -> Rate:
        """Seconds of a call, while `crowd` processes with `threads` threads each compute on the host."""
        key = work, crowd, threads
        if key not in self._known:
            self._known[key] = self._layer(*key)
        return self._known[key]

    def _layer(self, work: Work, crowd: int, threads: int) -> Rate:
        measured = sorted(t for t in {t for _, t in self._conditions} if t <= threads)
        nearest = measured[-1] if measured else min(t for _, t in self._conditions)
        rate = self._crowded(work, crowd, nearest)
        if nearest != threads:
            rate = rate.times(self._amdahl(work, threads) / self._amdahl(work, nearest))
        over = crowd / self._cores
        return rate if over <= 1 else Rate(rate.forward * over, rate.backward * over, rate.known)

    def _crowded(self, work: Work, crowd: int, threads: int) -> Rate:
        crowds = sorted(c for c, t in self._conditions if t == threads)
        here = place = min(crowd, self._cores)
        if self._cores != self._measured_cores and self._cores > 1:  # as large a share of the machine
            place = 1 + (here - 1) * (self._measured_cores - 1) / (self._cores - 1)
        place = min(max(place, crowds[0]), crowds[-1])
        i = bisect_left(crowds, place)
        upper = self._under(work, (crowds[i], threads))
        if crowds[i] == place:
            return Rate(upper.forward, upper.backward, upper.known and place == here)
        lower = self._under(work, (crowds[i - 1], threads))
        share = (place - crowds[i - 1]) / (crowds[i] - crowds[i - 1])
        forward = lower.forward + share * (upper.forward - lower.forward)
        backward = lower.backward + share * (upper.backward - lower.backward)
        imagined = self._cores != self._measured_cores
        return Rate(forward, backward, lower.known and upper.known and not imagined)

    def _under(self, work: Work, wanted: tuple[int, int]) -> Rate:
        """Under these conditions; where only others were measured, by the ratio between the two."""
        rate = self._conditions[wanted].rate(work)
        if rate.known:
            return rate
        for other, conditions in self._conditions.items():
            if other != wanted and (known := conditions.rate(work)).known:
                return known.times(self._ratio(work.kind, other, wanted))
        return rate

    def _ratio(self, kind: str, here: tuple[int, int], there: tuple[int, int]) -> float:
        """How much longer calls of this kind, or of any, take under other conditions."""
        key = kind, here, there
        if key not in self._ratios:
            ratios = self._compared(kind, here, there) or self._compared("", here, there)
            self._ratios[key] = median(ratios) if ratios else here[1] / there[1]
        return self._ratios[key]

    def _compared(self, kind: str, here: tuple[int, int], there: tuple[int, int]) -> list[float]:
        before, after = self._conditions[here].exact, self._conditions[there].exact
        both = [(before[w], after[w]) for w in before.keys() & after.keys() if w.kind == kind or not kind]
        totals = [(a.forward + a.backward, b.forward + b.backward) for a, b in both]
        return [b / a for a, b in totals if a > 0 and b > 0]

    def _amdahl(self, work: Work, threads: int) -> float:
        """The time with so many threads as a share of that with one."""
        several = sorted((t, c) for c, t in self._conditions if t > 1 and (c, 1) in self._conditions)
        serial = 1 - PARALLEL_SHARE
        if several:
            most, crowd = several[-1]
            ratio = self._ratio(work.kind, (crowd, 1), (crowd, most))
            serial = min(max((ratio - 1 / most) / (1 - 1 / most), 0.0), 1.0)
        return serial + (1 - serial) / threads


def _scaled(seconds: tuple[float, float], factor: float) -> tuple[float, float]:
    return seconds[0] * factor, seconds[1] * factor


def _between(
    rows: int, r0: int, r1: int, s0: tuple[float, float], s1: tuple[float, float], least: float = 0.0
) -> tuple[float, float]:
    """On the lines through (r0, s0) and (r1, s1), which do not fall; at least `least` times s0."""
    forward, backward = (
        max(a + max(b - a, 0.0) / (r1 - r0) * (rows - r0), least * a) for a, b in zip(s0, s1, strict=True)
    )
    return forward, backward


def _overall(samples: list[LayerSample]) -> tuple[float, float]:
    """Seconds of an element, forward and backward."""
    elements = max(1, sum(sample.work.elements for sample in samples))
    forward = sum(sample.forward for sample in samples) / elements
    return forward, sum(sample.backward for sample in samples) / elements


def _gradients(shape: _Shape, neighbour: _Shape) -> float:
    """Products of the backward pass of a shape over those of its neighbour."""
    if not shape.params or shape.gradient == neighbour.gradient:
        return 1.0
    return 2.0 if shape.gradient else 0.5
