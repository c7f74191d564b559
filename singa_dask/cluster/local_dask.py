"""A Dask cluster on this machine, with one process per worker of a job."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from multiprocessing import current_process, resource_tracker
from typing import Any

import dask
from distributed import Client, LocalCluster
from distributed.utils import get_mp_context

from singa_dask.cluster.cores import THREAD_VARIABLES, equal_share
from singa_dask.cluster.dask_settings import SETTINGS, check_durations
from singa_dask.cluster.exits import in_words, record_exits
from singa_dask.cluster.fork_server import IMPORTED, MALLOC
from singa_dask.cluster.segments import unlink_orphans
from singa_dask.cluster.stop_signals import FOR_THE_DRIVER
from singa_dask.dashboard.plugin import put_off
from singa_dask.errors import ClusterError
from singa_dask.output.streams import occupy_descriptors
from singa_dask.temporary import is_private, private_folder

GUARD = 'In a script the call must stand below `if __name__ == "__main__":`, as workers import the script.'
UNGUARDED = 78  # exit code of a worker that would start workers while it imports its driver's script
_CLOSING_S = 2.0
_STARTING_S = 15.0


@contextmanager
def local_cluster(
    nworkers: int,
    *,
    threads_per_worker: int = 1,
    cores_per_worker: int | None = None,
    worker_ttl_s: float = 10.0,
    dashboard_address: str = "127.0.0.1:0",
    log_level: int = logging.CRITICAL,
) -> Iterator[Client]:
    """A client of a new cluster of `nworkers` processes on loopback; both are gone afterwards, within seconds.

    threads_per_worker: tasks that Dask runs at once in a worker; ranks of groups don't count.
    cores_per_worker: threads of BLAS, OpenMP and Numba in each, by default an equal share of the cores; variables that
    are set already stay. worker_ttl_s: a stopped process is replaced after at most twice this time.
    dashboard_address: for example ":8787"; by default any free port, on loopback.

    Raises ClusterError where the workers do not start.
    """
    occupy_descriptors()
    cores = cores_per_worker or equal_share(nworkers)
    settings = SETTINGS | {
        "distributed.scheduler.worker-ttl": f"{worker_ttl_s}s",
        # This time after a worker was lost Dask looks again, and takes one that is just restarting then for lost too:
        # it closes the nanny, for good.
        "distributed.deploy.lost-worker-timeout": "100 days",
    }
    # Set before a process starts: BLAS reads them when NumPy loads it. Dask prefers what the environment has already.
    variables = dict.fromkeys(THREAD_VARIABLES, str(cores)) | MALLOC
    settings |= {f"distributed.nanny.pre-spawn-environ.{name}": value for name, value in variables.items()}
    before = dict(os.environ)
    refuse_import()
    check_durations()
    unlink_orphans()
    with scratch_folder(), dask.config.set(settings):
        if dask.config.get("distributed.worker.multiprocessing-method") == "forkserver":
            get_mp_context().set_forkserver_preload(IMPORTED)  # after Dask has set its own
        cluster = _whole(
            n_workers=nworkers,
            threads_per_worker=threads_per_worker,
            processes=True,
            host="127.0.0.1",
            dashboard_address=dashboard_address,
            memory_limit=0,
            silence_logs=log_level,
            preload=["singa_dask.cluster.worker_setup"],
            scheduler_kwargs=put_off(),
        )
        nannies = list(cluster.workers.values())
        try:
            with Client(cluster) as client:
                yield client
        finally:
            _close(cluster, nannies)
            unlink_orphans()
            # The nannies have written theirs into this process too.
            for name in set(os.environ) - set(before):
                del os.environ[name]
            os.environ.update(before)


def refuse_import() -> None:
    """End a worker that would start workers itself, as it imports its driver's script."""
    if getattr(current_process(), "_inheriting", False):  # what multiprocessing itself goes by
        sys.exit(UNGUARDED)


@contextmanager
def scratch_folder() -> Iterator[None]:
    """Inside, Dask has its temporary files in a folder of this user alone, unless the user has named one. Anybody may
    have made Dask's own in /tmp, and Dask even imports from there."""
    named = dask.config.get("temporary-directory", None)
    if named and not is_private(named):  # else it is that of another cluster in this process, and ends with it
        yield
        return
    with private_folder() as folder, dask.config.set({"temporary-directory": str(folder)}):
        yield


def _whole(**settings: Any) -> LocalCluster:
    """A cluster that has started. Ctrl-C before that would leave half of one, which only Dask's own exit finds, and
    cannot close: so it starts in a thread, where no signal arrives, and is closed once it is whole."""
    started: Future[LocalCluster] = Future()
    exits = record_exits()
    earlier = set(exits)
    given = [f"{name}={os.environ[name]}" for name in THREAD_VARIABLES if name in os.environ]  # nannies add others

    def start() -> None:
        # Nor in processes that are started from here: signals for the driver would reach them in the midst of imports.
        # The tracker of multiprocessing comes before: starting it ends such a mask.
        try:
            resource_tracker.ensure_running()
            signal.pthread_sigmask(signal.SIG_BLOCK, FOR_THE_DRIVER)
            started.set_result(LocalCluster(**settings))
        except BaseException as error:
            started.set_exception(error)

    threading.Thread(target=start, name="start of the local cluster", daemon=True).start()
    try:
        return started.result()
    except Exception as error:
        ended = [code for pid, code in exits.items() if pid not in earlier]
        why = _last_words(error, ended, given)
        raise ClusterError(f"The workers of a local Dask cluster did not start: {why}") from error
    except KeyboardInterrupt:
        wait([started], _STARTING_S)
        if started.done() and not started.exception():
            _close(started.result(), list(started.result().workers.values()))
        raise


def _last_words(error: BaseException, ended: Sequence[int], given: Sequence[str]) -> str:
    """Why workers did not start: what one of them raised, or how its process ended. ended: the exit codes. given:
    variables of the environment."""
    if UNGUARDED in ended:
        return GUARD
    # A nanny that cannot even make what a process needs fails again as it cleans up.
    while (before := error.__context__ if isinstance(error, AssertionError) else error.__cause__) is not None:
        error = before
    if isinstance(error, RuntimeError) and "Nanny failed" in str(error):
        how = in_words(ended[0]) if ended else "did not say why"
        return f"the process of one {how} before it had connected. What it wrote is above."
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        shared = shutil.disk_usage("/dev/shm")
        return f"{error}. /dev/shm has {shared.free >> 10:,} of {shared.total >> 10:,} KiB free: make room there."
    return f"{type(error).__name__}: {error}" + (f" Workers take over {', '.join(given)}." if given else "")


def _close(cluster: LocalCluster, nannies: list[Any]) -> None:
    """End the cluster. Workers that don't end by themselves, as they are stopped or busy, are killed."""
    killer = threading.Timer(_CLOSING_S, _kill, [nannies])
    killer.start()
    try:
        cluster.close()
    finally:
        killer.cancel()
        _kill(nannies)


def _kill(nannies: list[Any]) -> None:
    for pid in filter(None, [nanny.pid for nanny in nannies]):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
