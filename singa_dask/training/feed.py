"""Which samples a worker group is given, and how they reach its net."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from singa_dask.data import AnyStream, Loader, Manifest, make_stream
from singa_dask.data.generated import generated_manifest
from singa_dask.data.loader import Submit
from singa_dask.data.plan import share_rows
from singa_dask.errors import DataError
from singa_dask.job.evaluations import PHASE_NAMES
from singa_dask.job.job_pb2 import JobProto, Phase, StoreProto
from singa_dask.layers import GeneratedInput, InputLayer
from singa_dask.layers.context import Step
from singa_dask.net import Batch, Net
from singa_dask.ops import Ops
from singa_dask.tracing import carried
from singa_dask.training.frequencies import batches_of
from singa_dask.training.transformation import Transformation, without_scale

# A group that joins a running job finds all samples assigned: it reads its share of another assignment.
_NEXT_ASSIGNMENT = 1 << 64


class Feed:
    """The mini-batches of a net's input layers, loaded ahead, on the device of `ops`. A context manager."""

    def __init__(
        self,
        loaders: Mapping[str, Loader],
        ops: Ops,
        phase: int,
        seed: int,
        nranks: int,
        transformation: Transformation | None = None,
    ) -> None:
        self._transformation, self._transforming_s = transformation, 0.0
        self._loaders, self._ops, self._phase, self._seed, self._nranks = loaders, ops, phase, seed, nranks
        self.batchsize = max((loader.stream.batchsize for loader in loaders.values()), default=1)

    @classmethod
    def open(
        cls,
        job: JobProto,
        net: Net,
        submit: Submit,
        rank: int = 0,
        nranks: int = 1,
        *,
        group: int = 0,
        start: int = 0,
        stop: int | None = None,
        fingerprints: Mapping[str, str] | None = None,
    ) -> Feed:
        """Read mini-batches `start` to `stop`; None: without end, or to the end of a whole set.

        fingerprints: of the data when the job was started, by `data_key`.

        Raises DataError where the data has changed since.
        """
        transformation = Transformation.of(net, job.seed)
        with ExitStack() as stack:
            loaders = {}
            for name in net.input_layers:
                store, manifest, generated = data_of(net.input_layer(name))
                expected = (fingerprints or {}).get(data_key(net.phase, name))
                if expected not in (None, group_stream(job, store, manifest, net.phase).fingerprint):
                    what = f"the settings or samples of layer {name!r}" if generated else f"{store.path}: the shards"
                    raise DataError(f"{what} on this host differ from the driver's. Copy them again.")
                stream = group_stream(job, store, manifest, net.phase, group)
                store = without_scale(store) if transformation else store
                recorded = _recorded(submit, training=net.phase == Phase.kTrain)
                loader = Loader(stream, store, recorded, rank, nranks, start, stop_step=stop, generated=generated)
                loaders[name] = stack.enter_context(loader)
            stack.pop_all()
        return cls(loaders, net.ops, net.phase, job.seed, nranks, transformation)

    def __enter__(self) -> Feed:
        return self

    def __exit__(self, *exc: object) -> None:
        for loader in self._loaders.values():
            loader.close()

    @property
    def wait_s(self) -> float:
        """Seconds so far of waiting for data, and of the transform."""
        return self._transforming_s + sum(loader.wait_s for loader in self._loaders.values())

    @property
    def count(self) -> int:
        """The mini-batches of an evaluation."""
        return max((loader.stop_step or 0 for loader in self._loaders.values()), default=0)

    @property
    def rows(self) -> int:
        """The rows of an evaluation, on all workers."""
        stream, before = next(iter(self._loaders.values())).stream, max(self.count - 1, 0)
        return before * stream.batchsize + stream.rows(before)

    def next(self, number: int) -> tuple[dict[str, Batch], Step]:
        """The next mini-batch of every input layer, and its place in the run: it is number `number`."""
        feed = {}
        step = Step(self._phase, number, self._seed)
        every = {name: loader.next() for name, loader in self._loaders.items()}
        if self._transformation is not None:
            began = time.perf_counter()
            every = self._transformation(every, number)
            self._transforming_s += time.perf_counter() - began
        for name, loaded in every.items():
            labels = None if loaded.labels is None else self._ops.asarray(loaded.labels)
            feed[name] = Batch(self._ops.asarray(loaded.features), labels)
            counts = self._counts(loaded.total_rows)
            step = Step(self._phase, number, self._seed, loaded.first_row, loaded.total_rows, counts)
        return feed, step

    def _counts(self, rows: int) -> tuple[int, ...]:
        """The rows of every worker of the group."""
        bounds = (share_rows(rows, rank, self._nranks) for rank in range(self._nranks))
        return tuple(last - first for first, last in bounds)

    def all(self) -> Iterator[tuple[dict[str, Batch], Step]]:
        """The mini-batches of an evaluation."""
        return (self.next(number) for number in range(self.count))

    def samples(self, number: int) -> np.ndarray:
        """The positions of the samples of mini-batch `number` in the data of the first input layer."""
        return next(iter(self._loaders.values())).stream.share(number, 0, 1)[1]


def _recorded(submit: Submit, *, training: bool) -> Submit:
    """Such a submit whose calls are recorded: the mini-batches of training are those of steps."""

    def submit_recorded(load: Callable[..., Any], *args: Any) -> Any:
        start, steps = args[-2:]
        step = {"step": start, "steps": steps} if training else {"step": None, "steps": 1}
        return submit(carried(load, "loading", "load", **step), *args)

    return submit_recorded


def data_of(layer: InputLayer) -> tuple[StoreProto, Manifest, GeneratedInput | None]:
    """The settings of the loader and the data of an input layer, and the layer if it generates them."""
    if isinstance(layer, GeneratedInput):
        return layer.conf, generated_manifest(layer), layer
    store = layer.proto.store_conf
    return store, Manifest.load(Path(store.path)), None


def group_stream(job: JobProto, store: StoreProto, manifest: Manifest, phase: int, group: int = 0) -> AnyStream:
    """The mini-batches of `store` for a worker group: its share of the samples while training, else all of them, once
    if the job does not say how many mini-batches an evaluation has."""
    if phase != Phase.kTrain:
        return make_stream(store, manifest, seed=job.seed, phase=phase, once=batches_of(job, phase) == 0)
    ngroups = job.cluster.nworker_groups
    assignment, number = divmod(group, ngroups)
    return make_stream(
        store, manifest, seed=job.seed + assignment * _NEXT_ASSIGNMENT, phase=phase, group=number, ngroups=ngroups
    )


def data_key(phase: int, layer: str) -> str:
    """The key of a fingerprint in `Prepared.data`."""
    return f"{PHASE_NAMES[phase]}/{layer}"
