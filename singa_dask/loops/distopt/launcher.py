"""Processes of this machine that train together, started from Python."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection, wait
from typing import Any

import cloudpickle

from singa_dask.cluster.cores import cores_each, equal_share
from singa_dask.cluster.pmi_server import PmiServer
from singa_dask.cluster.segments import unlink_orphans, unlink_segments
from singa_dask.errors import ClusterError, ConfigError, Problem
from singa_dask.loops.distopt.member import GRACE_S, Failure, ProcessPlan, Returned, be_member

_FORMING_S = 60.0
_LOOK_EVERY_S = 0.5
_CLOSING_S = 5.0


def launch(fn: Callable[..., Any], nprocs: int = 4, *args: Any, timeout_s: float = 30.0) -> list[Any]:
    """[fn(*args) of every rank], run in `nprocs` new processes of this machine that form an MPI world.

    In them DistOpt and `world` find that world. fn, args, results: anything that cloudpickle takes. Each process has
    an equal share of the cores. timeout_s: after which a collective of theirs fails.

    In a script the call stands below `if __name__ == "__main__":`, as the processes import it. Raises ClusterError,
    from the rank's own exception, where one raises or dies, the others being told to leave; and where the MPI library
    cannot be started this way (Open MPI: use mpiexec).
    """
    if not isinstance(nprocs, int) or isinstance(nprocs, bool) or nprocs < 1:
        raise ConfigError(Problem("nprocs", "must be an integer of at least 1", repr(nprocs)))
    try:
        work = cloudpickle.dumps((fn, args))
    except Exception as error:
        hint = "Open files, locks and clients cannot be sent: make them inside of the function."
        raise ConfigError(Problem("fn", f"cannot be sent to other processes ({error})", repr(fn), hint)) from error
    with ExitStack() as stack:
        server = stack.enter_context(PmiServer([0] * nprocs)) if nprocs > 1 else None
        ranks = _Ranks(server)
        stack.callback(ranks.end)
        with cores_each(equal_share(nprocs)):
            for rank in range(nprocs):
                endpoint = server.endpoint if server else None
                ranks.start(ProcessPlan(rank, nprocs, endpoint, _FORMING_S, timeout_s), work)
        return ranks.results()


class _Ranks:
    """The processes of one launch, by rank; what each reports arrives in a pipe of its own."""

    def __init__(self, server: PmiServer | None) -> None:
        self._server = server
        self._context = multiprocessing.get_context("spawn")
        self._processes: list[Any] = []
        self._pipes: list[Connection] = []
        self._reports: dict[int, Returned | Failure] = {}
        self._forming_until = time.monotonic() + _FORMING_S

    def start(self, plan: ProcessPlan, work: bytes) -> None:
        """Start the process of the next rank."""
        mine, its = self._context.Pipe()
        self._pipes.append(mine)
        process = self._context.Process(target=be_member, args=(its, plan, work), name=f"rank {plan.rank}")
        self._processes.append(process)
        try:
            process.start()
        finally:
            its.close()  # so that the pipe ends with the process

    def results(self) -> list[Any]:
        """What the ranks return. Raises ClusterError for the one that failed first."""
        while len(self._reports) < len(self._processes):
            self._listen(_LOOK_EVERY_S)
            if any(isinstance(report, Failure) for report in self._reports.values()):
                self._raise()
            if self._server and not self._server.state.formed and time.monotonic() > self._forming_until:
                absent = "; ".join(f"rank {rank} {how}" for rank, how in self._server.missing().items())
                raise ClusterError(f"launch: the MPI world did not form within {_FORMING_S:g} s: {absent}")
        return [cloudpickle.loads(self._returned(rank)) for rank in range(len(self._processes))]

    def end(self) -> None:
        """No process is left, whatever they do, and no shared memory."""
        for rank in range(len(self._processes)):
            self._tell(rank, "the launch is over")
        deadline = time.monotonic() + (_CLOSING_S if self._all_returned() else GRACE_S)
        for process in self._processes:
            if process.pid is not None:
                process.join(max(0.0, deadline - time.monotonic()))
        for process in self._processes:
            if process.pid is not None and process.exitcode is None:
                process.kill()
                process.join(_CLOSING_S)
        for pipe in self._pipes:
            pipe.close()
        if self._server:
            unlink_segments(self._server.endpoint.kvsname)
            unlink_orphans()

    def _returned(self, rank: int) -> bytes:
        report = self._reports[rank]
        assert isinstance(report, Returned)
        return report.result

    def _all_returned(self) -> bool:
        returned = [report for report in self._reports.values() if isinstance(report, Returned)]
        return len(returned) == len(self._processes)

    def _listen(self, timeout_s: float) -> None:
        """Take the reports that arrive; a pipe that ends without one is a process that died."""
        waiting = {self._pipes[rank]: rank for rank in range(len(self._processes)) if rank not in self._reports}
        for pipe in wait(list(waiting), timeout_s):
            rank = waiting[pipe]  # type: ignore[index]
            try:
                self._reports[rank] = self._pipes[rank].recv()
            except (EOFError, OSError):
                process = self._processes[rank]
                process.join(_CLOSING_S)
                self._reports[rank] = Failure(_death(process.exitcode, self._server))

    def _raise(self) -> None:
        """Tell all to leave, hear what they have to say, and raise for the one that was the cause."""
        first = next(rank for rank, report in self._reports.items() if isinstance(report, Failure))
        silent = [rank for rank in range(len(self._processes)) if rank not in self._reports]
        for rank in silent:
            self._tell(rank, f"rank {first} failed")
        deadline = time.monotonic() + GRACE_S
        while len(self._reports) < len(self._processes) and time.monotonic() < deadline:
            self._listen(max(0.0, deadline - time.monotonic()))
        failures = {rank: report for rank, report in self._reports.items() if isinstance(report, Failure)}
        cause = min(failures, key=lambda rank: failures[rank].consequence)  # of equal ones the first that reported
        failure = failures[cause]
        text = f"rank {cause} of {len(self._processes)} {failure.what}"
        silent = [rank for rank in silent if rank not in self._reports]
        if failure.consequence and silent:  # one of them may be the cause
            text += f"; no answer from rank {', '.join(map(str, silent))}"
        if failure.traceback:
            text += f"\n\n{failure.traceback.rstrip()}"
        raise ClusterError(text) from failure.exception

    def _tell(self, rank: int, reason: str) -> None:
        with suppress(OSError):
            self._pipes[rank].send(reason)


def _death(exitcode: int | None, server: PmiServer | None) -> str:
    if exitcode is not None and exitcode < 0:
        return f"was killed by signal {-exitcode}"
    what = f"died with exit code {exitcode}"
    if exitcode == 1 and server and not server.state.formed:
        what += '. In a script the call must stand below `if __name__ == "__main__":`'
    return what
