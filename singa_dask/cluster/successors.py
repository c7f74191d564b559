"""A fork server for each nanny, so that the successor of a lost worker has imported everything before it is needed."""

from __future__ import annotations

import asyncio
import atexit
import logging
import pickle
from contextlib import ExitStack, suppress
from multiprocessing import forkserver
from typing import Any

import dask
import distributed.utils
from distributed import Scheduler, default_client

from singa_dask.cluster.exits import record_exits
from singa_dask.cluster.fork_server import IMPORTED, private_files

logger = logging.getLogger(__name__)

# Until then the worker compiles, on the same cores.
_AFTER_S = 1.0
_ANSWER_S = 10.0


def prepare_successor(worker: Any) -> None:
    """Have the nanny of a Dask worker fork the worker's successors, and remember how its processes end. Does not wait.
    For a thread of the worker."""

    async def ask() -> None:
        asked = worker.rpc(worker.nanny).run(function=pickle.dumps(_prepare))
        with suppress(OSError):  # the nanny is gone or stopped, or the worker closes: no successor comes
            answer = await asyncio.wait_for(asked, _ANSWER_S)
            if answer["status"] != "OK":
                logger.warning("%s cannot fork workers, and starts them anew: %r", worker.nanny, answer["exception"])

    if worker.nanny:
        worker.loop.add_callback(worker.loop.call_later, _AFTER_S, ask)


def _prepare(dask_worker: Any = None) -> None:
    record_exits()
    _fork_workers()


def _fork_workers() -> None:
    """Have this nanny fork workers, unless it shares its process with a client or a scheduler, or starts them in a way
    of its own."""
    if Scheduler._instances:
        return
    with suppress(ValueError):
        default_client()
        return
    if dask.config.get("distributed.worker.multiprocessing-method") == "spawn":
        # Else Dask would import all of its optional packages here.
        distributed.utils._forkserver_preload_set = True
        forkserver.set_forkserver_preload(IMPORTED)
        own = ExitStack()
        own.enter_context(private_files())
        atexit.register(own.close)
        forkserver.ensure_running()
        dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"})
