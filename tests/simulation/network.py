"""Messages between simulated processes: late, lost with their connection, twice, in another order, or held back."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Callable
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from simulation.clock import Loop

if TYPE_CHECKING:
    from simulation.cluster import Process

QUICK_S = 0.002  # a message between healthy hosts takes up to twice as long
BROKEN_S = 0.3  # until the sender knows that a connection is broken
_DRAWN = 997


class _Route:
    """From one process to another. hosts: where they are; beside: on the same one; sent: how many messages have gone
    this way, which with `first` says how late each is; last: when the last message of a stream arrives."""

    def __init__(self, source: Process, target: Process) -> None:
        self.hosts, self.beside = frozenset((source.host, target.host)), source.host == target.host
        self.first, self.sent, self.last = 31 * source.pid + 17 * target.pid, 0, 0.0


class Network:
    """Delivers messages."""

    def __init__(self, loop: Loop, seed: int) -> None:
        self.loop = loop
        self._faults = Counter[tuple[str, frozenset[str]]]()  # how many there are now of a kind, between two hosts
        generator = random.Random(seed)
        self._chances = [generator.random() for _ in range(_DRAWN)]
        self._routes: dict[tuple[Process, Process], _Route] = {}
        self._faulty_at = -math.inf
        self._held: list[tuple[_Route, Process, Process, Callable[[], None], Callable[[], None]]] = []

    def begin(self, kind: str, *hosts: str) -> None:
        """From now on there is a fault between two hosts."""
        self._faults[kind, frozenset(hosts)] += 1

    def end(self, kind: str, *hosts: str) -> None:
        """The fault is over. What a partition held back is delivered, as TCP would."""
        self._faults = self._faults - Counter({(kind, frozenset(hosts)): 1})
        self._faulty_at = self.loop.now
        if kind == "partition":
            held, self._held = self._held, []
            for message in held:
                self._arrive(*message)

    def faulty_at(self) -> float:
        """When messages were late or lost the last time."""
        return self.loop.now if self._faults else self._faulty_at

    def has(self, kind: str, hosts: frozenset[str]) -> bool:
        return (kind, hosts) in self._faults

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
        route = self._routes.get((source, target))
        if route is None:
            route = self._routes[source, target] = _Route(source, target)
        route.sent += 1
        # A number in [0, 1) that depends on the seed and on what has passed between the two, and on nothing else.
        chance = self._chances[(route.first + 7 * route.sent) % _DRAWN]
        delay = QUICK_S * (1 + chance)
        if self._faults and not route.beside:
            hosts = route.hosts
            if self.has("lose", hosts) and chance < 0.5 and not stream:
                self.loop.call_later(BROKEN_S, broken)
                return
            delay += (0.2 + 2 * chance) * self.has("delay", hosts) + chance * self.has("reorder", hosts)
            if self.has("duplicate", hosts) and repeats:
                self.loop.call_later(delay + chance, self._reach, source, target, arrive, lambda: None)
        at = self.loop.now + delay
        if stream:
            at = route.last = max(at, route.last)
        self.loop.call_at(at, self._arrive, route, source, target, arrive, broken)

    def call(
        self,
        source: Process,
        target: Process | None,
        handle: Callable[[], Any],
        read: Callable[[Any], Any] = lambda reply: reply,
        *,
        repeats: bool = False,
    ) -> asyncio.Future[Any]:
        """What `ask` settles, in a future. read: what the source makes of the reply."""
        reply: asyncio.Future[Any] = self.loop.create_future()

        def settle(result: Any, error: BaseException | None) -> None:
            if reply.done():
                return
            if error is not None:
                reply.set_exception(error)
            else:
                reply.set_result(read(result))

        self.ask(source, target, handle, settle, repeats=repeats)
        return reply

    def ask(
        self,
        source: Process,
        target: Process | None,
        handle: Callable[[], Any],
        settle: Callable[[Any, BaseException | None], None],
        *,
        repeats: bool = False,
    ) -> None:
        """Settle what `handle`, a function or a coroutine, returns or raises at the target: OSError if the connection
        breaks, nothing if it is cut, and perhaps twice if the question arrives twice."""

        def broken() -> None:
            settle(None, OSError("the connection broke"))

        def arrive() -> None:
            try:
                result = handle()
            except Exception as error:
                return answer(None, error)
            if isinstance(result, CoroutineType):
                self.loop.create_task(result).add_done_callback(answered)
            else:
                answer(result, None)

        def answered(task: asyncio.Task[Any]) -> None:
            error = task.exception()
            answer(task.result() if error is None else None, error)

        def answer(result: Any, error: BaseException | None) -> None:
            self.send(target, source, lambda: settle(result, error), broken)

        if target is None or not target.alive:
            self.loop.call_later(QUICK_S, broken)
        else:
            self.send(source, target, arrive, broken, repeats=repeats)

    def _arrive(
        self,
        route: _Route,
        source: Process,
        target: Process,
        arrive: Callable[[], None],
        broken: Callable[[], None],
    ) -> None:
        if self._faults and not route.beside and self.has("partition", route.hosts):
            self._held.append((route, source, target, arrive, broken))
        else:
            self._reach(source, target, arrive, broken)

    def _reach(self, source: Process, target: Process, arrive: Callable[[], None], broken: Callable[[], None]) -> None:
        if not target.alive:
            broken()
        elif target.stopped:
            target.held.append(lambda: self._reach(source, target, arrive, broken))
        else:
            arrive()
