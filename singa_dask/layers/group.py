"""What the layers of a worker exchange with those of the other workers of its group."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from singa_dask.ops.arrays import Array


class LayerGroup:
    """A worker on its own. Every worker of a group makes the same calls in the same order.

    Arrays are C-contiguous, where the net's Ops have them. counts: elements of each worker's part, in rank order.
    """

    rank: int = 0
    size: int = 1

    def sum(self, array: Array) -> Array:
        """The array, of any shape; it has become the sum over the workers."""
        return array

    def all_gather(self, buffer: Array, counts: Sequence[int]) -> None:
        """Every worker's part of the flat `buffer` reaches every worker, in place."""

    def reduce_scatter(self, send: Array, recv: Array, counts: Sequence[int]) -> None:
        """recv = the own part of the sum of all workers' `send`; both are flat."""
        recv[...] = send

    def start_reduce_scatter(self, send: Array, recv: Array, counts: Sequence[int]) -> Callable[[], None]:
        """Start a reduce_scatter beside the computing, where that is faster. Returns what waits for its end."""
        self.reduce_scatter(send, recv, counts)
        return lambda: None

    def all_to_all(self, send: Array, send_counts: Sequence[int], recv: Array, recv_counts: Sequence[int]) -> None:
        """Part i of every worker's flat `send` arrives at worker i, as part r of its `recv` from worker r."""
        recv[...] = send
