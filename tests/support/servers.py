"""Servers without a cluster, whose updater subtracts gradients, so that sums of integers are exact."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np

from singa_dask.net.flat import Entry
from singa_dask.ops import Ops
from singa_dask.server import Partition, ServerPlan, partition
from singa_dask.server.ledger import Contained, Ledger
from singa_dask.server.messages import Reply, Request
from singa_dask.server.protocol import ServerProtocol
from singa_dask.updaters import SGD, Updater


def server_plan(
    cut: Partition, server: int = 0, key: str = "server", updater: type[Updater] = SGD, **options: Any
) -> ServerPlan:
    """The plan of one server of `cut`, with an updater of learning rate 1."""
    entries = (Entry("w", (cut.size,), 0, cut.size),)
    return ServerPlan(updater(lr=1.0).proto.SerializeToString(), entries, cut.of_server(server), key, **options)


def protocol(size: int = 16, **options: Any) -> ServerProtocol:
    """The protocol of a server with one slice, of index 0, on NumPy."""
    return server_plan(partition(size, 1, 1, beside=False), **options).protocol(Ops())


def ones(value: float = 1.0, size: int = 16) -> np.ndarray:
    return np.full(size, value, np.float32)


def detached(reply: Reply) -> Reply:
    """The reply with copies of its arrays and its ledger, as the network would make them."""
    arrays = {f.name: getattr(reply, f.name) for f in fields(reply)}
    return replace(reply, **{k: v.copy() for k, v in arrays.items() if isinstance(v, np.ndarray | Ledger)})


def contained(ledger: Ledger, group: int) -> set[int]:
    """The steps of a group in the current assignment, each of which all elements contain once."""
    of = ledger.assignments[ledger.assignment].get(group, Contained())
    assert of.by_all == of.by_any and not of.twice
    return {step for first, last in zip(of.by_all[::2], of.by_all[1::2], strict=True) for step in range(first, last)}


async def until(condition: Callable[[], object]) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the condition never held")


class Post:
    """A client of a protocol: `said` is the number of its last request, `got` has the replies by number."""

    def __init__(self, to: ServerProtocol) -> None:
        self.protocol = to
        self.said = 0
        self.got: dict[int, Reply] = {}

    def say(self, request: Request) -> int:
        """The number of the request; its reply, and any that it makes possible, are in `got`."""
        self.said += 1
        for sender, reply in self.protocol.handle(self.said, request):
            assert 0 < sender <= self.said and sender not in self.got, "a reply to nobody, or a second one"
            self.got[sender] = detached(reply)
        return self.said

    def ask(self, request: Request) -> Any:
        """The reply, which must come at once."""
        return self.got[self.say(request)]

    def waits(self, number: int) -> bool:
        return number not in self.got
