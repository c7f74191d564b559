"""A clock for one worker: its computing thread, the thread of its collectives, its network, its servers."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from typing import Literal

Device = Literal["network", "servers"]
Key = tuple[Device, str, int]  # of a message: what carries it, what it is, of which bucket

# Rounding may leave so much of what takes time.
_TINY_S = 1e-12


@dataclass
class _Act:
    """What the thread of the collectives does for a part of a step. Without a key, it computes. With `busy`, it sends
    a message; else it waits for one. seconds, busy: as in Clock.send."""

    part: str
    seconds: float = 0.0
    key: Key | None = None
    busy: float | None = None


class Clock:
    """Adds up what a step takes. All calls are those of the computing thread, but for what is done `beside` it.

    contention: the speed of each thread while both compute, compared with one on its own: 1 with a core for each, 1/2
    if they share one. now: seconds since the step began. parts: by what the computing thread spends them on; they sum
    to `now`. cpu: of a core, of both threads. hidden: of the exchange beside computing.

    >>> clock = Clock(0.5)
    >>> clock.compute(2.0, "layers")
    >>> with clock.beside("exchange"):
    ...     clock.send(("network", "sum", 0), busy=3.0)
    ...     clock.arrive(("network", "sum", 0))
    >>> clock.compute(1.0, "layers")
    >>> clock.wait("exchange")
    >>> clock.now, dict(clock.parts), clock.hidden
    (5.0, {'layers': 3.0, 'exchange': 2.0}, 1.0)
    """

    def __init__(self, contention: float) -> None:
        self.now = self.cpu = self.hidden = 0.0
        self.parts: defaultdict[str, float] = defaultdict(float)
        self._contention = contention
        self._free: defaultdict[Device, float] = defaultdict(float)  # from when on
        self._ready: defaultdict[Key, float] = defaultdict(float)
        self._queue: deque[_Act] = deque()
        self._beside = ""

    @contextmanager
    def beside(self, part: str) -> Iterator[None]:
        """Inside, the thread of the collectives is told what to do, in order, for a part of the step."""
        self._beside = part
        yield
        self._beside = ""

    def compute(self, seconds: float, part: str) -> None:
        """So many seconds of a core, spent on `part` of the step."""
        if self._beside:
            self._queue.append(_Act(self._beside, seconds))
        else:
            self.cpu += seconds
            self._pass(seconds, part, self._contention)

    def pause(self, seconds: float, part: str) -> None:
        """So many seconds without computing, for the other workers of a group."""
        self._pass(seconds, part, 1.0)

    def send(self, key: Key, *, busy: float, seconds: float = 0.0) -> None:
        """Send a message: what carries it is busy with it for so long, after what it was given before. It arrives when
        that is done, and `seconds` from now at the earliest."""
        self._do(_Act(self._beside, seconds, key, busy))

    def arrive(self, key: Key) -> None:
        """Wait for a message, if it was sent."""
        self._do(_Act(self._beside, key=key))

    def wait(self, part: str) -> None:
        """Wait until the thread of the collectives has done all; the time is spent on `part` of the step."""
        began = self.now
        self._advance(inf, 1.0)
        self.parts[part] += self.now - began

    def _do(self, act: _Act) -> None:
        self._queue.append(act)
        if not self._beside:
            assert act.key is not None
            self.wait("servers" if act.key[0] == "servers" else "exchange")

    def _pass(self, seconds: float, part: str, speed: float) -> None:
        began = self.now
        self._advance(seconds, speed)
        self.parts[part] += seconds
        self.parts["exchange"] += self.now - began - seconds

    def _advance(self, computing: float, speed: float) -> None:
        """Let the computing thread be busy for so long, or with inf wait until the queue is empty. speed: of both
        threads meanwhile."""
        while computing > 0 and (self._queue or computing < inf):
            if not self._queue:
                self.now += computing
                return
            act, done, rate = self._queue[0], 0.0, 1.0
            if act.key is None:
                done, rate = min(computing, act.seconds), speed
                act.seconds -= done
                ended = act.seconds <= _TINY_S
                self.cpu += done
            elif act.busy is not None:
                free = self._free[act.key[0]] = max(self._free[act.key[0]], self.now) + act.busy
                self._ready[act.key] = max(self.now + act.seconds, free)
                ended = True
            else:
                left = self._ready[act.key] - self.now
                done = max(0.0, min(computing, left))
                ended = left <= done + _TINY_S
            self.now += done / rate
            self.hidden += done / rate if act.part == "exchange" and computing < inf else 0.0
            computing -= done
            if ended:
                self._queue.popleft()
