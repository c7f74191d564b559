"""Restricted Boltzmann machines in a job: which two layers form one machine."""

from __future__ import annotations

from collections.abc import Iterable

from singa_dask.job.job_pb2 import LayerProto, LayerType


def without_feedback(layers: Iterable[LayerProto]) -> list[LayerProto]:
    """The layers, with each kRBMVis stripped of the kRBMHid that reads it, which is given the weight of its partner.

    In SINGA's jobs the two read each other. The algorithm computes the way back, the reconstruction, itself. Without
    that edge the graph is acyclic.
    """
    layers = list(layers)
    hidden = {layer.name: layer for layer in layers if layer.type == LayerType.kRBMHid}
    visible = {layer.name: layer for layer in layers if layer.type == LayerType.kRBMVis}
    return [_paired(layer, hidden, visible) for layer in layers]


def _paired(layer: LayerProto, hidden: dict[str, LayerProto], visible: dict[str, LayerProto]) -> LayerProto:
    if layer.name not in hidden and layer.name not in visible:
        return layer
    paired = LayerProto()
    paired.CopyFrom(layer)
    if layer.name in visible:
        others = visible.keys() - {layer.name}  # a machine below, whose hidden units this one may read
        below = {name for name, reader in hidden.items() if others & set(reader.srclayers)}
        paired.srclayers[:] = [source for source in layer.srclayers if source not in hidden.keys() - below]
        return paired
    partner = next((visible[source] for source in layer.srclayers if source in visible), None)
    if partner is not None:
        weight = paired.param[0] if paired.param else paired.param.add()
        if not weight.share_from:
            weight.share_from = (partner.param[0].name if partner.param else "") or f"{partner.name}_weight"
    return paired
