"""The way into an MPI world. A process initialises MPI once; each of its groups is a communicator of that world."""

from __future__ import annotations

import faulthandler
import os
import re
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any, TypeVar

import psutil  # type: ignore[import-untyped]

from singa_dask.cluster.bootstrap import enter_world, library_name, load_mpi
from singa_dask.cluster.cores import added_variables
from singa_dask.cluster.pmi_server import PmiEndpoint
from singa_dask.cluster.segments import unlink_segments
from singa_dask.cluster.stop_signals import kept_handlers
from singa_dask.comm import Communicator, MpiCommunicator, SoloCommunicator
from singa_dask.errors import ClusterError, DriverUnreachable

# What launchers leave for the processes that they start. MPI must take its bootstrap from our server alone.
_LAUNCHER_VARIABLES = re.compile(r"(PMI|PMIX|PMI2|HYDRA|HYDI|MPI_LOCAL|OMPI|PRTE|MPIEXEC)_")
STUCK = (
    "One of them ended, or cannot be reached. Under srun on several nodes, MPICH needs MPIR_CVAR_CH4_NETMOD=ofi "
    "FI_PROVIDER=tcp: see docs/hpc.md"
)

T = TypeVar("T")

_CONNECT_S = 10.0


@dataclass(frozen=True)
class RankPlan:
    """What one rank must know to join its group.

    world_ranks: of the group's members in the MPI world; endpoint: of the PMI server that makes the world, None where
    the world exists already; host: the own address that other ranks can reach, "" when all ranks share a machine;
    forming_s: the group forms within this time; comm_timeout_s: of the communicator's operations.
    """

    group: str
    rank: int
    size: int
    world_ranks: tuple[int, ...] = ()
    endpoint: PmiEndpoint | None = None
    host: str = ""
    forming_s: float = 30.0
    comm_timeout_s: float = 30.0


def join_group(plan: RankPlan, abort: threading.Event | None = None) -> Communicator:
    """The communicator of a group, after its ranks have met on it. Collective over them.

    abort: ends the communicator's operations when it is set. Raises ClusterError.
    """
    if plan.size == 1:
        return SoloCommunicator(plan.comm_timeout_s)
    endpoint, deadline = plan.endpoint, time.monotonic() + plan.forming_s
    mpi = load_mpi()
    if endpoint is not None:
        try:
            join_world(endpoint, plan.rank, plan.size, plan.host, deadline)
            MpiCommunicator(mpi.COMM_WORLD, plan.forming_s, abort).barrier()
        finally:
            unlink_segments(endpoint.kvsname)
    members = plan.world_ranks or range(plan.size)
    if endpoint is not None:
        made = call_by(deadline, "MPI_Comm_create_group", communicator, members, plan.group)
    else:
        made = communicator(members, plan.group)
    comm = MpiCommunicator(made, plan.comm_timeout_s, abort)
    comm.barrier()
    return comm


def join_world(endpoint: PmiEndpoint, rank: int, size: int, host: str, deadline: float) -> None:
    """Make this process rank `rank` of a new world of `size`, with the PMI server at `endpoint`.

    host: the own address that other ranks can reach, "" when all share this machine. deadline: of time.monotonic().
    Raises ClusterError when that cannot be.
    """
    mpi = load_mpi()
    if mpi.Is_initialized():
        hint = "Import mpi4py.MPI inside functions, not where a module is imported, and restart the workers."
        raise ClusterError(f"rank {rank}: this process has initialised MPI already. {hint}")
    with _connected(endpoint, rank, size, deadline) as sock:
        descriptor = os.dup(sock.fileno())
        pmi = {"PMI_FD": str(descriptor), "PMI_RANK": str(rank), "PMI_SIZE": str(size)}
        with _environment({**_network(host), **pmi}):
            enter_world(endpoint.kvsname)
            with kept_handlers():
                provided = call_by(deadline, "MPI_Init", mpi.Init_thread, mpi.THREAD_MULTIPLE)
        # MPI that was not bootstrapped makes every process rank 0 of 1, without an error.
        if (mpi.COMM_WORLD.rank, mpi.COMM_WORLD.size) != (rank, size):
            got = f"rank {mpi.COMM_WORLD.rank} of {mpi.COMM_WORLD.size}"
            raise ClusterError(
                f"rank {rank} of {size} became {got}: {library_name(mpi)} does not take its start from "
                "PMI-1. Use an MPICH-family library: `pip install mpich`."
            )
        if provided < mpi.THREAD_SERIALIZED:
            raise ClusterError(f"rank {rank}: {_unthreaded(mpi)}")
        sock.sendall(b"cmd=ready\n")


def communicator(world_ranks: Sequence[int], group: str) -> Any:
    """A new MPI communicator of these ranks of the world, in this order. Collective over them, and blocking.

    Raises ClusterError when this process is not among them or becomes another rank than planned.
    """
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    if world.rank not in world_ranks:
        raise ClusterError(f"this process is rank {world.rank} of its MPI world; the group wants {list(world_ranks)}")
    members = world.group.Incl(list(world_ranks))
    made = world.Create_group(members, zlib.crc32(group.encode()) % 32768)
    members.Free()
    planned = (list(world_ranks).index(world.rank), len(world_ranks))
    if (made.rank, made.size) != planned:
        raise ClusterError(f"planned rank {planned[0]} of {planned[1]}, became rank {made.rank} of {made.size}")
    return made


def join_launched(timeout_s: float) -> Any:
    """mpi4py.MPI, initialised into the world that the launcher of this process (mpiexec, srun) has planned.

    When MPI_Init takes longer than `timeout_s` seconds, because a process of the job died before it, this one ends
    with exit code 1. Raises ClusterError where there is no MPI library, or one that threads may not call.
    """
    mpi = load_mpi(launched=True)
    if not mpi.Is_initialized():
        with added_variables(_messages()), kept_handlers():
            call_by(time.monotonic() + timeout_s, "MPI_Init", mpi.Init_thread, mpi.THREAD_MULTIPLE)
    if mpi.Query_thread() < mpi.THREAD_SERIALIZED:
        raise ClusterError(_unthreaded(mpi))
    return mpi


def _unthreaded(mpi: Any) -> str:
    way_out = "Use a build with MPI_THREAD_MULTIPLE, for example `pip install mpich`."
    return f"{library_name(mpi)} cannot be called from threads, as Dask workers must. {way_out}"


def interface_of(host: str) -> str:
    """The network interface that has this address. Raises ClusterError when there is none."""
    wanted = {str(info[4][0]) for info in socket.getaddrinfo(host, None)}
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address.partition("%")[0] in wanted for address in addresses):
            return name
    raise ClusterError(
        f"no network interface of {socket.gethostname()} has the address {host} of its Dask worker. Start it with "
        "`dask worker --interface NAME`, or --host with an address of that machine."
    )


@contextmanager
def _connected(endpoint: PmiEndpoint, rank: int, size: int, deadline: float) -> Iterator[socket.socket]:
    """A connection to the PMI server, once every other rank has one too."""
    address = f"{endpoint.host}:{endpoint.port}"
    try:
        try:
            sock = socket.create_connection((endpoint.host, endpoint.port), min(_left(deadline), _CONNECT_S))
        except OSError as error:
            where = f"rank {rank} on {socket.gethostname()}"
            raise DriverUnreachable(f"{where} cannot reach the driver at {address} ({error})") from error
        with sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.sendall(f"cmd=hello token={endpoint.token} rank={rank} size={size}\n".encode())
            sock.settimeout(_left(deadline))
            answer = sock.recv(64)
            if answer.strip() != b"cmd=go":
                raise ClusterError(
                    f"rank {rank}: the group gave up before it formed, or refused this rank ({address}). Another rank "
                    "or the driver says why."
                )
            sock.settimeout(None)
            yield sock
    except TimeoutError as error:
        raise ClusterError(
            f"rank {rank}: not every rank of the group came in time ({address}). A process is lost or busy, or a "
            "firewall closes ports: `singa-dask doctor` examines the cluster."
        ) from error
    except OSError as error:
        raise ClusterError(
            f"rank {rank}: the connection to the driver at {address} broke: {error}. Look whether the "
            "driver still runs."
        ) from error


def call_by(deadline: float, what: str, function: Callable[..., T], *args: Any) -> T:
    """function(*args), which waits for other ranks. When the deadline passes, this process says `what` and where it
    waited, and ends with exit code 1.

    MPI_Init spins when another rank dies in it, and mpi4py calls it with the interpreter locked, so that no thread of
    ours could notice. faulthandler needs no interpreter. All that it says are names of functions: one is our message.
    """
    left = _left(deadline)
    message = f"{what}: on {socket.gethostname()}, other ranks did not come within {left:.0f} s. {STUCK}"
    named = FunctionType(_call.__code__.replace(co_name=message), {})
    faulthandler.dump_traceback_later(left, exit=True, file=2)
    try:
        return named(function, args)
    finally:
        faulthandler.cancel_dump_traceback_later()


def _call(function: Callable[..., T], args: Sequence[Any]) -> T:
    return function(*args)


def _left(deadline: float) -> float:
    return max(0.01, deadline - time.monotonic())


def _network(host: str) -> dict[str, str]:
    """Settings of MPI's network layers, for what the user has not set."""
    if not host:
        # Ranks of one machine use shared memory; without this MPI also listens on every interface, for anybody.
        settings = {"UCX_TLS": "self,sm", "FI_TCP_IFACE": interface_of("127.0.0.1")}
    else:
        interface = interface_of(host)
        settings = {"FI_TCP_IFACE": interface, **_messages(), **_ALGORITHMS}
        if not os.path.isdir("/sys/class/infiniband"):
            settings["UCX_NET_DEVICES"] = interface
    return {name: value for name, value in settings.items() if name not in os.environ}


# MPICH's own choice for up to 512 KB sends whole vectors where the number of ranks is not a power of two: with three
# hosts it takes three times as long.
_ALGORITHMS = {"MPIR_CVAR_IREDUCE_SCATTER_INTRA_ALGORITHM": "sched_pairwise"}


def _messages() -> dict[str, str]:
    """How MPICH's UCX sends long messages over TCP, unless the user has said how.

    By itself it lets both sides agree on one first, over the connection that has the data: where a rank answers while
    it sends one itself, its answer waits behind that, and the two go one after the other.
    """
    if "UCX_RNDV_THRESH" in os.environ or os.path.isdir("/sys/class/infiniband"):
        return {}
    return {"UCX_RNDV_THRESH": "intra:auto,inter:inf"}


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Only `variables` and no launcher's, so that neither other launchers nor our children are misled."""
    hidden = {name: value for name, value in os.environ.items() if _LAUNCHER_VARIABLES.match(name)}
    for name in hidden:
        del os.environ[name]
    try:
        with added_variables(variables):
            yield
    finally:
        os.environ.update(hidden)
