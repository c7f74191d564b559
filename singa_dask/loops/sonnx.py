"""Nets of ONNX models under Apache SINGA's names: `from singa_dask import sonnx`."""

from __future__ import annotations

from typing import Any

from singa_dask import convert
from singa_dask.loops.model import Model

__all__ = ["SONNXModel"]


class SONNXModel(Model):
    """The net of an ONNX model, with its weights; a call gives the list of its outputs. See convert.from_onnx.

    onnx_model: a ModelProto. last_layers: as in SINGA, -3 leaves out the last node, -4 the last two ...
    """

    def __init__(self, onnx_model: Any, last_layers: int = -2) -> None:
        model = type(onnx_model)()
        model.CopyFrom(onnx_model)
        if last_layers < -2:
            del model.graph.node[last_layers + 2 :], model.graph.output[:]
            for name in model.graph.node[-1].output:
                model.graph.output.add(name=name)
        self.net = convert.from_onnx(model)

    def forward(self, *x: Any) -> list[Any]:
        y = self.net(*x)
        return list(y) if isinstance(y, tuple) else [y]
