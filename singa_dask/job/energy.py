"""Restricted Boltzmann machines in a job: which two layers form one machine."""

from __future__ import annotations

from collections.abc import Iterable

from singa_dask.job.job_pb2 import LayerProto, LayerType


def without_feedback(layers: Iterable[LayerProto]) -> list[LayerProto]:
    """The layers, with each kRBMVis stripped of its kRBMHid source and each kRBMHid given its partner's weight.

    In SINGA's jobs the two read each other. The algorithm computes the way back, the reconstruction, itself. Without
    that edge the graph is acyclic.
    """
    layers = list(layers)
    hidden = {layer.name for layer in layers if layer.type == LayerType.kRBMHid}
    visible = {layer.name: layer for layer in layers if layer.type == LayerType.kRBMVis}
    return [_paired(layer, hidden, visible) for layer in layers]


def _paired(layer: LayerProto, hidden: set[str], visible: dict[str, LayerProto]) -> LayerProto:
    if layer.name not in hidden and layer.name not in visible:
        return layer
    paired = LayerProto()
    paired.CopyFrom(layer)
    if layer.name in visible:
        paired.srclayers[:] = [source for source in layer.srclayers if source not in hidden]
        return paired
    partner = next((visible[source] for source in layer.srclayers if source in visible), None)
    if partner is not None:
        weight = paired.param[0] if paired.param else paired.param.add()
        if not weight.share_from:
            weight.share_from = (partner.param[0].name if partner.param else "") or f"{partner.name}_weight"
    return paired
