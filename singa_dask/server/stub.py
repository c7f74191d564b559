"""A worker's side of the exchange with its servers: one message per slice each way."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotDone
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from singa_dask.comm.codecs import ErrorFeedback, codec
from singa_dask.errors import ClusterError, CommTimeout
from singa_dask.server.ledger import Ledger
from singa_dask.server.link import Link
from singa_dask.server.messages import (
    Array,
    Coded,
    Fresh,
    Get,
    GoBack,
    Inspect,
    Leave,
    Origin,
    Put,
    Refused,
    Reply,
    Request,
    State,
    Update,
)
from singa_dask.server.slices import ParameterSlice
from singa_dask.tracing import span

_LOOK_S = 0.1


@dataclass
class ServerTraffic:
    """Statistics of the exchange with servers since they were last taken.

    stall_s: time that the worker waited for replies. update_s: sum of the updates' round trips. staleness: updates by
    others between reading the parameters and applying the gradient, summed over updates. nbytes: sent and received,
    except with servers in the same process.
    """

    updates: int = 0
    stall_s: float = 0.0
    update_s: float = 0.0
    staleness: int = 0
    staleness_max: int = 0
    nbytes: int = 0


@dataclass
class _Sent:
    """An update whose replies were not taken yet. futures: of the replies, by position of the slice."""

    step: int
    began: float
    futures: dict[int, Future[Reply]] = field(default_factory=dict)
    ended: list[float] = field(default_factory=list)


class Stub:
    """The client of one worker for the servers that own its slices of the parameters.

    slices: the worker's, in order; links: by server. Arrays are flat and of all parameters; the stub reads and writes
    its slices. behind: how many updates may be under way while the next mini-batch is computed. patience_s: maximum
    wait for a reply while the server is alive; aborted: returns a reason to abort, "" if there is none. clock: see
    `get`. reductions: of the learning rate, sent with gradients, the same on all workers of the group;
    known_reductions: the maximum that a server has told. codec: settings of `codecs.codec`, with `name`, for gradients
    sent to other processes; the next gradient includes the residual. exactly: positions of slices that are not coded.
    ledgers: of the parameters that were last received, by position of the slice; steps: of the group that they lack
    first, as `get` found them.

    Waits raise ClusterError if the server is lost or the group is aborted, CommTimeout after `patience_s`.
    """

    def __init__(
        self,
        slices: Sequence[ParameterSlice],
        links: Mapping[int, Link],
        group: int = 0,
        generation: int = 0,
        *,
        behind: int = 0,
        patience_s: float = 300.0,
        aborted: Callable[[], str] = lambda: "",
        codec: Mapping[str, Any] | None = None,
        exactly: Container[int] = (),
    ) -> None:
        self.slices = tuple(slices)
        self.behind = behind
        self.patience_s = patience_s
        self.exchanged = ServerTraffic()
        self._links = links
        self._origin = Origin(group, generation)
        self._aborted = aborted
        self.clock = 0
        self.reductions = self.known_reductions = 0
        self._versions = [0] * len(self.slices)
        self.ledgers: list[Ledger] = [Ledger() for _ in self.slices]
        self.steps = [0] * len(self.slices)
        self._under_way: list[_Sent] = []
        self._kept: dict[tuple[int, int], Array] = {}
        self._codec = None if codec is None or codec["name"] == "kFull" else dict(codec)
        self._exactly = exactly
        self._feedback: dict[int, Any] = {}

    def put(
        self, values: Array, state: Mapping[str, Array], step: int, reductions: int = 0, ledger: Ledger | None = None
    ) -> None:
        """Offer the initial parameters, after `step` updates and `reductions` of the learning rate."""
        ledger = ledger or Ledger()
        replies = []
        for s in self.slices:
            own = {name: _part(array, s) for name, array in state.items()}
            put = Put(s.index, _part(values, s), own, step, step, reductions, ledger)
            replies.append(self._send(s, put))
        for reply in replies:
            self._wait(reply)

    def get(self, out: Array, first: int) -> int:
        """Fetch the parameters. Returns the group's step on the servers, at least `first`. `clock` becomes the maximum
        of the servers' clocks for the group."""
        self._origin = replace(self._origin, first=first)
        self.clock = first
        self._fetch(out, {i: Get(s.index, self._origin) for i, s in enumerate(self.slices)})
        return max([first, *self.steps])

    def go_back(self, out: Array, step: int) -> None:
        """Have slices that contain the group's step `step` go back to the state before it, where their servers can,
        and fetch them. Their clocks become those of then."""
        ahead = {i: GoBack(s.index, self._origin, step) for i, s in enumerate(self.slices) if self.steps[i] > step}
        self.clock = step
        self._fetch(out, ahead)

    def _fetch(self, out: Array, requests: Mapping[int, Get | GoBack]) -> None:
        """Take the replies to requests, by position of the slice."""
        targets = {i: _part(out, self.slices[i]) for i in requests}
        sent = {i: self._send(self.slices[i], request, targets[i]) for i, request in requests.items()}
        for i, future in sent.items():
            fresh = self._take(i, self._wait(future), targets[i])
            self.steps[i], self.clock = fresh.next_step, max(self.clock, fresh.clock)

    def begin(self, step: int, clock: int | None = None) -> None:
        """Set the step with which the group starts. clock: the maximum of its workers' clocks, by default its own."""
        self.clock = max(step, self.clock if clock is None else clock)
        self._origin = replace(self._origin, first=step, clock=self.clock)

    def push(self, step: int, gradient: Array, out: Array, within: range | None = None) -> None:
        """Send the gradient of all slices, or of those `within` this range of elements.

        Further calls for the same step send the others. With `behind`, the caller may overwrite `gradient` at once.
        """
        if not self._under_way or self._under_way[-1].step != step:
            self._under_way.append(_Sent(step, time.perf_counter()))
        sent = self._under_way[-1]
        for i, s in enumerate(self.slices):
            if within is not None and s.start not in within:
                continue
            with span("push", step, slice=s.index, origin=self._origin):
                part = self._outgoing(i, step, gradient, s)
                update = Update(s.index, self._origin, step, part, self._versions[i], self.reductions)
                # A reply may come while the parameters are in use, and must not be written to them.
                future = self._send(s, update, None if self.behind else _part(out, s))
            future.add_done_callback(lambda _: sent.ended.append(time.perf_counter()))
            sent.futures[i] = future
            if not self._links[s.server].local:
                self.exchanged.nbytes += part.nbytes + _part(gradient, s).nbytes

    def pull(self, out: Array, *, everything: bool = False) -> None:
        """Wait until at most `behind` updates (or none) are under way, and take the received parameters."""
        began = time.perf_counter()
        while len(self._under_way) > (0 if everything else self.behind):
            sent = self._under_way.pop(0)
            staleness = 0
            with span("pull", sent.step):
                for i, future in sent.futures.items():
                    reply = self._wait(future)
                    with span("take", sent.step, slice=self.slices[i].index, origin=self._origin):
                        fresh = self._take(i, reply, _part(out, self.slices[i]))
                    staleness = max(staleness, fresh.staleness)
            if sent.futures:
                self._count(sent, staleness)
        self.exchanged.stall_s += time.perf_counter() - began

    def inspect(self, i: int) -> State:
        """The server's state of this worker's slice at position `i`."""
        reply = self._wait(self._send(self.slices[i], Inspect(self.slices[i].index)))
        assert isinstance(reply, State)
        return reply

    def leave(self) -> None:
        """Tell the servers that the group makes no more updates."""
        for future in [self._send(s, Leave(s.index, self._origin)) for s in self.slices]:
            self._wait(future)

    def take_traffic(self) -> ServerTraffic:
        """The statistics since the last call."""
        taken, self.exchanged = self.exchanged, ServerTraffic()
        return taken

    def _send(self, s: ParameterSlice, request: Request, out: Array | None = None) -> Future[Reply]:
        return self._links[s.server].send(request, out)

    def _take(self, i: int, reply: Reply, target: Array) -> Fresh:
        assert isinstance(reply, Fresh)
        if reply.values is not target:
            target[...] = reply.values
        self._versions[i], self.known_reductions = reply.version, max(self.known_reductions, reply.reductions)
        self.ledgers[i] = reply.ledger
        return reply

    def _outgoing(self, i: int, step: int, gradient: Array, s: ParameterSlice) -> Array | Coded:
        if self._codec is None or not self._codes(s, i):
            return self._keep(step, gradient, s, i) if self.behind else _part(gradient, s)
        part = _part(gradient, s)
        if i not in self._feedback:
            self._feedback[i] = ErrorFeedback(codec(**self._codec), s.size, part.dtype)
        # A new array: it may be under way while the next one is encoded.
        feedback = self._feedback[i]
        feedback.codec.begin(step)
        payload = feedback.encode(part, np.empty(feedback.codec.max_nbytes(s.size, part.dtype), np.uint8))
        return Coded(s.size, part.dtype.name, self._codec, payload)

    @property
    def overflows(self) -> int:
        """The number of values so far that a codec could not represent."""
        return sum(feedback.codec.overflows for feedback in self._feedback.values())

    @property
    def residual(self) -> dict[int, Array]:
        """The codecs' residuals, by position of the slice."""
        return {i: feedback.residual for i, feedback in self._feedback.items()}

    def take_over(self, residual: Mapping[int, Array]) -> dict[int, Array]:
        """Take over residuals by position of the slice. Returns those of slices without a codec."""
        rest = {}
        for i, values in residual.items():
            if not self._codes(self.slices[i], i):
                rest[i] = values
                continue
            assert self._codec is not None
            self._feedback[i] = ErrorFeedback(codec(**self._codec), values.size, values.dtype)
            self._feedback[i].residual[...] = values
        return rest

    def _codes(self, s: ParameterSlice, i: int) -> bool:
        """Whether the gradient of a slice goes through a codec."""
        return self._codec is not None and i not in self._exactly and not self._links[s.server].local

    def _keep(self, step: int, gradient: Array, s: ParameterSlice, i: int) -> Array:
        """A copy of a slice that stays unchanged until `behind` further updates are answered."""
        part = _part(gradient, s)
        kept = self._kept.setdefault((step % (self.behind + 1), i), np.empty_like(part))
        kept[...] = part
        return kept

    def _wait(self, future: Future[Reply]) -> Reply:
        began = time.monotonic()
        while True:
            try:
                reply = future.result(timeout=_LOOK_S)
                break
            except NotDone as error:
                if future.done() and future.exception() is error:
                    raise  # raised by the link, not by this wait
                reason = self._aborted()
                if reason:
                    raise ClusterError(f"waiting for a server: {reason}") from None
                if time.monotonic() - began > self.patience_s:
                    raise CommTimeout(
                        f"group {self._origin.group} waited {self.patience_s:g} s for a server: the first group of "
                        "its server group has not put the parameters, or a slower group holds it back. Look for "
                        "what slows it down (`singa-dask why`), or raise max_staleness"
                    ) from None
        if isinstance(reply, Refused):
            raise ClusterError(f"a server refused a request of group {self._origin.group}: {reply.reason}")
        return reply

    def _count(self, sent: _Sent, staleness: int) -> None:
        traffic = self.exchanged
        traffic.updates += 1
        # A future wakes its waiter before it calls its callbacks.
        traffic.update_s += max(sent.ended, default=time.perf_counter()) - sent.began
        traffic.staleness += staleness
        traffic.staleness_max = max(traffic.staleness_max, staleness)


def _part(array: Array, s: ParameterSlice) -> Array:
    return array[s.start : s.stop]
