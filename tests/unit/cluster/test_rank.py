"""A rank's task and its watchdog, with a Dask worker that the test plays."""

import asyncio
import sysconfig
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from distributed.core import Status

from singa_dask.cluster import departure, leases, rank
from singa_dask.cluster.rank import (
    JoinFailed,
    RankPlan,
    RankTask,
    abort_rank,
    current_task,
    keep_rank,
    rank_formed,
    rank_looks,
    rank_task,
    release_worker,
    reserve_worker,
    tell_rank,
)
from singa_dask.cluster.whereabouts import place_of
from singa_dask.cluster.workers import WorkerInfo
from singa_dask.errors import ClusterError, DataError, DriverUnreachable, MpiUnusable, TrainingError


class Comm:
    def __init__(self):
        self.aborted, self.closed = "", False

    def abort(self, reason):
        self.aborted = reason

    def close(self):
        self.closed = True


@pytest.fixture
def worker(monkeypatch):
    """A Dask worker whose task "key" is executing, in a process without leases. run: makes it a rank of group g."""
    monkeypatch.setattr(leases, "_leases", {})
    task = SimpleNamespace(state="executing")
    worker = SimpleNamespace(
        address="tcp://w1:1",
        status=Status.running,
        state=SimpleNamespace(tasks={"key": task}, actors={}),
        task=task,
        loop=SimpleNamespace(
            asyncio_loop=SimpleNamespace(call_soon_threadsafe=lambda *args: None, call_later=None),
            add_callback=lambda function, *args: function(*args),
        ),
        plugins={},
        plugin_add=lambda plugin, name: worker.plugins.setdefault(name, plugin),
        plugin_remove=lambda name: worker.plugins.pop(name),
        get_current_task=lambda: "key",
        comm=Comm(),
        joins=[],
        spent=[],
    )
    monkeypatch.setattr(rank, "get_worker", lambda: worker)
    monkeypatch.setattr(rank, "secede", lambda: None)
    monkeypatch.setattr(rank, "describe", lambda dask_worker: WorkerInfo(dask_worker.address))
    monkeypatch.setattr(rank, "spend_world", worker.spent.append)
    monkeypatch.setattr(rank, "join_group", lambda plan, abort: worker.joins.append((plan, abort)) or worker.comm)

    def run(fn, *args, size=1):
        leases.reserve(worker.address, "g", 5.0)
        return rank_task(RankPlan("g", size - 1, size), fn, args)

    worker.run = run
    return worker


def test_a_rank_joins_runs_and_leaves(worker):
    def fn(comm, number):
        return number, comm, current_task().rank, rank_formed("g", worker)

    assert worker.run(fn, 42, size=2) == (42, worker.comm, 1, True) and worker.comm.closed and not worker.spent
    ((plan, abort),) = worker.joins
    assert plan == RankPlan("g", 1, 2) and isinstance(abort, threading.Event)
    assert leases.holder(worker.address) == "" and not rank_formed("g", worker)
    with pytest.raises(ClusterError, match="form_group"):
        current_task()


def test_a_process_that_replaced_the_chosen_one_runs_nothing(worker):
    with pytest.raises(ClusterError, match="is not the one that was chosen for g"):
        rank_task(RankPlan("g", 0, 1), pytest.fail, ())
    assert not worker.joins


ENDS = rf"rank 1: {{}}.* in fn, {__file__}:"


@pytest.mark.parametrize(
    ("error", "size", "raised", "match"),
    [
        (DataError("shard 7"), 1, DataError, "^shard 7$"),
        (DataError("shard 7"), 2, DataError, "^shard 7$"),
        (KeyboardInterrupt(), 2, TrainingError, ENDS.format("KeyboardInterrupt")),
        (SystemExit(3), 2, TrainingError, ENDS.format("SystemExit")),
    ],
)
def test_an_error_of_its_own_spends_the_world_that_it_shares_and_ends_no_process(worker, error, size, raised, match):
    def fn(comm):
        raise error

    with pytest.raises(raised, match=match) as caught:
        worker.run(fn, size=size)
    assert error in (caught.value, caught.value.__cause__)
    assert worker.spent == [worker.comm] * (size - 1) and leases.holder(worker.address) == ""


@pytest.mark.parametrize("lost", [True, False])
def test_a_process_whose_gpu_is_lost_is_retired_also_from_a_group_of_one(worker, monkeypatch, lost):
    retired = []
    monkeypatch.setattr(rank, "gpu_is_lost", lambda error: lost and "illegal" in str(error))
    monkeypatch.setattr(rank, "retire_process", lambda: retired.append(True))

    def fn(comm):
        raise TrainingError("an illegal memory access")

    with pytest.raises(TrainingError, match="illegal"):
        worker.run(fn)
    assert retired == [True] * lost


def test_a_rank_tells_how_long_it_has_not_looked_for_a_stop_and_where_it_is(worker, monkeypatch):
    now = SimpleNamespace(s=100.0)
    monkeypatch.setattr(rank, "time", SimpleNamespace(monotonic=lambda: now.s))

    def fn(comm):
        for later in (1.0, 5.0, 2.0):
            now.s += later
            current_task().stop_requested  # noqa: B018
        now.s += 30.0
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(rank_looks, "g", worker).result()

    looks = worker.run(fn)
    assert (looks.ago_s, looks.longest_s) == (30.0, 5.0)
    assert looks.where.startswith(f"fn, {__file__}:")
    assert rank_looks("g", worker) is None, "it has left"


def test_a_rank_that_was_asked_to_stop_says_so_until_it_looks(worker):
    def fn(comm):
        asked = [rank_looks("g", worker).asked]
        tell_rank("g", "stop", True, worker)
        asked += [rank_looks("g", worker).asked, current_task().stop_told, rank_looks("g", worker).asked]
        return [*asked, current_task().stop_requested, rank_looks("g", worker).asked]

    assert worker.run(fn) == [False, True, True, True, True, False]


LIBRARY = f"{sysconfig.get_path('purelib')}/"
STDLIB = f"{sysconfig.get_path('stdlib')}/"
PACKAGE = f"{Path(rank.__file__).parents[1]}/"


@pytest.mark.parametrize(
    ("stack", "where", "waits"),
    [
        (["/home/me/own.py"], "/home/me/own.py:1", False),
        ([f"{STDLIB}threading.py", "/home/me/own.py", f"{PACKAGE}net/net.py"], "/home/me/own.py:2", False),
        ([f"{PACKAGE}comm/polled.py", f"{PACKAGE}net/net.py"], f"{PACKAGE}comm/polled.py:1", True),
        ([f"{STDLIB}threading.py", f"{PACKAGE}data/loader.py"], f"{PACKAGE}data/loader.py:2", True),
        ([f"{PACKAGE}training/checkpoint_file.py"], f"{PACKAGE}training/checkpoint_file.py:1", True),
        ([f"{PACKAGE}updaters/rules.py", f"{PACKAGE}server/slices.py"], f"{PACKAGE}updaters/rules.py:1", False),
        ([f"{LIBRARY}numba/core/compiler.py", f"{PACKAGE}ops/cpu/ops.py"], f"{PACKAGE}ops/cpu/ops.py:2", True),
        ([f"{LIBRARY}scipy/fft.py", f"{PACKAGE}ops/cpu/ops.py"], f"{PACKAGE}ops/cpu/ops.py:2", False),
        ([f"{STDLIB}threading.py"], "", False),
        ([], "", False),
    ],
)
def test_where_a_rank_is_and_whether_it_waits(stack, where, waits):
    found = place_of((f"f{line}", file, line) for line, file in enumerate(stack, 1))
    assert found == (where and f"f{where.rpartition(':')[2]}, {where}", waits)


def test_what_an_aborted_rank_raises_names_the_reason(worker):
    def fn(comm):
        abort_rank("other", "not for this rank", worker)
        assert not comm.aborted
        abort_rank("g", "rank 1 died", worker)
        raise ClusterError(comm.aborted)

    with pytest.raises(ClusterError, match="rank 1 was aborted: rank 1 died") as caught:
        worker.run(fn, size=2)
    assert str(caught.value.__cause__) == "rank 1 died"


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (MpiUnusable("none"), MpiUnusable),
        (DriverUnreachable("no route"), DriverUnreachable),
        (OSError("gone"), JoinFailed),
    ],
)
def test_a_rank_that_cannot_join_says_so(worker, monkeypatch, error, raised):
    monkeypatch.setattr(rank, "join_group", Mock(side_effect=error))
    with pytest.raises(raised, match=str(error)):
        worker.run(pytest.fail, size=2)


def test_a_word_reaches_the_rank_of_its_group(worker):
    def fn(comm):
        task = current_task()
        tell_rank("g", "servers", {0: "a"}, worker)
        tell_rank("other", "servers", {}, worker)
        assert task.wait_told("servers", 0.0) == {0: "a"}
        with pytest.raises(ClusterError, match="has not told the others ended within 0 s"):
            task.wait_told("others ended", 0.0)
        abort_rank("g", "enough", worker)
        abort_rank("g", "again", worker)
        task.wait_told("others ended", 60.0)

    with pytest.raises(ClusterError, match=r"^rank 0 was aborted: enough$"):
        worker.run(fn)


def test_a_rank_that_was_told_to_leave_before_it_joined_leaves_then():
    task, comm = RankTask(RankPlan("g", 0, 2)), Comm()
    task.abort("enough")
    task.joined(comm)
    assert comm.aborted == "enough" and task.formed


def test_a_worker_is_reserved_for_one_group_and_held_by_servers_of_other_runs(worker):
    assert reserve_worker("g", "run", 5.0, worker) == WorkerInfo(worker.address)
    assert reserve_worker("h", "run", 5.0, worker) == "g"
    release_worker("g", worker)
    worker.state.actors[leases.server_key("0", "run")] = None
    assert isinstance(reserve_worker("h", "run", 5.0, worker), WorkerInfo)
    assert reserve_worker("h", "other", 5.0, worker) == "server-0@run"


def watched(worker, monkeypatch, now, **plan):
    monkeypatch.setattr(rank, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(rank._Watchdog, "start", lambda self: None)
    task = RankTask(RankPlan("g", 0, 2, **plan))
    return task, rank._Watchdog(task, worker)


def test_a_watchdog_has_reasons(worker, monkeypatch):
    now = [100.0]
    task, watchdog = watched(worker, monkeypatch, now, forming_s=30.0)
    assert watchdog._reason_to_leave() == ""
    now[0] = 130.1
    assert watchdog._reason_to_leave() == "the group did not form within 30 s"
    task.joined(Comm())
    assert watchdog._reason_to_leave() == ""
    worker.task.state = "long-running"
    assert watchdog._reason_to_leave() == ""
    worker.task.state = "cancelled"
    assert watchdog._reason_to_leave() == "", "it may be the driver that asks for it next"
    now[0] += 5.1
    assert "the task was cancelled" in watchdog._reason_to_leave()
    worker.state.tasks.clear()
    assert "the task was cancelled" in watchdog._reason_to_leave()
    worker.status = Status.closing
    assert watchdog._reason_to_leave() == "", "it may save"
    now[0] += 20.1
    assert watchdog._reason_to_leave() == "the Dask worker is closing"


def test_a_cancelled_rank_stays_as_long_as_its_driver_asks(worker, monkeypatch):
    now = [100.0]
    task, watchdog = watched(worker, monkeypatch, now)
    assert not keep_rank("g", worker), "it has no such rank"
    assert not leases.reserve(worker.address, "g", 5.0)
    assert leases.take_up(worker.address, "g", task)
    task.joined(Comm())
    worker.task.state = "cancelled"
    for _ in range(5):
        assert keep_rank("g", worker) and watchdog._reason_to_leave() == ""
        now[0] += 4.0
    now[0] += 1.1
    assert "the task was cancelled" in watchdog._reason_to_leave()


@pytest.mark.parametrize("address", ["tcp://w1:1", "inproc://w1"])
def test_a_rank_that_does_not_leave_loses_its_process_unless_the_client_is_in_it(worker, monkeypatch, address, caplog):
    monkeypatch.setattr(rank, "CLOSING_S", -1.0)
    now, ended, waits = [100.0], [], []
    task, watchdog = watched(worker, monkeypatch, now)
    worker.address = address
    monkeypatch.setattr(rank.os, "_exit", ended.append)

    def wait(seconds):
        waits.append(task.abort_reason)
        now[0] += 1.0
        if len(waits) == 2:
            worker.status = Status.closing
        return len(waits) > 20

    watchdog._left = SimpleNamespace(wait=wait)
    watchdog.run()
    assert waits == ["", "", *["the Dask worker is closing"] * 4] and "does not leave" in caplog.text
    assert ended == ([rank.EXIT_CODE] if address.startswith("tcp") else [])


def test_a_dask_worker_that_closes_waits_for_its_rank_to_save(worker):
    closed = []

    def fn(comm):
        (plugin,) = worker.plugins.values()
        closing = threading.Thread(target=lambda: closed.append(asyncio.run(plugin.teardown(worker))))
        closing.start()
        while not current_task().stop_requested:
            time.sleep(0.01)
        assert not closed, "the rank saves"
        return closing

    worker.run(fn).join(10.0)
    assert closed == [None] and not worker.plugins


def test_a_dask_worker_does_not_wait_for_ever(worker, monkeypatch):
    monkeypatch.setattr(departure, "CLOSING_S", 0.1)
    worker.run(lambda comm: asyncio.run(next(iter(worker.plugins.values())).teardown(worker)))


def test_a_rank_that_has_left_is_not_watched(worker, monkeypatch):
    task, watchdog = watched(worker, monkeypatch, [100.0])
    worker.status = Status.closing
    watchdog.stop()
    watchdog.run()
    assert not task.abort_event.is_set()
