"""SINGA features that a job may name and this version lacks.

Two other files refuse more: `training/prepare.py` the user's own input layers, which only their class reveals, and
`data/store.py` SINGA's data stores and `encoded` images.
"""

from __future__ import annotations

from singa_dask.job.findings import Findings
from singa_dask.job.job_pb2 import LayerProto, LayerType
from singa_dask.job.paths import Path, layers_of

NOT_YET = "not yet supported"

LAYER_TYPES: dict[str, str] = {
    "kBridgeSrc": "layers split over workers",
    "kBridgeDst": "layers split over workers",
}

_SPLIT_LAYERS = f"layers split over workers by features: {NOT_YET}"


def check_support(findings: Findings) -> None:
    """Check that the job uses no unsupported feature."""
    if findings.job.neuralnet.partition_dim == 1:
        findings.add(("neuralnet", "partition_dim"), _SPLIT_LAYERS, "1", "Use 0, over the mini-batch.")
    for path, layer in layers_of(findings.job):
        _check_layer(findings, path, layer)
        if findings.job.cluster.nworkers_per_group > 1:
            _check_batch(findings, path, layer)


def _check_batch(findings: Findings, path: Path, layer: LayerProto) -> None:
    """Slicing or joining the mini-batch: each worker has only its own rows and would slice those."""
    for kind, conf, field in (
        (LayerType.kSlice, "slice_conf", "slice_dim"),
        (LayerType.kConcate, "concate_conf", "concate_dim"),
    ):
        if layer.type == kind and getattr(getattr(layer, conf), field) == 0:
            message = f"slicing or concatenating the mini-batch in a group of several workers: {NOT_YET}"
            findings.add((*path, conf, field), message, "0", f"Set {field}: 1.")


def _check_layer(findings: Findings, path: Path, layer: LayerProto) -> None:
    name = LayerType.Name(layer.type)
    if name in LAYER_TYPES:
        findings.add((*path, "type"), f"{LAYER_TYPES[name]}: {NOT_YET}", name)
    if layer.partition_dim == 1:
        findings.add((*path, "partition_dim"), _SPLIT_LAYERS, "1", "Use 0, over the mini-batch.")
    for i, param in enumerate(layer.param):
        if param.partition_dim == 1:
            findings.add((*path, "param", i, "partition_dim"), _SPLIT_LAYERS, "1", "Use 0.")
