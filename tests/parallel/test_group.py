"""Groups of Dask workers: how they form, what they give back, and how they fail."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import cloudpickle
import numpy as np
import psutil
import pytest
from distributed import Client, get_worker

from singa_dask.cluster import GroupFailed, current_task, form_group, wait_workers
from singa_dask.cluster.exits import record_exits
from singa_dask.cluster.remote import replace_stopped
from singa_dask.cluster.successors import prepare_successor
from singa_dask.cluster.workers import answering
from singa_dask.errors import ClusterError, DataError

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def _where(comm):
    total = np.array([comm.rank + 1.0])
    comm.all_reduce(total)
    return comm.rank, os.getpid(), float(total[0])


def _prepared(comm):
    prepare_successor(get_worker())
    return _for_ever(comm)


def _born(comm):
    return os.getppid(), "singa_dask.training.forked" in sys.modules, float(np.random.random())


def _for_ever(comm):
    buffer = np.ones(100_000, np.float32)
    while not current_task().stop_requested:
        comm.all_reduce(buffer)
        buffer[:] = 1
    return comm.rank


def _stop_together(comm):
    """Every rank leaves after the same step: the request of any of them counts."""
    steps, wanted = 0, np.zeros(1)
    while not wanted[0]:
        wanted[0] = current_task().stop_requested
        comm.all_reduce(wanted)
        steps += 1
    return steps


def _raise_on_one(comm):
    if comm.rank == 1:
        raise DataError("shard 7 is damaged")
    comm.barrier()


def _deaf(comm):
    """Rank 0 fails; the others never call the communicator, and catch what they can."""
    time.sleep(0.5)
    if comm.rank == 0:
        raise DataError("no more data")
    while True:
        try:
            time.sleep(3600)
        except BaseException:
            continue


def _failure(group, timeout_s=20.0):
    with pytest.raises(GroupFailed) as caught:
        group.wait(timeout_s)
    return caught.value.failure


def test_ranks_are_where_they_were_wanted(cluster3, workers3):
    wanted = list(reversed(workers3))
    with form_group(cluster3, [w.address for w in wanted], _where) as group:
        results = group.results()
        assert group.addresses == tuple(worker.address for worker in wanted)
    assert results == [(rank, worker.pid, 6.0) for rank, worker in enumerate(wanted)]


def test_a_later_group_reuses_the_world_in_another_order_and_size(cluster3, ranks3):
    with form_group(cluster3, ranks3, _where) as group:
        first = group.results()
    worlds = {worker.mpi.world for worker in answering(cluster3, 10.0)[0]}
    with form_group(cluster3, ranks3[::-1], _where) as group:
        second = group.results()
    with form_group(cluster3, ranks3[1:], _where) as group:
        pair = group.results()
    assert [pid for _, pid, _ in second] == [pid for _, pid, _ in first][::-1]
    assert [(rank, total) for rank, _, total in pair] == [(0, 3.0), (1, 3.0)]
    assert len(worlds) == 1 and {worker.mpi.world for worker in answering(cluster3, 10.0)[0]} == worlds


def test_a_group_of_one_needs_no_mpi(cluster3, ranks3):
    cluster3.restart_workers(ranks3[:1])
    address = next(w.address for w in answering(cluster3, 10.0)[0] if not w.mpi.library)
    with form_group(cluster3, [address], _where) as group:
        assert group.results()[0][0] == 0
    assert next(w for w in answering(cluster3, 10.0)[0] if w.address == address).mpi.library == ""


def test_a_killed_rank_is_noticed_named_and_takes_only_its_group_down(cluster3, ranks3):
    cluster3.run(record_exits, nanny=True)  # as runs have it
    group = form_group(cluster3, ranks3, _for_ever)
    first, killed, last = [worker.pid for worker in group.workers]
    time.sleep(0.3)
    os.kill(killed, signal.SIGKILL)
    failure = _failure(group)  # long before a collective's deadline, which would not know that it died
    assert failure.rank == 1 and failure.worker.pid == killed
    assert failure.cause.startswith("its worker process was killed by SIGKILL (by kill -9, or because memory ran out)")
    # The survivors have left their rank, and their processes are as they were.
    assert {first, last} <= {worker.pid for worker in answering(cluster3, 10.0)[0]}
    group.close()


@contextmanager
def _dask_commands(folder, first, *options):
    """A client of a scheduler and of a command with two nannies. first: the port of the scheduler."""
    dask, log = [sys.executable, "-m"], open(folder / "log", "w")  # noqa: SIM115 - until the processes end
    started = []
    try:
        for command in (
            ["distributed.cli.dask_scheduler", "--no-dashboard", "--host", "127.0.0.1", "--port", str(first)],
            [
                *("distributed.cli.dask_worker", f"tcp://127.0.0.1:{first}", "--no-dashboard", "--nworkers", "2"),
                *("--nthreads", "1", "--host", "127.0.0.1", *options),
            ],
        ):
            started.append(subprocess.Popen([*dask, *command], stdout=log, stderr=log, cwd=folder))
        with Client(f"tcp://127.0.0.1:{first}", timeout=20, set_as_default=False) as client:
            yield client, psutil.Process(started[1].pid)
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait(20)
        log.close()


def test_workers_on_given_ports_come_back_on_them(no_leaks, tmp_path):
    """As behind a firewall: the fresh process has the old one's address."""
    first = 20_000 + os.getpid() % 12_000  # below the ports that Linux gives to whoever asks for any
    with _dask_commands(tmp_path, first, "--worker-port", f"{first + 1}:{first + 4}") as (client, _):
        ranks = [worker.address for worker in wait_workers(client, 2)]
        group = form_group(client, ranks, _for_ever)
        spent = {worker.pid for worker in group.workers}
        group.abort("enough")
        group.close()
        with form_group(client, [worker.address for worker in wait_workers(client, 2)], _where) as again:
            assert not spent & {pid for _, pid, _ in again.results()}
            assert {int(address.rpartition(":")[2]) - first for address in again.addresses} <= {1, 2, 3, 4}


def test_successors_are_forked_from_a_process_that_has_imported_everything(no_leaks, tmp_path):
    def servers():
        return [child for child in command.children() if "forkserver" in str(child.cmdline())]

    with _dask_commands(tmp_path, 20_000 + (os.getpid() + 10) % 12_000) as (client, command):
        group = form_group(client, [worker.address for worker in wait_workers(client, 2)], _prepared)
        deadline = time.monotonic() + 20
        while not servers() and time.monotonic() < deadline:
            time.sleep(0.05)
        (server,) = servers()
        nannies = {worker.nanny for worker in group.workers}
        server.suspend()
        group.abort("enough")
        group.close()
        replace_stopped(client, nannies)
        with form_group(client, [worker.address for worker in wait_workers(client, 2)], _born) as again:
            parents, imported, drawn = zip(*again.results(), strict=True)
        assert set(parents) == {server.pid} and all(imported)
        assert len(set(drawn)) == 2, "random numbers of their own"
    assert server.wait(10) is None, "it ends with the nannies"


def test_after_a_failure_a_group_forms_in_fresh_processes(cluster3, ranks3):
    group = form_group(cluster3, ranks3, _for_ever)
    spent = {worker.pid for worker in group.workers}
    group.abort("enough")
    ranks3 = [worker.address for worker in answering(cluster3, 10.0)[0]]
    with form_group(cluster3, ranks3, _where) as group:
        results = group.results()
    assert [total for _, _, total in results] == [6.0] * 3
    assert not {pid for _, pid, _ in results} & spent


def test_the_rank_that_raised_is_named_with_its_traceback(cluster3, ranks3):
    failure = _failure(form_group(cluster3, ranks3, _raise_on_one))
    assert isinstance(failure.exception, DataError) and failure.rank == 1
    message = str(GroupFailed("group", failure))
    assert "shard 7 is damaged" in message and "_raise_on_one" in message and failure.worker.address in message


def test_a_rank_that_does_not_leave_loses_its_process(cluster3, ranks3, hurried):
    group = form_group(cluster3, ranks3, _deaf)
    deaf = {worker.pid for worker in group.workers[1:]}
    assert "no more data" in _failure(group).cause
    deadline = time.monotonic() + 30
    while deaf & {worker.pid for worker in answering(cluster3, 10.0)[0]} and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not deaf & {worker.pid for worker in answering(cluster3, 10.0)[0]}


def _break_mpi():
    """Make this process look as if its library were Open MPI."""
    from singa_dask.cluster import bootstrap

    mpi = bootstrap.load_mpi()
    mpi.Get_library_version = lambda: "Open MPI v5.0.6"
    mpi.Is_initialized = lambda: False
    bootstrap._process.world = ""


def _start_mpi_alone():
    """What `from mpi4py import MPI` at the top of a user's module does."""
    from mpi4py import MPI

    return MPI.COMM_WORLD.size


def test_a_process_that_started_mpi_by_itself_is_replaced(cluster3, ranks3):
    cluster3.restart_workers(ranks3)
    ranks3 = [worker.address for worker in wait_workers(cluster3, 3)]
    cluster3.run(_start_mpi_alone, workers=ranks3[:1])
    workers = {worker.address: worker for worker in answering(cluster3, 10.0)[0]}
    assert workers[ranks3[0]].mpi.size == 1 and not workers[ranks3[0]].mpi.ours
    with form_group(cluster3, ranks3, _where) as group:  # its nanny gives it a fresh process
        assert [total for _, _, total in group.results()] == [6.0] * 3


def test_a_stopped_rank_is_named(cluster3, ranks3):
    group = form_group(cluster3, ranks3, _for_ever)
    time.sleep(0.3)
    os.kill(group.workers[2].pid, signal.SIGSTOP)
    failure = _failure(group, 10.0)
    assert (failure.rank, failure.cause) == (2, "its process is stopped (SIGSTOP)")


def test_a_worker_that_is_gone_keeps_the_group_from_forming_and_is_named(cluster3, ranks3):
    with pytest.raises(ClusterError, match=r"gone: tcp://127.0.0.1:1\b"):
        form_group(cluster3, [ranks3[0], "tcp://127.0.0.1:1"], _where)


def test_a_rank_that_cannot_join_ends_the_forming_with_its_reason(cluster3, ranks3):
    cluster3.run(_break_mpi, workers=ranks3[1:2])
    try:
        with pytest.raises(ClusterError, match=r"cannot form: rank 1 .*Open MPI.*dask-mpi"):
            form_group(cluster3, ranks3, _where)
    finally:
        cluster3.restart_workers(ranks3[1:2])


def test_a_request_to_stop_reaches_every_rank(cluster3, ranks3):
    with form_group(cluster3, ranks3, _stop_together) as group:
        assert not group.wait(0.2)
        group.stop()
        steps = group.results(30.0)
    assert len(set(steps)) == 1 and steps[0] > 1


def test_a_group_in_use_is_waited_for_and_then_named(cluster3, ranks3):
    with form_group(cluster3, ranks3, _for_ever, name="first") as first:
        with pytest.raises(ClusterError, match=r"in use.*first-"):
            form_group(cluster3, first.addresses[1:], _where, timeout_s=0.3)
        first.abort("enough")


def test_one_dask_thread_still_loads_while_a_rank_trains(cluster3, ranks3):
    with form_group(cluster3, ranks3, _stop_together) as group:
        futures = [
            cluster3.submit(pow, 2, n, workers=[address], pure=False) for n, address in enumerate(group.addresses)
        ]
        assert [future.result(timeout=30) for future in futures] == [1, 2, 4]
        group.stop()
        group.results(30.0)


def test_a_cancelled_rank_leaves(cluster3, ranks3, hurried):
    """What a worker sees when the driver dies: its task is cancelled."""
    group = form_group(cluster3, ranks3, _for_ever)
    cluster3.cancel(list(group.futures), force=True)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            with form_group(
                cluster3, [w.address for w in answering(cluster3, 10.0)[0]], _where, timeout_s=10.0
            ) as again:
                assert [total for _, _, total in again.results()] == [6.0] * 3
            return
        except ClusterError:
            time.sleep(0.1)
    pytest.fail("the cancelled ranks still hold their workers")


def test_a_worker_that_is_stopped_keeps_the_group_from_forming_and_is_named(cluster3, workers3, ranks3):
    os.kill(workers3[1].pid, signal.SIGSTOP)
    try:
        with pytest.raises(ClusterError, match=ranks3[1]):
            form_group(cluster3, ranks3, _where, timeout_s=1.0)
    finally:
        os.kill(workers3[1].pid, signal.SIGCONT)
