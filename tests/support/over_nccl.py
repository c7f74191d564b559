"""Functions run on the ranks of an NCCL communicator, each in a thread with a GPU of its own."""

from collections.abc import Callable
from typing import Any

from singa_dask.comm import run_threads
from singa_dask.comm.communicator import Communicator
from singa_dask.comm.nccl import form_nccl


def over_nccl(size: int, fn: Callable[..., Any], *args: Any, timeout_s: float = 60.0) -> list[Any]:
    """[fn(communicator, *args) of every rank]; a rank that raises aborts the others."""

    def member(control: Communicator) -> Any:
        comm = form_nccl(control, control.rank, timeout_s)
        assert comm is not None
        result = fn(comm, *args)
        comm.close()
        return result

    return run_threads(size, member, timeout_s=2 * timeout_s)
