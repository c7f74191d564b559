"""Tasks and data of others on the workers of a group: processes that must be replaced are replaced without them."""

import threading
import time

import numpy as np
import pytest
from distributed import wait

from singa_dask.cluster import form_group, wait_workers
from singa_dask.errors import ClusterError


def _size(comm):
    comm.barrier()
    return comm.size


def until_told(path, log):
    with log.open("a") as started:
        started.write("x")
    while not path.exists():
        time.sleep(0.05)
    return 7


class Count:
    def more(self):
        return 1


def formed(client, workers, **options):
    with form_group(client, [worker.address for worker in workers], _size, **options) as group:
        return group.results()


@pytest.fixture
def workers(cluster3, workers3):
    """Three workers, of which the first two have been in a group without the third."""
    if not any(worker.mpi.world for worker in workers3):
        assert formed(cluster3, workers3[:2]) == [2, 2]
    elif all(worker.mpi.world for worker in workers3):
        cluster3.restart_workers([workers3[2].address])
    fresh, *stale = sorted(wait_workers(cluster3, 3), key=lambda worker: worker.mpi.world)
    assert not fresh.mpi.world and stale[0].mpi.world == stale[1].mpi.world
    return [*stale, fresh]


def test_tasks_are_waited_for_and_data_move(cluster3, workers, tmp_path):
    arrays = [np.full(1000, float(i)) for i in range(3)]
    data = [cluster3.scatter(x, workers=[w.address]) for x, w in zip(arrays, workers, strict=True)]
    end, log = tmp_path / "end", tmp_path / "log"
    task = cluster3.submit(until_told, end, log, workers=[w.address for w in workers[:2]], pure=False)
    while not log.exists():
        time.sleep(0.02)
    found = []
    thread = threading.Thread(target=lambda: found.append(formed(cluster3, workers)))
    thread.start()
    thread.join(1.0)
    assert thread.is_alive() and not found
    end.touch()
    thread.join(30.0)
    assert found == [[3, 3, 3]] and task.result(5) == 7 and log.read_text() == "x"
    assert [float(x.sum()) for x in cluster3.gather(data)] == [0.0, 1000.0, 2000.0]
    now = {worker.pid for worker in wait_workers(cluster3, 3)}
    assert [worker.pid in now for worker in workers] == [False, False, True]


@pytest.mark.parametrize("what", ["task", "actor"])
def test_what_stays_in_the_way_is_named_and_stays(cluster3, workers, tmp_path, what):
    end, log, there = tmp_path / "end", tmp_path / "log", {"workers": [workers[0].address], "pure": False}
    if what == "task":
        kept = cluster3.submit(until_told, end, log, **there)
        while not log.exists():
            time.sleep(0.02)
    else:
        kept = cluster3.submit(Count, actor=True, **there)
        wait(kept)
    with pytest.raises(
        ClusterError,
        match=rf"fresh process, .*: {workers[0].address} runs {kept.key.split('-')[0]}\. Wait for these tasks",
    ):
        formed(cluster3, workers, timeout_s=1.0)
    end.touch()
    assert what == "actor" or (kept.result(5) == 7 and log.read_text() == "x")
    assert what == "task" or kept.result(5).more().result(5) == 1
    assert {worker.pid for worker in workers} == {worker.pid for worker in wait_workers(cluster3, 3)}


def test_a_rank_waits_for_a_thread_that_the_task_of_another_has(cluster3, workers3, tmp_path):
    end, log = tmp_path / "end", tmp_path / "log"
    task = cluster3.submit(until_told, end, log, workers=[workers3[0].address], pure=False)
    while not log.exists():
        time.sleep(0.02)
    threads = cluster3.nthreads()[workers3[0].address]
    more = [cluster3.submit(until_told, end, log, workers=[workers3[0].address], pure=False) for _ in range(threads)]
    with pytest.raises(
        ClusterError, match=r"tasks of others occupy all threads of these workers: .* runs until_told\. Wait for"
    ):
        formed(cluster3, workers3[:1], timeout_s=0.5)
    end.touch()
    assert [each.result(20) for each in (task, *more)] == [7] * (threads + 1)
    assert formed(cluster3, workers3[:1]) == [1]
    assert workers3[0].pid in {worker.pid for worker in wait_workers(cluster3, 3)}
