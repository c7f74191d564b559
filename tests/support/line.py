"""A line of server groups without a cluster, and schedules of what happens to it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st
from support.servers import Post, detached, ones, protocol

from singa_dask.server.messages import (
    Delta,
    Done,
    Inspect,
    OpenAccount,
    Origin,
    Put,
    Refused,
    Reply,
    State,
    Sync,
    Update,
)
from singa_dask.updaters import SGD, Updater

STEPS = 20  # of one origin: 2**20 is exact in float32
COUNT = 8  # element i holds the sum of 2**step of the updates that copy i made, element 8 + i how many they are


class Line:
    """Server groups, and the messages between them that are still under way."""

    def __init__(
        self, n: int, values: np.ndarray | None = None, sync_freq: int = 1, updater: type[Updater] = SGD
    ) -> None:
        self.updater = updater
        self.generations = [0] * n
        self.initial = ones(0.0) if values is None else values
        self.sync_freq = sync_freq
        self.posts = [self.server(i) for i in range(n)]
        self.steps = [0] * n
        self.updates = [0] * n  # ever made, by whichever server stood there
        self.syncs: list[tuple[int, Sync]] = []
        self.replies: list[tuple[int, Sync, Reply]] = []
        for post in self.posts:
            post.say(Put(0, self.initial))

    def __len__(self) -> int:
        return len(self.posts)

    def account(self, left: int) -> tuple[int, int]:
        return self.generations[left], self.generations[left + 1]

    def server(self, i: int) -> Post:
        sides = {"left": i - 1} if i else {}
        sides |= {"right": i} if i + 1 < len(self.generations) else {}
        accounts = {side: self.account(left) for side, left in sides.items()}
        return Post(protocol(groups=(i,), accounts=accounts, sync_freq=self.sync_freq, updater=self.updater))

    def values(self, i: int) -> np.ndarray:
        return self.posts[i].ask(Inspect(0)).values

    def update(self, i: int, gradient: np.ndarray | None = None) -> None:
        if gradient is None:
            gradient = np.zeros(16, np.float32)
            gradient[i], gradient[COUNT + i] = -(2.0 ** self.updates[i]), -1
        first = 0 if self.generations[i] == 0 else self.steps[i]
        reply = self.posts[i].ask(Update(0, Origin(i, self.generations[i], first), self.steps[i], gradient))
        assert not isinstance(reply, Refused)
        self.steps[i] += 1
        self.updates[i] += 1

    # One exchange, as ServerActor makes it, message by message

    def begin(self, i: int, *, force: bool = True) -> Sync | None:
        sync = self.posts[i].protocol.slices[0].begin_sync(force=force)
        if sync is not None:
            self.syncs.append((i, sync))
        return sync

    def arrive(self, at: int, *, keep: bool = False) -> None:
        i, sync = self.syncs[at] if keep else self.syncs.pop(at)
        self.replies.append((i, sync, detached(self.posts[i + 1].ask(sync))))

    def finish(self, at: int, *, keep: bool = False) -> None:
        i, sync, reply = self.replies[at] if keep else self.replies.pop(at)
        if isinstance(reply, Delta):
            self.posts[i].protocol.slices[0].finish_sync(sync, reply)
        else:
            with pytest.raises(ValueError, match="did not answer"):
                self.posts[i].protocol.slices[0].finish_sync(sync, reply)

    def flush(self, i: int) -> None:
        for _ in range(2):
            sync = self.posts[i].protocol.slices[0].begin_sync(force=True)
            reply = detached(self.posts[i + 1].ask(sync))
            assert isinstance(reply, Delta)
            self.posts[i].protocol.slices[0].finish_sync(sync, reply)

    def sweep(self) -> None:
        pairs = range(len(self) - 1)
        for i in (*pairs, *reversed(pairs)):
            self.flush(i)

    # As ServerActor.take_over and hand_on, message by message

    def replace(self, i: int) -> None:
        self.generations[i] += 1
        self.posts[i] = self.server(i)

    def take_over(self, i: int, neighbour: int) -> State:
        left = min(i, neighbour)
        request = OpenAccount(0, "left" if i == left else "right", self.account(left))
        state = self.posts[neighbour].ask(request)
        assert isinstance(state, State)
        return detached(state)

    def begin_as(self, i: int, neighbour: int, state: State) -> None:
        self.posts[i].say(Put(0, state.values, state.state, state.version, ledger=state.ledger))
        side = "right" if neighbour > i else "left"
        self.posts[i].protocol.slices[0].open_account(side, self.account(min(i, neighbour)))

    def hand_on(self, i: int, neighbour: int) -> Reply:
        left = min(i, neighbour)
        own, side = self.posts[i].protocol.slices[0], "right" if i == left else "left"
        known, ledger = own.open_account(side, self.account(left))
        request = OpenAccount(0, "left" if i == left else "right", self.account(left), known.copy(), ledger.copy())
        return self.posts[neighbour].ask(request)

    def restore(self, i: int) -> None:
        sides = [j for j in (i - 1, i + 1) if 0 <= j < len(self)]
        self.begin_as(i, sides[0], self.take_over(i, sides[0]))
        for neighbour in sides[1:]:
            assert self.hand_on(i, neighbour) == Done()


servers = st.integers(0, 3)
events = st.lists(
    st.one_of(
        st.tuples(st.just("update"), servers, st.booleans()),
        st.tuples(st.just("begin"), servers, st.booleans()),
        st.tuples(st.sampled_from(["arrive", "finish"]), st.integers(0, 50), st.booleans()),
        st.tuples(st.sampled_from(["lose sync", "lose reply"]), st.integers(0, 50), st.booleans()),
    ),
    max_size=60,
)


def happen(line: Line, event: tuple[str, int, bool], update=None) -> None:
    """One event of a schedule, where it is possible."""
    what, which, flag = event
    if what == "update" and line.updates[which % len(line)] < STEPS:
        line.update(which % len(line), update)
    elif what == "begin":
        line.begin(which % (len(line) - 1), force=flag)
    elif what == "arrive" and line.syncs:
        line.arrive(which % len(line.syncs), keep=flag)
    elif what == "finish" and line.replies:
        line.finish(which % len(line.replies), keep=flag)
    elif what == "lose sync" and line.syncs:
        del line.syncs[which % len(line.syncs)]
    elif what == "lose reply" and line.replies:
        del line.replies[which % len(line.replies)]
