"""The ledger of a worker group's parameters, across a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from singa_dask.comm.communicator import Communicator
from singa_dask.exchange.portions import Gathered
from singa_dask.layers.partition import Portion
from singa_dask.server.ledger import Ledger

# Of a ledger that other groups extend while a checkpoint is written. It grows by some bytes with every restart.
_ROOM = 4096


def gather_ledgers(comm: Communicator, known: Ledger, held: Callable[[], Ledger | None]) -> Gathered:
    """The ledgers of all workers' slices: uint8 (workers, bytes), each row JSON and spaces. Collective.

    known: that this worker's slices have at least. held: returns the ledger of its slices (None: it has no slice) once
    their parameters were read; called when the array is gathered.
    """
    nbytes = int(comm.all_gather_number(2 * len(_json(known)) + _ROOM).max())
    portion = Portion((comm.size, nbytes), 0, tuple(range(comm.size + 1)), comm.rank)

    def elements(first: int, last: int) -> np.ndarray:
        ledger = held()
        row = (b"" if ledger is None else _json(ledger)).ljust(nbytes)
        if len(row) > nbytes:
            raise ValueError(f"the ledger has {len(row)} bytes, and the checkpoint has room for {nbytes}")
        return np.frombuffer(row, np.uint8)[first:last]

    return Gathered(comm, portion, portion.shape, np.uint8, elements)


def joint_ledger(rows: Any) -> Ledger:
    """The ledger of all parameters, of the array of `gather_ledgers`; an empty one if there is none."""
    texts = [] if rows is None else [row.tobytes() for row in np.asarray(rows)]
    return Ledger.joint(Ledger.decode(json.loads(text)) for text in texts if text.strip())


def share_ledger(comm: Communicator, ledger: Ledger) -> Ledger:
    """The first worker's ledger on every worker. Collective."""
    text = np.frombuffer(_json(ledger), np.uint8).copy()
    size = np.array([text.size])
    comm.broadcast(size)
    text = text if comm.rank == 0 else np.empty(int(size[0]), np.uint8)
    comm.broadcast(text)
    return Ledger.decode(json.loads(text.tobytes()))


def _json(ledger: Ledger) -> bytes:
    return json.dumps(ledger.encode()).encode()
