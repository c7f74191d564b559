"""Groups of Dask workers: how they form, what they give back, and how they fail."""

import os
import signal
import socket
import sys
import time
from contextlib import ExitStack, suppress

import cloudpickle
import numpy as np
import psutil
import pytest
from distributed import Client, get_worker
from support.commands import ROOT, wait_for
from support.dask_commands import DaskCommands

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


def test_ranks_are_where_they_were_wanted_and_groups_of_any_order_and_size_share_a_world(cluster3, workers3):
    worlds = set()
    for wanted in (workers3[::-1], workers3, workers3[1:]):
        with form_group(cluster3, [worker.address for worker in wanted], _where) as group:
            results = group.results()
            assert group.addresses == tuple(worker.address for worker in wanted)
        total = sum(range(len(wanted) + 1))
        assert results == [(rank, worker.pid, total) for rank, worker in enumerate(wanted)]
        worlds |= {worker.mpi.world for worker in answering(cluster3, 10.0)[0]}
    assert len(worlds) == 1


def test_a_group_of_one_needs_no_mpi_and_a_process_that_started_it_by_itself_is_replaced(cluster3, ranks3):
    cluster3.restart_workers(ranks3)
    ranks3 = [worker.address for worker in wait_workers(cluster3, 3)]

    def mpi():
        return next(worker for worker in answering(cluster3, 10.0)[0] if worker.address == ranks3[0]).mpi

    with form_group(cluster3, ranks3[:1], _where) as group:
        assert group.results()[0][0] == 0
    assert mpi().library == ""
    cluster3.run(_start_mpi_alone, workers=ranks3[:1])
    assert mpi().size == 1 and not mpi().ours
    with form_group(cluster3, ranks3, _where) as group:  # its nanny gives it a fresh process
        assert [total for _, _, total in group.results()] == [6.0] * 3


def _start_mpi_alone():
    """What `from mpi4py import MPI` at the top of a user's module does."""
    from mpi4py import MPI

    return MPI.COMM_WORLD.size


def test_a_killed_rank_is_noticed_named_and_takes_only_its_group_down(cluster3, ranks3):
    cluster3.run(record_exits, nanny=True)  # as runs have it
    group = form_group(cluster3, ranks3, _for_ever)
    first, killed, last = [worker.pid for worker in group.workers]
    os.kill(killed, signal.SIGKILL)
    failure = _failure(group)  # long before a collective's deadline, which would not know that it died
    assert failure.rank == 1 and failure.worker.pid == killed
    assert failure.cause.startswith("its worker process was killed by SIGKILL (by kill -9, or because memory ran out)")
    # The survivors have left their rank, and their processes are as they were.
    assert {first, last} <= {worker.pid for worker in answering(cluster3, 10.0)[0]}
    group.close()


def _free_ports(count):
    """Consecutive ports that nobody listens on: below those that Linux gives to whoever asks for any."""
    for first in range(20_000 + os.getpid() % 600 * 20, 32_000, count):
        with ExitStack() as taken, suppress(OSError):
            for port in range(first, first + count):
                taken.enter_context(socket.create_server(("127.0.0.1", port)))
            return first
    raise AssertionError("no ports are free")


def test_successors_are_forked_from_a_process_that_has_imported_everything_on_the_given_ports(no_leaks, tmp_path):
    """As behind a firewall: a fresh process has an address in the range."""

    def servers():
        return [child for child in command.children() if "forkserver" in str(child.cmdline())]

    first = _free_ports(4)
    dask = DaskCommands(tmp_path / "dask", {**os.environ, "PYTHONPATH": str(ROOT / "tests")})
    try:
        command = psutil.Process(dask.workers(2, "--worker-port", f"{first}:{first + 3}").pid)
        with Client(scheduler_file=str(dask.file), timeout=60, set_as_default=False) as client:
            group = form_group(client, [worker.address for worker in wait_workers(client, 2)], _prepared)
            wait_for(servers)
            (server,) = servers()
            nannies = {worker.nanny for worker in group.workers}
            server.suspend()
            group.abort("enough")
            group.close()
            replace_stopped(client, nannies)
            with form_group(client, [worker.address for worker in wait_workers(client, 2)], _born) as again:
                parents, imported, drawn = zip(*again.results(), strict=True)
                ports = {int(address.rpartition(":")[2]) for address in again.addresses}
            assert set(parents) == {server.pid} and all(imported)
            assert len(set(drawn)) == 2, "random numbers of their own"
            assert ports <= {*range(first, first + 4)}
    finally:
        dask.end()
    server.wait(30)  # it ends with the nannies


def test_the_rank_that_raised_is_named_with_its_traceback_and_a_group_forms_in_fresh_processes(cluster3, ranks3):
    group = form_group(cluster3, ranks3, _raise_on_one)
    failure, spent = _failure(group), {worker.pid for worker in group.workers}
    assert isinstance(failure.exception, DataError) and failure.rank == 1
    message = str(GroupFailed("group", failure))
    assert "shard 7 is damaged" in message and "_raise_on_one" in message and failure.worker.address in message
    with form_group(cluster3, [worker.address for worker in answering(cluster3, 10.0)[0]], _where) as group:
        assert not {pid for _, pid, _ in group.results()} & spent


def test_a_rank_that_does_not_leave_loses_its_process(cluster3, ranks3, hurried):
    group = form_group(cluster3, ranks3, _deaf)
    deaf = {worker.pid for worker in group.workers[1:]}
    assert "no more data" in _failure(group).cause
    wait_for(lambda: not deaf & {worker.pid for worker in answering(cluster3, 10.0)[0]})


def test_a_stopped_rank_is_named(cluster3, ranks3):
    group = form_group(cluster3, ranks3, _for_ever)
    os.kill(group.workers[2].pid, signal.SIGSTOP)
    failure = _failure(group)
    assert (failure.rank, failure.cause) == (2, "its process is stopped (SIGSTOP)")


def test_a_worker_that_is_stopped_keeps_the_group_from_forming_and_is_named(cluster3, workers3, ranks3):
    os.kill(workers3[1].pid, signal.SIGSTOP)
    try:
        with pytest.raises(ClusterError, match=ranks3[1]):
            form_group(cluster3, ranks3, _where, timeout_s=1.0)
    finally:
        os.kill(workers3[1].pid, signal.SIGCONT)


def test_a_request_to_stop_reaches_every_rank_while_dask_s_thread_is_free(cluster3, ranks3):
    with form_group(cluster3, ranks3, _stop_together) as group:
        futures = [cluster3.submit(pow, 2, n, workers=[at], pure=False) for n, at in enumerate(group.addresses)]
        assert [future.result(timeout=30) for future in futures] == [1, 2, 4]
        assert not group.wait(0.2)
        group.stop()
        steps = group.results(30.0)
    assert len(set(steps)) == 1 and steps[0] > 1


def test_a_cancelled_rank_leaves(cluster3, ranks3, hurried):
    """What a worker sees when the driver dies: its task is cancelled."""
    group = form_group(cluster3, ranks3, _for_ever)
    cluster3.cancel(list(group.futures), force=True)

    def again():
        with suppress(ClusterError), form_group(
            cluster3, [worker.address for worker in answering(cluster3, 10.0)[0]], _where, timeout_s=10.0
        ) as group:  # fmt: skip
            return [total for _, _, total in group.results()] == [6.0] * 3

    wait_for(again)
