"""How the workers of a group exchange arrays. A communicator moves flat arrays and never sees a net."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np


class Request(ABC):
    """An operation that was started and may still be under way."""

    @abstractmethod
    def wait(self) -> None:
        """Return when the operation is complete. Raises what the operation would raise."""


class Completed(Request):
    """An operation that was complete before its request came back."""

    def wait(self) -> None:
        """Return at once."""


class Communicator(ABC):
    """Collectives of one group. All ranks call the same operations in the same order.

    counts: elements of each rank's part of a flat array, in rank order; a part may be empty.
    nbytes: bytes handed to each operation so far, by name. reduce_scatter, all_gather and all_to_all leave out the own
    part, which is not sent. seconds: spent in each operation so far; wait_s: their sum.
    goes_on: whether a started operation proceeds while the rank does something else, at the latest on `progress`.
    hurried: whether the rank can do nothing until the current operation is complete, and may use more processor time
    to wait for it. Operations raise CommTimeout after `timeout_s` seconds and ClusterError when a rank is known to be
    lost.
    """

    rank: int
    size: int
    timeout_s: float
    goes_on: bool = False
    hurried: bool = True
    kind: str  # for display

    def __init__(self) -> None:
        self.nbytes: Counter[str] = Counter()
        self.seconds: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def patiently(self, timeout_s: float) -> Iterator[None]:
        """Inside, operations have this deadline: other ranks may be busy for longer than a step."""
        usual, self.timeout_s = self.timeout_s, timeout_s
        try:
            yield
        finally:
            self.timeout_s = usual

    @property
    def wait_s(self) -> float:
        return sum(list(self.seconds.values()))  # a copy: another thread may be adding a name

    @property
    def operations(self) -> dict[str, dict[str, float]]:
        """Bytes and seconds so far, by operation: {"all_reduce": {"bytes": 4096, "seconds": 0.012}}."""
        names = sorted({*self.nbytes, *self.seconds})
        return {name: {"bytes": self.nbytes[name], "seconds": self.seconds.get(name, 0.0)} for name in names}

    @abstractmethod
    def reduce_scatter(self, send: np.ndarray, recv: np.ndarray, counts: Sequence[int]) -> None:
        """recv = the own part of the sum of all `send`. send: (sum(counts),); recv: (counts[rank],)."""

    @abstractmethod
    def all_gather(self, buffer: np.ndarray, counts: Sequence[int]) -> None:
        """Every rank's own part of `buffer` reaches every rank, in place. buffer: (sum(counts),)."""

    def all_gather_number(self, number: int) -> np.ndarray:
        """Every rank's number, by rank.   -> (size,) int64."""
        numbers = np.zeros(self.size, np.int64)
        numbers[self.rank] = number
        self.all_gather(numbers, [1] * self.size)
        return numbers

    @abstractmethod
    def gather(self, send: np.ndarray, recv: np.ndarray | None, counts: Sequence[int], root: int = 0) -> None:
        """Every rank's `send` arrives at the root, in rank order in `recv` (None elsewhere)."""

    @abstractmethod
    def all_to_all(
        self, send: np.ndarray, send_counts: Sequence[int], recv: np.ndarray, recv_counts: Sequence[int]
    ) -> None:
        """Part i of every rank's `send` arrives at rank i, as part r of its `recv`, where r is the sender.

        send: (sum(send_counts),); recv: (sum(recv_counts),), of the same dtype, any, and not overlapping `send`.
        recv_counts[r] must be what rank r sends here. Threads raise ClusterError if it is not; MPI may not notice, and
        then leaves a part of `recv` unchanged.
        """

    def start_reduce_scatter(self, send: np.ndarray, recv: np.ndarray, counts: Sequence[int]) -> Request:
        """Start a reduce_scatter. `recv` holds the sum once the request was waited for.

        Until then the rank leaves both arrays alone. It may call other operations, in the order of all ranks. Where
        `goes_on` is false the operation is complete when this returns.
        """
        self.reduce_scatter(send, recv, counts)
        return Completed()

    def start_all_gather(self, buffer: np.ndarray, counts: Sequence[int]) -> Request:
        """Start an all_gather, as start_reduce_scatter does."""
        self.all_gather(buffer, counts)
        return Completed()

    def start_all_to_all(
        self, send: np.ndarray, send_counts: Sequence[int], recv: np.ndarray, recv_counts: Sequence[int]
    ) -> Request:
        """Start an all_to_all, as start_reduce_scatter does."""
        self.all_to_all(send, send_counts, recv, recv_counts)
        return Completed()

    def progress(self) -> bool:
        """Let started operations proceed, without waiting; returns whether any is incomplete."""
        return False

    @abstractmethod
    def all_reduce(self, buffer: np.ndarray) -> None:
        """buffer = the sum of every rank's buffer, in place."""

    @abstractmethod
    def broadcast(self, buffer: np.ndarray, root: int = 0) -> None:
        """The root's buffer reaches every rank, in place."""

    @abstractmethod
    def barrier(self) -> None:
        """Return when every rank has called it."""

    def one_machine(self) -> bool:
        """Whether all ranks share memory, so that operations are copies by the processors that compute: no network
        latency can be hidden. Collective. False where it is not known."""
        return False

    def split(self, color: int) -> Communicator:
        """A new communicator of the ranks that give the same color, in the order of this one. Collective.

        An abort of this one ends the operations of its parts, but not the reverse. The caller closes a part, before
        this one.
        """
        return self._of_color(self.all_gather_number(color).tolist())

    @abstractmethod
    def _of_color(self, colors: list[int]) -> Communicator:
        """The communicator of the ranks of this one's color. colors: by rank."""

    @property
    @abstractmethod
    def aborted(self) -> str:
        """Why operations fail from now on; "" unless the communicator was aborted."""

    @abstractmethod
    def abort(self, reason: str) -> None:
        """Make this rank's current operation and all later ones raise ClusterError. Any thread may call it."""

    def _alike(self, colors: list[int]) -> list[int]:
        """The ranks of this one's color."""
        return [rank for rank, color in enumerate(colors) if color == colors[self.rank]]

    def warm_up(self) -> None:  # noqa: B027 - most are ready
        """Connect to the other ranks as operations need it. Collective."""

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Release what the communicator holds; the last call."""


def part_of(rank: int, counts: Sequence[int]) -> slice:
    """Where the part of `rank` lies in a flat array.

    >>> part_of(2, [4, 0, 3])
    slice(4, 7, None)
    """
    start = sum(counts[:rank])
    return slice(start, start + counts[rank])
