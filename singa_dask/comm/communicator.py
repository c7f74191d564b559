"""What a worker group talks through. A communicator moves flat host arrays and never sees a net."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

# Waits for the end of an operation that was started.
Finish = Callable[[], None]


class Communicator(ABC):
    """Collectives of one group. Every member calls the same operations in the same order.

    counts: elements owned by each rank; rank i owns the i-th run of the flat array. They may be 0.
    nbytes: bytes handed to each operation so far, by name, without the own run of reduce_scatter, all_gather and
    all_to_all, which goes nowhere. seconds: spent inside each so far; wait_s: their sum.
    goes_on: whether an operation that was started goes on while the member does something else, at the latest when it
    is nudged.
    hurried: whether the member can do nothing else until the operation in progress is done, and may take more of a
    processor to wait for it. Operations raise CommTimeout after `timeout_s` seconds and ClusterError when a member is
    known to be lost.
    """

    rank: int
    size: int
    timeout_s: float
    goes_on: bool = False
    hurried: bool = True
    kind: str  # for people

    def __init__(self) -> None:
        self.nbytes: Counter[str] = Counter()
        self.seconds: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def patiently(self, timeout_s: float) -> Iterator[None]:
        """Inside, members are waited for that do something alone, and that may take longer than a step."""
        usual, self.timeout_s = self.timeout_s, timeout_s
        try:
            yield
        finally:
            self.timeout_s = usual

    @property
    def wait_s(self) -> float:
        return sum(list(self.seconds.values()))  # a copy: another thread may be in its first operation of a name

    @property
    def operations(self) -> dict[str, dict[str, float]]:
        """Bytes and seconds so far, by operation: {"all_reduce": {"bytes": 4096, "seconds": 0.012}}."""
        names = sorted({*self.nbytes, *self.seconds})
        return {name: {"bytes": self.nbytes[name], "seconds": self.seconds.get(name, 0.0)} for name in names}

    @abstractmethod
    def reduce_scatter(self, send: np.ndarray, recv: np.ndarray, counts: Sequence[int]) -> None:
        """recv = the own run of the sum of every rank's `send`. send: (sum(counts),); recv: (counts[rank],)."""

    @abstractmethod
    def all_gather(self, buffer: np.ndarray, counts: Sequence[int]) -> None:
        """Every rank's own run of `buffer` reaches every rank, in place. buffer: (sum(counts),)."""

    @abstractmethod
    def gather(self, send: np.ndarray, recv: np.ndarray | None, counts: Sequence[int], root: int = 0) -> None:
        """Every rank's `send` arrives at the root, one after another in `recv` (None elsewhere)."""

    @abstractmethod
    def all_to_all(
        self, send: np.ndarray, send_counts: Sequence[int], recv: np.ndarray, recv_counts: Sequence[int]
    ) -> None:
        """Run i of every rank's `send` arrives at rank i, in its `recv` as run r, r being the sender.

        send: (sum(send_counts),); recv: (sum(recv_counts),), of the same dtype, any, apart from `send`.
        recv_counts[r] is what rank r sends here. Where it is not, threads raise ClusterError; MPI need not notice, and
        then leaves a part of `recv` as it was.
        """

    def start_reduce_scatter(self, send: np.ndarray, recv: np.ndarray, counts: Sequence[int]) -> Finish:
        """Begin a reduce_scatter; `recv` holds the sum when the call that comes back has returned.

        Until then the member leaves both arrays alone, and may call other operations, in the order of all members.
        Where operations do not go on by themselves this one is over before anything comes back.
        """
        self.reduce_scatter(send, recv, counts)
        return _over

    def start_all_gather(self, buffer: np.ndarray, counts: Sequence[int]) -> Finish:
        """Begin an all_gather, as start_reduce_scatter does."""
        self.all_gather(buffer, counts)
        return _over

    def start_all_to_all(
        self, send: np.ndarray, send_counts: Sequence[int], recv: np.ndarray, recv_counts: Sequence[int]
    ) -> Finish:
        """Begin an all_to_all, as start_reduce_scatter does."""
        self.all_to_all(send, send_counts, recv, recv_counts)
        return _over

    def nudge(self) -> bool:
        """Let operations that were started go on, waiting for nobody; whether any of them is unfinished."""
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
        """Whether operations are copies in memory that all ranks share, made by the processors that compute: there is
        no waiting for a network to be hidden. Every rank must call it; where it is not known, False."""
        return False

    def split(self, color: int) -> Communicator:
        """A new communicator of the ranks that give the same color, in the order of this one. Every rank must call it.

        An abort of this one ends the operations of its parts, not the other way round. A part stays its caller's to
        close, before this one.
        """
        colors = np.zeros(self.size, np.int64)
        colors[self.rank] = color
        self.all_gather(colors, [1] * self.size)
        return self._of_color(colors.tolist())

    @abstractmethod
    def _of_color(self, colors: list[int]) -> Communicator:
        """The part of a split that this rank is in. colors: by rank."""

    @property
    @abstractmethod
    def aborted(self) -> str:
        """Why operations fail from now on; "" while the communicator was not aborted."""

    @abstractmethod
    def abort(self, reason: str) -> None:
        """Make this member's operation in progress and all later ones raise ClusterError. Any thread may call it."""

    def _alike(self, colors: list[int]) -> list[int]:
        """The ranks of this one's color."""
        return [rank for rank, color in enumerate(colors) if color == colors[self.rank]]

    def close(self) -> None:  # noqa: B027 - most have nothing to give back
        """Give back what the communicator holds; the last call."""


def _over() -> None:
    """The operation was over when it came back."""
