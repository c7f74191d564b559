"""Nets: graphs of layers built from a NetProto, run forward and backward."""

from __future__ import annotations

from singa_dask.net.flat import Entry, FlatParams
from singa_dask.net.graph import Edge, Graph, build_graph
from singa_dask.net.init import initial_value
from singa_dask.net.net import LayerRow, Net
from singa_dask.net.passes import Batch

__all__ = [
    "Batch",
    "Edge",
    "Entry",
    "FlatParams",
    "Graph",
    "LayerRow",
    "Net",
    "build_graph",
    "initial_value",
]
