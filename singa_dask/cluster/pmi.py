"""The PMI-1 protocol, by which processes that were started separately become one MPI world. No IO.

An MPICH-family library (MPICH, Intel MPI, MVAPICH, Cray MPI) speaks PMI-1 on the descriptor PMI_FD: it asks for its
surroundings, publishes its network address (put), waits for the others (barrier_in), reads their addresses (get).
Around that, our own lines: every connection begins with `cmd=hello token=... rank=... size=...`; when every rank has
said so each gets `cmd=go` and only then enters MPI_Init, which nothing can interrupt; `cmd=ready` says it is through.

Source: MPICH, src/pmi; "PMI: A Scalable Parallel Process-Management Interface" (Balaji et al. 2010).
"""

from __future__ import annotations

import hmac
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

MAX_LINE = 4096
MAX_NAME, MAX_VALUE, MAX_KEYS_PER_RANK = 64, 1024, 256


@dataclass(frozen=True)
class Send:
    """Write this line to this connection."""

    connection: int
    line: str


@dataclass(frozen=True)
class Drop:
    """Close this connection."""

    connection: int
    reason: str


@dataclass
class _Rank:
    connection: int
    in_barrier: bool = False
    finalized: bool = False


@dataclass
class PmiState:
    """One world in the making. `handle` takes a line of a connection and says what to send and whom to drop.

    size: ranks of the world; token: what every connection must know; kvsname: unique to this world, as MPICH names its
    shared memory after it; mapping: which ranks share a node (see `process_mapping`).
    failure: why this world can never form, "" while it can.
    """

    size: int
    token: str
    kvsname: str
    mapping: str
    failure: str = ""
    ranks: dict[int, _Rank] = field(default_factory=dict)
    ready: set[int] = field(default_factory=set)
    _values: dict[str, str] = field(default_factory=dict)

    @property
    def formed(self) -> bool:
        """Every rank has left MPI_Init."""
        return len(self.ready) == self.size

    def missing(self) -> dict[int, str]:
        """The ranks that keep the world from forming, and how."""
        absent = {rank: "never connected" for rank in range(self.size) if rank not in self.ranks}
        if absent:
            return absent
        inside = {rank: state for rank, state in self.ranks.items() if rank not in self.ready}
        behind = [rank for rank, state in inside.items() if not state.in_barrier]
        return dict.fromkeys(behind or inside, "connected, but did not come out of MPI_Init")

    def handle(self, connection: int, line: str) -> list[Send | Drop]:
        """The consequences of a line from a connection."""
        fields = _parse(line)
        rank = self._rank_of(connection)
        if rank is None:
            return self._hello(connection, fields)
        if self.failure:
            return [Drop(connection, self.failure)]
        command = fields.get("cmd", "")
        if command == "put":
            return [Send(connection, self._put(fields))]
        if command == "get":
            return [Send(connection, self._get(fields))]
        if command == "barrier_in":
            return self._barrier(rank)
        if command == "ready":
            self.ready.add(rank)
            return []
        if command == "finalize":
            self.ranks[rank].finalized = True
            return [Send(connection, "cmd=finalize_ack rc=0")]
        if command == "abort":
            return self.fail(f"rank {rank} called MPI_Abort")
        return [Send(connection, self._surroundings(command))]

    def lost(self, connection: int) -> list[Send | Drop]:
        """The consequences of a connection that ended. One that never said hello has none."""
        rank = self._rank_of(connection)
        if rank is None or self.formed or self.ranks[rank].finalized:
            return []
        return self.fail(f"rank {rank} was lost while the group formed")

    def fail(self, reason: str) -> list[Send | Drop]:
        """Give this world up: every rank is dropped at once, because MPI_Init would wait for ever."""
        self.failure = self.failure or reason
        return [Drop(state.connection, self.failure) for state in self.ranks.values()]

    def _rank_of(self, connection: int) -> int | None:
        return next((rank for rank, state in self.ranks.items() if state.connection == connection), None)

    def _hello(self, connection: int, fields: dict[str, str]) -> list[Send | Drop]:
        token = fields.get("token", "").encode("utf-8", "replace")
        if fields.get("cmd") != "hello" or not hmac.compare_digest(token, self.token.encode()):
            return [Drop(connection, "not authenticated")]
        rank, size = _number(fields.get("rank")), _number(fields.get("size"))
        if size != self.size or rank is None or rank >= self.size or rank in self.ranks:
            reason = f"rank {fields.get('rank')} of {fields.get('size')} is not awaited in a world of {self.size}"
            return [Send(connection, "cmd=refused"), Drop(connection, reason)]
        if self.failure:
            return [Drop(connection, self.failure)]
        self.ranks[rank] = _Rank(connection)
        if len(self.ranks) < self.size:
            return []
        return [Send(state.connection, "cmd=go") for state in self.ranks.values()]

    def _surroundings(self, command: str) -> str:
        answers = {
            "init": "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1",
            "get_maxes": f"cmd=maxes rc=0 kvsname_max={MAX_NAME} keylen_max={MAX_NAME} vallen_max={MAX_VALUE}",
            "get_appnum": "cmd=appnum rc=0 appnum=0",
            "get_my_kvsname": f"cmd=my_kvsname rc=0 kvsname={self.kvsname}",
            "get_universe_size": f"cmd=universe_size rc=0 size={self.size}",
        }
        return answers.get(command, f"cmd={command[:MAX_NAME]} rc=-1 msg=not_supported")

    def _put(self, fields: dict[str, str]) -> str:
        key, value = fields.get("key", ""), fields.get("value", "")
        fits = 0 < len(key) <= MAX_NAME and len(value) <= MAX_VALUE
        if not fits or fields.get("kvsname") != self.kvsname or key in self._values:
            return "cmd=put_result rc=-1 msg=refused"
        if len(self._values) >= MAX_KEYS_PER_RANK * self.size:
            return "cmd=put_result rc=-1 msg=full"
        self._values[key] = value
        return "cmd=put_result rc=0 msg=success"

    def _get(self, fields: dict[str, str]) -> str:
        key = fields.get("key", "")
        value = self.mapping if key == "PMI_process_mapping" else self._values.get(key)
        if value is None or fields.get("kvsname") != self.kvsname:
            return "cmd=get_result rc=-1 msg=key_not_found value=unknown"
        return f"cmd=get_result rc=0 msg=success value={value}"

    def _barrier(self, rank: int) -> list[Send | Drop]:
        self.ranks[rank].in_barrier = True
        if len(self.ranks) < self.size or not all(state.in_barrier for state in self.ranks.values()):
            return []
        for state in self.ranks.values():
            state.in_barrier = False
        return [Send(state.connection, "cmd=barrier_out rc=0") for state in self.ranks.values()]


def process_mapping(nodes: Sequence[Hashable]) -> str:
    """MPICH's description of which rank runs on which node: blocks of (first node, nodes, ranks per node).

    >>> process_mapping(["a", "a", "b"])
    '(vector,(0,1,2),(1,1,1))'
    """
    numbers = {node: i for i, node in enumerate(dict.fromkeys(nodes))}
    blocks = [(numbers[node], len(list(run))) for node, run in groupby(nodes)]
    return f"(vector,{','.join(f'({node},1,{count})' for node, count in blocks)})"


def _parse(line: str) -> dict[str, str]:
    head, separator, value = line.partition(" value=")
    fields = dict(word.split("=", 1) for word in head.split() if "=" in word)
    if separator:
        fields["value"] = value.rstrip("\r\n")
    return fields


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 8 else None
