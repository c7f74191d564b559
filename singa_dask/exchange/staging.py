"""Where an exchange finds a worker's flat arrays: the net's own, or copies on the host."""

from __future__ import annotations

from typing import Any

import numpy as np

from singa_dask.net.flat import FlatParams

Array = Any


class InPlace:
    """On the CPU: the exchange works on the net's own arrays.

    gradients: what it sends. values: what it gathers, where it can reach it. served: of servers in other processes,
    their new values, on the host. at_once: see pipeline.Stages.
    """

    at_once = True

    def __init__(self, gradients: Array, values: Array) -> None:
        self.gradients, self.values = gradients, values

    @property
    def served(self) -> np.ndarray:
        return self.values

    def send(self, elements: slice) -> None:
        """Bring these elements of the net's gradients to `gradients`."""

    def receive(self, elements: slice) -> None:
        """Bring these elements of `values` to the net."""

    def summed(self, sums: Array) -> Array:
        """Where the servers find the elements of `sums` that were fetched."""
        return sums

    def fetch(self, sums: Array, part: slice) -> None:
        """Bring these elements of `sums` to `summed`."""

    def offered(self, new: Array) -> Array:
        """Where the exchange finds the elements of `new` that were offered. new: where the net's arrays are, or
        `served`."""
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


class BesideHost(OnDevice):
    """On a device whose communicator reaches its arrays, with servers on the host: the sums of this rank's parts are
    copied to the host, and their new values back."""

    def __init__(self, ops: Any, gradients: Array, values: Array) -> None:
        super().__init__(ops, gradients, values)
        self._served, self._summed = ops.to_host(values).copy(), np.empty(values.size, values.dtype)
        self._offered = self.empty()

    @property
    def served(self) -> np.ndarray:
        return self._served

    def summed(self, sums: Array) -> Array:
        return self._summed

    def fetch(self, sums: Array, part: slice) -> None:
        self._summed[part] = self._ops.to_host(sums[part])

    def offered(self, new: Array) -> Array:
        return self._offered

    def offer(self, new: Array, part: slice) -> None:
        self._offered[part] = self._ops.asarray(new[part])

    def put(self, values: np.ndarray) -> None:
        super().put(values)
        self._served[...] = values


class ThroughHost(InPlace):
    """On a device, with a communicator of the host: every bucket is copied to the host and back.

    updates_on_device: whether the servers' new values have to be copied too.
    """

    at_once = False

    def __init__(self, ops: Any, gradients: Array, values: Array, *, updates_on_device: bool = True) -> None:
        self._updates_on_device = updates_on_device
        self._ops, self._net_gradients, self._net_values = ops, gradients, values
        super().__init__(np.empty(gradients.size, gradients.dtype), ops.to_host(values))

    def send(self, elements: slice) -> None:
        self.gradients[elements] = self._ops.to_host(self._net_gradients[elements])

    def receive(self, elements: slice) -> None:
        self._net_values[elements] = self._ops.asarray(self.values[elements])

    def offered(self, new: Array) -> Array:
        return self.gradients if self._updates_on_device else new  # gradients, which have been summed

    def offer(self, new: Array, part: slice) -> None:
        if self._updates_on_device:
            self.gradients[part] = self._ops.to_host(new[part])

    def put(self, values: np.ndarray) -> None:
        self._net_values[...] = self._ops.asarray(values)
        self.values[...] = values


def make_staging(ops: Any, flat: FlatParams, *, on_device: bool, updates_on_device: bool = True) -> InPlace:
    """For the arrays of `flat`. on_device: whether the communicator reaches arrays on the device of `ops`.
    updates_on_device: whether the servers do too."""
    return staging_of(ops, flat.grads, flat.values, on_device=on_device, updates_on_device=updates_on_device)


def staging_of(
    ops: Any, gradients: Array, values: Array, *, on_device: bool, updates_on_device: bool = True
) -> InPlace:
    """For these arrays, as `make_staging`."""
    if ops.device == "cpu":
        return InPlace(gradients, values)
    if not on_device:
        return ThroughHost(ops, gradients, values, updates_on_device=updates_on_device)
    return (OnDevice if updates_on_device else BesideHost)(ops, gradients, values)
