"""The way to a server on another worker."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest

from singa_dask.errors import ClusterError
from singa_dask.server import link
from singa_dask.server.link import Address, ask, nbytes_of
from singa_dask.server.messages import Coded, Done, Get, Origin, Put, Update

THERE = Address("tcp://there:1", "server")


class Slow:
    """A Dask worker over a network on which a message and its reply take so long."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.attempts = seconds, 0

    def rpc(self, address: str) -> SimpleNamespace:
        return SimpleNamespace(actor_execute=self.execute)

    async def execute(self, **message: object) -> dict[str, object]:
        self.attempts += 1
        await asyncio.sleep(self.seconds)
        return {"status": "OK", "result": Done()}


def test_a_large_message_has_the_time_that_it_takes(monkeypatch):
    monkeypatch.setattr(link, "ATTEMPT_S", 0.05)
    worker = Slow(0.3)
    assert asyncio.run(ask(worker, THERE, Get(0, Origin(0)), 0.1, lambda: 2.0)) == Done()
    assert worker.attempts == 1
    with pytest.raises(ClusterError, match=r"has not answered Get for 0.1 s"):
        asyncio.run(ask(worker, THERE, Get(0, Origin(0)), 0.1))


def test_bytes_of_messages():
    values = np.zeros(10, np.float32)
    coded = Coded(10, "float32", {"name": "kHalf"}, np.zeros(20, np.uint8))
    assert nbytes_of(Put(0, values, {"m": values, "v": values})) == 120
    assert [nbytes_of(Update(0, Origin(0), 1, gradient)) for gradient in (values, coded)] == [40, 20]
    assert nbytes_of(Get(0, Origin(0))) == 0
