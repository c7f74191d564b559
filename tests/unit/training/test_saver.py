"""Checkpoints that are written beside training."""

from concurrent import futures
from contextlib import nullcontext
from unittest.mock import Mock

import numpy as np
import pytest

from singa_dask.comm import run_threads
from singa_dask.errors import CheckpointError
from singa_dask.exchange import portions
from singa_dask.exchange.portions import Gathered
from singa_dask.layers.partition import Portion
from singa_dask.training import checkpoint as checkpoints
from singa_dask.training import checkpoint_file, saver
from singa_dask.training.checkpoint import Checkpoint, load, newest, path_of
from singa_dask.training.saver import Saver

WHOLE = np.arange(400, dtype=np.float32).reshape(100, 4)


class Worker:
    """A rank with two columns of a parameter and of its momentum, and the state of a recurrent layer."""

    def __init__(self, comm):
        self.comm, self.failures, self.written = comm, [], []
        self.saver = Saver(comm)
        self.portion = Portion(WHOLE.shape, axis=1, bounds=(0, 2, 4), rank=comm.rank)
        self.array = np.ascontiguousarray(WHOLE[:, 2 * comm.rank : 2 * comm.rank + 2]).reshape(-1)

    def save(self, path, step=1):
        def take(comm):
            w, m, x = [Gathered.of_array(comm, self.portion, WHOLE.shape, self.array) for _ in range(3)]
            return Checkpoint(step, 0, "", {"w": w}, {"momentum": {"w": m}}, carried={"rnn": [x]})

        def write(checkpoint, begin):
            checkpoints.save(checkpoint, path, begin)

        self.saver.save(take, write, lambda: self.written.append(step), self.failures.append)

    def end(self, **options):
        self.saver.wait(**options)
        self.saver.close(failed=False)


@pytest.fixture
def full_disk(monkeypatch):
    full = checkpoint_file.DiskFull("needs 2 GB, and the disk has 1 GB free")
    monkeypatch.setattr(checkpoint_file, "_reserve", Mock(side_effect=full))


@pytest.mark.parametrize("room", [True, False])
def test_what_is_saved_is_the_state_of_the_call(tmp_path, monkeypatch, room):
    """Training goes on at once, or without room for a copy once the file is there."""
    monkeypatch.setattr(saver, "has_room", lambda comm, nbytes, limit: room and nbytes == 3 * 4 * 200)
    monkeypatch.setattr(portions, "BLOCK", 10)

    def member(comm):
        worker = Worker(comm)
        worker.save(tmp_path / "c.h5")
        at_once = list(worker.written)
        worker.array[:] = -1  # the next step
        worker.end(must=True)
        return at_once, worker.written, worker.failures

    assert run_threads(2, member) == [([] if room else [1], [1], [])] * 2
    loaded = load(tmp_path / "c.h5")
    for array in (loaded.parameters["w"], loaded.updater["momentum"]["w"], loaded.carried["rnn"][0]):
        np.testing.assert_array_equal(array, WHOLE)


def test_a_full_disk_does_not_end_training(tmp_path, full_disk, monkeypatch):
    """Whether the next checkpoint waits for it or a step only looks."""
    monkeypatch.setattr(saver, "has_room", lambda *_: True)

    def member(comm):
        worker = Worker(comm)
        for step in (1, 2):
            worker.save(path_of(tmp_path, step), step)
        futures.wait([worker.saver._under_way[0]])
        worker.saver.look()
        worker.end()
        return worker.failures, worker.written

    (failures, written), (others_failures, _) = run_threads(2, member)
    assert [("the disk has 1 GB free" in why) for why in failures] == [True, True]
    assert not written and not others_failures and not list(tmp_path.iterdir())


def test_without_the_last_checkpoint_a_run_fails(tmp_path, full_disk):
    def member(comm):
        worker = Worker(comm)
        worker.save(tmp_path / "c.h5")
        with pytest.raises(CheckpointError, match=r"c\.h5: needs 2 GB") if comm.rank == 0 else nullcontext():
            worker.saver.wait(must=True)
        worker.saver.close(failed=False)

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
        worker = Worker(comm)
        worker.save(path_of(tmp_path, 2), 2)
        worker.end()
        return worker.failures

    failures, none = run_threads(2, member)
    assert len(failures) == 1 and "Input/output error" in failures[0] and not none
    assert newest(tmp_path)[0].step == 1 and path_of(tmp_path, 1).read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_a_failed_group_does_not_wait_for_ranks_that_are_gone(tmp_path, monkeypatch):
    monkeypatch.setattr(saver, "has_room", lambda *_: True)

    def member(comm):
        worker = Worker(comm)
        worker.save(path_of(tmp_path, 1))
        if comm.rank == 1:
            worker.saver.wait()  # and does not contribute
        else:
            worker.save(path_of(tmp_path, 2), 2)
            worker.saver.close(failed=True)
        return worker.written

    assert run_threads(2, member) == [[1], [1]]
    assert list(tmp_path.iterdir()) == [path_of(tmp_path, 1)]
