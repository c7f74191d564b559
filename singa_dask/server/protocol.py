"""The protocol of a server, without IO.

A message goes in; the replies that it makes possible come out. Some requests have to wait: any request before the
slice's Put, a Get for a future version, an Update whose predecessor is under way or whose group is too far ahead. In
lock-step an Update waits for the updates of all groups, so a repeated request gets the same reply as the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from singa_dask.ops import Ops
from singa_dask.server.kept import Keeper, Left
from singa_dask.server.messages import Refused, Request
from singa_dask.server.slice_protocol import Answer, Sender, SliceProtocol
from singa_dask.server.slices import ParameterSlice
from singa_dask.updaters import Updater


class ServerProtocol:
    """The state of a server's slices, and its reactions to messages.

    groups: the expected worker groups; dealt_to: how many share the training data; max_staleness: how many updates a
    group may be ahead of the slowest one, None for no bound (Downpour), 0 for lock-step. sync_freq: updates between
    two exchanges with the right neighbour. accounts: by side ("left", "right"), the generations of existing
    neighbours. copy: False to update the arrays of Put in place. keepers: by slice, of those that are saved before
    anything is answered.

    Not thread-safe. Replies hold live arrays, valid until the next message.
    """

    def __init__(
        self,
        slices: Sequence[ParameterSlice],
        make_updater: Callable[[ParameterSlice], Updater],
        ops: Ops,
        *,
        groups: Iterable[int] = (0,),
        dealt_to: int = 1,
        max_staleness: int | None = None,
        sync_freq: int = 1,
        accounts: Mapping[str, tuple[int, int]] | None = None,
        copy: bool = True,
        keepers: Mapping[int, Keeper] | None = None,
    ) -> None:
        self.dtype = ops.dtype
        shared = ops, tuple(groups), dealt_to, max_staleness, sync_freq, dict(accounts or {}), copy
        self.slices = {
            s.index: SliceProtocol(s.index, s.size, make_updater(s), *shared, keeper=(keepers or {}).get(s.index))
            for s in slices
        }

    def restore(self, left: Left) -> None:
        """Go on from what a lost server has left. A slice of which nothing was saved waits for its Put."""
        for state in self.slices.values():
            state.restore(left)

    def handle(self, sender: Sender, request: Request) -> list[Answer]:
        """Take a message. Returns all replies that are now possible, to this or earlier messages."""
        if request.slice in self.slices:
            return self.slices[request.slice].handle(sender, request)
        return [Answer(sender, Refused(f"slice {request.slice} is not on this server, which has {list(self.slices)}"))]
