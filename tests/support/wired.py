"""Layers of nets over time, for tests."""

from singa_dask.job.job_pb2 import LayerProto


def wired(layer, **fields):
    """The layer, with fields of LayerProto that its Python spelling has no keyword for."""
    return LayerProto(**{**{f.name: v for f, v in layer.proto.ListFields()}, **fields})
