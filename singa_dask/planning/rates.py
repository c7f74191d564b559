"""Seconds of a layer's calls, from samples of the same or of similar layers."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import median

import numpy as np

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

    @classmethod
    def of(cls, seconds: np.ndarray, *, known: bool) -> Rate:
        """seconds: [forward, backward]."""
        return cls(float(seconds[0]), float(seconds[1]), known)

    def times(self, factor: float, *, known: bool = False) -> Rate:
        """The rate of what takes `factor` times as long: of something similar, or known as well as this."""
        return Rate(self.forward * factor, self.backward * factor, known)


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


@lru_cache(maxsize=1 << 14)  # all candidates of a plan read the same profile
def _shape(work: Work) -> Work:
    """The work without its rows."""
    return replace(work, rows=0)


def _per_row(shape: Work) -> float:
    """What the time of a row grows with: operations of layers with products, elements of others."""
    products = shape.params and shape.kind.split()[0] not in LOOKED_UP
    return shape.positions * shape.params if products else max(1, shape.inputs + shape.outputs)


def _distance(one: Work, other: Work) -> float:
    """Of two shapes, in logarithms of their sizes."""
    sizes = ([w.inputs, w.outputs, w.positions, w.params, w.steps] for w in (one, other))
    return math.sqrt(sum(math.log((1 + a) / (1 + b)) ** 2 for a, b in zip(*sizes, strict=True)))


class _Rows:
    """The samples of a shape: seconds against rows, [forward, backward]."""

    def __init__(self, samples: list[LayerSample]) -> None:
        ordered = sorted(samples, key=lambda sample: sample.work.rows)
        self.rows = [sample.work.rows for sample in ordered]
        self.seconds = [(sample.forward, sample.backward) for sample in ordered]

    def line(self, rows: int) -> np.ndarray:
        """By straight lines between the samples, and beyond them along the last one, which do not fall. One sample: in
        proportion."""
        first, least = self.rows[0], 0.0
        if len(self.rows) == 1:
            return np.array(self.seconds[0]) * (rows / first)
        high = min(max(bisect_left(self.rows, rows), 1), len(self.rows) - 1)
        low = high - 1
        if rows < first:  # no less than in proportion, no more than at the first
            low, high, least = 0, -1, rows / first
        start, end = np.array(self.seconds[low]), np.array(self.seconds[high])
        rise = np.maximum(end - start, 0.0) / (self.rows[high] - self.rows[low])
        return np.maximum(start + rise * (rows - self.rows[low]), least * start)


class _Conditions:
    """The samples taken with one concurrency and one number of threads."""

    def __init__(self, samples: list[LayerSample]) -> None:
        by_shape: dict[Work, list[LayerSample]] = defaultdict(list)
        for sample in samples:
            by_shape[_shape(sample.work)].append(sample)
        self.shapes = {shape: _Rows(of_shape) for shape, of_shape in by_shape.items()}
        self.exact = {sample.work: sample for sample in samples}
        besides = ("Passes", "Update", "Spread")
        plain = [s for s in samples if not s.work.params and s.work.elements and s.work.kind.split()[0] not in besides]
        self._elementwise = _overall(plain or samples)
        self._neighbours: dict[Work, list[tuple[float, float, Work]]] = {}

    def rate(self, work: Work) -> Rate:
        """Measured; else by its rows; else by similar shapes."""
        if work in self.exact:
            sample = self.exact[work]
            return Rate(sample.forward, sample.backward)
        shape = _shape(work)
        measured = self.shapes.get(shape)
        if measured is None:
            return Rate.of(self._similar(shape, work.rows), known=False)
        between = measured.rows[0] <= work.rows <= measured.rows[-1]
        if between or (len(measured.rows) > 1 and not (shape.params and shape.positions == 1)):
            return Rate.of(measured.line(work.rows), known=between)
        # A product with few rows takes as long as its parameters take to be read: others tell how it goes on.
        nearest = 0 if work.rows < measured.rows[0] else -1
        here, there = self._similar(shape, work.rows), self._similar(shape, measured.rows[nearest])
        unknown = np.full(2, work.rows / measured.rows[nearest])
        factors = np.divide(here, there, out=unknown, where=there > 0)
        return Rate.of(np.array(measured.seconds[nearest]) * factors, known=False)

    def _similar(self, shape: Work, rows: int) -> np.ndarray:
        """From the nearest shapes of its kind, which are other than this one, at the same rows."""
        if shape not in self._neighbours:
            self._neighbours[shape] = self._nearest(shape)
        neighbours = self._neighbours[shape]
        if not neighbours:
            return rows * (shape.inputs + shape.outputs) * self._elementwise
        seconds = [
            weight * scale * self.shapes[other].line(rows) * (1.0, _gradients(shape, other))
            for weight, scale, other in neighbours
        ]
        return np.sum(seconds, axis=0) / sum(weight for weight, *_ in neighbours)

    def _alike(self, kind: str) -> list[Work]:
        """The shapes of a kind, or of all kinds of a class."""
        return [shape for shape in self.shapes if kind in (shape.kind, shape.kind.split()[0])]

    def _nearest(self, shape: Work) -> list[tuple[float, float, Work]]:
        """(weight, scale, shape) of the neighbours. Neither depends on rows, so that more rows never take less."""
        alike = self._alike(shape.kind) or self._alike(shape.kind.split()[0])
        alike = [other for other in alike if other != shape]
        alike = [other for other in alike if other.gradient == shape.gradient] or alike
        # A shape with a single sample does not tell how its time grows with rows.
        far = [(_distance(shape, other) + (len(self.shapes[other].rows) == 1), other) for other in alike]
        far.sort(key=lambda pair: pair[0])
        return [(1 / (0.1 + d) ** 2, _per_row(shape) / _per_row(other), other) for d, other in far[:NEIGHBOURS]]


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
            by_conditions[sample.concurrency, sample.threads].append(sample)
        self._conditions = {key: _Conditions(samples) for key, samples in by_conditions.items()}
        self._known: dict[tuple[Work, int, int], Rate] = {}
        self._ratios: dict[tuple[str, tuple[int, int], tuple[int, int]], float] = {}

    def layer(self, work: Work, concurrency: int = 1, threads: int = 1) -> Rate:
        """Seconds of a call, while `concurrency` processes with `threads` threads each compute on the host."""
        key = work, concurrency, threads
        if key not in self._known:
            self._known[key] = self._layer(*key)
        return self._known[key]

    def _layer(self, work: Work, concurrency: int, threads: int) -> Rate:
        measured = sorted(t for t in {t for _, t in self._conditions} if t <= threads)
        nearest = measured[-1] if measured else min(t for _, t in self._conditions)
        rate = self._concurrent(work, concurrency, nearest)
        if nearest != threads:
            rate = rate.times(self._amdahl(work, threads) / self._amdahl(work, nearest))
        return rate.times(max(1.0, concurrency / self._cores), known=rate.known)

    def _concurrent(self, work: Work, concurrency: int, threads: int) -> Rate:
        concurrencies = sorted(c for c, t in self._conditions if t == threads)
        here = place = min(concurrency, self._cores)
        if self._cores != self._measured_cores and self._cores > 1:  # as large a share of the machine
            place = 1 + (here - 1) * (self._measured_cores - 1) / (self._cores - 1)
        place = min(max(place, concurrencies[0]), concurrencies[-1])
        i = bisect_left(concurrencies, place)
        upper = self._under(work, (concurrencies[i], threads))
        if concurrencies[i] == place:
            return Rate(upper.forward, upper.backward, upper.known and place == here)
        lower = self._under(work, (concurrencies[i - 1], threads))
        share = (place - concurrencies[i - 1]) / (concurrencies[i] - concurrencies[i - 1])
        before, after = (np.array([rate.forward, rate.backward]) for rate in (lower, upper))
        known = lower.known and upper.known and self._cores == self._measured_cores
        return Rate.of(before + share * (after - before), known=known)

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
            most, concurrency = several[-1]
            ratio = self._ratio(work.kind, (concurrency, 1), (concurrency, most))
            serial = min(max((ratio - 1 / most) / (1 - 1 / most), 0.0), 1.0)
        return serial + (1 - serial) / threads


def _overall(samples: list[LayerSample]) -> np.ndarray:
    """Seconds of an element, [forward, backward]."""
    elements = max(1, sum(sample.work.elements for sample in samples))
    return np.sum([(sample.forward, sample.backward) for sample in samples], axis=0) / elements


def _gradients(shape: Work, neighbour: Work) -> float:
    """Products of the backward pass of a shape over those of its neighbour."""
    if not shape.params or shape.gradient == neighbour.gradient:
        return 1.0
    return 2.0 if shape.gradient else 0.5
