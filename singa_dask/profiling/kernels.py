"""What one process can measure besides a job's layers: updates, shared sums, codecs, loading."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from singa_dask.comm.codecs import CODECS, Codec, codec
from singa_dask.data import Loader, make_stream
from singa_dask.data.ingest.collections import shard
from singa_dask.data.loader import close_shards
from singa_dask.data.manifest import Manifest
from singa_dask.job.job_pb2 import StoreProto, UpdaterProto
from singa_dask.net.flat import Entry
from singa_dask.ops import get_ops
from singa_dask.ops.blas import blas_threads
from singa_dask.planning.profile import Curve, LayerSample, Point, Profile, coding_name, rule_name
from singa_dask.profiling.grid import grid_jobs
from singa_dask.profiling.layers import RATE, measure_layers
from singa_dask.server import LocalLink, ParameterSlice, Server, ServerPlan, Stub
from singa_dask.updaters import LAMB, SGD, AdaDelta, AdaGrad, Adam, AdamMax, AdamW, Nesterov, RMSProp

RULES = (
    *(rule(lr=RATE, momentum=0.9, weight_decay=1e-4).proto for rule in (SGD, Nesterov)),
    *(rule(lr=RATE).proto for rule in (AdaGrad, AdaDelta, Adam, AdamMax, AdamW, LAMB)),
    RMSProp(lr=RATE, rho=0.9).proto,
)
SHARES = (0.01, 0.05, 0.1)
CODINGS: tuple[tuple[str, float | None], ...] = tuple(
    (name, share)
    for name, kind in CODECS.items()
    if not kind.exact
    for share in (SHARES if kind.settings else (None,))
)
# Elements. The larger ones fit into no cache.
SIZES = 1_000, 10_000, 100_000, 1_000_000, 10_000_000
CODED_SIZES = 1_000, 100_000, 4_000_000
# Bytes that are read between two calls, so that what a call needs has left the caches, as behind a backward pass.
SWEPT = 16 << 20
LEAST_CALLS = 3
# Clocks of hosts differ: nobody waits longer than this for the others to begin.
LATEST_S = 5.0
# Samples of the shards that are loaded, values of one, and rows of the mini-batches.
SAMPLES, VALUES, LOADED_ROWS = 4096, 784, (8, 64, 512)
# The share of the time that the layers of the grid get.
LAYERS_SHARE = 0.6


def measure_kernels(
    *,
    threads: int = 1,
    concurrency: int = 1,
    seconds: float = 20.0,
    start_at: float | None = None,
    rules: Sequence[UpdaterProto] = RULES,
    codings: Sequence[tuple[str, float | None]] = CODINGS,
    grid: bool = True,
    rest: bool = True,
) -> Profile:
    """Curves of this process, and samples of layers of any job.

    threads: of this process. concurrency: processes that measure at once, for the names. seconds: of all together.
    start_at: when all begin, as of time.time. rules, codings: (codec, sparsity), to be measured. grid: whether layers
    are, too; rest: whether all other curves are.
    """
    curves: dict[str, Curve] = {}
    layers: list[LayerSample] = []
    if start_at is not None:
        time.sleep(min(max(0.0, start_at - time.time()), LATEST_S))
    jobs = list(grid_jobs()) if grid else []
    of_curves = seconds * (1 - LAYERS_SHARE if grid else 1)
    part = of_curves / (len(rules) + len(codings) + (2 if rest else 0))
    with blas_threads(1):
        for rule in rules:
            curves[f"update {rule_name(rule)} {concurrency}"] = _updates(rule, threads, part)
        if rest:
            curves[f"sum {concurrency}"] = _sums(part)
            curves[f"load {concurrency}"] = _loads(part)
        for name, sparsity in codings:
            encoding, decoding = _codings(name, sparsity, part)
            suffix = f"{coding_name(name, sparsity)} {concurrency}"
            curves |= {f"encode {suffix}": encoding, f"decode {suffix}": decoding}
    for job in jobs:  # half of the time is for preparing
        share = seconds * LAYERS_SHARE / len(jobs) / 2
        layers += measure_layers(job, threads=threads, concurrency=concurrency, seconds=share)
    distinct = {sample.work: sample for sample in layers}
    return Profile(layers=list(distinct.values()), curves=curves)


class _Timer:
    """Times calls with cold caches of the core."""

    def __init__(self) -> None:
        self._swept = np.ones(SWEPT // 4, np.float32)

    def point(self, size: float, call: Callable[[], object], seconds: float) -> Point:
        """The median of the calls that fit into `seconds`, at least three. The first call is not counted."""
        call()
        laps: list[tuple[float, float]] = []
        ended = time.perf_counter() + seconds
        while len(laps) < LEAST_CALLS or time.perf_counter() < ended:
            self._swept.sum()
            busy, began = time.process_time(), time.perf_counter()
            call()
            laps.append((time.perf_counter() - began, time.process_time() - busy))
        return Point(size, *(median(lap[i] for lap in laps) for i in (0, 1)))


def _updates(rule: UpdaterProto, threads: int, seconds: float) -> Curve:
    """Of a worker's part by the server in its process. Size: elements."""
    ops, timer = get_ops("cpu", threads=threads), _Timer()

    def point(size: int) -> Point:
        slices = (ParameterSlice(0, 0, size, 0, 0),)
        plan = ServerPlan(rule.SerializeToString(), (Entry("values", (size,), 0, size),), slices)
        stub = Stub(slices, {0: LocalLink(Server(plan.protocol(ops, copy=False), live=True))})
        values, gradients = np.ones(size, np.float32), np.ones(size, np.float32)
        stub.put(values, {}, 0)
        stub.begin(stub.get(values, 0))
        steps = iter(range(1 << 30))

        def update() -> None:
            stub.push(next(steps), gradients, values)
            stub.pull(values)

        return timer.point(size, update, seconds / len(SIZES))

    return Curve.of(point(size) for size in SIZES)


def _sums(seconds: float) -> Curve:
    """Of another rank's gradients in shared memory, as SharedExchange adds them. Size: bytes."""
    timer = _Timer()

    def point(size: int) -> Point:
        sums, others = np.zeros(size, np.float32), np.ones(size, np.float32)
        return timer.point(sums.nbytes, partial(np.add, sums, others, out=sums), seconds / len(SIZES))

    return Curve.of(point(size) for size in SIZES)


def _codings(name: str, sparsity: float | None, seconds: float) -> tuple[Curve, Curve]:
    """Of encoding with error feedback, and of decoding to a sum, as CodedExchange does both. Size: elements."""
    timer, points = _Timer(), []
    normal = np.random.default_rng(0).standard_normal(max(CODED_SIZES), np.float32)
    for size in CODED_SIZES:
        made = codec(name, sparsity=sparsity)
        made.warm_up()
        values = normal[:size].copy()
        residual, sums = np.zeros_like(values), np.zeros_like(values)
        payload = np.empty(made.max_nbytes(size), np.uint8)
        steps = iter(range(1 << 30))
        share = seconds / 2 / len(CODED_SIZES)
        encode = partial(_encode, made, values, residual, payload, steps)
        encoded = encode()
        decode = partial(made.decode, encoded.copy(), sums, add=True)
        points.append((timer.point(size, encode, share), timer.point(size, decode, share)))
    return Curve.of(encoding for encoding, _ in points), Curve.of(decoding for _, decoding in points)


def _encode(
    made: Codec, values: np.ndarray, residual: np.ndarray, payload: np.ndarray, steps: Iterator[int]
) -> np.ndarray:
    made.begin(next(steps))
    return made.encode_sum(values, residual, payload)


def _loads(seconds: float) -> Curve:
    """Of a worker's mini-batch of normalised rows. Size: its values; seconds: of the loading thread."""
    with TemporaryDirectory() as folder:
        x = np.random.default_rng(0).integers(0, 255, (SAMPLES, VALUES)).astype(np.float32)
        labels, out = np.arange(SAMPLES) % 10, f"{folder}/shards"
        manifest = shard(x, labels, out, shuffle=False, durable=False, progress=False)[""]
        share = seconds / len(LOADED_ROWS)
        points = [_loaded(manifest, batch, share) for batch in LOADED_ROWS]
        close_shards()
    return Curve.of(points)


def _loaded(manifest: Manifest, batch: int, seconds: float) -> Point:
    store = StoreProto(path=str(manifest.folder), batchsize=[batch], std_value=255)
    chunks: list[float] = []

    def timed(function: Callable[..., Any], *arguments: Any) -> Any:
        began = time.thread_time()
        result = function(*arguments)
        chunks.append(time.thread_time() - began)
        return result

    with ThreadPoolExecutor(1) as pool:
        stream = make_stream(store, manifest, seed=0)
        with Loader(stream, store, lambda *task: pool.submit(timed, *task), ahead=1) as loader:
            ended = time.perf_counter() + seconds
            while len(chunks) <= LEAST_CALLS or time.perf_counter() < ended:
                loader.next()
    taken = median(chunks[1:]) / loader.chunk_steps
    return Point(batch * VALUES, taken, taken)
