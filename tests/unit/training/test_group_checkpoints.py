"""The checkpoints of a worker group, on the disk and in memory."""

from concurrent import futures
from contextlib import nullcontext, suppress
from types import SimpleNamespace

import numpy as np
import pytest
from support.played_groups import deposit as deposit_at
from support.played_groups import in_file
from support.trained import assert_alike, saved_at, train_group, write_points

from singa_dask.comm import run_threads
from singa_dask.errors import CheckpointError, ClusterError
from singa_dask.exchange import sharded
from singa_dask.exchange.sharded import Gathered
from singa_dask.job import Job
from singa_dask.job.job_pb2 import JobProto
from singa_dask.layers.partition import ArrayShard
from singa_dask.training import checkpoint as checkpoints
from singa_dask.training import checkpoint_file, group_checkpoints
from singa_dask.training.checkpoint import Checkpoint, newest, path_of
from singa_dask.training.group_checkpoints import GroupCheckpoints, MemoryCheckpoints
from singa_dask.training.prepare import prepare
from singa_dask.training.rank_plan import RankServices, WorkerPlan
from singa_dask.training.resume import load

JOB = """
name: "points" train_steps: 12 seed: 5
train_one_batch { alg: kBP }
updater { type: kSGD momentum: 0.9 learning_rate { type: kFixed base_lr: 0.1 } }
cluster { nworkers_per_group: 2 nservers_per_group: 2 }
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { path: "%s" batchsize: 20 } }
  layer { name: "scores" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 2 } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "scores" srclayers: "data" }
}
"""
HOSTS = ("one", "n1"), ("other", "n2")


class Nannies:
    """What nannies keep: by nanny, the number, the content and the bytes. refuse: those without memory."""

    place, leaves = ("machine", "nanny"), staticmethod(lambda: False)

    def __init__(self, *refuse):
        self.kept, self.refuse, self.all = {}, refuse, []

    def keep(self, nanny, saved, path):
        number, content = saved.version.number, saved.note
        if nanny in self.refuse:
            return False
        assert number > self.kept.get(nanny, (0,))[0]
        self.kept[nanny] = number, content, path.read_bytes()
        self.all.append((nanny, content, path.read_bytes()))
        return True

    def read(self, deposit, out):
        data = next(data for nanny, content, data in self.all if (nanny, content) == (deposit.holder, deposit.note))
        out(data[:1000])
        out(data[1000:])


@pytest.fixture
def prepared(tmp_path):
    write_points(tmp_path, train=90)
    return lambda *overrides: prepare(Job.from_text(JOB % (tmp_path / "train"), overrides))


@pytest.fixture
def always_due(monkeypatch):
    monkeypatch.setattr(MemoryCheckpoints, "due", True)


def run(prepared, folder, deposits=None, places=HOSTS, **options):
    """Train; returns the last checkpoint and what was said."""
    _, events = train_group(prepared, folder, services={"deposits": deposits}, nannies=places, **options)
    return saved_at(folder, 12), [event["text"] for event in events if event["kind"] == "unsaved"]


def test_a_group_goes_on_from_memory_as_if_nothing_had_happened(prepared, tmp_path, always_due):
    nannies = Nannies()
    whole, said = run(prepared(), tmp_path / "whole", nannies)
    steps = [content.step for nanny, content, _ in nannies.all if nanny == "n1"]
    assert steps == sorted(set(steps)) and 0 < steps[0] < 12 and said == []
    assert steps == [content.step for nanny, content, _ in nannies.all if nanny == "n2"]
    for nanny, content, data in nannies.all[:2]:
        deposit = deposit_at(content, len(data), nanny)
        again, _ = run(prepared(), tmp_path / nanny, nannies, (), resume=(deposit,))
        assert_alike(again, whole)


@pytest.mark.parametrize(
    ("setting", "places", "nannies", "lines"),
    [
        ('memory_checkpoint_every="0s"', HOSTS, Nannies(), 0),
        ("keep=0", (), Nannies(), 0),
        ("keep=0", HOSTS, None, 0),
        ("keep=0", HOSTS, Nannies("n1", "n2"), 1),
    ],
    ids=["not wanted", "no hosts", "no nannies", "no memory"],
)
def test_where_none_can_be_kept_training_goes_on(prepared, tmp_path, always_due, setting, places, nannies, lines):
    """One line says so if nannies refuse."""
    _, said = run(prepared(setting), tmp_path / "run", nannies, places)
    assert nannies is None or nannies.all == []
    start = "not kept in memory: no nanny keeps a checkpoint; after a loss, the run may have to go"
    assert [line[: len(start)] for line in said] == [start] * lines


def test_only_so_many_stay_on_the_disk(prepared, tmp_path):
    run(prepared("checkpoint_freq=2", "keep=2"), tmp_path / "run")
    assert sorted(p.name for p in (tmp_path / "run").glob("*")) == ["step-00000010.h5", "step-00000012.h5"]


def test_the_checkpoint_of_another_run_is_not_taken_for_its_own(prepared, tmp_path):
    """Where a host has its own disk, an earlier run's may still lie there."""
    path = checkpoints.path_of(tmp_path / "run", 12)
    run(prepared(), tmp_path / "run", run="first")
    before = path.stat().st_ino
    run(prepared(), tmp_path / "run", resume=path, run="first")
    assert path.stat().st_ino == before, "its own is there"
    other, _ = run(prepared("seed=6"), tmp_path / "run", run="second")
    assert (other.run, other.seed) == ("second", 6), "trained, and saved"


# Which nannies, and how often


@pytest.fixture
def clock(monkeypatch):
    now = SimpleNamespace(s=100.0)
    monkeypatch.setattr(group_checkpoints, "time", SimpleNamespace(monotonic=lambda: now.s))
    return now


def written(memory, step=3):
    memory.put(Checkpoint(step, 0, "", {"w": np.ones(5, np.float32)}))
    return "".join(memory.kept)


def in_memory(nannies, places=HOSTS, every_s=10.0, room=lambda nbytes: True):
    return MemoryCheckpoints(nannies, places, every_s, room)


@pytest.mark.parametrize(
    ("places", "refuse", "options", "kept", "fault"),
    [
        ("an am bo", "", {}, "no", None),
        ("an am bo", "n", {}, "mo", None),
        ("an am", "", {}, "nm", None),
        ("an bm co", "", {}, "nm", None),
        ("an bm co", "m", {}, "no", None),
        ("an", "", {}, "n", None),
        ("an am bo", "o", {}, "nm", "only nannies of one machine keep a checkpoint"),
        ("an bm", "", {"leaves": True}, "", None),
        ("an bm", "", {"room": False}, "", r"there is no memory for a checkpoint of \d+"),
    ],
)
def test_two_nannies_keep_it_on_two_machines_if_there_are(places, refuse, options, kept, fault):
    """A rank that leaves asks nobody, and complains of nothing."""
    nannies, room = Nannies(*refuse), options.get("room", True)
    nannies.leaves = lambda: "leaves" in options
    memory = in_memory(nannies, [tuple(place) for place in places.split()], room=lambda nbytes: room)
    with pytest.raises(CheckpointError, match=fault) if fault else nullcontext():
        written(memory)
    assert "".join(memory.kept) == kept and (kept or not nannies.all) and not memory.due


@pytest.mark.parametrize(("error", "asked"), [(TimeoutError(), "noono"), (ConnectionRefusedError(), "nmomonmo")])
def test_who_does_not_answer_is_not_asked_again_for_some_time(clock, error, asked):
    class Silent(Nannies):
        asked = ""

        def keep(self, nanny, *args):
            self.asked += nanny
            if nanny == "n":
                raise error
            return nanny == "o" or super().keep(nanny, *args)

    nannies = Silent()
    memory = in_memory(nannies, [tuple(place) for place in ("an", "am", "bo")])
    for step, later_s in enumerate((0, 10, 300), 1):
        clock.s += later_s
        with suppress(CheckpointError):  # only one machine has it
            written(memory, step)
    assert nannies.asked == asked


def test_they_are_as_often_as_the_job_says_and_take_a_small_share_of_the_time(clock):
    class Slow(Nannies):
        seconds = 0.0

        def keep(self, *args):
            clock.s += self.seconds
            return super().keep(*args)

    def next_after(step, seconds):
        nannies.seconds = seconds / 2
        written(memory, step)
        clock.s = (now := clock.s) + 0.01
        while not memory.due:
            clock.s += 0.01
        return round(clock.s - now, 1)

    nannies = Slow()
    memory = in_memory(nannies)
    assert not memory.due
    clock.s += 1.0
    assert memory.due
    assert [next_after(step, seconds) for step, seconds in enumerate((1.0, 0.01, 0.01, 0.5, 60.0), 1)] == [
        4.0,  # twice the time so far: the nannies were new
        10.0,
        10.0,
        25.0,
        300.0,
    ]


class Some(Nannies):
    """Nannies of which one has let its copy go, and another has a damaged one. asked: who was to read."""

    place = "machine", "own"

    def __init__(self, path):
        self.copy, self.asked = path.read_bytes(), []

    def read(self, deposit, out):
        self.asked.append(deposit.holder)
        if deposit.holder == "gone":
            raise ClusterError("let go")
        out(b"no HDF5" if deposit.holder == "damaged" else self.copy)


@pytest.mark.parametrize(
    ("holders", "disk", "asked", "step"),
    [
        (["gone", "damaged", "good"], False, ["gone", "damaged", "good"], 7),
        (["good", "own"], False, ["own"], 7),
        (["gone", "damaged"], True, ["gone", "damaged"], 5),
        (["gone", "damaged"], False, ["gone", "damaged"], None),
    ],
    ids=["next-copy", "own-first", "disk", "none"],
)
def test_the_next_copy_is_read_where_one_is_gone_or_damaged_and_then_the_disk(tmp_path, holders, disk, asked, step):
    some = Some(checkpoints.save(Checkpoint(7, 0, "", {"w": np.ones(5)}), tmp_path / "c.h5"))
    if disk:
        checkpoints.save(Checkpoint(5, 0, "", {"w": np.ones(5)}), checkpoints.path_of(tmp_path, 5))
    found = [deposit_at(holder=holder) for holder in holders]
    with pytest.raises(ClusterError, match="the checkpoint in memory is gone") if step is None else nullcontext():
        assert load(found, some, tmp_path).step == step
    assert some.asked == asked


def test_a_checkpoint_that_is_lost_is_named(tmp_path):
    with pytest.raises(ClusterError, match="is gone"):
        load([deposit_at(holder="gone")], Some(checkpoints.save(Checkpoint(1, 0, "", {}), tmp_path / "c")), None)
    with pytest.raises(CheckpointError, match="not found"):
        load(in_file(tmp_path / "lost.h5"), None, tmp_path)


# Beside training

WHOLE = np.arange(400, dtype=np.float32).reshape(100, 4)


class Worker:
    """A rank with two columns of a parameter and of its momentum, and the state of a recurrent layer."""

    def __init__(self, comm, folder):
        self.failures, self.written = [], []
        self.shard = ArrayShard(WHOLE.shape, axis=1, bounds=(0, 2, 4), rank=comm.rank)
        self.array = np.ascontiguousarray(WHOLE[:, 2 * comm.rank : 2 * comm.rank + 2]).reshape(-1)
        about = {"group_state": self, "drain": lambda: None, "in_process_servers": False}
        replica = SimpleNamespace(comm=comm, job=JobProto(), **about)
        reporter = SimpleNamespace(
            saved=lambda path, step: self.written.append(step), unsaved=lambda step, why: self.failures.append(why)
        )
        self.checkpoints = GroupCheckpoints(replica, WorkerPlan(b"", folder), RankServices(None), reporter)

    def snapshot(self, step, text, data, comm, *, own_values):
        w, m, x = [Gathered.of_array(comm, self.shard, WHOLE.shape, self.array) for _ in range(3)]
        return Checkpoint(step, 0, text, {"w": w}, {"momentum": {"w": m}}, carried={"rnn": [x]})

    def save(self, step):
        self.checkpoints.save_step(step, {})

    def end(self, **options):
        self.checkpoints.wait(**options)
        self.checkpoints.close(failed=False)


@pytest.mark.parametrize("room", [True, False])
def test_what_is_saved_is_the_state_of_the_call(tmp_path, monkeypatch, room):
    """Training goes on at once, or without room for a copy once the file is there."""
    monkeypatch.setattr(group_checkpoints, "has_room", lambda comm, nbytes, limit: room and nbytes == 3 * 4 * 200)
    monkeypatch.setattr(sharded, "BLOCK", 10)

    def member(comm):
        worker = Worker(comm, tmp_path)
        worker.save(1)
        at_once = list(worker.written)
        worker.array[:] = -1  # the next step
        worker.end(must=True)
        return at_once, worker.written, worker.failures

    assert run_threads(2, member) == [([] if room else [1], [1], [])] * 2
    loaded = saved_at(tmp_path, 1)
    for array in (loaded.parameters["w"], loaded.updater["momentum"]["w"], loaded.carried["rnn"][0]):
        np.testing.assert_array_equal(array, WHOLE)


def no_room(descriptor, offset, block):
    raise checkpoint_file.DiskFull("needs 2 GB, and the disk has 1 GB free")


def half_way(descriptor, offset, block):
    if offset > 5000:
        raise OSError(5, "Input/output error")


@pytest.mark.parametrize("must", [False, True])
@pytest.mark.parametrize(
    ("at", "breaks", "why"),
    [("_reserve", no_room, "the disk has 1 GB free"), ("write_at", half_way, "Input/output error")],
)
def test_a_fault_of_the_disk_ends_a_run_with_its_last_checkpoint_only(tmp_path, monkeypatch, at, breaks, why, must):
    """No rank waits. It is told whether the next one waits for it or a step only looks."""
    monkeypatch.setattr(sharded, "BLOCK", 10)
    before = checkpoints.save(Checkpoint(1, 0, "", {"w": WHOLE}), path_of(tmp_path, 1)).read_bytes()
    monkeypatch.setattr(checkpoint_file, at, breaks)

    def member(comm):
        worker = Worker(comm, tmp_path)
        for step in (2, 3):
            worker.save(step)
            futures.wait([worker.checkpoints._under_way[0]] if worker.checkpoints._under_way else [])
            if step == 2:
                worker.checkpoints.look()
        with pytest.raises(CheckpointError, match=why) if must and comm.rank == 0 else nullcontext():
            worker.checkpoints.wait(must=must)
        worker.end()
        return [why in each for each in worker.failures], [step for step in worker.written if comm.rank == 0]

    monkeypatch.setattr(group_checkpoints, "has_room", lambda *_: True)
    assert run_threads(2, member) == [([True] if must else [True, True], []), ([], [])]
    assert newest(tmp_path)[0].step == 1 and path_of(tmp_path, 1).read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_a_failed_group_does_not_wait_for_ranks_that_are_gone(tmp_path, monkeypatch):
    monkeypatch.setattr(group_checkpoints, "has_room", lambda *_: True)

    def member(comm):
        worker = Worker(comm, tmp_path)
        worker.save(1)
        if comm.rank == 1:
            worker.checkpoints.wait()  # and does not contribute
        else:
            worker.checkpoints.save(2, {}, path_of(tmp_path, 2), lambda: None)
            worker.checkpoints.close(failed=True)
        return worker.written

    assert run_threads(2, member) == [[1], [1]]
    assert list(tmp_path.iterdir()) == [path_of(tmp_path, 1)]
