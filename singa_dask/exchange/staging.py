"""Where an exchange finds a worker's flat arrays: the net's own, or copies on the host."""

from __future__ import annotations

from typing import Any

import numpy as np

from singa_dask.net.flat import FlatParams

Array = Any


class InPlace:
    """On the CPU: the exchange works on the net's own arrays.

    gradients: what it sends. values: what it gathers, where it can reach it. at_once: see pipeline.Stages.
    """

    at_once = True

    def __init__(self, gradients: Array, values: Array) -> None:
        self.gradients, self.values = gradients, values

    def send(self, elements: slice) -> None:
        """Bring these elements of the net's gradients to `gradients`."""

    def receive(self, elements: slice) -> None:
        """Bring these elements of `values` to the net."""

    def offered(self, new: Array) -> Array:
        """Where the exchange finds the elements of `new` that were offered. new: lies where the net's arrays do."""
        return new

    def offer(self, new: Array, part: slice) -> None:
        """Bring these elements of `new` to `offered`."""

    def empty(self) -> Array:
        """An array like `gradients`."""
        return np.empty(self.gradients.size, self.gradients.dtype)

    def put(self, values: np.ndarray) -> None:
        """Set the net's values, and `values`, to an array of the host."""
        self.values[...] = values


class OnDevice(InPlace):
    """On a device whose communicator reaches its arrays: nothing comes to the host."""

    at_once = False

    def __init__(self, ops: Any, gradients: Array, values: Array) -> None:
        super().__init__(gradients, values)
        self._ops = ops

    def empty(self) -> Array:
        return self._ops.empty((self.gradients.size,))

    def put(self, values: np.ndarray) -> None:
        self.values[...] = self._ops.asarray(values)


class ThroughHost:
    """On a device, with a communicator of the host: every bucket is copied to the host and back."""

    at_once = False

    def __init__(self, ops: Any, gradients: Array, values: Array) -> None:
        self._ops, self._net_gradients, self._net_values = ops, gradients, values
        self.gradients = np.empty(gradients.size, gradients.dtype)
        self.values = ops.to_host(values)

    def send(self, elements: slice) -> None:
        self.gradients[elements] = self._ops.to_host(self._net_gradients[elements])

    def receive(self, elements: slice) -> None:
        self._net_values[elements] = self._ops.asarray(self.values[elements])

    def offered(self, new: Array) -> Array:
        return self.gradients  # which have been summed

    def offer(self, new: Array, part: slice) -> None:
        self.gradients[part] = self._ops.to_host(new[part])

    def empty(self) -> Array:
        return np.empty(self.gradients.size, self.gradients.dtype)

    def put(self, values: np.ndarray) -> None:
        self._net_values[...] = self._ops.asarray(values)
        self.values[...] = values


Staging = InPlace | ThroughHost


def make_staging(ops: Any, flat: FlatParams, *, on_device: bool) -> Staging:
    """For the arrays of `flat`. on_device: whether the communicator reaches arrays on the device of `ops`."""
    if ops.device == "cpu":
        return InPlace(flat.grads, flat.values)
    return OnDevice(ops, flat.grads, flat.values) if on_device else ThroughHost(ops, flat.grads, flat.values)
