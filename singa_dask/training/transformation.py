"""What a job's transform does to the mini-batches of training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from singa_dask.data.loader import LoadedBatch
from singa_dask.errors import ConfigError, DataError, Problem
from singa_dask.job.job_pb2 import Phase, StoreProto
from singa_dask.job.user_code import user_code
from singa_dask.layers import InputLayer
from singa_dask.net import Net
from singa_dask.transforms import Draws

_SCALE = ("mean", "std", "mean_value", "std_value", "target_mean", "target_std")


class Transformation:
    """Calls a transform (see `singa_dask.transforms`), and then normalises. inputs: the input layers by name; layer:
    the one whose samples are x."""

    def __init__(self, function: Callable[..., Any], layer: str, inputs: Mapping[str, InputLayer], seed: int) -> None:
        self._function, self._layer, self._inputs, self._seed = function, layer, inputs, seed
        self._name = f"layer {layer!r}: the transform {getattr(function, '__qualname__', function)}"

    @classmethod
    def of(cls, net: Net, seed: int) -> Transformation | None:
        """That of a training net, if it has one. Raises ConfigError where it does not exist, or there are several."""
        inputs = {name: net.input_layer(name) for name in net.input_layers}
        named = {name: code for name, layer in inputs.items() if (code := layer.proto.store_conf.transform)}
        if net.phase != Phase.kTrain or not named:
            return None
        (layer, code), *others = named.items()
        key = f"layer {layer!r}.store_conf.transform"
        if others:
            hint = "Keep one: its batch has the arrays of all input layers."
            raise ConfigError(Problem(key, f"is given, and layer {others[0][0]!r} has a transform too", code, hint))
        function = user_code(code, key)
        if not callable(function) or isinstance(function, type):
            raise ConfigError(Problem(key, "must name a function f(batch, rng)", code))
        return cls(function, layer, inputs, seed)

    def __call__(self, loaded: Mapping[str, LoadedBatch], step: int) -> dict[str, LoadedBatch]:
        """The mini-batch of a step, from that of loaders that do not normalise. Raises DataError."""
        first = loaded[self._layer]
        batch = {}
        for name, each in loaded.items():
            batch[self._key(name)] = each.features
            if each.labels is not None:
                maps = self._inputs[name].labels_positions and each.labels.shape[-1] == 1
                batch[self._key(name, "y")] = each.labels[..., 0] if maps else each.labels
        draws = Draws(self._seed, step, first.first_row, len(first.features))
        try:
            found = self._function(dict(batch), draws)
        except Exception as error:
            raise DataError(f"{self._name} failed at step {step}: {type(error).__name__}: {error}") from error
        if not isinstance(found, Mapping) or found.keys() != batch.keys():
            received = ", ".join(map(str, found)) if isinstance(found, Mapping) else type(found).__name__
            raise DataError(f"{self._name} must return a dict with {', '.join(batch)}. Received: {received}.")
        result = {}
        for name, each in loaded.items():
            layer = self._inputs[name]
            features = self._checked(self._key(name), found, each.features)
            labels = each.labels
            if labels is not None:
                labels = self._checked(self._key(name, "y"), found, batch[self._key(name, "y")]).reshape(labels.shape)
                if layer.target_shape is not None and not layer.labels_positions:
                    labels = layer.target_normalisation.apply(np, labels)
            result[name] = replace(each, features=layer.normalisation.apply(np, features), labels=labels)
        return result

    def _key(self, name: str, what: str = "x") -> str:
        if name == self._layer:
            return what
        return name if what == "x" else f"{name}.{what}"

    def _checked(self, key: str, found: Mapping[str, Any], before: np.ndarray) -> np.ndarray:
        values = np.asarray(found[key])
        if values.shape != before.shape or values.dtype.kind not in "biuf":
            raise DataError(
                f"{self._name} must return {key} as numbers of shape {before.shape}. Received: {values.dtype} of "
                f"shape {values.shape}."
            )
        return np.ascontiguousarray(values, before.dtype)


def without_scale(store: StoreProto) -> StoreProto:
    """The settings of a loader that gives samples in the units of the data."""
    found = StoreProto()
    found.CopyFrom(store)
    for name in _SCALE:
        found.ClearField(name)
    return found
