"""A Dask cluster that is one MPI job: rank 0 holds the scheduler and the driver, every other rank a worker."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import dask
import numpy as np
from distributed import Client, LocalCluster, Worker
from distributed.utils import get_ip, get_ip_interface

from singa_dask.cluster.bootstrap import each_alone, launched_size, library_name, mpi_report, this_node
from singa_dask.cluster.dask_settings import SETTINGS
from singa_dask.cluster.join import call_by, join_launched
from singa_dask.cluster.local_dask import scratch_folder
from singa_dask.cluster.remote import alive, run_each
from singa_dask.cluster.segments import unlink_segments
from singa_dask.cluster.stop_signals import FOR_THE_DRIVER
from singa_dask.cluster.workers import wait_workers
from singa_dask.dashboard.plugin import put_off
from singa_dask.errors import ClusterError, ConfigError, Problem

logger = logging.getLogger(__name__)

_POLL_S = 0.01
_CLOSING_S = 10.0
_CONNECT_S = 5.0
_RECORD = 2048  # bytes of what a rank tells the others


@contextmanager
def mpi_world(
    needed: Callable[[], int] | None = None,
    *,
    interface: str | None = None,
    start_s: float = 120.0,
    dashboard_address: str = "127.0.0.1:0",
    log_level: int = logging.CRITICAL,
) -> Iterator[Client | None]:
    """Make the processes that mpiexec (or srun) started a Dask cluster: a client on rank 0, None on every other rank.

    The other ranks get their None when rank 0 leaves; until then they serve as Dask workers:

        with mpi_world() as client:
            if client is not None:
                train(job, client)

    needed: called on rank 0 before anything starts; how many workers there must be. What it raises, rank 0 raises, and
    the others leave. interface: of the network that Dask uses; by default loopback where all ranks share a machine,
    else that of each machine's default route. start_s: seconds that MPI, the scheduler, and the workers may each take.
    dashboard_address: of the scheduler. MPI is finalised at the end, unless it was initialised before.

    Raises ConfigError on rank 0 when there are too few ranks, ClusterError when MPI, scheduler or workers don't start.
    """
    initialised = bool(mpi_report().world)
    mpi = join_launched(start_s)
    world = _World(mpi, mpi.COMM_WORLD.rank, mpi.COMM_WORLD.size, interface, start_s)
    for name in ("distributed", "distributed.client"):
        logging.getLogger(name).setLevel(log_level)
    # Launchers and batch systems signal every rank, but only the driver can end a job in order.
    ignored = () if world.rank == 0 else FOR_THE_DRIVER
    before = {number: signal.signal(number, signal.SIG_IGN) for number in ignored}
    scheduler = ""
    try:
        nodes, faults = world.inventory()
        several = len(set(nodes)) > 1
        with scratch_folder():
            if world.rank == 0:
                with _driving(world, needed, faults, several, dashboard_address, log_level) as client:
                    yield client
            else:
                scheduler = world.hear_address()
                if scheduler:
                    _serve(world, scheduler, several)
                yield None
    finally:
        world.leave(scheduler, finalise=not initialised)
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(frozen=True)
class _World:
    """The MPI world of the job. Collectives are polled, under deadlines: blocking ones would spin, and for ever."""

    mpi: Any
    rank: int
    size: int
    interface: str | None
    start_s: float

    def inventory(self) -> tuple[list[str], list[str]]:
        """The machine of every rank, and what is wrong with the interface on any of them."""
        records = np.zeros((self.size, _RECORD), np.uint8)
        mine = _packed(f"{this_node()}\n{_fault(self.interface)}")
        self._wait(self.mpi.COMM_WORLD.Iallgather(mine, records), self.start_s, "the other ranks to start")
        # Every rank has attached to MPICH's shared memory: its names serve nothing, and a killed job would leave them.
        unlink_segments()
        told = [_unpacked(record).partition("\n") for record in records]
        faults = sorted({fault for _, _, fault in told if fault})
        return [node for node, _, _ in told], faults

    def tell_address(self, address: str) -> None:
        """Rank 0: where the scheduler is, "" when it will not come."""
        self._wait(self.mpi.COMM_WORLD.Ibcast(_packed(address)), _CLOSING_S, "the other ranks to listen")

    def hear_address(self) -> str:
        """Other ranks: where the scheduler is, "" when it will not come."""
        record = _packed("")
        self._wait(self.mpi.COMM_WORLD.Ibcast(record), self.start_s, "rank 0 to start the Dask scheduler")
        return _unpacked(record)

    def leave(self, scheduler: str, *, finalise: bool) -> None:
        """End MPI in this process together with all others: launchers kill everybody when one leaves without it.

        Where a rank does not come any more, rank 0 leaves first, with the exit code that counts.
        """
        try:
            request = self.mpi.COMM_WORLD.Ibarrier()
            # A worker that Dask has lost must not leave before rank 0, which may still train with others or write.
            while self.rank > 0 and not request.Test() and _listens(scheduler):
                time.sleep(0.1)
            self._wait(request, _CLOSING_S, "the other ranks to leave")
        except (ClusterError, self.mpi.Exception) as error:
            logger.warning("MPI is not finalised: %s", error)
            time.sleep(_CLOSING_S if self.rank > 0 else 0)
            return
        if finalise:
            # Failed groups leave operations that never end. MPICH and Open MPI finalise all the same; others may wait.
            call_by(time.monotonic() + _CLOSING_S, "MPI_Finalize", self.mpi.Finalize)

    def _wait(self, request: Any, timeout_s: float, what: str) -> None:
        deadline = time.monotonic() + timeout_s
        while not request.Test():
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"MPI rank {self.rank} of {self.size} waited {timeout_s:g} s for {what}. Its process is lost or "
                    "busy: start all ranks by one mpiexec or srun."
                )
            time.sleep(_POLL_S)


@contextmanager
def _driving(
    world: _World,
    needed: Callable[[], int] | None,
    faults: list[str],
    several: bool,
    dashboard_address: str,
    log_level: int,
) -> Iterator[Client]:
    """Rank 0: the scheduler and a client of it, once all workers have come."""
    told = False
    # Nothing replaces a worker here: one that is slow to answer is better kept.
    settings = SETTINGS | {"distributed.scheduler.worker-ttl": "60s"}
    try:
        check_size(world.size, needed() if needed else 1, library_name(world.mpi), os.environ)
        if faults:
            hint = "Name one that every machine has, or leave it out."
            raise ConfigError(Problem("--interface", "; ".join(faults), world.interface, hint))
        with (
            dask.config.set(settings),
            LocalCluster(
                n_workers=0,
                processes=True,
                host=None if world.interface else _default_host(several),
                interface=world.interface,
                dashboard_address=dashboard_address,
                silence_logs=log_level,
                scheduler_kwargs=put_off(),
            ) as cluster,
            Client(cluster, timeout=world.start_s) as client,
        ):
            world.tell_address(cluster.scheduler_address)
            told = True
            try:
                wait_workers(client, world.size - 1, world.start_s)
                yield client
            finally:
                _close_workers(client)
    finally:
        if not told:
            with suppress(ClusterError):
                world.tell_address("")


def _serve(world: _World, scheduler: str, several: bool) -> None:
    """Another rank: a Dask worker, until the scheduler closes it."""

    async def serve() -> None:
        async with Worker(
            scheduler,
            nthreads=1,
            memory_limit=0,
            name=f"mpi-{world.rank}",
            dashboard=False,
            death_timeout=world.start_s,
            preload=["singa_dask.cluster.worker_setup"],
            interface=world.interface,
            host=None if world.interface or several else "127.0.0.1",
        ) as worker:
            await worker.finished()

    try:
        with dask.config.set(SETTINGS):
            asyncio.run(serve())
    except (OSError, TimeoutError, RuntimeError) as error:
        # Rank 0 will miss this worker, and can not know why.
        logger.error(
            "MPI rank %d on %s cannot serve the scheduler %s: %s", world.rank, socket.gethostname(), scheduler, error
        )


def _close_workers(client: Client) -> None:
    """End the workers while their scheduler is still there: else their own clients would try to reach it again."""
    try:
        run_each(client, _close_worker, dict.fromkeys(alive(client), ()), _CONNECT_S)
        deadline = time.monotonic() + _CONNECT_S
        while alive(client) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
    except ClusterError as error:
        logger.warning("the Dask workers could not be told to close: %s", error)


def _close_worker(dask_worker: Any) -> None:
    dask_worker.loop.add_callback(dask_worker.close, reason="the driver has ended")


def check_size(size: int, workers: int, library: str, environment: Mapping[str, str]) -> None:
    """Raise ConfigError when `size` MPI ranks are too few for so many workers and rank 0."""
    if size > workers:
        return
    launched = launched_size(environment)
    if size == 1 < launched:
        raise ConfigError(each_alone(launched, library))
    message = f"too few: rank 0 holds scheduler and driver, and the job needs {workers} worker{'s' * (workers > 1)}"
    hint = f"Run it as `mpiexec -n {workers + 1} singa-dask train JOB --mpi`."
    raise ConfigError(Problem("mpiexec -n", message, str(size), hint))


def _default_host(several: bool) -> str:
    host = get_ip() if several else "127.0.0.1"
    if several and host.startswith("127."):
        raise ClusterError(f"{socket.gethostname()} has no default route; name the network with --interface, as ib0")
    return host


def _fault(interface: str | None) -> str:
    """What is wrong with this machine's interface, "" for nothing."""
    try:
        if interface is not None:
            get_ip_interface(interface)
    except ValueError as error:
        return f"{socket.gethostname()}: {error}"
    return ""


def _listens(address: str) -> bool:
    url = urlsplit(address)
    try:
        with closing(socket.create_connection((url.hostname or "", url.port or 0), _CONNECT_S)):
            return True
    except OSError:
        return False


def _packed(text: str) -> np.ndarray:
    return np.frombuffer(text.encode()[:_RECORD].ljust(_RECORD, b"\0"), np.uint8).copy()


def _unpacked(record: np.ndarray) -> str:
    return record.tobytes().rstrip(b"\0").decode(errors="replace")
