"""A server with a replica, without processes."""

from __future__ import annotations

from support.servers import ones, server_plan

from singa_dask.ops import Ops
from singa_dask.server import Server, ServerShadow, partition
from singa_dask.server.kept import read_kept
from singa_dask.server.messages import Origin, Update
from singa_dask.server.replica import Replica

SIZE = 16


class Replicated:
    """A server with a replica, and the messages between the two."""

    def __init__(self, slices: int = 1, sides=(), left=None, generation: int = 1, **options) -> None:
        self.cut = partition(SIZE * slices, slices, 1, beside=False)
        self.generation, self.sides, self.options = generation, sides, {"groups": (0, 1), **options}
        accounts = dict.fromkeys(sides, (1, 1))
        self.protocol = server_plan(self.cut, accounts=accounts, **self.options).protocol(Ops())
        self.shadow = ServerShadow.create(self.protocol, (0, 1, generation), sides, accounts, lambda nbytes: True)
        if left is not None:
            self.protocol.restore(left)
        self.server = Server(self.protocol)

    def replicate(self) -> None:
        """A new replica that is whole."""
        self.server.replicate(self.shadow)
        self.replica = Replica.create(self.shadow.described, lambda nbytes: True)
        self.send(wait=True)

    def send(self, *, wait: bool = True) -> None:
        while pieces := self.server.lacking(wait=wait):
            assert self.replica.write(pieces)
            self.server.replicated(pieces)

    def successor(self) -> Replicated:
        """One that goes on from the replica, after the loss of the server and of its memory."""
        slices, *accounts = (shadow.address for shadow in self.replica.shadows)
        found = read_kept(self.shadow.described.moved([each.memory for each in (slices, *accounts)], "another nanny"))
        return Replicated(len(self.cut.slices), self.sides, found, self.generation + 1, **self.options)


def update(group: int, step: int, value: float = 1.0, index: int = 0) -> Update:
    return Update(index, Origin(group), step, ones(value, SIZE))
