"""What must hold in every history. A broken rule raises Broken, which ends the history.

What the design lets be lost (docs/developers/simulation.md):

- A server group that is lost with its memory and its replicas loses the updates that no other server group has when it
  goes. Its right neighbour takes over the values of the restarted one, so it also loses what
  the lost group had told it, or had heard from it, and had not passed on to the left. All others survive, in every
  copy.
- If no server group is left, all go back to the newest checkpoint: a new *lineage* begins, with its values.
- A worker group whose servers are restored from a neighbour begins with the last step that its driver knows. Later
  updates that its former servers had passed on are made a second time. A server never applies an update twice, and no
  copy counts an update more often than servers have applied it.
- If a driver is lost with the memory of some servers, the next one resumes from that of the others, unless the newest
  checkpoint contains more updates.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import numpy as np
from support.run_state import contradictions

from singa_dask.cluster import nanny_store
from singa_dask.cluster.formation import WorkersInUse
from singa_dask.errors import ClusterError
from singa_dask.memory.owner import CHECKPOINT, same_run
from singa_dask.server import ParameterSlice, Server
from singa_dask.server.ledger import Ledger, pairs
from singa_dask.server.messages import Fresh, Update
from singa_dask.server.neighbours import Account
from singa_dask.server.slice_protocol import LEFT
from singa_dask.supervision import events as ev
from singa_dask.supervision.members import ServerGroup, WorkerGroup, is_first
from singa_dask.supervision.phases import Phase
from singa_dask.supervision.run_state import RunState
from singa_dask.supervision.state import Supervision
from singa_dask.supervision.words import NoReplacement
from singa_dask.updaters import Updater

if TYPE_CHECKING:
    from simulation.ranks import Meeting
    from simulation.run import Run

CLEAR_S = 45.0  # after a process was stopped, or messages were late: who was lost by then is known


class Broken(AssertionError):
    """A rule of the design was broken."""


# A part of the parameters, the account of a right neighbour with a lost server, and what the left neighbour had: a
# message of a lost server may still arrive, and is answered.
_Told: TypeAlias = tuple[slice, Account, np.ndarray]


@dataclass
class _Missing:
    """A server that is gone, and since when."""

    key: str
    since: float
    server: Server


class Lineage:
    """Servers whose parameters descend from the same start: step `first`, with the values `base`.

    starts: the step that each worker group of the job begins with, by the ledger of the start. made: whether each
    element of the parameters may have been updated; applied: by server and slice, the elements of a block in the order
    of their updates; known: acknowledged elements; lost: elements that were lost with a server; servers: those that
    live; missing: those that have gone and not come back, by their number and their group's.
    """

    def __init__(self, rules: Rules, first: int, base: np.ndarray, ledger: Ledger) -> None:
        self.rules, self.first = rules, first
        self.base, self.made = base.copy(), (base > 0).astype(np.float32)
        self.known = np.zeros(base.shape, bool)
        self.lost = np.zeros(base.shape, bool)
        self.applied: dict[tuple[str, int], list[int]] = defaultdict(list)
        self.servers: dict[str, Server] = {}
        self.undisturbed = True
        self._told: list[_Told] = []
        self.missing: dict[tuple[int, int], _Missing] = {}
        groups, ledger = rules.run.topology.nworker_groups, ledger.copy()
        ledger.begin(groups, first)
        self.starts = {group: ledger.next(group) for group in range(groups + rules.run.newcomers)}

    def apply(self, key: str, start: int, stop: int, gradient: np.ndarray, values: np.ndarray) -> None:
        """A server applies an update to the slice [start, stop), which has these values."""
        steps, blocks = self.rules.run.steps, gradient.reshape(-1, self.rules.run.width)
        element = int(blocks[0].argmin())
        sent = blocks[:, element].tolist() == [-1] * len(blocks) and np.count_nonzero(blocks) == len(blocks)
        self.rules.demand(sent, f"{key} got a gradient that nobody sent")
        # A slice may have gone back a step with its only worker group.
        order = self.applied[key, start] = [e for e in self.applied[key, start] if values[e] > 0]
        group, step = divmod(element, steps)
        last = max((e % steps for e in order if e // steps == group), default=-1)
        # A restarted worker group begins with the latest step of its slices, so that others miss some.
        if step != last + 1 if self.undisturbed and last >= 0 else step <= last:
            self.rules.broken(f"{key} applied step {step} of worker group {group} after step {last}")
        order.append(element)
        self.made[start:stop].reshape(blocks.shape)[:, element] = 1
        if self.undisturbed and self.rules.run.topology.max_staleness == 0 and len(order) > 1:
            before, now = divmod(order[-2], steps)[::-1], (step, group)
            self.rules.demand(before < now, f"{key}: in lock-step, (step, group) {before} came before {now}")

    def acknowledged(self, key: str, s: ParameterSlice, update: Update, reply: Fresh) -> None:
        """A worker group got the reply to its update of a slice."""
        group, element = update.origin.group, update.origin.group * self.rules.run.steps + update.step
        blocks = slice(s.start, s.stop), (-1, self.rules.run.width)
        self.known[blocks[0]].reshape(blocks[1])[:, element] = True
        self._bounded(key, s.start, update.step)
        where = f"{key}, in its reply to step {update.step} of worker group {group}"
        self._plausible(reply.values, s.start, s.stop, where)
        self.rules.agree(reply.values, reply.ledger, where)
        self.rules.demand(0 not in reply.values.reshape(blocks[1])[:, element].tolist(), f"{where}: it has not got it")

    def came(self, key: str, server: Server, *, returns: bool) -> None:
        """A server is there. returns: whether it resumes from what a lost one has left."""
        place, before = _place(key), self.missing.pop(_place(key), None)
        living = next((k for k in self.servers if _place(k) == place), None)
        if living is not None:  # it acknowledges nothing any more: a stopped process drops its actor late
            before = _Missing(living, self.rules.run.history.loop.now, self.servers.pop(living))
        if returns:
            former = before and before.key
            self.rules.demand(former, f"{key} resumes from a server that was never there")
            for index, state in server.protocol.slices.items():
                start = self.rules.run.prepared.partition.slices[index].start
                has = np.zeros(0) if state.values is None else state.values.reshape(-1, self.rules.run.width).min(0)
                self.applied[key, start] = [e for e in self.applied[former, start] if has.size and has[e] > 0]
        elif before is not None:
            lost, told = self._lost_with(before)
            self.lost |= lost
            self._told += told
        self.servers[key] = server

    def gone(self, key: str) -> None:
        """A server goes. It may come back."""
        if (server := self.servers.pop(key, None)) is not None:
            self.missing[_place(key)] = _Missing(key, self.rules.run.history.loop.now, server)

    def _lost_with(self, missing: _Missing) -> tuple[np.ndarray, list[_Told]]:
        """What is lost with a server that does not come back: what only it had, and what it had not passed on from its
        right neighbour's copy."""
        number, lost, told = _place(missing.key)[1], np.zeros(self.base.shape, bool), []
        for s in self.rules.run.prepared.partition.slices:
            if (own := _values(missing.server, s.index)) is None:
                continue
            base = self.base[s.start : s.stop]
            living = {
                _place(k)[1]: o.protocol.slices[s.index]
                for k, o in self.servers.items()
                if _values(o, s.index) is not None
            }
            has = {n: held.values > base for n, held in living.items()}
            nobody = np.zeros(base.shape, bool)
            lost[s.start : s.stop] |= (own > base) & ~np.logical_or.reduce([nobody, *has.values()])
            if number - 1 in has and (right := living.get(number + 1)) and LEFT in right.accounts:
                told.append((slice(s.start, s.stop), right.accounts[LEFT], has[number - 1]))
        return lost, told

    def has_parameters(self, group: int) -> bool:
        """Whether all servers of a group, also those that are missing, have parameters."""
        gone = {place: missing.server for place, missing in self.missing.items()}
        servers = gone | {_place(key): server for key, server in self.servers.items()}
        held = [s for place, server in servers.items() if place[1] == group for s in server.protocol.slices.values()]
        return bool(held) and all(of.values is not None for of in held)

    def left(self, groups: set[int]) -> np.ndarray:
        """The elements that missing servers of these server groups have."""
        left = np.zeros(self.base.shape, bool)
        for gone in self.missing.values():
            for s in self.rules.run.prepared.partition.slices if _place(gone.key)[1] in groups else ():
                if (values := _values(gone.server, s.index)) is not None:
                    left[s.start : s.stop] |= values > 0
        return left

    def copies(self) -> list[np.ndarray]:
        """The parameters of every living server group."""
        slices = self.rules.run.prepared.partition.slices
        copies: dict[int, np.ndarray] = {}
        for key, server in self.servers.items():
            copy = copies.setdefault(_place(key)[1], np.full(self.base.shape, np.nan, np.float32))
            for s in slices:
                if (values := _values(server, s.index)) is not None:
                    copy[s.start : s.stop] = values
        return [copy for copy in copies.values() if not np.isnan(copy).any()]  # others have lost a server by now

    def check_values(self, values: np.ndarray, where: str, *, complete: bool) -> None:
        """Whether parameters are possible; complete: whether everything that was acknowledged must be in them."""
        self._plausible(values, 0, values.size, where)
        if complete:
            lost, told = self.lost.copy(), [*self._told]
            for gone in self.missing.values():
                with_it, told_with_it = self._lost_with(gone)
                lost |= with_it
                told += told_with_it
            for of, account, passed_on in told:
                lost[of] |= (account.known > self.base[of]) & ~passed_on
            missing = self.known & ~lost & (values <= self.base)
            self.rules.demand(
                not missing.any(), f"{where}: acknowledged, not lost, and missing: {self.rules.names(missing)}"
            )

    def _plausible(self, values: np.ndarray, start: int, stop: int, where: str) -> None:
        wrong = (values > self.made[start:stop]) | (values < self.base[start:stop])
        if np.count_nonzero(wrong):
            self.rules.broken(f"{where}: twice, or never applied: {self.rules.names(wrong, start)}")

    def _bounded(self, key: str, start: int, step: int) -> None:
        """max_staleness, while no worker group has come, gone or been lost."""
        topology = self.rules.run.topology
        if topology.max_staleness is not None and self.undisturbed:
            made = Counter(element // self.rules.run.steps for element in self.applied[key, start])
            ahead = step + 1 - min(self.starts[group] + made[group] for group in range(topology.nworker_groups))
            self.rules.demand(ahead <= topology.max_staleness, f"{key}: a worker group is {ahead} steps ahead")


def _values(server: Server, index: int) -> np.ndarray | None:
    held = server.protocol.slices.get(index)
    return None if held is None else held.values


def _place(key: str) -> tuple[int, int]:
    """The number of a server in its group, and that of the group."""
    server, _, rest = key.removeprefix("server-").partition("-of-group-")
    return int(server), int(rest.partition("-")[0])


class Counting:
    """An updater that subtracts gradients and tells the rules."""

    mix = Updater.mix

    def __init__(self, lineage: Lineage, key: str) -> None:
        self.state: dict[str, Any] = {}
        self._lineage, self._key, self._place = lineage, key, (0, 0)

    def bind(self, entries: Any, start: int, stop: int) -> None:
        self._place = start, stop

    def start(self, w: Any) -> None:
        """It has no state to begin."""

    def load_state(self, state: Any) -> None:
        """Nor one to go on with."""

    def update(self, step: int, w: Any, g: Any, made: int | None = None, **context: int) -> None:
        self._lineage.apply(self._key, *self._place, g, w)
        w -= g


class Rules:
    """The rules of one run, whatever drivers it has. lineage: that servers are made in now.

    done: steps that every rank of the only worker group has made; done_at: when it had made the last one. holders: the
    nannies that hold the memory of each of its ranks. keepers: the same of the servers of each server group, each with
    the number of the replica that it keeps, 0 for what the server itself has written. last: the start, the generation
    and the size of each server group that was made, when it was made last. deposit: the step of the newest checkpoint
    in memory at the last status request, and the nannies that had it. incomplete: whether the user was told that the
    last exchange failed, or that a worker group ends early while the run is being stopped.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.lineage = Lineage(self, 0, np.zeros(run.size, np.float32), Ledger())
        self.lead = np.arange(run.size) % run.width < run.steps  # the elements of worker group 0
        self.incomplete = False
        self.state: RunState | None = None
        self.done, self.done_at = 0, 0.0
        self.holders: list[list[str]] = []
        self.keepers: dict[int, list[list[tuple[str, int]]]] = {}
        self.last: dict[int, tuple[str, int, int]] = {}
        self.deposit: tuple[int, list[str]] = 0, []

    def demand(self, holds: Any, what: str) -> None:
        """Raise Broken unless it holds."""
        if not holds:
            self.broken(what)

    def broken(self, what: str) -> NoReturn:
        """Raise Broken, and tell the history: the product may catch the error."""
        self.run.history.breaks(what)
        raise Broken(what)

    def names(self, elements: np.ndarray, start: int = 0) -> list[str]:
        """Blocks, groups and steps of elements from `start` on."""
        width, steps = self.run.width, self.run.steps
        found = (elements.nonzero()[0][:8] + start).tolist()
        return [f"block {e // width} group {e % width // steps} step {e % width % steps}" for e in found]

    def disturbed(self) -> None:
        """A worker group comes, goes or is lost: its steps are no longer comparable."""
        self.lineage.undisturbed = False

    def agree(self, values: np.ndarray, ledger: Ledger, where: str) -> None:
        """Whether the ledger of a slice says which updates its values contain. After a return to a checkpoint, it may
        say that some slices contain an update."""
        told = np.zeros((2, self.run.width), np.float32)  # by all, by any
        for of in ledger.assignments.values():
            for group, contained in of.items():
                if contained.twice:
                    self.broken(f"{where}: twice by the ledger: {contained} of worker group {group}")
                by_all, by_any, start = contained.by_all, contained.by_any, group * self.run.steps
                for rows, ranges in ((slice(2), by_all),) if by_all == by_any else ((0, by_all), (1, by_any)):
                    for first, last in pairs(ranges):
                        told[rows, start + first : start + last] += 1
        blocks = values.reshape(-1, self.run.width)
        wrong = (blocks < told[0]) | (blocks > told[1])
        if np.count_nonzero(wrong):
            self.broken(f"{where}: the ledger is wrong: {self.names(wrong.reshape(-1))}")

    # The synchronous group whose servers are in its workers' processes

    def held(self, meeting: Meeting) -> None:
        """Nannies hold what the ranks of a group leave."""
        plan = meeting.plan.group
        if plan.in_process_servers:
            holders = _holders(meeting.topic, f"worker group {plan.number}", plan.generation, meeting.size)
            self.holders = [[nanny for nanny, _ in of] for of in holders]

    def made(self, meeting: Meeting, step: int) -> None:
        """Every rank of a group has made a step."""
        if meeting.plan.group.in_process_servers:
            self.done, self.done_at = step + 1, self.run.history.loop.now

    def goes_on(self, step: int, values: np.ndarray, ledger: Ledger) -> None:
        """The group resumes from memory: with all earlier steps, and nothing else."""
        wrong = values != self.lead * (np.arange(values.size) % self.run.width < step)
        self.demand(not wrong.any(), f"memory of step {step} is wrong: {self.names(wrong)}")
        self.lineage = Lineage(self, step, values, ledger)

    # Servers in other processes

    def formed(self, request: ev.FormRequest) -> None:
        """A request has been carried out."""
        topic = self.run.supervisor.launcher.topic
        for group in request.server_groups:
            self.last[group.number] = topic, group.generation, len(group.where)
            self.keepers[group.number] = self._keepers(group.number)

    def _keepers(self, number: int) -> list[list[tuple[str, int]]]:
        topic, generation, size = self.last[number]
        return _holders(topic, f"server group {number}", generation, size)

    def returns(self, group: ServerGroup) -> bool:
        """Whether a server group that was lost, itself or with its driver, must come back with everything that it had
        acknowledged: a nanny that holds the memory of each server, or a replica that the server has not lost, lives
        and could be asked."""
        history, state = self.run.history, self.state
        if state is None or not all(self.keepers.get(group.number, [[]])):
            return False
        if not (group.formed or self.lineage.has_parameters(group.number)):
            return False
        since = [missing.since for place, missing in self.lineage.missing.items() if place[1] == group.number]
        if history.network.faulty_at() >= min(since, default=history.loop.now) - CLEAR_S:
            return False
        living = {nanny for nanny in state.processes.nannies if history.cluster.processes[nanny].alive}
        since_then = self._keepers(group.number)  # replicas that were made since
        return self._kept(group, living, self.keepers[group.number], since_then)

    def listed(self, group: ServerGroup, nannies: Collection[str]) -> bool:
        """Whether these nannies, which have answered a status request, hold what the servers of a group left that was
        lost in this start: whatever else happens, it counts. Unless servers have continued from it that were lost
        before the driver heard of them: some of theirs has been let go then."""
        there = {nanny for nanny in nannies if self.run.history.cluster.processes[nanny].alive}
        return group.formed > 0 and not self._continued(group) and self._kept(group, there, self.keepers[group.number])

    def _continued(self, group: ServerGroup) -> bool:
        """Whether a nanny has let go what the last servers that were formed have left, for the next ones."""
        topic, generation, _ = self.last[group.number]
        return any(
            held.saved.succeeded
            for of in nanny_store.HELD.values()
            for (owner, version), held in of.items()
            if (version.run, owner.name) == (topic, str(group)) and version.generation > generation
        )

    def _kept(self, group: ServerGroup, nannies: Collection[str], *keepers: list[list[tuple[str, int]]]) -> bool:
        """Whether these nannies hold the memory of each server, or a replica that it has not lost."""
        _, generation, size = self.last[group.number]
        lost = [group.outdated.get((generation, rank), 0) for rank in range(size)]
        return all(
            any(
                nanny in nannies and (replica == 0 or replica > lost[rank])
                for of in keepers
                for nanny, replica in of[rank]
            )
            for rank in range(size)
        )

    def outdone(self, request: ev.FormRequest) -> bool:
        """Whether the first servers of this start begin with a checkpoint that contains more updates than what those
        of a lost driver have left."""
        members = self.state.members
        if not request.fresh or any(member.formed for member in members.all()):
            return False
        saved = self.run.saved(request.worker_groups[0].plan.resume).values > 0
        left = self.lineage.left({group.number for group in members.server_groups if self.returns(group)})
        saves, leaves = (np.count_nonzero(of.reshape(-1, self.run.width).any(0)) for of in (saved, left))
        return bool(saves > leaves)

    def asked_for_status(self) -> None:
        """A status request begins."""
        launcher, kept = self.run.supervisor.launcher, dict[str, tuple[int, int]]()
        for nanny in self.state.processes.nannies:
            for (owner, of), memory in nanny_store.HELD[nanny].items():
                ours = of.run == launcher.topic or (launcher.resumes and same_run(of.run, launcher.topic))
                if owner.kind == CHECKPOINT and ours and memory.whole:
                    kept[nanny] = max(kept.get(nanny, (0, 0)), (of.generation, of.number))
        newest = max(kept.values(), default=(0, 0))
        self.deposit = newest[1], [nanny for nanny, of in kept.items() if of == newest]

    def begins_anew(self, request: ev.FormRequest) -> None:
        """No server has parameters: worker groups resume from memory, or from the newest checkpoint."""
        history, (step, nannies) = self.run.history, self.deposit
        there = any(history.cluster.processes[nanny].alive for nanny in nannies)
        if there and history.network.faulty_at() < history.loop.now - CLEAR_S:
            for group in request.worker_groups:
                first = group.plan.first
                self.demand(group.plan.left or first >= step, f"begins at step {first}, though {step} is in memory")

    def goes(self, group: WorkerGroup) -> None:
        """A worker group does not run any more: it is lost, or its servers are."""
        history, cluster = self.run.history, self.run.history.cluster
        processes = [cluster.processes[address] for address in group.where]
        well = all(process.alive and process.registered for process in processes)
        if not well or group.leaving or group.phase is Phase.DROPPED or self.run.topology.in_process_servers:
            return
        if history.network.faulty_at() < history.loop.now - CLEAR_S:
            servers = self.state.members.server_groups[group.server_group]
            waits = self.lineage.has_parameters(servers.number) and self.returns(servers)
            self.demand(not waits, f"{group} is restarted, though its servers come back")

    def begins(self, lineage: Lineage, meeting: Meeting, step: int) -> None:
        """A worker group begins."""
        plan = meeting.plan.group
        if plan.in_process_servers:
            expected = self.done if self._survives(meeting) else lineage.first
            self.demand(step >= expected, f"worker group {plan.number} begins at step {step}, not at {expected}")
            self.done = step
        elif plan.fresh:
            founds = plan.number < self.run.topology.nworker_groups
            expected = max(lineage.starts[plan.number], 0 if founds else plan.first)
            self.demand(step == expected, f"worker group {plan.number} begins at step {step}, not at {expected}")

    def _survives(self, meeting: Meeting) -> bool:
        """Whether the memory of every lost rank must be found: a nanny that holds it lives, and could be asked. A
        resumed run may be on other hosts."""
        history = self.run.history
        if self.state is None or not self.holders or history.network.faulty_at() >= self.done_at:
            return False
        hosts = {rank.process.host for rank in meeting.ranks}
        nannies = [history.cluster.processes[nanny] for nanny in self.state.processes.nannies]
        resumed = is_first(meeting.plan.group.generation)
        there = {nanny.address for nanny in nannies if nanny.alive and (nanny.host in hosts or not resumed)}
        return all(there & set(of) for of in self.holders)

    def final(self, lineage: Lineage, values: np.ndarray, *, interrupted: bool) -> None:
        """The lead has fetched the result of all."""
        lineage.check_values(values, "the result", complete=not interrupted and not self._excused())
        if not interrupted and self.run.topology.nworker_groups == 1:
            self.demand((values == self.lead).all(), f"the result lacks {self.names(values != self.lead)}")
        if not interrupted and not self._excused() and self.run.topology.nserver_groups > 1:
            for copy in lineage.copies():
                # The exchange may have come before the last steps of the lead, whose own copy is the result.
                differ = (copy != values) & ~self.lead
                self.demand(not differ.any(), f"copies differ after the last exchange: {self.names(differ)}")

    def failed(self, error: ClusterError) -> None:
        """A run ends with an error: it has used up its restarts, or lacks processes."""
        members = self.state.members.all() if self.state is not None else []
        used_up = any(member.restarts > self.run.max_restarts for member in members)
        lacks = isinstance(error, NoReplacement | WorkersInUse) or "no nanny to start one" in str(error)
        self.demand(used_up or lacks, f"the run has failed, and has restarts left: {error}")

    def _excused(self) -> bool:
        """Whether the user was told that the last exchange failed, or the run was stopped while something was lost."""
        members = self.state.members.all() if self.state is not None and self.state.stopped else []
        if any(member.phase not in (Phase.RUNNING, Phase.ENDED) for member in members):
            return True
        return self.incomplete


def _holders(run: str, group: str, generation: int, size: int) -> list[list[tuple[str, int]]]:
    """The nannies that hold the memory of each process of a group, and the number of the replica if they hold one."""
    found: list[list[tuple[str, int]]] = [[] for _ in range(size)]
    for nanny, of in nanny_store.HELD.items():
        for (owner, version), memory in of.items():
            if (version.run, owner.name, version.generation) == (run, group, generation) and memory.whole:
                found[owner.rank].append((nanny, version.number))
    return found


class CheckedSupervision(Supervision):
    """Supervision whose every step is checked."""

    def handle(self, event: ev.Event | None) -> list[ev.Command]:
        before = [(member, member.generation) for member in self.run.members.all()]
        if isinstance(event, ev.Formed) and isinstance(self.run.request, ev.FormRequest):
            self.rules.formed(self.run.request)
        running = {group: group.where for group in self.run.members.running()}
        commands = super().handle(event)
        for group, where in running.items():
            grows = len(group.where) > len(where)
            if group.phase in (Phase.LOST, Phase.CLOSING, Phase.DROPPED) and not grows and not self._held_back(event):
                self.rules.goes(group)
        if any(isinstance(command, ev.Note) for command in commands):
            without = (
                isinstance(event, ev.StatusReport)
                and len(self.run.members.serving()) > 1
                and ev.TellLead(True) in commands
            )
            ends = self.run.stopped and any(group.phase is Phase.DROPPED for group in self.run.members.worker_groups)
            self.rules.incomplete = bool(self.rules.incomplete or without or ends)
        if self.rules.run.history.traced:
            self.rules.run.tell(f"{ev.line(event)} -> {'; '.join(map(ev.line, commands))}")
        nannies = event.nannies if isinstance(event, ev.StatusReport) else frozenset()
        for command in commands:
            self._see(command, nannies)
        members = self.run.members
        self.rules.demand(not (wrong := contradictions(self.run)), f"phases that contradict the state: {wrong}")
        for member, generation in before:
            if not generation <= member.generation <= generation + 1:
                self.rules.broken(f"the generation of {member} has jumped")
        workers = [a for group in members.worker_groups if group.phase is not Phase.ENDED for a in set(group.where)]
        serving = [group for group in members.server_groups if group.phase is not Phase.ENDED]
        servers = [a for of in serving for a in {a for rank, a in enumerate(of.where) if rank not in of.colocated}]
        for places in (workers + servers,) if members.topology.server_worker_separate else (workers, servers):
            self.rules.demand(len(set(places)) == len(places), "two members are on one process")
        if self.run.over and self.run.error is None:  # servers that are lost after the last exchange are not restored
            phases = {str(group): group.phase for group in members.worker_groups}
            self.rules.demand(set(phases.values()) <= {Phase.ENDED}, f"the run is over: {phases}")
        if self.run.over:
            self.rules.keepers.clear()  # its memory is let go, also if it has failed
            self.rules.holders.clear()
        return commands

    def _held_back(self, event: ev.Event | None) -> bool:
        """Whether a worker group has waited for too long for another one, which is missing (max_staleness)."""
        missing = any(group.phase is Phase.DOWN for group in self.run.members.worker_groups)
        return isinstance(event, ev.WorkerGroupFailed) and "CommTimeout" in str(event.cause) and missing

    def _see(self, command: ev.Command, nannies: frozenset[str]) -> None:
        """nannies: that have answered the status request on which it rests."""
        for request in command.server_groups if isinstance(command, ev.FormRequest) else ():
            group = self.run.members.server_groups[request.number]
            returns = self.rules.listed(group, nannies) or self.rules.returns(group)
            served = self.rules.lineage.has_parameters(group.number)
            needless = bool(request.left) or not (returns and served) or self.rules.outdone(command)
            self.rules.demand(needless, f"{group} is made anew, though its memory is there")
        if isinstance(command, ev.StatusRequest):
            self.rules.asked_for_status()
        if isinstance(command, ev.FormRequest) and command.fresh:
            self.rules.begins_anew(command)
        if isinstance(command, ev.FormRequest) and command.fresh and command.server_groups:
            self.rules.run.new_lineage(command.worker_groups[0].plan.resume)
        first = isinstance(command, ev.FormRequest) and command.number == 1 and command.fresh
        if isinstance(command, ev.FormRequest | ev.Close | ev.Stop | ev.Dismiss) and not first:
            self.rules.disturbed()
        if isinstance(command, ev.Rewind):
            saved = *self.rules.run.disk.saved, *self.rules.run.deposited
            steps = {None, *(each.step for each in saved)}
            self.rules.demand(command.step in steps, f"{command}, and there are checkpoints of the steps {steps}")
