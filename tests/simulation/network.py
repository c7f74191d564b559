"""Messages between simulated processes: late, lost with their connection, twice, in another order, or held back."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from simulation.clock import Loop

if TYPE_CHECKING:
    from simulation.cluster import Process

T = TypeVar("T")

QUICK_S = 0.002  # a message between healthy hosts takes up to twice as long
BROKEN_S = 0.3  # until the sender knows that a connection is broken
_DRAWN = 997


class Network:
    """Delivers messages. faults: how many faults of a kind there are now between two hosts, by (kind, hosts)."""

    def __init__(self, loop: Loop, seed: int) -> None:
        self.loop = loop
        self.faults: Counter[tuple[str, frozenset[str]]] = Counter()
        generator = random.Random(seed)
        self._chances = [generator.random() for _ in range(_DRAWN)]
        self._sent: Counter[tuple[str, str]] = Counter()
        self._faulty_at = -math.inf
        self._held: list[tuple[frozenset[str], Callable[[], None]]] = []
        self._last: dict[tuple[str, str], float] = {}

    def begin(self, kind: str, *hosts: str) -> None:
        """From now on there is a fault between two hosts."""
        self.faults[kind, frozenset(hosts)] += 1

    def end(self, kind: str, *hosts: str) -> None:
        """The fault is over. What a partition held back is delivered, as TCP would."""
        self.faults[kind, frozenset(hosts)] -= 1
        self._faulty_at = self.loop.now
        if kind == "partition":
            held, self._held = self._held, []
            for between, go_on in held:
                self._unless_parted(between, go_on)

    def faulty_at(self) -> float:
        """When messages were late or lost the last time."""
        return self.loop.now if any(self.faults.values()) else self._faulty_at

    def has(self, kind: str, hosts: frozenset[str]) -> bool:
        return self.faults[kind, hosts] > 0

    def send(
        self,
        source: Process,
        target: Process,
        arrive: Callable[[], None],
        broken: Callable[[], None] = lambda: None,
        *,
        stream: bool = False,
        repeats: bool = False,
    ) -> None:
        """Call `arrive` at the target, or `broken` at the source where the message is lost with its connection.

        stream: it is one of the messages between a client, the scheduler and a worker, which keep their order and are
        late rather than lost. repeats: whether the sender repeats it, so that it may arrive twice.
        """
        if not source.alive:
            return
        if source.stopped:
            source.held.append(lambda: self.send(source, target, arrive, broken, stream=stream, repeats=repeats))
            return
        hosts, chance = frozenset((source.host, target.host)), self._chance(source, target)
        delay = QUICK_S * (1 + chance)
        if len(hosts) == 2:
            if self.has("lose", hosts) and chance < 0.5 and not stream:
                self.loop.call_later(BROKEN_S, broken)
                return
            delay += (0.2 + 2 * chance) * self.has("delay", hosts) + chance * self.has("reorder", hosts)
            if self.has("duplicate", hosts) and repeats:
                self.loop.call_later(delay + chance, self._arrive, source, target, arrive, lambda: None)
        at = self.loop.now + delay
        if stream:
            both = source.address, target.address
            at = self._last[both] = max(at, self._last.get(both, 0.0))
        self.loop.call_at(at, self._unless_parted, hosts, lambda: self._arrive(source, target, arrive, broken))

    def call(
        self, source: Process, target: Process | None, handle: Callable[[], Awaitable[T]], *, repeats: bool = False
    ) -> asyncio.Future[T]:
        """What `handle` returns or raises at the target; OSError if the connection breaks, nothing if it is cut."""
        reply: asyncio.Future[T] = self.loop.create_future()

        def broken() -> None:
            if not reply.done():
                reply.set_exception(OSError("the connection broke"))

        def arrive() -> None:
            task = self.loop.create_task(handle())  # type: ignore[arg-type]
            task.add_done_callback(answer)

        def answer(task: asyncio.Task[T]) -> None:
            error, result = task.exception(), None
            if error is None:
                result = task.result()
            assert target is not None
            self.send(target, source, lambda: settle(result, error), broken)

        def settle(result: Any, error: BaseException | None) -> None:
            if reply.done():
                return
            if error is not None:
                reply.set_exception(error)
            else:
                reply.set_result(result)

        if target is None or not target.alive:
            self.loop.call_later(QUICK_S, broken)
        else:
            self.send(source, target, arrive, broken, repeats=repeats)
        return reply

    def _arrive(
        self, source: Process, target: Process, arrive: Callable[[], None], broken: Callable[[], None]
    ) -> None:
        if not target.alive:
            broken()
        elif target.stopped:
            target.held.append(lambda: self._arrive(source, target, arrive, broken))
        else:
            arrive()

    def _unless_parted(self, hosts: frozenset[str], go_on: Callable[[], None]) -> None:
        if len(hosts) == 2 and self.has("partition", hosts):
            self._held.append((hosts, go_on))
        else:
            go_on()

    def _chance(self, source: Process, target: Process) -> float:
        """A number in [0, 1) that depends on the seed and on what has passed between the two, and on nothing else."""
        self._sent[source.address, target.address] += 1
        count = self._sent[source.address, target.address]
        return self._chances[(31 * source.pid + 17 * target.pid + 7 * count) % _DRAWN]
