"""A worker group as the driver holds it: how it forms, how its failures are noticed and named, how it ends."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from singa_dask.cluster.exits import ending_of
from singa_dask.cluster.join import RankPlan
from singa_dask.cluster.pmi_server import PmiServer
from singa_dask.cluster.rank import GRACE_S, Looks, abort_rank, clean_segments, keep_rank, rank_looks, tell_rank
from singa_dask.cluster.remote import StoppedProcesses, alive, kill_processes, last_seen, run_each
from singa_dask.cluster.workers import WorkerInfo, describe
from singa_dask.errors import ClusterError, consequence, root_cause

logger = logging.getLogger(__name__)

_LIVENESS_POLL_S = 0.25
_ANSWER_S = 2.0
_HEARD_EVERY_S = 2.0
# Dask's heartbeats come every 0.5 s, those of thousands of workers every 10 s. Who misses them is asked first.
_HEARTBEAT_S = 10.0
_MUTE_S = 5.0
_KEEP_EVERY_S = 0.25
# Tells ranks to leave after a step.
REGROUP = "regroup"


@dataclass(frozen=True)
class RankFailure:
    """Which rank failed first, where, and why. exception: what it raised, None when its process was lost. cancelled:
    whether somebody cancelled its task before the group had formed."""

    rank: int
    worker: WorkerInfo
    cause: str
    exception: BaseException | None = None
    traceback: str = ""
    cancelled: bool = False

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.worker}: {self.cause}"


class GroupFailed(ClusterError):
    """A rank failed, and with it its group. failure: which, where, and why; __cause__: what it raised, if it did."""

    def __init__(self, group: str, failure: RankFailure) -> None:
        self.group, self.failure = group, failure
        text = f"{group} failed: {failure}"
        if failure.traceback:
            text += f"\n\nThe traceback of rank {failure.rank}:\n{failure.traceback}"
        super().__init__(text)
        # Without its traceback, which the text has already.
        self.__cause__ = failure.exception and failure.exception.with_traceback(None)

    def __reduce__(self) -> tuple:
        return type(self), (self.group, self.failure)


class Group(AbstractContextManager["Group", None]):
    """The ranks of one group, running `fn`. Use as a context manager; leaving it ends the ranks that still run.

    id: unique; workers[rank]: where the rank runs (after restarts not always where it was wanted);
    futures[rank]: of what fn returned; failure: of the rank that failed first, None while none has.
    replaced: the processes that nannies were asked to replace because they did not react, pid by address.
    cancelled: ranks whose tasks somebody else has cancelled. They run on until they return, as long as poll is called.
    """

    def __init__(
        self,
        client: Any,
        plans: Sequence[RankPlan],
        workers: Sequence[WorkerInfo],
        futures: Sequence[Any],
        server: PmiServer | None = None,
        replaced: dict[str, int] | None = None,
    ) -> None:
        self.id = plans[0].group
        self.workers = tuple(workers)
        self.futures = tuple(futures)
        self.failure: RankFailure | None = None
        self.replaced = {} if replaced is None else replaced
        self._client = client
        self._server = server
        self._own_world = plans[0].endpoint is not None
        self._checked_at = 0.0
        self._listened_at = 0.0
        self._heard: dict[str, tuple[float, float]] = {}
        self._stopped = StoppedProcesses(client)
        self._ended = self._formed = False
        self.cancelled: set[int] = set()
        self._left: set[int] = set()  # of those: that have returned
        self._kept_at = 0.0

    @property
    def addresses(self) -> tuple[str, ...]:
        """The Dask worker of every rank."""
        return tuple(worker.address for worker in self.workers)

    def formed(self) -> None:
        """Remember that every rank has met the others, so that nothing of the forming is left to clean up."""
        self._server, self._formed = None, True

    def __exit__(self, *exc: object) -> None:
        self.close()

    def poll(self) -> bool:
        """Whether every rank has returned. A lost process is noticed within 0.5 s.

        Raises GroupFailed naming the first rank that failed, after the other ranks have been made to leave.
        """
        if self.failure is None:
            self.failure = self._find_failure()
            if self.failure is not None:
                self.abort(str(self.failure))
        if self.failure is not None:
            raise GroupFailed(self.id, self.failure)
        self._keep_cancelled()
        return all(rank in self._left or future.status == "finished" for rank, future in enumerate(self.futures))

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether every rank has returned, at the latest after `timeout_s` seconds. Raises as `poll` does."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self.poll():
            if deadline is not None and time.monotonic() >= deadline:
                return False
            time.sleep(0.02)
        return True

    def results(self, timeout_s: float = 30.0) -> list[Any]:
        """What fn returned on every rank, once all have; None for those whose tasks were cancelled.

        Raises ClusterError when they have not in time.
        """
        if not self.wait(timeout_s):
            running = [rank for rank, future in enumerate(self.futures) if future.status != "finished"]
            raise ClusterError(
                f"{self.id}: ranks {running} still run after {timeout_s:g} s. Wait longer, or abort the group."
            )
        ranks = enumerate(self.futures)
        return [None if rank in self.cancelled else future.result(timeout=timeout_s) for rank, future in ranks]

    def stop(self) -> None:
        """Ask every rank to finish its step and return: `current_task().stop_requested` becomes true there.

        Ranks see it at different steps, so they must agree (in an all-reduce, say) on the step after which they leave.
        """
        self.tell("stop", True)

    def tell(self, name: str, value: Any) -> bool:
        """Tell every rank something that can be pickled: `current_task().told[name]` there. Whether all heard it."""
        told = run_each(self._client, tell_rank, dict.fromkeys(self.addresses, (self.id, name, value)), _ANSWER_S)
        return not any(isinstance(answer, Exception) for answer in told.values())

    def looks(self) -> dict[int, Looks | None]:
        """How each rank looks for a stop; None for one that has left, or does not answer now."""
        answers = run_each(self._client, rank_looks, dict.fromkeys(self.addresses, (self.id,)), _ANSWER_S)
        found = enumerate(answers[address] for address in self.addresses)
        return {rank: answer if isinstance(answer, Looks) else None for rank, answer in found}

    def give_up(self, causes: Mapping[int, str]) -> None:
        """End ranks that do not react, and with them the group: `poll` raises the first one's cause."""
        rank = min(causes)
        self.failure = self.failure or RankFailure(rank, self.workers[rank], causes[rank])
        given_up = [self.addresses[rank] for rank in causes]
        self._replace(given_up)
        self.abort(str(self.failure))

    def leave_after_step(self, timeout_s: float = 5.0) -> None:
        """Have all ranks leave after the same step; closing ends those that have not in time."""
        self.tell(REGROUP, True)
        self._staying(timeout_s)

    def abort(self, reason: str) -> None:
        """End all ranks: their collectives raise ClusterError; a process that does not leave in 3 s exits.

        Stopped processes, which can do neither, are replaced by their nanny.
        """
        if self._ended:
            return
        self._ended = True
        if self._server is not None:
            self._server.fail(reason)  # ranks that wait for others in MPI_Init hear nothing else
        here = self._unfinished() & alive(self._client, self.addresses)
        stopped = {w.address for w in self.workers if w.nanny in self._stopped.found} & here
        self._replace(sorted(stopped))
        here -= stopped
        told = run_each(self._client, abort_rank, dict.fromkeys(here, (self.id, reason)), _ANSWER_S)
        silent = [address for address, answer in told.items() if isinstance(answer, TimeoutError)]
        self._replace(silent)
        self._await_end(GRACE_S + 2.0, without={*silent, *stopped})
        if self._server is not None:
            there = dict.fromkeys(alive(self._client, self.addresses), (self._server.endpoint.kvsname,))
            run_each(self._client, clean_segments, there, _ANSWER_S)
        self._client.cancel(list(self.futures), force=True)

    def replace_processes(self) -> None:
        """Have nannies replace the processes of a failed group, if they can enter no other MPI world."""
        if self.failure is not None and self._own_world:
            there = alive(self._client, self.addresses)
            spent = {w.address: w.pid for w in self.workers if w.nanny and w.address in there}
            self.replaced |= spent
            kill_processes(self._client, spent)

    def close(self) -> None:
        """End the ranks that still run, and let Dask forget the results."""
        if self._unfinished():
            self.abort("the driver closed the group")
        for future in self.futures:
            future.release()

    def _unfinished(self) -> set[str]:
        there = self.cancelled - self._left
        ranks = enumerate(zip(self.workers, self.futures, strict=True))
        return {worker.address for rank, (worker, future) in ranks if future.status == "pending" or rank in there}

    def _keep_cancelled(self) -> None:
        """Have ranks whose tasks were cancelled stay until they return, which Dask does not tell."""
        there = self.cancelled - self._left
        if there and time.monotonic() - self._kept_at > _KEEP_EVERY_S:
            self._kept_at = time.monotonic()
            asked = {self.addresses[rank]: (self.id,) for rank in there}
            answers = run_each(self._client, keep_rank, asked, _ANSWER_S)
            self._left |= {rank for rank in there if answers[self.addresses[rank]] is False}

    def _await_end(self, timeout_s: float, without: set[str]) -> None:
        if stuck := self._staying(timeout_s, without):
            self._replace(sorted(stuck))

    def _staying(self, timeout_s: float, without: Collection[str] = ()) -> set[str]:
        """The workers that live and whose ranks have not left after so many seconds."""
        deadline = time.monotonic() + timeout_s
        while staying := (self._unfinished() - set(without)) & alive(self._client, self.addresses):
            if time.monotonic() >= deadline:
                break
            time.sleep(0.02)
            self._keep_cancelled()
        return staying

    def _replace(self, addresses: list[str]) -> None:
        """Have nannies replace processes that do not react."""
        if not addresses:
            return
        logger.warning("%s: the workers %s do not react and are replaced", self.id, ", ".join(addresses))
        nannied = {w.address: w.pid for w in self.workers if w.nanny and w.address in addresses}
        self.replaced |= nannied
        kill_processes(self._client, nannied)

    def _find_failure(self) -> RankFailure | None:
        errors = {rank: future for rank, future in enumerate(self.futures) if future.status == "error"}
        gone = {rank for rank, future in enumerate(self.futures) if future.status == "lost"}
        cancelled = {rank for rank, future in enumerate(self.futures) if future.status == "cancelled"}
        if errors or gone or time.monotonic() - self._checked_at > _LIVENESS_POLL_S:
            there = alive(self._client, self.addresses)
            self._checked_at = time.monotonic()
            lost = [
                r
                for r, w in enumerate(self.workers)
                if w.address not in there and self.futures[r].status != "finished" and r not in self._left
            ]
            if lost:
                worker = self.workers[lost[0]]
                ending = ending_of(self._client, worker.nanny, worker.pid, worker.address)
                return RankFailure(lost[0], worker, f"its worker process {ending}")
        if errors:
            return self._first_error(errors)
        if gone:
            rank = min(gone)
            return RankFailure(rank, self.workers[rank], "Dask lost its task")
        if cancelled and not self._formed:
            rank = min(cancelled)
            return RankFailure(rank, self.workers[rank], "its task was cancelled", cancelled=True)
        self.cancelled |= cancelled
        if (failure := self._find_stopped()) is not None:
            return failure
        return self._mute() if time.monotonic() - self._listened_at > _HEARD_EVERY_S else None

    def _find_stopped(self) -> RankFailure | None:
        """A rank whose process is stopped. Its heartbeats would be missed only much later."""
        unfinished = self._unfinished()
        stopped = self._stopped.look({w.nanny: w.pid for w in self.workers if w.nanny and w.address in unfinished})
        ranks = (rank for rank, worker in enumerate(self.workers) if worker.nanny in stopped)
        return next(
            (RankFailure(rank, self.workers[rank], "its process is stopped (SIGSTOP)") for rank in ranks), None
        )

    def _mute(self) -> RankFailure | None:
        """A rank whose worker sends no heartbeats and does not answer. TCP misses a cut network after minutes only."""
        seen = last_seen(self._client)
        self._listened_at = now = time.monotonic()
        # Heartbeats are dated by the scheduler's clock, so what counts is for how long one has stayed the last.
        for address in self._unfinished() & seen.keys():
            if address not in self._heard or self._heard[address][0] != seen[address]:
                self._heard[address] = (seen[address], now)
        overdue = {a: at for a, (_, at) in self._heard.items() if now - at > _HEARTBEAT_S and a in self._unfinished()}
        rank = self._silent(overdue, _MUTE_S) if overdue else None
        if rank is None:
            return None
        silence = time.monotonic() - overdue[self.addresses[rank]]
        return RankFailure(rank, self.workers[rank], f"does not answer (stopped, or cut off) for {silence:.0f} s")

    def _first_error(self, errors: Mapping[int, Any]) -> RankFailure:
        """The failure that caused the others: an error of the rank's own before one that other ranks gave it."""
        raised = {rank: future.exception(timeout=_ANSWER_S) for rank, future in errors.items()}
        rank = root_cause(raised)
        error = raised[rank]
        if consequence(error):
            # MPI may miss a rank before Dask does.
            silent = self._silent(self.addresses, _ANSWER_S)
            if silent is not None:
                cause = f"does not answer (stopped, or cut off), so {type(error).__name__} on the others: {error}"
                return RankFailure(silent, self.workers[silent], cause, error)
        lines = traceback.format_exception(type(error), error, errors[rank].traceback(timeout=_ANSWER_S))
        return RankFailure(rank, self.workers[rank], f"{type(error).__name__}: {error}", error, "".join(lines))

    def _silent(self, addresses: Iterable[str], timeout_s: float) -> int | None:
        """The first rank whose worker, of these, does not answer."""
        answers = run_each(self._client, describe, dict.fromkeys(addresses, ()), timeout_s)
        return next((r for r, a in enumerate(self.addresses) if isinstance(answers.get(a), Exception)), None)
