"""The checkpoints of a worker group, on the disk and in memory."""

from concurrent import futures
from contextlib import nullcontext, suppress
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from support.played_groups import deposit as deposit_at
from support.played_groups import in_file
from support.trained import assert_alike, saved_at, train_group, write_points

from singa_dask.comm import run_threads
from singa_dask.errors import CheckpointError, ClusterError
from singa_dask.exchange import portions
from singa_dask.exchange.portions import Gathered
from singa_dask.job import Job
from singa_dask.job.job_pb2 import JobProto
from singa_dask.layers.partition import Portion
from singa_dask.training import checkpoint as checkpoints
from singa_dask.training import checkpoint_file, group_checkpoints
from singa_dask.training.checkpoint import Checkpoint, newest, path_of
from singa_dask.training.group_checkpoints import GroupCheckpoints, MemoryCheckpoints
from singa_dask.training.prepare import prepare
from singa_dask.training.resume import load
from singa_dask.training.worker import RankServices, WorkerPlan

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
    ("setting", "places", "without"),
    [
        ('memory_checkpoint_every="0s"', HOSTS, False),
        ("keep=0", (), False),
        ("keep=0", HOSTS, True),
    ],
)
def test_none_is_kept_where_none_is_wanted_or_nobody_can(prepared, tmp_path, always_due, setting, places, without):
    nannies = Nannies()
    run(prepared(setting), tmp_path / "run", None if without else nannies, places)
    assert nannies.all == []


def test_without_memory_training_goes_on_and_one_line_says_so(prepared, tmp_path, always_due):
    _, said = run(prepared(), tmp_path / "run", Nannies("n1", "n2"))
    (line,) = said
    assert line.startswith("not kept in memory: no nanny keeps a checkpoint; after a loss, the run may have to go")


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
    ("places", "refuse", "kept"),
    [
        ("an am bo", "", "no"),
        ("an am bo", "n", "mo"),
        ("an am", "", "nm"),
        ("an bm co", "", "nm"),
        ("an bm co", "m", "no"),
        ("an", "", "n"),
    ],
)
def test_two_nannies_keep_it_on_two_machines_if_there_are(places, refuse, kept):
    assert written(in_memory(Nannies(*refuse), [tuple(place) for place in places.split()])) == kept


def test_copies_on_one_of_several_machines_are_a_fault():
    memory = in_memory(Nannies("o"), [tuple(place) for place in ("an", "am", "bo")])
    with pytest.raises(CheckpointError, match="only nannies of one machine keep a checkpoint"):
        written(memory)
    assert "".join(memory.kept) == "nm", "which is better than nothing"


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


def test_a_rank_that_leaves_asks_nobody_and_complains_of_nothing():
    nannies = Nannies()
    nannies.leaves = lambda: True
    assert written(in_memory(nannies)) == "" and nannies.all == []


def test_no_memory_for_it_is_an_error_and_asks_nobody():
    memory = in_memory(nannies := Nannies(), room=lambda nbytes: False)
    with pytest.raises(CheckpointError, match=r"there is no memory for a checkpoint of \d+"):
        memory.put(Checkpoint(1, 0, "", {"w": np.ones(5)}))
    assert not nannies.all and not memory.due


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
        self.portion = Portion(WHOLE.shape, axis=1, bounds=(0, 2, 4), rank=comm.rank)
        self.array = np.ascontiguousarray(WHOLE[:, 2 * comm.rank : 2 * comm.rank + 2]).reshape(-1)
        about = {"group_state": self, "drain": lambda: None, "in_process_servers": False}
        replica = SimpleNamespace(comm=comm, job=JobProto(), **about)
        reporter = SimpleNamespace(
            saved=lambda path, step: self.written.append(step), unsaved=lambda step, why: self.failures.append(why)
        )
        self.checkpoints = GroupCheckpoints(replica, WorkerPlan(b"", folder), RankServices(None), reporter)

    def snapshot(self, step, text, data, comm, *, own_values):
        w, m, x = [Gathered.of_array(comm, self.portion, WHOLE.shape, self.array) for _ in range(3)]
        return Checkpoint(step, 0, text, {"w": w}, {"momentum": {"w": m}}, carried={"rnn": [x]})

    def save(self, step):
        self.checkpoints.save_step(step, {})

    def end(self, **options):
        self.checkpoints.wait(**options)
        self.checkpoints.close(failed=False)


@pytest.fixture
def full_disk(monkeypatch):
    full = checkpoint_file.DiskFull("needs 2 GB, and the disk has 1 GB free")
    monkeypatch.setattr(checkpoint_file, "_reserve", Mock(side_effect=full))


@pytest.mark.parametrize("room", [True, False])
def test_what_is_saved_is_the_state_of_the_call(tmp_path, monkeypatch, room):
    """Training goes on at once, or without room for a copy once the file is there."""
    monkeypatch.setattr(group_checkpoints, "has_room", lambda comm, nbytes, limit: room and nbytes == 3 * 4 * 200)
    monkeypatch.setattr(portions, "BLOCK", 10)

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


def test_a_full_disk_does_not_end_training(tmp_path, full_disk, monkeypatch):
    """Whether the next checkpoint waits for it or a step only looks."""
    monkeypatch.setattr(group_checkpoints, "has_room", lambda *_: True)

    def member(comm):
        worker = Worker(comm, tmp_path)
        for step in (1, 2):
            worker.save(step)
        futures.wait([worker.checkpoints._under_way[0]])
        worker.checkpoints.look()
        worker.end()
        return worker.failures, worker.written

    (failures, written), (others_failures, _) = run_threads(2, member)
    assert [("the disk has 1 GB free" in why) for why in failures] == [True, True]
    assert not written and not others_failures and not list(tmp_path.iterdir())


def test_without_the_last_checkpoint_a_run_fails(tmp_path, full_disk):
    def member(comm):
        worker = Worker(comm, tmp_path)
        worker.save(1)
        with pytest.raises(CheckpointError, match=r"01\.h5: needs 2 GB") if comm.rank == 0 else nullcontext():
            worker.checkpoints.wait(must=True)
        worker.end()

    run_threads(2, member)


def test_a_fault_of_the_disk_half_way_leaves_no_rank_waiting(tmp_path, monkeypatch):
    monkeypatch.setattr(portions, "BLOCK", 10)
    before = checkpoints.save(Checkpoint(1, 0, "", {"w": WHOLE}), path_of(tmp_path, 1)).read_bytes()
    calls = []

    def breaks(descriptor, offset, block):
        calls.append(offset)
        if len(calls) == 3:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(checkpoint_file, "write_at", breaks)

    def member(comm):
        worker = Worker(comm, tmp_path)
        worker.save(2)
        worker.end()
        return worker.failures

    failures, none = run_threads(2, member)
    assert len(failures) == 1 and "Input/output error" in failures[0] and not none
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
