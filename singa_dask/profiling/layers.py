"""What the calls of a job's layers take in one process, in situ: in real training steps of the product's own net."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import pi, prod, sqrt
from statistics import mean, median
from typing import Any

import numpy as np

from singa_dask.algorithms import algorithm
from singa_dask.job import ClusterTopology
from singa_dask.job.job_pb2 import JobProto, LRGenProto, Phase
from singa_dask.layers.context import Step
from singa_dask.layers.group import LayerGroup
from singa_dask.layers.init import initial_value
from singa_dask.layers.param import Param
from singa_dask.layers.partition import even_bounds
from singa_dask.net import Batch, Net
from singa_dask.net.flat import FlatParams
from singa_dask.ops import get_ops
from singa_dask.ops.arrays import Array
from singa_dask.ops.blas import blas_threads
from singa_dask.planning.profile import LayerSample
from singa_dask.planning.rates import passes_work, spread_work, update_work
from singa_dask.planning.work import Work, WorkerStep, worker_step
from singa_dask.training.nets import make_nets
from singa_dask.updaters import Updater, make_updater

# Updates take as long with a small learning rate, and the values stay as they are.
RATE = 1e-6
# Rows of every worker in the first trial.
FEW_ROWS = 2
LEAST_STEPS = 3
# Of a series of steps.
PIECES = 5
# A step of a measurement, a first one before it and two trials should fit into the time.
STEPS_TO_FIT = 4
# Elements of a parameter whose initial value is drawn as in a job; of larger ones only so many differ.
DRAWN = 1 << 18

Key = tuple[str, str]  # layer, "forward" or "backward"


class IdleGroup(LayerGroup):
    """A worker whose group sends nothing: what would arrive are copies of what the worker itself has.

    seconds: spent so far on these copies, which are no part of a layer's call.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size, self.seconds = rank, size, 0.0

    def all_gather(self, buffer: Array, counts: Sequence[int]) -> None:
        began = time.perf_counter()
        bounds = [sum(counts[:rank]) for rank in range(self.size + 1)]
        own = buffer[bounds[self.rank] : bounds[self.rank + 1]]
        for rank in range(self.size):
            if rank != self.rank:
                _fill(buffer[bounds[rank] : bounds[rank + 1]], own)
        self.seconds += time.perf_counter() - began

    def reduce_scatter(self, send: Array, recv: Array, counts: Sequence[int]) -> None:
        began = time.perf_counter()
        start = sum(counts[: self.rank])
        recv[...] = send[start : start + recv.size]
        self.seconds += time.perf_counter() - began

    def all_to_all(self, send: Array, send_counts: Sequence[int], recv: Array, recv_counts: Sequence[int]) -> None:
        began = time.perf_counter()
        _fill(recv, send)
        self.seconds += time.perf_counter() - began


def _fill(out: Array, given: Array) -> None:
    """Copy what fits, and zeros behind it."""
    count = min(out.size, given.size)
    out[:count] = given[:count]
    out[count:] = 0


class _Clock:
    """Adds up the seconds of the layers' calls in a step. beside: seconds so far that count for no call."""

    def __init__(self, beside: Callable[[], float]) -> None:
        self.spent: dict[Key, float] = defaultdict(float)
        self._beside = beside

    def around(self, layer: str, which: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call, timed; for Net.wrap_calls."""
        key = layer, which

        def run(*arguments: Any) -> Any:
            beside = self._beside()
            began = time.perf_counter()
            result = call(*arguments)
            self.spent[key] += time.perf_counter() - began - (self._beside() - beside)
            return result

        return run

    def lap(self) -> dict[Key, float]:
        """What was spent since the last lap."""
        spent, self.spent = self.spent, defaultdict(float)
        return spent


@dataclass(frozen=True)
class Lap:
    """Seconds of a step without its update, of the update, and of the calls in it."""

    seconds: float
    update: float
    calls: dict[Key, float]


def typical(seconds: Sequence[float]) -> float:
    """The median of the means of PIECES pieces of a series: what interrupts a process counts, what does so rarely
    does not."""
    size = -(-len(seconds) // PIECES)
    return median(mean(seconds[first : first + size]) for first in range(0, len(seconds), size))


def _spread(seconds: Sequence[float]) -> float:
    """The standard deviation of a normal distribution whose larger one of two draws exceeds the mean as here.

    The mean of the larger one of two of m ascending values t_i, i = 1 ... m, is the sum of t_i (2 i - 1) / m^2.
    """
    count = len(seconds)
    larger = sum(t * (2 * i + 1) for i, t in enumerate(sorted(seconds))) / count**2
    return max(0.0, larger - mean(seconds)) * sqrt(pi)


def measure_layers(
    job: JobProto, *, threads: int = 1, concurrency: int = 1, seconds: float = 1.0, start_at: float | None = None
) -> list[LayerSample]:
    """A sample for each distinct Work of `worker_step(job)`, and for what the passes take besides (`passes_work`), an
    update of all elements (`update_work`), and the spread of the steps (`spread_work`).

    job: prepared. threads: of this process. concurrency: processes that measure at once, for the samples. seconds: of
    measuring; preparing it takes as long again at most, besides compiling. start_at: when all begin, as of time.time.

    A mini-batch too large for the time is measured at two smaller ones, whose rows the samples have.
    """
    with ExitStack() as stack:  # as train_rank
        stack.enter_context(blas_threads(1))
        stack.enter_context(np.errstate(over="ignore", invalid="ignore", divide="ignore"))
        trial = Trial(job, threads)
        batches = trial.batches(seconds)
        if start_at is not None:
            time.sleep(max(0.0, start_at - time.time()))
        return [
            LayerSample(work, forward, backward, concurrency, threads)
            for batch in batches
            for work, forward, backward in trial.measure(batch, seconds / len(batches))
        ]


class Trial:
    """The worker that is measured: the last one of its group, with its net, its updaters and random data."""

    def __init__(self, job: JobProto, threads: int) -> None:
        self.job, self.step = job, worker_step(job)
        self.size = ClusterTopology.from_proto(job.cluster).nworkers_per_group
        self.rank = self.size - 1
        ops = get_ops("cpu", threads=threads)
        self.net = make_nets(job, ops, self.rank, self.size, phases=())[Phase.kTrain]
        for param in self.net.params:
            _initialise(param, job.seed)
        self.algorithm = algorithm(job.train_one_batch)
        self.group = IdleGroup(self.rank, self.size)
        self.net.join(self.group)
        self.clock = _Clock(lambda: self.group.seconds)
        self.net.wrap_calls(self.clock.around)
        self.updaters = [self._updater(flat) for flat in (self.net.flat, self.net.own)]
        self.number = 0

    def _updater(self, flat: FlatParams) -> Updater:
        settings = type(self.job.updater).FromString(self.job.updater.SerializeToString())
        settings.learning_rate.CopyFrom(LRGenProto(type=LRGenProto.kFixed, base_lr=RATE))
        updater = make_updater(settings, self.net.ops)
        updater.bind(flat.entries, 0, flat.size)
        return updater

    def batches(self, seconds: float) -> list[int]:
        """The mini-batches to measure, by their rows in the group: that of the job, or two that fit into the time."""
        whole, batch = self.step.batch, min(self.step.batch, FEW_ROWS * self.size)
        taken = self._tried(batch)
        while batch < whole:
            fits = int(batch * seconds / (STEPS_TO_FIT * taken))
            larger = whole if fits >= whole else self.size * 2 ** max(0, (fits // self.size).bit_length() - 1)
            if larger < 2 * batch:
                break
            batch, taken = larger, self._tried(larger)
        if batch == whole:
            return [whole]
        return sorted({max(self.size, batch // 4 // self.size * self.size), batch})

    def _tried(self, batch: int) -> float:
        """Seconds of a step that is not the first one with this mini-batch."""
        feed, step = self._feed(batch)
        self._run(feed, step)
        return self._run(feed, step).seconds

    def laps(self, batch: int, seconds: float) -> list[Lap]:
        """Steps with this mini-batch of the group."""
        feed, step = self._feed(batch)
        self._run(feed, step)
        ended = time.perf_counter() + seconds
        laps: list[Lap] = []
        while not laps or time.perf_counter() < ended or (len(laps) < LEAST_STEPS and 2 * laps[0].seconds < seconds):
            laps.append(self._run(feed, step))
        return laps

    def measure(self, batch: int, seconds: float) -> list[tuple[Work, float, float]]:
        """(work, forward, backward) of each distinct Work with this mini-batch of the group."""
        laps = self.laps(batch, seconds)
        keys = {key for lap in laps for key in lap.calls}
        spent = {key: typical([lap.calls.get(key, 0.0) for lap in laps]) for key in keys}
        rest = typical([lap.seconds - sum(lap.calls.values()) for lap in laps])
        update, spread = typical([lap.update for lap in laps]), _spread([lap.seconds + lap.update for lap in laps])
        before, after = even_bounds(batch, self.size)[self.rank : self.rank + 2]
        measured = self._with_rows(batch, after - before)
        by_work: dict[Work, list[str]] = defaultdict(list)
        for call in measured.forward:
            by_work[call.work].append(call.layer)

        def taken(layers: list[str], which: str) -> float:
            return mean(spent.get((layer, which), 0.0) for layer in layers)

        works = [(work, taken(layers, "forward"), taken(layers, "backward")) for work, layers in by_work.items()]
        besides = [
            (passes_work(self.job, measured), max(0.0, rest), 0.0),
            (update_work(self.job, measured), update, 0.0),
            (spread_work(self.job, measured), spread, 0.0),
        ]
        return besides + works

    def _with_rows(self, batch: int, rows: int) -> WorkerStep:
        """The step with another mini-batch."""
        if batch == self.step.batch:
            return self.step

        def changed(work: Work) -> Work:
            all_rows = work.rows == work.steps * self.step.batch
            return replace(work, rows=work.steps * (batch if all_rows else rows))

        forward, backward = (
            tuple(replace(call, work=changed(call.work)) for call in calls)
            for calls in (self.step.forward, self.step.backward)
        )
        return replace(self.step, rows=rows, batch=batch, forward=forward, backward=backward)

    def _run(self, feed: dict[str, Batch], step: Step) -> Lap:
        """A step and an update, which leaves the caches as in training."""
        beside, began = self.group.seconds, time.perf_counter()
        self.algorithm.train_one_batch(self.net, feed, replace(step, number=self.number))
        computed = time.perf_counter()
        taken = computed - began - (self.group.seconds - beside)
        for updater, flat in zip(self.updaters, (self.net.flat, self.net.own), strict=True):
            updater.update(self.number, flat.values, flat.grads)
        self.number += 1
        return Lap(taken, time.perf_counter() - computed, self.clock.lap())

    def _feed(self, batch: int) -> tuple[dict[str, Batch], Step]:
        """Random data of this worker's rows, and their place in the mini-batch. No state is carried over to it."""
        self.net.forget()
        bounds = even_bounds(batch, self.size)
        counts = tuple(bounds[i + 1] - bounds[i] for i in range(self.size))
        feed = {name: random_batch(self.net, name, counts[self.rank]) for name in self.net.input_layers}
        return feed, Step(Phase.kTrain, 0, self.job.seed, bounds[self.rank], batch, counts)


def random_batch(net: Net, name: str, rows: int) -> Batch:
    """Random samples for an input layer: symbols where layers look them up, 1 where they tell which positions of
    others count, else numbers in [0, 1); labels or targets if any layer reads them."""
    draw, layer = np.random.default_rng(0), net.input_layer(name)
    shape = rows, *layer.sample_shape
    counted = {each.proto.srclayers[i].split("@")[0] for each in net.layers.values() for i in each.counted_positions}
    if name in counted:
        return Batch(np.ones(shape, np.float32))
    symbols = _least(getattr(each.conf, "vocab_size", 0) for each in net.layers.values() if each.conf_field)
    features = draw.integers(0, symbols, shape).astype(np.float32) if symbols else draw.random(shape, np.float32)
    readers = [n for n, each in net.layers.items() if layer in net.labels_from(n) and not each.passes_labels]
    if not readers:
        return Batch(features)
    labels = layer.no_labels(rows)
    if layer.target_shape is not None and not layer.labels_positions:
        return Batch(features, draw.random(labels.shape, np.float32))
    classes = _least(prod(net.source_shape(n, 0)[-1:]) for n in readers)
    return Batch(features, draw.integers(0, max(1, classes), labels.shape))


def _least(sizes: Iterable[int]) -> int:
    return min((size for size in sizes if size > 0), default=0)


def _initialise(param: Param, seed: int) -> None:
    """As in a job; large parameters, which would take seconds, repeat a block of numbers of a usual size."""
    if param.size <= DRAWN or not param.fan_in:
        param.value[...] = initial_value(param, seed)
        return
    bound = sqrt(3 / param.fan_in)
    block = np.random.default_rng(seed).uniform(-bound, bound, DRAWN).astype(np.float32)
    flat = param.value.reshape(-1)
    for start in range(0, flat.size, DRAWN):
        flat[start : start + DRAWN] = block[: flat.size - start]
