"""All worker groups and server groups of a run: watching, restarting, ending.

The unit of failure is what shares processes. A worker group that is lost takes along the servers in its processes, and
servers that are lost take along the worker groups that they serve; everybody else goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, MutableSet, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from singa_dask.cluster import GroupFailed
from singa_dask.cluster.remote import alive
from singa_dask.errors import ClusterError, SingaError
from singa_dask.supervision.launch import FormRequest, Gang, GangLauncher, NoReplacement, State
from singa_dask.supervision.servers import ServerGroup

_LOOK_S = 0.02
_ALIVE_EVERY_S = 0.25


class GroupLost(ClusterError):
    """A process of the run died or went silent: forming what it held anew may help."""


@dataclass(frozen=True)
class Restart:
    """For the record: which worker groups were formed anew, why, and near which step."""

    groups: tuple[int, ...]
    step: int
    cause: str


class Supervisor:
    """The processes of one run, as one thread watches them; another forms what is down, one order at a time.

    note: says something to the user. steps, ended: last known step of every worker group, and which have reached their
    end; kept by the caller.
    """

    def __init__(
        self,
        former: GangLauncher,
        *,
        note: Callable[[str], None],
        steps: Mapping[int, int],
        ended: MutableSet[int],
        max_restarts: int,
    ) -> None:
        self.former, self.client, self.topology = former, former.client, former.topology
        self.crews, self.server_groups = former.crews, former.server_groups
        self.note, self.steps, self.ended, self.max_restarts = note, steps, ended, max_restarts
        self.restarts: list[Restart] = []
        self.interrupted = False
        self._jobs = ThreadPoolExecutor(1, thread_name_prefix="forming")
        self._forming: tuple[FormRequest, Future[None]] | None = None
        self._wishes: list[Callable[[], None]] = []
        self._lead_told = False
        self._checked_at = 0.0

    @property
    def synchronous(self) -> bool:
        """Whether there is one worker group only, which then goes back to a checkpoint when it is lost."""
        return self.topology.nworker_groups == 1

    # From start to end

    def run(self) -> dict[int, dict[str, Any]]:
        """Train from the newest checkpoint, if any, until every worker group has ended; returns their reports."""
        try:
            groups, size = self.topology.nworker_groups, self.topology.nworkers_per_group
            self.note(f"forming {groups} worker group{'s' if groups > 1 else ''} of {size} on Dask workers")
            self.former.plan()
            while not all(crew.state == State.ENDED for crew in self.crews):
                try:
                    self._look()
                    time.sleep(_LOOK_S)
                except KeyboardInterrupt:
                    self.stop()
            return {number: report for crew in self.crews for number, report in crew.reports.items()}
        finally:
            self._close()

    def stop(self) -> None:
        """Ask every worker group to end after its step. A second time: raises KeyboardInterrupt."""
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True
        self.note("stopping after this step (Ctrl-C again: at once)")
        for crew in self.crews:
            if crew.state == State.RUNNING:
                _running(crew).stop()

    def wish(self, action: Callable[[], None]) -> None:
        """Have something done by the thread that watches."""
        self._wishes.append(action)

    def join(self) -> str:
        """Add a worker group on free Dask workers; returns what came of it, in a line."""
        if self.synchronous:
            return "refused: one worker group is synchronous, and cannot take in another"
        if self.interrupted or all(crew.state == State.ENDED for crew in self.crews):
            return "refused: the run is ending"
        if self._lead_told:
            _running(self.crews[0]).tell("others ended", False)
            self._lead_told = False
        crew = self.former.newcomer()
        return f"{crew} joins on {', '.join(crew.where)}"

    def leave(self, number: int) -> str:
        """Ask a worker group to end after its step; returns what came of it, in a line."""
        crew = next((crew for crew in self.crews if number in crew.groups), None)
        if crew is None or crew.state == State.ENDED:
            return f"refused: there is no worker group {number} at work"
        if 0 in crew.groups:
            return "refused: worker group 0 tests and saves for the whole run; stop the run instead"
        if crew.state != State.RUNNING:
            return f"refused: worker group {number} is just being formed"
        _running(crew).stop()
        crew.leaving = True
        return f"{crew} leaves after its step"

    # Looking after what runs

    def _look(self) -> None:
        """One look at everything: what has ended, what was lost, what can be told."""
        while self._wishes:
            self._wishes.pop(0)()
        losses = [loss for crew in self.crews if crew.state == State.RUNNING and (loss := self._poll(crew))]
        if self._forming and self._forming[1].done():
            order, forming = self._forming
            self._forming = None
            self._formed(order, forming)
        if self._forming:
            return  # losses are found again
        for crew, error in losses:
            if crew.state == State.RUNNING:  # not down yet with another one
                self._lost(crew, error)
        self._check_servers()
        self._form_what_is_down()
        if not self._forming:
            self._tell_lead()

    def _poll(self, crew: Gang) -> tuple[Gang, GroupLost] | None:
        """Notice that a crew has ended or was lost. Raises the error that one of its ranks raised on purpose."""
        group = _running(crew)
        try:
            if group.poll():
                for reports in reversed(group.results()):
                    crew.reports |= reports
                crew.state = State.ENDED
                group.close()
            return None
        except GroupFailed as error:
            own = _own(error)
            if own is None:
                return crew, GroupLost(f"{error.failure}")
            if not self._may_be_dropped(crew):
                raise own from error.__cause__
            self._drop(crew, f"{crew} could not join: {error.failure}")
            return None

    def _check_servers(self) -> None:
        """Servers die with their processes, and nobody but us would know."""
        if time.monotonic() - self._checked_at < _ALIVE_EVERY_S:
            return
        self._checked_at = time.monotonic()
        watched = {address for group in self.server_groups if group.up for address in group.where}
        gone = watched - alive(self.client, watched) if watched else set()
        for group in self.server_groups:
            here = sorted(gone & set(group.where))
            if group.up and here:
                self._lost(group, GroupLost(f"server group {group.number}: the process of {', '.join(here)} died"))

    def _tell_lead(self) -> None:
        """Once all others have ended, let the group that tests and saves take in what they have done."""
        lead = self.crews[0]
        if self._lead_told or lead.state != State.RUNNING or any(c.state != State.ENDED for c in self.crews[1:]):
            return
        if not set(lead.groups[1:]) <= self.ended:
            return
        try:
            for group in [*self.server_groups[:-1], *reversed(self.server_groups[:-2])]:
                group.flush()
        except ClusterError as error:
            if self.former.lost():
                return  # what was lost is formed anew first
            self.note(f"the last exchange between server groups failed: {error}")
        self._lead_told = _running(lead).tell("others ended", True)

    # What is lost

    def _lost(self, holder: Gang | ServerGroup, error: GroupLost) -> None:
        """Mark what the loss takes along, and have it formed anew, unless that was tried too often."""
        crews, groups = self._affected(holder)
        if self.interrupted:
            if crews:  # else its servers were lost, and are found so again until the others have ended
                self.note(f"{error} The run was being stopped, so it ends here.")
            for crew in crews:
                self._drop(crew)
            return
        if isinstance(holder, Gang) and holder.leaving:
            self._drop(holder, f"{holder} left: {error}")
            crews.remove(holder)
            if not crews and not groups:
                return
        holder.restarts += 1
        numbers = tuple(number for crew in crews for number in crew.groups)
        for crew in crews:
            crew.state = State.DOWN
        for group in groups:
            group.lost()
        self.ended -= set(numbers)
        self._lead_told = False
        if holder.restarts > self.max_restarts:
            raise error
        step = min((self.steps.get(number, 0) for number in numbers), default=0)
        self.restarts.append(Restart(numbers, step, str(error)))
        attempt = f"Restart {holder.restarts} of {self.max_restarts}"
        self.note(f"{error} (step {step}). {attempt}{self._way_out(crews, groups)}.")

    def _way_out(self, crews: Sequence[Gang], groups: Sequence[ServerGroup]) -> str:
        """Which worker groups are formed anew, and what they go on from."""
        names = "" if self.synchronous else f" of {' and '.join(map(str, crews)) or 'the servers'}"
        if self.server_groups and not groups:
            return f"{names}, from the servers' parameters"
        if any(group.up for group in self.server_groups):
            return f"{names}, from the parameters of a neighbouring server group"
        found = self.former.newest()
        return f"{names}, from step {found.step if found else 0}"

    def _affected(self, holder: Gang | ServerGroup) -> tuple[list[Gang], list[ServerGroup]]:
        """Every crew and server group that cannot go on: what is in lost processes, or in processes that are replaced
        because a crew of several processes is formed anew; the crews of lost servers."""
        working = [crew for crew in self.crews if crew.state != State.ENDED]
        if self.synchronous:
            return working, list(self.server_groups)
        lost = self.former.lost()
        crews = [crew for crew in working if crew is holder]
        groups = [group for group in self.server_groups if group is holder]
        while True:
            known = len(crews), len(groups)
            lost |= {address for crew in crews if len(crew.where) > 1 for address in crew.where}
            groups = [g for g in self.server_groups if g in groups or lost & set(g.where)]
            down = {g.number for g in groups}
            crews = [c for c in working if c in crews or down & set(c.server_groups) or lost & set(c.where)]
            if (len(crews), len(groups)) == known:
                return crews, groups

    def _may_be_dropped(self, crew: Gang) -> bool:
        """Whether it came to a running job and has not done anything for it yet."""
        return crew.joined and not any(number in self.steps for number in crew.groups)

    def _drop(self, crew: Gang, why: str = "") -> None:
        """Go on without a crew."""
        if why:
            self.note(why)
        crew.state = State.ENDED
        if crew.group is not None:
            crew.group.abort("the run goes on without it, or ends")
            crew.group.close()
        for number, used in zip(crew.groups, crew.server_groups, strict=True):
            if self.server_groups and self.server_groups[used].up:
                with suppress(ClusterError):  # lost too, and made anew without it
                    self.server_groups[used].dismiss(number, crew.generation)

    # Forming

    def _form_what_is_down(self) -> None:
        """Give what is down to the thread that forms. A newcomer comes alone: what it lacks must not hurt others."""
        down = [crew for crew in self.crews if crew.state == State.DOWN]
        needed = [crew for crew in down if not self._may_be_dropped(crew)]
        groups = [group for group in self.server_groups if not group.up]
        order = FormRequest(needed if needed or groups else down[:1], groups)
        if order.crews or order.server_groups:
            try:
                for crew in order.crews:
                    crew.state = State.FORMING
                self._forming = order, self._jobs.submit(self.former.bring_up, order)
            except KeyboardInterrupt:  # half-way; nobody else would see to them
                for crew in order.crews:
                    crew.state = State.DOWN
                raise

    def _formed(self, order: FormRequest, forming: Future[None]) -> None:
        """Take over what was formed, or find out what the failure means."""
        try:
            forming.result()
        except ClusterError as error:
            for crew in order.crews:
                crew.state = State.DOWN
            for group in order.server_groups:
                group.lost()
            self._not_formed(order, error)
        else:
            for crew in order.crews:
                crew.state = State.RUNNING
                if self.interrupted:
                    _running(crew).stop()

    def _not_formed(self, order: FormRequest, error: ClusterError) -> None:
        holder = order.crews[0] if order.crews else order.server_groups[0]
        if isinstance(holder, Gang) and self._may_be_dropped(holder):
            return self._drop(holder, f"{holder} could not join: {error}")
        if isinstance(error, NoReplacement):
            raise error
        if isinstance(error, GroupFailed):
            own = _own(error)
            if own is not None:
                raise own from error.__cause__
        elif not self.former.lost():
            raise error
        self._lost(holder, GroupLost(str(error)))

    def _close(self) -> None:
        self._jobs.shutdown(wait=True, cancel_futures=True)
        for crew in self.crews:
            if crew.group is not None:
                crew.group.close()
        for group in self.server_groups:
            group.stop()


def _running(crew: Gang) -> Any:
    assert crew.group is not None
    return crew.group


def _own(error: GroupFailed) -> BaseException | None:
    """What a rank raised on purpose, or by mistake; None where its group was lost."""
    raised = error.failure.exception
    if raised is None or isinstance(raised, ClusterError):
        return None
    return raised if isinstance(raised, SingaError) else error
