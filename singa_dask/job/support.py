"""SINGA features that a job may name and this version lacks.

Two more refusals need what the message alone does not show: `training/prepare.py` refuses the user's own input layers,
which only their class reveals, and `data/store.py` refuses SINGA's data stores.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from singa_dask.job.job_pb2 import JobProto, LayerProto, LayerType
from singa_dask.job.paths import Path, layers_of

NOT_YET = "not yet supported"


class Gap(NamedTuple):
    """An unsupported feature that the job uses at `path`."""

    path: Path
    what: str
    received: str
    hint: str | None = None


LAYER_TYPES: dict[str, str] = {
    "kBridgeSrc": "layers split over workers",
    "kBridgeDst": "layers split over workers",
}

_SPLIT_LAYERS = "layers split over workers by features"


def job_gaps(job: JobProto) -> Iterator[Gap]:
    """The unsupported features that the job uses."""
    net = job.neuralnet
    if net.partition_dim == 1:
        yield Gap(("neuralnet", "partition_dim"), _SPLIT_LAYERS, "1", "Use 0, over the mini-batch.")
    for path, layer in layers_of(job):
        yield from _layer_gaps(path, layer)
        if job.cluster.nworkers_per_group > 1:
            yield from _batch_gaps(path, layer)


def _batch_gaps(path: Path, layer: LayerProto) -> Iterator[Gap]:
    """Slicing or joining the mini-batch: each worker has only its own rows and would slice those."""
    for kind, conf, field in (
        (LayerType.kSlice, layer.slice_conf, "slice_dim"),
        (LayerType.kConcate, layer.concate_conf, "concate_dim"),
    ):
        if layer.type == kind and getattr(conf, field) == 0:
            where = (*path, conf.DESCRIPTOR.name.removesuffix("Proto").lower() + "_conf", field)
            yield Gap(
                where, "slicing or concatenating the mini-batch in a group of several workers", "0", f"Set {field}: 1."
            )


def _layer_gaps(path: Path, layer: LayerProto) -> Iterator[Gap]:
    name = LayerType.Name(layer.type)
    if name in LAYER_TYPES:
        yield Gap((*path, "type"), LAYER_TYPES[name], name)
    if layer.partition_dim == 1:
        yield Gap((*path, "partition_dim"), _SPLIT_LAYERS, "1", "Use 0, over the mini-batch.")
    for i, param in enumerate(layer.param):
        if param.partition_dim == 1:
            yield Gap((*path, "param", i, "partition_dim"), _SPLIT_LAYERS, "1", "Use 0.")
