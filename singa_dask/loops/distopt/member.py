"""One process of a launch: it joins the world, calls the function, and reports."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import cloudpickle

from singa_dask.cluster.bootstrap import mpi_report
from singa_dask.cluster.join import RankPlan, join_group
from singa_dask.cluster.pmi_server import PmiEndpoint
from singa_dask.comm import Communicator
from singa_dask.errors import ClusterError, MpiUnusable, consequence
from singa_dask.loops.distopt.worlds import LEAVING_S, enter

# A rank that was told to leave and is still there after this time is in code that cannot be interrupted.
GRACE_S = 3.0
_EXIT_CODE = 75  # EX_TEMPFAIL of sysexits.h


@dataclass(frozen=True)
class ProcessPlan:
    """What a process must know to be a rank. endpoint: of the PMI server, None where it is alone."""

    rank: int
    size: int
    endpoint: PmiEndpoint | None
    forming_s: float
    timeout_s: float


@dataclass(frozen=True)
class Returned:
    """A rank's report. result: pickled."""

    result: bytes


@dataclass(frozen=True)
class Failure:
    """The report of a rank that failed, or that its death stands for. consequence: see errors.consequence."""

    what: str
    traceback: str = ""
    pickled: bytes = b""
    consequence: int = 0

    @property
    def exception(self) -> BaseException | None:
        try:
            return cloudpickle.loads(self.pickled) if self.pickled else None
        except Exception:  # its class cannot be had in this process
            return None


def be_member(pipe: Any, plan: ProcessPlan, work: bytes) -> None:
    """The life of the process: join, call, report, and leave when all others have."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that launched
    line = _Line(pipe)
    try:
        comm = _joined(plan)
        line.watch(comm)
        enter(comm)
        fn, args = cloudpickle.loads(work)
        report: Returned | Failure = Returned(cloudpickle.dumps(fn(*args)))
    except BaseException as error:
        report = _failure(error)
    line.report(report)
    if isinstance(report, Returned):
        # Others may still be in a collective to which this rank's MPI must contribute.
        comm.timeout_s = LEAVING_S
        with suppress(ClusterError):
            comm.barrier()


class _Line(threading.Thread):
    """The pipe to the launching process. What it says, or its end, means: leave."""

    def __init__(self, pipe: Any) -> None:
        super().__init__(name="launch", daemon=True)
        self._pipe = pipe
        self._told = ""
        self._comm: Communicator | None = None
        self.start()

    def watch(self, comm: Communicator) -> None:
        """Abort `comm` when this process must leave."""
        self._comm = comm
        if self._told:
            comm.abort(self._told)

    def report(self, report: Returned | Failure) -> None:
        with suppress(OSError):
            self._pipe.send(report)

    def run(self) -> None:
        try:
            self._told = self._pipe.recv()
        except (EOFError, OSError):
            self._told = "the process that launched this rank is gone"
        if self._comm is not None:
            self._comm.abort(self._told)
        time.sleep(GRACE_S)
        os._exit(_EXIT_CODE)


def _joined(plan: ProcessPlan) -> Communicator:
    try:
        return join_group(
            RankPlan(
                "launch",
                plan.rank,
                plan.size,
                endpoint=plan.endpoint,
                forming_s=plan.forming_s,
                comm_timeout_s=plan.timeout_s,
            )
        )
    except MpiUnusable as error:
        library = mpi_report().library
        if not library:
            raise
        raise MpiUnusable(
            f"{library} has no PMI-1, by which launch makes processes a world. Start the script with "
            f"`mpiexec -n {plan.size} python SCRIPT` and call the function itself there, "
            "or use an MPICH-family library (`pip install mpich`)."
        ) from error


def _failure(error: BaseException) -> Failure:
    try:
        pickled = cloudpickle.dumps(error)
        pickle.loads(pickled)
    except Exception:
        pickled = b""
    what = f"raised {type(error).__name__}: {error}"
    return Failure(what, "".join(traceback.format_exception(error)), pickled, consequence(error))
