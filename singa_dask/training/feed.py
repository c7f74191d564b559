"""Which samples a worker group is given, and how they reach its net."""

from __future__ import annotations

from collections.abc import Mapping

from singa_dask.data import AnyStream, Loader, Manifest, make_stream
from singa_dask.job.job_pb2 import JobProto, Phase, StoreProto
from singa_dask.layers.context import Step
from singa_dask.net import Batch
from singa_dask.ops import Ops

# A group that joins a running job finds all samples dealt out: it reads its share of another deal.
_NEXT_DEAL = 1 << 64


def group_stream(job: JobProto, store: StoreProto, manifest: Manifest, phase: int, group: int = 0) -> AnyStream:
    """The mini-batches of `store` for a worker group: its share of the samples while training, else all of them."""
    if phase != Phase.kTrain:
        return make_stream(store, manifest, seed=job.seed, phase=phase)
    ngroups = job.cluster.nworker_groups
    deal, number = divmod(group, ngroups)
    return make_stream(store, manifest, seed=job.seed + deal * _NEXT_DEAL, phase=phase, group=number, ngroups=ngroups)


def next_feed(
    loaders: Mapping[str, Loader], ops: Ops, phase: int, number: int, seed: int
) -> tuple[dict[str, Batch], Step]:
    """The next mini-batch of every input layer, on the device of `ops`, and where in the run it stands."""
    feed = {}
    step = Step(phase, number, seed)
    for name, loader in loaders.items():
        loaded = loader.next()
        labels = None if loaded.labels is None else ops.asarray(loaded.labels)
        feed[name] = Batch(ops.asarray(loaded.features), labels)
        step = Step(phase, number, seed, loaded.first_row, loaded.total_rows)
    return feed, step
