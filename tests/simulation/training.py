"""What worker groups do: the steps of training/worker.py with the product's Stub, and a model that counts.

The parameters are blocks of `width` elements. Element `group * steps + step` of each block counts how often the
parameters contain this update. A gradient is -1 there. Slices consist of whole blocks, whatever the size of a group.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from simulation.clock import Fiber
from simulation.disk import Saved
from simulation.rules import Counting, Lineage
from singa_dask.cluster.group import REGROUP
from singa_dask.cluster.nanny_store import NannyStore
from singa_dask.errors import ClusterError, CommTimeout
from singa_dask.memory import owner as owners
from singa_dask.memory.owner import CHECKPOINT, WORKERS, Owner, Version
from singa_dask.memory.region import VALUES, Key, Region, Regions
from singa_dask.ops import Ops
from singa_dask.server import ActorLink, Address, Keeper, Link, LocalLink, ParameterSlice, Server, Stub
from singa_dask.server.clocks import SliceNote
from singa_dask.server.kept import SLICE, layout_of
from singa_dask.server.ledger import Ledger
from singa_dask.server.messages import Fresh, Reply, Request, Update
from singa_dask.training.dask_task import BACK, SERVERS_S
from singa_dask.training.group_checkpoints import MemoryCheckpoints, memory_file
from singa_dask.training.placement import server_plan
from singa_dask.training.shadows import LATEST, RankShadow, step_of

if TYPE_CHECKING:
    from simulation.ranks import Meeting, Rank

COMPUTE_S = 0.25  # of a step, on a fast worker group
UPDATE_S = 0.03  # of a rank's slices, by the server in its process
SAVE_S = 0.2
LOOK_S = 0.1
ORPHAN_S = 600.0  # for which memory outlives its process
KEPT_FREQ = 3  # steps between two checkpoints in memory
PATIENCE_S = 60.0  # for a reply of a living server


def _has_room(nbytes: int) -> bool:
    return True


class _Watched:
    """A Link that tells the rules of every acknowledged update. key: tells the server's; slices: of all workers."""

    def __init__(self, link: Link, lineage: Lineage, key: Callable[[], str], slices: Sequence[ParameterSlice]) -> None:
        self._link, self._lineage, self._key, self._slices = link, lineage, key, slices
        self.local = link.local

    def send(self, request: Request, out: Any = None) -> Any:
        future = self._link.send(request, out)
        if isinstance(request, Update):
            future.add_done_callback(partial(self._answered, request))
        return future

    def _answered(self, update: Update, future: Any) -> None:
        if future.cancelled() or future.exception() is not None:
            return
        reply: Reply = future.result()
        if isinstance(reply, Fresh):
            self._lineage.acknowledged(self._key(), self._slices[update.slice], update, reply)


class Training:
    """The training loop of a worker group."""

    def __init__(self, meeting: Meeting) -> None:
        self.meeting, self.run_, self.plan = meeting, meeting.run, meeting.plan.group
        self.rules, self.steps = self.run_.rules, self.run_.steps
        self.clock, self.cluster = self.run_.history.clock, self.run_.history.cluster
        self.cut = self.run_.prepared.partition.dealt_to(meeting.size)
        self.values, self.ledger, self.first = np.zeros(self.cut.size, np.float32), Ledger(), 0
        self.keeping: Fiber | None = None
        self.memory: MemoryCheckpoints | None = None
        self.compute_s = COMPUTE_S * (1 + self.run_.slow.get(self.plan.number, 0))

    def run(self) -> dict[str, Any]:
        plan, ranks, topology = self.plan, self.meeting.ranks, self.run_.topology
        recovered = plan.in_process_servers and self._recover(plan.left)
        if not recovered and plan.puts and plan.resume:
            saved = self._load(plan.resume)
            self.values[...], self.ledger, self.first = saved.values, saved.ledger, saved.step
        if plan.in_process_servers:
            if recovered:
                self.rules.goes_on(self.first, self.values, self.ledger)
            else:
                self.run_.new_lineage(plan.resume)
        self.lineage = self.rules.lineage
        self.stubs = [self._stub(rank) for rank in ranks]
        for stub in self._each() if plan.puts else ():
            stub.put(self.values, {}, self.first, 0, self.ledger)
        founds = plan.fresh and plan.number < topology.nworker_groups
        step = start = self._fetch(0 if founds else plan.first)
        self.rules.begins(self.lineage, self.meeting, start)
        self._pause(self.compute_s)  # warm-up
        if topology.nworker_groups > 1 and not plan.in_process_servers:
            self._fetch(start)
        self._emit(step)
        for shadow in self._shadows:
            shadow.hold()
        self.rules.held(self.meeting)
        while True:
            stopping = step > start and self._stop_requested()
            ended = stopping or step >= self.steps
            if ended:
                self._leave(step)
            if plan.leads and (ended or (step > 0 and step % self.run_.checkpoint_freq == 0)):
                self._save(step)
            if ended:
                self._emit(step)
                if plan.leads:
                    self.rules.final(self.lineage, self.values, interrupted=step < self.steps)
                return {"step": step, "interrupted": step < self.steps}
            self._step(step)
            step += 1
            if step % KEPT_FREQ == 0:
                self._keep(step)
            if any(rank.task.told.get(REGROUP) for rank in ranks):
                for stub in self._each():
                    stub.pull(self.values, everything=True)
                raise ClusterError("the group is formed again, with more workers")
            for shadow in self._shadows if step == start + 1 else ():
                shadow.settle()
            if step % self.run_.display_freq == 0:
                self._emit(step)

    # Servers

    def _stub(self, rank: Rank) -> Stub:
        slices = self.cut.of_worker(rank.task.rank)
        if self.plan.in_process_servers:
            links = self._in_process_links(rank, slices)
        else:
            deadline = self.clock.monotonic() + SERVERS_S
            while "servers" not in rank.task.told:
                if self.clock.monotonic() > deadline:
                    raise ClusterError("the driver has not told the servers")
                self._pause(LOOK_S)
            count = len(rank.task.told["servers"])
            links = {i: self._watched(rank, lambda i=i: rank.task.told["servers"][i]) for i in range(count)}
        behind, aborted = int(self.run_.topology.one_behind), self.meeting.aborted
        number, generation = self.plan.number, self.plan.generation
        return Stub(slices, links, number, generation, behind=behind, patience_s=PATIENCE_S, aborted=aborted)

    def _watched(self, rank: Rank, where: Callable[[], Address]) -> Link:
        link = ActorLink(where, rank.process, BACK * self.run_.patience_s)
        return _Watched(link, self.lineage, lambda: where().key, self.cut.slices)

    def _in_process_links(self, rank: Rank, slices: Sequence[ParameterSlice]) -> dict[int, Link]:
        """Links to a server in the worker's process, as Replica makes them."""
        run, process, key = self.run_, rank.process, f"rank {rank.task.rank} of {rank.task.plan.group}"
        self.cluster.here = process
        owner = Owner(WORKERS, self.plan.number, rank.task.rank, self.meeting.size)
        holder = NannyStore(process, owner, self._version, ORPHAN_S, room=_has_room) if process.nanny else None
        of_slices = [layout_of((s.index, SLICE), s.start, s.stop, (), np.float32) for s in slices]
        regions = None if holder is None else Regions.create(of_slices)
        if holder is not None and regions is not None:
            comm: Any = SimpleNamespace(rank=rank.task.rank, size=self.meeting.size, places=self._places)
            rank.shadow = RankShadow(comm, regions, holder, 0, every_step=False)
        run.history.making = process, lambda: Counting(self.lineage, key)
        plan = server_plan(run.prepared.job, run.prepared.layout.entries, tuple(slices))
        keepers = {} if regions is None else Keeper.all_of(regions)
        server = Server(plan.protocol(Ops(), copy=False, keepers=keepers), live=True)
        return {s.server: _Watched(LocalLink(server), self.lineage, lambda: key, self.cut.slices) for s in slices}

    @property
    def _version(self) -> Version:
        return Version(self.meeting.topic, self.plan.generation)

    @property
    def _places(self) -> list[tuple[str, str]]:
        return [(rank.process.host, rank.process.nanny) for rank in self.meeting.ranks]

    @property
    def _shadows(self) -> list[RankShadow]:
        return [rank.shadow for rank in self.meeting.ranks if rank.shadow is not None]

    def _recover(self, lost: Sequence[owners.Saved]) -> bool:
        """Take what lost ranks have left in memory: training/group_state.py."""
        opened = [(saved, left) for saved in lost if (left := self._open(saved)) is not None]
        steps = [step for saved, left in opened if (step := step_of(saved, left)) is not None]
        if not steps or len(steps) < len(lost):
            return False
        step = min(steps)
        images = [(of, left[of.key].at(step)) for saved, left in opened for of in saved.regions[0].layouts]
        if step < self.plan.first or any(image is None for _, image in images):
            return False
        ledgers = []
        for of, image in images:
            self.values[of.start : of.stop] = image.arrays[VALUES]
            ledgers.append(SliceNote.decode(image.note).ledger)
        self.ledger, self.first = Ledger.joint(ledgers), step
        return True

    def _open(self, saved: owners.Saved) -> dict[Key, Region] | None:
        """What a lost rank has left, if a rank is on its machine."""
        for rank in self.meeting.ranks:
            self.cluster.here = rank.process
            if (left := Regions.open(*saved.regions)) is not None:
                return left
        return None

    # Steps

    def _fetch(self, first: int) -> int:
        began = [(stub.get(self.values, first), stub.clock) for stub in self._each()]
        if self.run_.topology.nworker_groups == 1 and not self.plan.in_process_servers:  # GroupState._even
            least = max(first, min(min(stub.steps, default=LATEST) for stub in self.stubs))
            for stub in self._each():
                stub.go_back(self.values, least)
            began = [(least, stub.clock) for stub in self.stubs]
        step, clock = max(step for step, _ in began), max(clock for _, clock in began)
        for stub in self.stubs:
            stub.begin(step, clock)
        return step

    def _step(self, step: int) -> None:
        self._pause(self.compute_s)
        gradient = np.zeros(self.cut.size, np.float32)
        gradient.reshape(-1, self.run_.width)[:, self.plan.number * self.steps + step] = -1
        if self.plan.in_process_servers:
            self._update_here(step, gradient)
        else:
            for stub in self._each():
                stub.push(step, gradient, self.values)
        for stub in self._each():
            stub.pull(self.values)
        self.rules.made(self.meeting, step)

    def _update_here(self, step: int, gradient: np.ndarray) -> None:
        """Every rank updates its own slices, whatever becomes of the others meanwhile."""
        waiting = [(i + step) % self.meeting.size for i in range(self.meeting.size)]
        while waiting:
            for i in list(waiting):
                rank = self.meeting.ranks[i]
                rank.updating = True
                self.clock.sleep(UPDATE_S)
                rank.updating = False
                if rank.process.alive and not rank.process.stopped:
                    self.stubs[i].push(step, gradient, self.values)
                    waiting.remove(i)
            self._together()

    def _leave(self, step: int) -> None:
        for stub in self._each():
            stub.pull(self.values, everything=True)
        for stub in self._each():
            stub.leave()
        if not self.plan.leads or self.run_.topology.nworker_groups == 1:
            return
        while not self.meeting.ranks[0].task.told.get("others ended"):
            self._pause(LOOK_S)
        self._fetch(step)

    def _save(self, step: int) -> None:
        values, ledger = self._gathered(f"checkpoint {step}")
        self._pause(SAVE_S)
        self.run_.disk.save(step, values, ledger, self.lineage)

    def _gathered(self, where: str) -> tuple[np.ndarray, Ledger]:
        """What the servers hold."""
        for stub in self._each():
            stub.pull(self.values, everything=True)
        values, ledgers = np.zeros_like(self.values), []
        for stub in self._each():
            for i, s in enumerate(stub.slices):
                state = stub.inspect(i)
                values[s.start : s.stop] = state.values
                self.rules.agree(state.values, state.ledger, where)
                ledgers.append(state.ledger)
        return values, Ledger.joint(ledgers)

    def _load(self, source: Sequence[owners.Saved]) -> Saved:
        """A checkpoint, as the first rank reads it: training/resume.py."""
        saved, parts = self.run_.saved(source), list[bytes]()
        if not source[0].regions:
            return saved
        for deposit in source:
            parts.clear()
            with suppress(ClusterError):
                self._depositor().read(deposit, parts.append)
                break
        else:
            raise ClusterError("the checkpoint in memory is gone")
        self.rules.demand(b"".join(parts) == pickle.dumps(saved), f"the memory of step {saved.step} is damaged")
        return saved

    def _depositor(self) -> NannyStore:
        process = self.meeting.ranks[0].process
        return NannyStore(process, Owner(CHECKPOINT), self._version, ORPHAN_S, room=_has_room)

    def _keep(self, step: int) -> None:
        """Keep a checkpoint in memory, beside the next steps: training/group_checkpoints.py."""
        hosts = {machine for machine, _ in self.plan.nannies}
        if not self.plan.leads or len(hosts) < 2 or self.keeping in self.cluster.loop.fibers:
            return
        values, ledger = self._gathered(f"memory {step}")
        saved = Saved(f"memory-{len(self.run_.deposited)}", step, values, ledger)
        self.run_.deposited.append(saved)
        if self.memory is None:
            self.memory = MemoryCheckpoints(self._depositor(), self.plan.nannies, 0.0, _has_room)
        self.keeping = self.meeting.ranks[0].process.start(partial(self._kept, self.memory, saved))

    def _kept(self, memory: MemoryCheckpoints, saved: Saved) -> None:
        with memory_file() as path:
            path.write_bytes(pickle.dumps(saved))
            memory.keep(saved.found.copies[0], path)

    def _emit(self, step: int) -> None:
        """Tell the driver, by an event of Dask."""
        process, run = self.meeting.ranks[0].process, self.run_
        tell = partial(run.progress, self.plan.number, step)
        process.cluster.network.send(process, run.client.process, tell, stream=True)

    def _stop_requested(self) -> bool:
        return any(rank.task.stop_requested for rank in self.meeting.ranks)

    def _each(self) -> Any:
        """The stubs in turn, each once all ranks go on: a collective waits for all."""
        for stub in self.stubs:
            self._together()
            yield stub

    def _pause(self, seconds: float) -> None:
        self.clock.sleep(seconds)
        self._together()

    def _together(self) -> None:
        """Wait as a collective would for ranks that are stopped or dead."""
        deadline = self.clock.monotonic() + self.run_.patience_s
        while True:
            if reason := self.meeting.aborted():
                raise ClusterError(f"aborted: {reason}")
            if all(rank.process.alive and not rank.process.stopped for rank in self.meeting.ranks):
                return
            if self.meeting.size > 1 and self.clock.monotonic() > deadline:
                raise CommTimeout("a collective timed out")
            self.clock.sleep(LOOK_S)
