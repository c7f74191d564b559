"""A step of one worker on a clock: its computing thread, the thread of its collectives, its network, its servers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf

# Rounding may leave so much of an act.
_TINY_S = 1e-12


@dataclass(frozen=True)
class Compute:
    """So many seconds of a core, spent on `part` of a step."""

    seconds: float
    part: str


@dataclass(frozen=True)
class Pause:
    """So many seconds without computing, for the other workers of a group."""

    seconds: float
    part: str


@dataclass(frozen=True)
class Send:
    """Start to send: the network is busy for `seconds` with it, after what it was given before."""

    key: str
    seconds: float


@dataclass(frozen=True)
class Ask:
    """Send an update to servers, which reply after `seconds` where they are idle, and are busy with it for `busy`."""

    key: str
    seconds: float
    busy: float


@dataclass(frozen=True)
class Arrive:
    """Wait for what was sent or asked under this key."""

    key: str


Act = Compute | Send | Ask | Arrive


@dataclass(frozen=True)
class Task:
    """What the thread of the collectives does, in order, for a part of a step."""

    acts: tuple[Act, ...]
    part: str = "exchange"


@dataclass(frozen=True)
class Submit:
    """Hand a task to the thread of the collectives."""

    task: Task


@dataclass(frozen=True)
class Wait:
    """Wait until all tasks are done; the time is spent on `part`."""

    part: str


@dataclass
class Outcome:
    """Seconds of a step. parts: by what the computing thread spends them on; they sum to `seconds`. cpu: of a core, of
    both threads. hidden: of the exchange by the thread of the collectives, while the other one computed."""

    seconds: float = 0.0
    parts: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    cpu: float = 0.0
    hidden: float = 0.0


class Timeline:
    """Runs a script of the computing thread.

    contention: the speed of each thread while both compute, compared with one on its own: 1 with a core for each, 1/2
    if they share one.

    >>> step = [Compute(2.0, "layers"), Submit(Task((Send("a", 3.0), Arrive("a")))), Compute(1.0, "layers")]
    >>> outcome = Timeline(0.5).run([*step, Wait("exchange")])
    >>> outcome.seconds, dict(outcome.parts), outcome.hidden
    (5.0, {'layers': 3.0, 'exchange': 2.0}, 1.0)
    """

    def __init__(self, contention: float) -> None:
        self._contention = contention
        self._now = 0.0
        self._network = self._servers = 0.0  # busy until
        self._ready: defaultdict[str, float] = defaultdict(float)
        self._queue: list[tuple[Act, str]] = []  # with the parts of their tasks

    def run(self, script: Iterable[Compute | Pause | Submit | Wait]) -> Outcome:
        """The outcome of one step."""
        outcome = Outcome()
        for act in script:
            began = self._now
            if isinstance(act, Submit):
                self._queue.extend((each, act.task.part) for each in act.task.acts)
            elif isinstance(act, Wait):
                outcome.cpu += self._advance(inf)[1]
                outcome.parts[act.part] += self._now - began
            else:
                computes = isinstance(act, Compute)
                hidden, cpu = self._advance(act.seconds, self._contention if computes else 1.0)
                outcome.parts[act.part] += act.seconds
                outcome.parts["exchange"] += self._now - began - act.seconds
                outcome.hidden += hidden
                outcome.cpu += cpu + (act.seconds if computes else 0.0)
        outcome.seconds = self._now
        return outcome

    def _advance(self, computing: float, contention: float = 1.0) -> tuple[float, float]:
        """Let the computing thread compute for so long, or with inf wait until the queue is empty. contention: the
        speed of both threads meanwhile. Returns the seconds in which the other thread was busy with the exchange, or
        its network, and those of a core that it used."""
        hidden = cpu = 0.0
        while computing > 0 and not (computing == inf and not self._queue):
            act, part = self._queue[0] if self._queue else (None, "")
            exchanges = part == "exchange"
            if isinstance(act, Compute):
                seconds = min(computing, act.seconds) / contention
                done = seconds * contention
                rest = Compute(act.seconds - done, act.part)
                self._queue[:1] = [(rest, part)] if rest.seconds > _TINY_S else []
                cpu += done
                hidden += seconds * exchanges
            elif isinstance(act, Arrive):
                seconds = max(0.0, min(computing, self._ready[act.key] - self._now))
                done = seconds
                if self._ready[act.key] <= self._now + seconds + _TINY_S:
                    self._queue.pop(0)
                hidden += seconds * exchanges
            elif act is None:
                seconds = done = computing
            else:
                self._start(act)
                self._queue.pop(0)
                continue
            self._now += seconds
            computing -= done
        return hidden, cpu

    def _start(self, act: Send | Ask) -> None:
        if isinstance(act, Send):
            self._network = max(self._network, self._now) + act.seconds
            self._ready[act.key] = self._network
        else:
            self._servers = max(self._servers, self._now) + act.busy
            self._ready[act.key] = max(self._now + act.seconds, self._servers)
