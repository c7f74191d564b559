"""Nets: graphs of layers built from a NetProto, run forward and backward."""

from __future__ import annotations

from singa_dask.layers.init import initial_value
from singa_dask.net.flat import FlatParams
from singa_dask.net.graph import Edge, build_graph
from singa_dask.net.net import LayerRow, Net
from singa_dask.net.outputs import features_as_targets, in_units, inputs_of, labelled_inputs, layers_of, undone, units
from singa_dask.net.passes import Batch

__all__ = [
    "Batch",
    "Edge",
    "FlatParams",
    "LayerRow",
    "Net",
    "build_graph",
    "features_as_targets",
    "in_units",
    "initial_value",
    "inputs_of",
    "labelled_inputs",
    "layers_of",
    "undone",
    "units",
]
