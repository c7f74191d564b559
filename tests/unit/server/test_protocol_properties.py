"""Worker groups and the slices of their servers, over a network that loses, repeats, delays and reorders."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from itertools import count

import numpy as np
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from support.servers import contained, detached, protocol

from singa_dask.server.messages import Done, Fresh, Get, Leave, Origin, Put, Refused, Reply, Request, Update
from singa_dask.server.protocol import ServerProtocol

NSLICES = 2  # each with a server of its own
STEPS = 16  # 2**STEPS is exact in float32
BITS, COUNT = 0, 8  # where a group's elements are: the sum of 2**step of its updates, and how many they are


def gradient(group: int, step: int) -> np.ndarray:
    g = np.zeros(16, np.float32)
    g[BITS + group], g[COUNT + group] = -(2.0**step), -1
    return g


@dataclass(frozen=True, eq=False)
class Ticket:
    """Who asks: one sending of one request."""

    number: int
    slice: int
    client: Client
    request: Request


@dataclass(eq=False)
class Client:
    """A worker group as its stub is, without IO. wants: unanswered requests by slice and name."""

    group: int
    generation: int
    behind: int
    first: int = 0
    step: int = 0
    phase: str = "putting"
    wants: dict[tuple[int, Hashable], Request] = field(default_factory=dict)
    answers: list[Fresh] = field(default_factory=list)
    versions: list[int] = field(default_factory=lambda: [0] * NSLICES)
    origin: Origin = field(default_factory=lambda: Origin(0))

    def begin(self) -> list[tuple[int, Request]]:
        self.origin = Origin(self.group, self.generation, self.first)
        return self._want("put", [Put(0, np.zeros(16, np.float32))] * NSLICES)

    def push(self) -> list[tuple[int, Request]]:
        updates = [Update(0, self.origin, self.step, gradient(self.group, self.step), v) for v in self.versions]
        self.step += 1
        return self._want(self.step - 1, updates)

    @property
    def may_push(self) -> bool:
        under_way = {name for _, name in self.wants}
        return self.phase == "training" and self.step < STEPS and len(under_way) <= self.behind

    @property
    def may_leave(self) -> bool:
        return self.phase == "training" and self.step >= STEPS and not self.wants

    def leave(self) -> list[tuple[int, Request]]:
        self.phase = "leaving"
        return self._want("leave", [Leave(0, self.origin)] * NSLICES)

    def hear(self, index: int, request: Request, reply: Reply) -> list[tuple[int, Request]]:
        """Take a reply to a request; returns what to say next."""
        name = request.step if isinstance(request, Update) else type(request).__name__.lower()
        if self.wants.pop((index, name), None) is None:
            return []  # the reply to a repetition
        assert not isinstance(reply, Refused), reply
        if isinstance(request, Get | Update):
            assert isinstance(reply, Fresh)
            self.versions[index] = reply.version
            self.answers.append(reply)
        else:
            assert reply == Done()
        if self.wants or self.phase == "training":
            return []
        if self.phase == "putting":
            self.phase, self.answers = "getting", []
            return self._want("get", [Get(0, self.origin)] * NSLICES)
        if self.phase == "getting":
            self.phase = "training"
            self.first = self.step = max(fresh.next_step for fresh in self.answers)
            clock = max(self.first, *(fresh.clock for fresh in self.answers))
            self.origin = replace(self.origin, first=self.first, clock=clock)
        elif self.phase == "leaving":
            self.phase = "gone"
        return []

    def _want(self, name: Hashable, requests: list[Request]) -> list[tuple[int, Request]]:
        said = list(enumerate(requests))
        self.wants |= {(index, name): request for index, request in said}
        return said


class Protocol(RuleBasedStateMachine):
    """Clients die and return; whoever is given up has its Leave said by the driver, again until it is answered."""

    @initialize(
        ngroups=st.integers(1, 3),
        late=st.integers(0, 2),
        bound=st.sampled_from([None, 0, 0, 1, 2]),
        behind=st.integers(0, 1),
    )
    def start(self, ngroups, late, bound, behind):
        self.bound, self.behind = bound, behind
        groups = range(max(1, ngroups - late))
        self.protocols: list[ServerProtocol] = [protocol(groups=groups, max_staleness=bound) for _ in range(NSLICES)]
        self.numbers = count()
        self.network: list[Ticket] = []
        self.replies: list[tuple[Ticket, Reply]] = []
        self.inside: dict[int, Ticket] = {}
        self.undisturbed = not late  # everybody is expected, and nobody has died
        self.applied = [{g: [] for g in range(ngroups)} for _ in range(NSLICES)]
        self.clients: dict[int, Client] = {}
        self.dead: dict[int, Client] = {}
        self.driver: list[Client] = []
        self.others = list(range(ngroups))
        for group in groups:
            self.others.remove(group)
            self.join(Client(group, 0, behind))

    def join(self, client: Client) -> None:
        self.clients[client.group] = client
        self.send(client, client.begin())

    def send(self, client: Client, said: list[tuple[int, Request]]) -> None:
        self.network += [Ticket(next(self.numbers), index, client, request) for index, request in said]

    # What may happen

    @precondition(lambda self: self.others)
    @rule()
    def come_late(self):
        self.join(Client(self.others.pop(0), 0, self.behind))

    @rule(data=st.data())
    def push(self, data):
        ready = [c for c in self.clients.values() if c.may_push]
        if ready:
            client = data.draw(st.sampled_from(ready))
            self.send(client, client.push())

    @precondition(lambda self: self.network)
    @rule(pick=st.integers(0, 1000), kept=st.booleans())
    def deliver(self, pick, kept):
        at = pick % len(self.network)
        self.arrive(self.network[at])
        if kept:  # a second copy is still under way
            self.network[at] = replace(self.network[at], number=next(self.numbers))
        else:
            del self.network[at]

    @precondition(lambda self: self.network)
    @rule()
    def deliver_the_oldest(self):
        self.arrive(self.network.pop(0))

    @precondition(lambda self: self.network)
    @rule(pick=st.integers(0, 1000))
    def lose(self, pick):
        del self.network[pick % len(self.network)]

    @precondition(lambda self: self.replies)
    @rule(pick=st.integers(0, 1000))
    def deliver_reply(self, pick):
        self.hear(*self.replies.pop(pick % len(self.replies)))

    @precondition(lambda self: self.replies)
    @rule()
    def deliver_all_replies(self):
        while self.replies:
            self.hear(*self.replies.pop(0))

    @precondition(lambda self: self.replies)
    @rule(pick=st.integers(0, 1000))
    def lose_reply(self, pick):
        del self.replies[pick % len(self.replies)]

    @rule()
    def repeat(self):
        for client in (*self.clients.values(), *self.driver):
            self.send(client, [(index, request) for (index, _), request in client.wants.items()])

    @precondition(lambda self: self.inside)
    @rule(pick=st.integers(0, 1000))
    def withdraw(self, pick):
        """The server tells a client to ask again."""
        ticket = list(self.inside.values())[pick % len(self.inside)]
        if isinstance(ticket.request, Update):
            assert self.protocols[ticket.slice].slices[0].withdraw(ticket.number)
            del self.inside[ticket.number]

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), given_up=st.booleans())
    def die(self, data, given_up):
        self.undisturbed = False
        client = self.dead[group] = self.clients.pop(group := data.draw(st.sampled_from(sorted(self.clients))))
        if given_up:
            self.give_up(client)

    @precondition(lambda self: self.dead)
    @rule(data=st.data(), back=st.integers(0, 3))
    def return_anew(self, data, back):
        self.come_back(data.draw(st.sampled_from(sorted(self.dead))), back)

    def come_back(self, group: int, back: int = 0) -> None:
        client = self.dead.pop(group)
        self.join(Client(group, client.generation + 1, self.behind, first=max(0, client.step - back)))

    def give_up(self, client: Client) -> None:
        driver = Client(client.group, client.generation, 0, origin=Origin(client.group, client.generation))
        self.driver.append(driver)
        self.send(driver, driver.leave())

    # What must hold

    def arrive(self, ticket: Ticket) -> None:
        self.inside[ticket.number] = ticket
        given = []
        for sender, reply in self.protocols[ticket.slice].handle(ticket.number, ticket.request):
            asked = self.inside.pop(sender)  # whoever asked, and has not been answered
            assert asked.slice == ticket.slice
            given.append((asked, detached(reply)))
        self.look(ticket.slice)
        for asked, reply in given:
            if isinstance(reply, Fresh):
                self.check(asked, reply)
        self.replies += given

    def look(self, index: int) -> None:
        """Every update was applied once at most, and those of a group in order."""
        state = self.protocols[index].slices[0]
        if state.values is None:
            return
        for group, before in self.applied[index].items():
            sum_, n = int(state.values[BITS + group]), int(state.values[COUNT + group])
            steps = [step for step in range(STEPS) if sum_ >> step & 1]
            assert sum_ == sum(2**step for step in steps) and len(steps) == n, "an update was applied twice"
            assert steps[: len(before)] == before, "an earlier step was applied after a later one"
            assert contained(state.ledger, group) == {*steps}, "the ledger says something else"
            self.applied[index][group] = steps
        if self.undisturbed and self.bound is not None:
            progress = [len(steps) for group, steps in self.applied[index].items() if group in state.groups]
            gone = [not state.members[group].active for group in state.groups]
            assert any(gone) or max(progress) - min(progress) <= self.bound
        assert state.version == sum(map(len, self.applied[index].values()))

    def check(self, asked: Ticket, reply: Fresh) -> None:
        """Parameters are what they are said to be, and given to nobody who is too far ahead."""
        request = asked.request
        assert reply.values[COUNT:].sum() == reply.version
        groups = [group for group in range(COUNT) if reply.values[COUNT + group]]
        assert sum(len(contained(reply.ledger, group)) for group in groups) == reply.version
        if isinstance(request, Update):
            assert request.step in self.applied[asked.slice][request.origin.group]
            assert reply.next_step > request.step
            if self.undisturbed and self.bound is not None:
                progress = [len(steps) for steps in self.applied[asked.slice].values()]
                assert request.step + 1 - min(progress) <= self.bound

    def hear(self, asked: Ticket, reply: Reply) -> None:
        client = asked.client
        if client is self.clients.get(client.group) or client in self.driver:
            self.send(client, client.hear(asked.slice, asked.request, reply))

    def teardown(self):
        """Once the network is fair, everybody comes to the end."""
        if not hasattr(self, "protocols"):
            return
        while self.others:
            self.come_late()
        for group in sorted(self.dead):
            if group % 2:
                self.give_up(self.dead.pop(group))
            else:
                self.come_back(group)
        if not self.clients:
            self.join(Client(3, 0, self.behind))
            for index in range(NSLICES):
                self.applied[index][3] = []
        for _ in range(STEPS * 12):
            everybody = [*self.clients.values(), *self.driver]
            if all(c.phase == "gone" for c in everybody):
                break
            for client in everybody:
                while client.may_push:
                    self.send(client, client.push())
                if client.may_leave:
                    self.send(client, client.leave())
            while self.network:
                self.arrive(self.network.pop(0))
            self.deliver_all_replies()
            self.repeat()
        else:
            raise AssertionError(f"{[(c.group, c.phase, c.step, list(c.wants)) for c in everybody]} wait for ever")
        for client in self.clients.values():
            for index in range(NSLICES):
                assert self.applied[index][client.group][-1:] in ([STEPS - 1], [])
                made = [step for step in self.applied[index][client.group] if step >= client.first]
                assert made == list(range(client.first, STEPS)), "an update was lost"


TestProtocol = Protocol.TestCase
# Making a failure small takes minutes: for that, add Phase.shrink and a pytest.mark.timeout.
TestProtocol.settings = settings(
    max_examples=18,
    stateful_step_count=60,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
