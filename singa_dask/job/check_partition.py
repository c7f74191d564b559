"""Checks of `partition_dim` that need no shapes."""

from __future__ import annotations

from singa_dask.job.findings import Findings
from singa_dask.job.job_pb2 import LayerProto, LayerType, NetProto
from singa_dask.job.layer_types import parameter_roles, split_axes, type_name
from singa_dask.job.paths import Path, layers_of


def check_partition(findings: Findings) -> None:
    """Check that every parameter's partition_dim is an axis that can be split, and agrees with its layer's, and that
    only one of job and cost model chooses the partition of the net."""
    net = findings.job.neuralnet
    if net.partition == NetProto.auto and net.HasField("partition_dim"):
        message = "the cost model cannot choose where the net has a partition_dim"
        received = f"auto, and partition_dim: {net.partition_dim}"
        findings.add(("neuralnet", "partition"), message, received, "Leave one of them out.")
    for path, layer in layers_of(findings.job):
        for i, param in enumerate(layer.param):
            if param.HasField("partition_dim"):
                _check_param(findings, path, layer, i)


def _check_param(findings: Findings, path: Path, layer: LayerProto, index: int) -> None:
    where: Path = (*path, "param", index, "partition_dim")
    axis, axes = layer.param[index].partition_dim, split_axes(layer)
    if axes is None:
        if axis < 0:
            message = "must be the axis of the array that is split"
            findings.add(where, message, str(axis), "Count from 0, or leave it out.")
    elif index >= len(axes):
        return  # reported elsewhere
    elif axis not in axes[index]:
        role = (parameter_roles(layer) or ())[index]
        legal = " or ".join(f"{axis} ({what})" for axis, what in axes[index].items())
        message = f"the {role} of a {type_name(layer)} can be split along axis {legal}"
        if not legal:
            message = f"the {role} of a {type_name(layer)} cannot be split"
        findings.add(where, message, str(axis), f"Use {legal.split(' ')[0]}." if legal else "Leave it out.")
        return
    elif index > 0 and _splits_inputs(layer):
        message = "a layer that is split over its input features has the whole bias on every worker"
        findings.add(where, message, str(axis), "Leave it out.")
    if layer.partition_dim == 0:
        message = "splits a parameter of a layer that is split over the mini-batch"
        received = f"{axis}, and partition_dim: 0 of the layer"
        findings.add(where, message, received, "Leave one of them out, or set the layer's to 1.")


def _splits_inputs(layer: LayerProto) -> bool:
    """Whether the partition_dim of its weight splits an InnerProduct over its input features."""
    if layer.type != LayerType.kInnerProduct or not layer.param[0].HasField("partition_dim"):
        return False
    return layer.param[0].partition_dim == int(layer.innerproduct_conf.transpose)
