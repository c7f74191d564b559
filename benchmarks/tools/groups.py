"""Groups of ranks that are timed turn by turn: all ranks are told the same line, and answer with their seconds."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any

from singa_dask.cluster.pmi_server import PmiServer
from tools.contest import FOLDER, environment, read
from tools.network import Host

FORMING_S = 60.0
# Of a turn: the first steps after a rest, with cold caches and a network that starts anew, are not the usual ones.
TURN_S = 0.5
LOOPBACK = "127.0.0.1"
NETWORK = {"UCX_TLS": "self,tcp"}
# UCX does not use TCP to where it is itself; libfabric does.
HERE = {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp"}


@dataclass
class Group:
    """Processes, one per rank.

    ready: what the first said at its start. warm: the runs that have been made once. chunks: steps in a turn, by run.
    """

    ranks: list[subprocess.Popen]
    ready: Mapping[str, Any] = field(default_factory=dict)
    warm: set[str] = field(default_factory=set)
    chunks: dict[str, int] = field(default_factory=dict)

    def run(self, name: str) -> dict[str, Any]:
        """A turn of this run: what the first rank answers, with the seconds of the slowest, and the `steps`."""
        self.warm_up(name)
        return self._ask(name, self.chunks[name])

    def warm_up(self, name: str) -> None:
        """Settle how many steps a turn has, by a step that is not the first, which compiles what it needs."""
        if name not in self.warm:
            self._ask(name, 1)
            self.warm.add(name)
        if name not in self.chunks:
            self.chunks[name] = max(1, min(100, round(TURN_S / self._ask(name, 1)["seconds"])))

    def _ask(self, name: str, steps: int) -> dict[str, Any]:
        self.tell({"run": name, "steps": steps})
        answers = [read(rank) for rank in self.ranks]
        return {**answers[0], "seconds": max(answer["seconds"] for answer in answers), "steps": steps}

    def tell(self, line: Mapping[str, Any]) -> None:
        """Write a line to every rank."""
        for rank in self.ranks:
            _write(rank, line)


@contextmanager
def our_group(
    net: str, variants: Mapping[str, Any], *, size: int = 2, hosts: Sequence[Host] = (), tcp: bool = False
) -> Iterator[Group]:
    """Ranks of singa_dask. hosts: of every rank; without them all are here, and share memory unless `tcp` is set."""
    with _our_group("group_ours", {"net": net, "variants": variants}, size, hosts, tcp=tcp) as group:
        yield group


@contextmanager
def partitioned_group(
    net: str, partitions: Mapping[str, Sequence[str]], *, size: int, hosts: Sequence[Host] = (), tcp: bool = False
) -> Iterator[Group]:
    """Ranks of singa_dask that share each mini-batch of a net. partitions: overrides of the job, by name."""
    plan = {"net": net, "partitions": partitions}
    with _our_group("group_partitioned", plan, size, hosts, tcp=tcp) as group:
        yield group


@contextmanager
def _our_group(
    program: str, plan: Mapping[str, Any], size: int, hosts: Sequence[Host], *, tcp: bool
) -> Iterator[Group]:
    nodes = list(range(size)) if hosts or tcp else [0] * size
    addresses = [host.address for host in hosts] or [LOOPBACK if tcp else ""] * size
    more = NETWORK if hosts else HERE if tcp else {}
    with hosts[0].network() if hosts else nullcontext():
        server = PmiServer(nodes, addresses[0] or LOOPBACK)
    with server:
        endpoint = asdict(server.endpoint)
        plans = [{"rank": rank, "host": addresses[rank], "endpoint": endpoint} for rank in range(size)]
        with _group(program, [{**rank, **plan, "size": size} for rank in plans], hosts, more) as group:
            yield group


@contextmanager
def ddp_group(net: str, size: int) -> Iterator[Group]:
    """Processes of PyTorch's DistributedDataParallel."""
    with socket.create_server((LOOPBACK, 0)) as free:
        port = free.getsockname()[1]
    plans = [{"net": net, "rank": rank, "size": size, "port": port} for rank in range(size)]
    with _group("group_ddp", plans, (), {"GLOO_SOCKET_IFNAME": "lo"}) as group:
        yield group


@contextmanager
def _group(
    name: str, plans: Sequence[Mapping[str, Any]], hosts: Sequence[Host], more: Mapping[str, str]
) -> Iterator[Group]:
    program = [sys.executable, str(FOLDER / "programs" / f"{name}.py")]
    group = Group([])
    try:
        for rank, plan in enumerate(plans):
            command = hosts[rank].command(program) if hosts else program
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            group.ranks.append(subprocess.Popen(command, text=True, env={**environment(1), **more}, **pipes))
            _write(group.ranks[-1], plan)
        group.ready, *_ = [read(rank) for rank in group.ranks]
        yield group
    finally:
        for process in group.ranks:
            process.kill()
            process.wait()


def _write(process: subprocess.Popen, line: Mapping[str, Any]) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(line) + "\n")
    process.stdin.flush()
