"""The IO around the state of a run: it polls what runs, brings events to the state, and carries out its commands."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from singa_dask.cluster import Group, GroupFailed
from singa_dask.cluster.remote import StoppedProcesses, alive, kill_processes, replace_stopped
from singa_dask.cluster.workers import answering
from singa_dask.errors import ClusterError, SchedulerLost
from singa_dask.supervision import events as ev
from singa_dask.supervision.facts import Code, fact
from singa_dask.supervision.interrupts import interrupts
from singa_dask.supervision.launch import GroupLauncher, Launched, close, own_error
from singa_dask.supervision.servers import Servers
from singa_dask.supervision.standstill import Standstill
from singa_dask.supervision.state import Supervision
from singa_dask.supervision.words import error, sentence

if TYPE_CHECKING:
    from singa_dask.cluster import WorkerInfo
    from singa_dask.supervision.members import Restart
    from singa_dask.training.checkpoint import Found

logger = logging.getLogger(__name__)

_POLL_S = 0.02
_SERVERS_POLL_S = 0.25
_ANSWER_S = 5.0
_MISSED_S = 1.0
CANCELLED = "cancelled from Dask"


class Supervisor:
    """Runs the worker groups and servers of one run to their end.

    note: tells the user. newest: finds the newest valid checkpoint. rewound: is told which worker groups go back to
    which step (None: the start). restarted: is told of every restart. outdated: records that a replica does not count
    any more. giving_up: is called before ranks are ended that make no step, as launchers of MPI end this process with
    them. seeing: finds those Dask workers that see the files of the run, and tells of others.
    """

    def __init__(
        self,
        supervision: Supervision,
        launcher: GroupLauncher,
        *,
        note: Callable[[str], None],
        newest: Callable[[], Found | None],
        rewound: Callable[[tuple[int, ...], int | None], None],
        restarted: Callable[[Restart], None],
        outdated: Callable[[ev.RecordOutdated], None],
        giving_up: Callable[[], None],
        seeing: Callable[[list[WorkerInfo]], tuple[list[WorkerInfo], str]] | None = None,
    ) -> None:
        self.supervision, self.state, self.launcher = supervision, supervision.run, launcher
        self.client = launcher.client
        self.note, self.newest, self.rewound, self.restarted = note, newest, rewound, restarted
        self.outdated, self.giving_up, self.seeing = outdated, giving_up, seeing
        self._reports: dict[int, dict[str, Any]] = {}
        self._groups: dict[int, Group] = {}
        self._servers: dict[int, Servers] = {}
        self._inbox: SimpleQueue[Any] = SimpleQueue()
        # Operations and status requests: one of each at a time, as the state wants it. They share nothing.
        self._operations = ThreadPoolExecutor(1, thread_name_prefix="launcher")
        self._status_requests = ThreadPoolExecutor(1, thread_name_prefix="status")
        self._checked_at = 0.0
        self._stopped = StoppedProcesses(self.client)
        self._standstill = Standstill(supervision.places.patience_s)
        self._gave_up = False

    def run(self) -> dict[int, dict[str, Any]]:
        """Train until every worker group has ended; returns their reports. The first Ctrl-C stops the run after the
        step in progress; the second raises KeyboardInterrupt."""
        with interrupts(lambda by: self.post(ev.StopAsked(by))):
            try:
                self._handle(None)
                while not self.state.over:
                    self._turn()
                if self.state.error is not None:
                    raise error(self.state.error, self.state.members.history)
                return self._reports
            finally:
                self._close()

    def post(self, item: ev.Event | Callable[[], None]) -> None:
        """Tell the supervisor of an event, or have its thread call a function. From any thread."""
        self._inbox.put(item)

    # Events

    def _turn(self) -> None:
        """Take what has arrived, then look at everything that runs."""
        with suppress(Empty):
            self._take(self._inbox.get(timeout=_POLL_S))
            while True:
                self._take(self._inbox.get_nowait())
        for group in self.state.members.running():
            self._poll(group.number, group.generation)
        for group in self.state.members.running():
            self._poll_steps(group.number)
        self._poll_servers()

    def _take(self, item: Any) -> None:
        if isinstance(item, Future):
            item = self._result(item)
        if callable(item):
            item()
        elif item is not None:
            self._handle(item)

    def _result(self, future: Future[Any]) -> ev.Event | None:
        """The event that a thread returned. What it launched is ours from now on."""
        result = future.result()
        if not isinstance(result, Launched):
            return result
        self._groups |= result.groups
        for number in result.groups:
            self._standstill.made_step(number, time.monotonic())
        self._servers |= result.servers
        event = result.event
        if isinstance(event, ev.NotFormed) and isinstance(event.error, GroupFailed) and event.error.failure.cancelled:
            self._handle(ev.StopAsked(CANCELLED))
        return event

    def _handle(self, event: ev.Event | None) -> None:
        if isinstance(event, ev.Progress):
            self._standstill.made_step(event.group, time.monotonic())
        before = len(self.state.restarts)
        for command in self.supervision.handle(event):
            self._carry_out(command)
        for restart in self.state.restarts[before:]:
            self.restarted(replace(restart, cause=sentence(restart.cause)))

    def _poll(self, number: int, generation: int) -> None:
        """Notice that a worker group has ended or failed."""
        group = self._groups[number]
        try:
            ended = group.poll()
            if group.cancelled and not self.state.stopped:
                alive(self.client, ())  # a client that has lost its scheduler cancels all tasks itself
                self._handle(ev.StopAsked(CANCELLED))
            if not ended:
                return
            if (report := group.results()[0]) is not None:  # else its last event has brought it
                self._reports[number] = report
        except GroupFailed as error:
            cause, raised = str(error.failure), own_error(error)
            self._handle(ev.WorkerGroupFailed(number, generation, cause, raised, dict(group.replaced)))
        else:
            group.close()
            del self._groups[number]
            self._handle(ev.WorkerGroupEnded(number, generation))

    def _poll_steps(self, number: int) -> None:
        """Name ranks that make no step, and end them if the run is being stopped."""
        now = time.monotonic()
        if not self._standstill.due(number, now):
            return
        group = self._groups[number]
        looks = {rank: of for rank, of in group.looks().items() if of}
        still: dict[int, dict[str, Any]] = {
            rank: {"ago_s": looks[rank].ago_s, "step": self.state.steps.get(number), "at": looks[rank].where}
            for rank in self._standstill.still(looks)
        }
        if any(looks[rank].asked for rank in still):
            self._gave_up = True
            self.giving_up()
            group.give_up({rank: sentence(fact(Code.STOOD_STILL, **of)) for rank, of in still.items()})
        elif still and self._standstill.says(number, now):
            told = (fact(Code.STANDS_STILL, rank=rank, on=group.workers[rank], **of) for rank, of in still.items())
            self.note("; ".join(map(sentence, told)))

    def _poll_servers(self) -> None:
        """Servers die with their processes, and nobody else would know."""
        if time.monotonic() - self._checked_at < _SERVERS_POLL_S:
            return
        self._checked_at = time.monotonic()
        watched = {address for group in self.state.members.serving() for address in group.where}
        gone, of = watched - alive(self.client, watched) if watched else set(), self.state.processes.by_nanny(watched)
        stopped = {of[nanny][0] for nanny in self._stopped.look({nanny: pid for nanny, (_, pid) in of.items()})}
        if gone | stopped:
            self._handle(ev.ServersLost(frozenset(gone | stopped), frozenset(stopped)))

    # Commands

    def _carry_out(self, command: ev.Command) -> None:
        match command:
            case ev.Note(what):
                self.note(sentence(what))
            case ev.StatusRequest():
                self._begin(self._status_requests, self._request_status, command)
            case ev.Kill(pids):
                self._begin(self._status_requests, self._replace, dict(pids))
            case ev.FormRequest():
                self._begin(self._operations, self.launcher.form, command, dict(self._servers), dict(self._groups))
            case ev.Close(worker_groups, server_groups, growing):
                grow = [self._groups[number] for number in growing if number in self._groups]
                groups = [self._groups.pop(number) for number in worker_groups if number in self._groups]
                servers = [self._servers.pop(number) for number in server_groups if number in self._servers]
                self._begin(self._operations, lambda: ev.Closed(close(groups, servers, grow)))
            case ev.TellLead(ended, flush):
                flushed = [self._servers[number] for number in flush]
                self._begin(self._operations, _tell_lead, self._groups[0], ended, flushed)
            case ev.Dismiss(server_group, group, generation):
                self._begin(self._operations, _dismiss, self._servers[server_group], group, generation)
            case ev.ReplaceReplica(server_group, rank, replica, nanny):
                self._servers[server_group].replica_lost(rank, replica, nanny)
            case ev.RecordOutdated():
                self.outdated(command)
            case ev.LetEarlierGo(nannies):
                # The new start may be reading a checkpoint that an earlier one has left.
                former = partial(self.launcher.let_go, nannies, own=False, earlier=True, deposits=False)
                self._begin(self._status_requests, former)
            case ev.Stop(group):
                self._groups[group].stop()
            case ev.Rewind(groups, step):
                self.rewound(groups, step)
            case ev.Reply(asker, what):
                asker(sentence(what))

    def _begin(self, pool: ThreadPoolExecutor, function: Callable[..., Any], *args: Any) -> None:
        """Run a function in a thread; its result is the next event."""
        pool.submit(function, *args).add_done_callback(self._inbox.put)

    def _replace(self, pids: dict[str, int]) -> None:
        """Have nannies kill processes, and wait until the scheduler misses them. A status request takes longer."""
        kill_processes(self.client, pids)
        deadline = time.monotonic() + _MISSED_S
        while alive(self.client, pids) and time.monotonic() < deadline:
            time.sleep(_POLL_S)

    def _request_status(self, command: ev.StatusRequest) -> ev.StatusReport:
        time.sleep(command.delay_s)
        answers, _ = answering(self.client, _ANSWER_S)
        workers, left_out = self.seeing(answers) if self.seeing else (answers, "")
        if left_out:
            self.post(partial(self.note, left_out))
        if command.delay_s:  # there were too few
            replace_stopped(self.client, command.nannies - {info.nanny for info in workers})
        # Another run may have the workers that this one had before its driver was lost.
        nannies = command.nannies and command.nannies | {info.nanny for info in workers if info.nanny}
        on_disk = self.newest() if command.checkpoint else None
        left, inherited = self.launcher.left_behind(nannies, () if on_disk is None else on_disk.copies)
        copies = left.checkpoint if command.checkpoint else ()
        found = replace(copies[0].note, copies=copies) if copies else None
        at = time.monotonic()
        return ev.StatusReport(
            command.number, tuple(workers), at, found, left.groups, left.nannies, inherited, left.silent
        )

    def _close(self) -> None:
        for pool in (self._operations, self._status_requests):
            pool.shutdown(wait=True, cancel_futures=True)
        with suppress(Empty):  # formed in the meantime
            while True:
                item = self._inbox.get_nowait()
                if isinstance(item, Future) and not item.cancelled() and not item.exception():
                    self._result(item)
        for group in self._groups.values():
            try:
                group.close()
            except SchedulerLost:
                break  # nor can the others be closed
            except ClusterError as error:  # the others must be closed too, and the run's own error is raised
                logger.warning("a worker group could not be closed: %s", error)
        for servers in self._servers.values():
            servers.stop()
        if self._gave_up:  # what ranks had reached is in memory, for the next driver
            return
        # A driver that fails before it has taken over leaves what it found to the next one, and its last checkpoint.
        well = self.state.over and self.state.error is None
        self.launcher.let_go(self.state.processes.nannies, earlier=well, deposits=well)


def _tell_lead(lead: Group, ended: bool, flush: list[Servers]) -> ev.LeadTold:
    try:
        for servers in flush:
            servers.flush()
    except ClusterError as error:
        return ev.LeadTold(ended, heard=False, fault=str(error))
    return ev.LeadTold(ended, lead.tell("others ended", ended))


def _dismiss(servers: Servers, group: int, generation: int) -> None:
    with suppress(ClusterError):  # lost too; it is formed without the worker group
        servers.dismiss(group, generation)
