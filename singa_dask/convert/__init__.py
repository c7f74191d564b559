"""Parameters of nets from other programs, and for them; nets of ONNX models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from singa_dask.convert.torch_state import Left, from_torch, to_torch
from singa_dask.errors import ConfigError, Problem

__all__ = ["Left", "from_onnx", "from_torch", "to_torch"]


def from_onnx(
    model: Any, *, shapes: Mapping[str, Sequence[int]] | None = None, outputs: Sequence[str] | None = None
) -> Any:
    """The net of an ONNX model, a Module with its weights: built-in layers where there is one, and functions.

        net = convert.from_onnx("resnet18.onnx")
        model = Model([RecordInput(shape=[3, 224, 224]), net, SoftmaxLoss()])

    model: a path, or a ModelProto. shapes: of samples, by input, where the model leaves sizes free.
    outputs: names of tensors of the model, by default its outputs.
    Raises ConfigError, which names the node, for what has no counterpart here.
    """
    try:
        from singa_dask.convert.onnx_ops import net_of
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "onnx":
            raise
        hint = "Run `pip install '.[onnx]'` in a clone of singa_dask."
        raise ConfigError(Problem("from_onnx", "needs the package onnx", hint=hint)) from error
    return net_of(model, shapes or {}, outputs)
