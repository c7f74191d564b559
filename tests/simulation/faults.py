"""What happens to a history: a function of its seed."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PAIRS = [("h0", "h1"), ("h0", "h2"), ("h1", "h2")]
HOSTS = ("h0", "h1", "h2")

TOPOLOGIES: list[dict[str, Any]] = [
    {"nworkers_per_group": 2, "nservers_per_group": 2},
    {"nworkers_per_group": 3, "nservers_per_group": 3},
    {"nworkers_per_group": 4, "nservers_per_group": 2, "min_workers": 3},
    {"nworkers_per_group": 2, "nservers_per_group": 2, "server_worker_separate": True},
    {"nworker_groups": 2, "server_worker_separate": True},
    {"nworker_groups": 3, "nservers_per_group": 2, "server_worker_separate": True, "one_behind": True},
    {"nworker_groups": 3, "server_worker_separate": True, "max_staleness": 0},
    {"nworker_groups": 3, "nservers_per_group": 2, "server_worker_separate": True, "max_staleness": 2},
    {"nworker_groups": 2, "nworkers_per_group": 2, "server_worker_separate": True, "max_staleness": 1},
    {"nworker_groups": 3, "nserver_groups": 3},
    {"nworker_groups": 3, "nserver_groups": 3, "sync_freq": 3},
    {"nworker_groups": 4, "nserver_groups": 2, "nworkers_per_group": 2, "nservers_per_group": 2},
    {"nworker_groups": 2, "nserver_groups": 2, "server_worker_separate": True, "one_behind": True},
]

# How often each kind is drawn, and how long it lasts, in seconds.
KINDS: dict[str, tuple[int, tuple[float, ...]]] = {
    "kill": (8, (0.0,)),
    "kill for good": (2, (0.0,)),
    "stop": (4, (0.5, 3.0, 20.0)),
    "lose": (4, (0.5, 2.0, 8.0)),
    "delay": (3, (1.0, 4.0)),
    "duplicate": (4, (1.0, 4.0)),
    "reorder": (3, (1.0, 4.0)),
    "partition": (4, (0.5, 3.0, 14.0, 40.0)),
    "reboot": (2, (0.0,)),
    "lose host": (1, (0.0,)),
    "disk full": (2, (2.0, 10.0)),
    "lose driver": (1, (0.0,)),
    "stop driver": (1, (1.0, 20.0)),
    "second run": (1, (0.0,)),
    "start process": (1, (0.0,)),
    "join": (2, (0.0,)),
    "leave": (1, (0.0,)),
    "stop run": (1, (0.0,)),
}


@dataclass(frozen=True)
class Fault:
    """Something that happens `at` a time, for `lasts` seconds, to process, hosts or worker group number `who`, modulo
    how many there are then."""

    at: float
    kind: str
    who: int = 0
    lasts: float = 0.0

    def __str__(self) -> str:
        return f"{self.at:6.2f} s  {self.kind}" + f" {self.who}" + (f" for {self.lasts:g} s" if self.lasts else "")


@dataclass(frozen=True)
class Scenario:
    """All that a history is made of. hosts: of its Dask workers; spare: how many more than needed; slow: by how much a
    worker group is slower."""

    seed: int
    name: str
    topology: Mapping[str, Any]
    hosts: int = len(HOSTS)
    spare: int = 1
    nannies: bool = True
    max_restarts: int = 3
    slow: Mapping[int, float] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()

    def __str__(self) -> str:
        chosen = ", ".join(f"{name}={value}" for name, value in self.topology.items())
        more = f"{self.hosts} hosts, {self.spare} spare, max_restarts={self.max_restarts}" + (
            "" if self.nannies else ", no nannies"
        )
        lines = [f"seed {self.seed}, {self.name}: {chosen}; {more}", *(f"  {fault}" for fault in self.faults)]
        return "\n".join(lines)


# Histories that have broken other systems. Faults: kind, who, when, how long; times vary by up to 0.6 s.
HOGWILD = {"nworker_groups": 3, "nserver_groups": 3}
DOWNPOUR = {"nworker_groups": 3, "nservers_per_group": 2, "server_worker_separate": True}
SANDBLASTER = {"nworkers_per_group": 2, "nservers_per_group": 2, "server_worker_separate": True}
HYBRID = {"nworker_groups": 2, "nserver_groups": 2, "server_worker_separate": True, "one_behind": True}
ALLREDUCE = {"nworkers_per_group": 3, "nservers_per_group": 3}
KNOWN: dict[str, tuple[Mapping[str, Any], list[tuple[str, int, float, float]]]] = {
    # A server group that is new, and has no parameters yet, is soon the only one: it must not be the state of all.
    "a fresh server is the only one left": (
        HOGWILD,
        [("kill", 1, 2.0, 0.0), ("kill", 0, 2.5, 0.0), ("kill", 0, 2.9, 0.0)],
    ),
    # Repeated updates reach the old server, its successor, or both.
    "an update is acknowledged twice across a switch": (
        {**HOGWILD, "sync_freq": 3},
        [("duplicate", 0, 1.0, 4.0), ("lose", 2, 1.5, 2.0), ("kill", 0, 2.2, 0.0)],
    ),
    "a restarted worker group repeats its updates": (
        DOWNPOUR | {"one_behind": True},
        [("duplicate", 1, 1.0, 4.0), ("lose", 1, 1.5, 1.0), ("kill", 0, 2.0, 0.0), ("kill", 1, 3.2, 0.0)],
    ),
    "two supervisors": (
        DOWNPOUR,
        [("second run", 0, 0.5, 0.0), ("stop driver", 0, 1.0, 20.0), ("kill", 1, 2.0, 0.0), ("kill", 4, 3.0, 0.0)],
    ),
    "a driver is lost while a group forms": (
        DOWNPOUR,
        [("kill", 0, 1.6, 0.0), ("lose driver", 0, 2.2, 0.0), ("partition", 1, 2.4, 3.0)],
    ),
    # Stopped processes answer late, when others have taken their place.
    "the dead come back": (
        HOGWILD,
        [("stop", 1, 1.6, 20.0), ("partition", 1, 2.0, 20.0), ("kill", 2, 22.0, 0.0)],
    ),
    # Some ranks have made the update of a step, others have not, and one is in the midst of it.
    "ranks are lost within a step": (
        ALLREDUCE,
        [("kill", 1, 0.9, 0.0), ("kill", 0, 2.7, 0.0), ("stop", 2, 5.0, 20.0)],
    ),
    # What servers leave must be there again before they are lost again, and accounts must fit on both sides.
    "servers are lost one after the other": (
        DOWNPOUR | {"max_staleness": 1},
        [("kill", 3, 0.8, 0.0), ("kill", 4, 1.6, 0.0), ("kill", 4, 2.9, 0.0), ("kill", 0, 3.4, 0.0)],
    ),
    "neighbours are lost while they exchange": (
        HYBRID,
        [("duplicate", 1, 0.6, 4.0), ("kill", 2, 1.1, 0.0), ("kill", 2, 2.4, 0.0), ("kill", 3, 3.0, 0.0)],
    ),
    # What servers leave is on another host, and must be there again before that one is lost.
    "hosts are lost one after the other": (
        DOWNPOUR,
        [("reboot", 0, 0.8, 0.0), ("reboot", 1, 3.4, 0.0), ("reboot", 0, 6.5, 0.0)],
    ),
    "a host is lost before messages to replicas arrive": (
        DOWNPOUR,
        [("delay", 0, 0.7, 4.0), ("reboot", 0, 1.8, 0.0)],
    ),
    # Nobody may go on without its replica before the driver knows.
    "a server is cut off from its replica and lost": (
        DOWNPOUR,
        [("partition", 0, 0.7, 9.0), ("reboot", 0, 3.6, 0.0)],
    ),
    "a server group is lost with its memory": (
        HOGWILD | {"server_replicas": 0},
        [("reboot", 0, 1.6, 0.0), ("kill for good", 2, 3.0, 0.0)],
    ),
    # What ranks leave is gone with their host, and the newest checkpoint is in memory.
    "hosts of a synchronous group are lost": (
        ALLREDUCE,
        [("reboot", 0, 2.2, 0.0), ("reboot", 1, 5.2, 0.0)],
    ),
    # Servers are co-located, move to processes of their own, and are lost there or on the way.
    "a host is lost, and processes come one by one": (
        DOWNPOUR,
        [
            ("lose host", 1, 0.9, 0.0),
            *(("start process", 0, at, 0.0) for at in (3.0, 4.5, 6.5)),
            ("kill", 4, 8.0, 0.0),
        ],
    ),
    "workers and servers of a synchronous group": (
        SANDBLASTER,
        [("kill", 0, 0.9, 0.0), ("kill", 1, 3.0, 0.0), ("kill", 0, 5.5, 0.0), ("kill", 0, 5.6, 0.0)],
    ),
    "a synchronous group shrinks and grows": (
        ALLREDUCE,
        [("kill for good", 1, 0.9, 0.0), ("kill for good", 0, 1.9, 0.0), ("start process", 0, 4.0, 0.0)],
    ),
    "groups with servers shrink and grow": (
        {**SANDBLASTER, "nworker_groups": 2},
        [
            *(("kill for good", who, at, 0.0) for who, at in ((1, 0.9), (0, 2.2), (1, 3.5))),
            *(("start process", 0, at, 0.0) for at in (4.0, 5.5, 7.0)),
        ],
    ),
    # The newest memory counts, which is not that of the first start.
    "a driver is lost, and the next one too": (
        DOWNPOUR,
        [("lose driver", 0, 1.3, 0.0), ("lose driver", 0, 9.4, 0.0)],
    ),
    "a driver is lost with a host": (
        HYBRID,
        [("lose driver", 0, 1.3, 0.0), ("reboot", 0, 1.7, 0.0)],
    ),
    "a driver is lost with servers and their memory": (
        HOGWILD,
        [("lose driver", 0, 1.3, 0.0), ("kill for good", 2, 1.6, 0.0), ("kill", 0, 8.0, 0.0)],
    ),
    # What both have left is found, and the replica is older.
    "a server is lost after its replica": (
        DOWNPOUR,
        [("lose", 0, 0.7, 8.0), ("kill", 0, 6.0, 0.0)],
    ),
    # Nannies hold the memory of both runs.
    "another run begins while there is no driver": (
        HOGWILD,
        [("lose driver", 0, 1.2, 0.0), ("second run", 0, 2.0, 0.0)],
    ),
}
_KNOWN_SHARE = 0.2
_UNREPLICATED_SHARE = 0.4


def scenario(seed: int) -> Scenario:
    """The scenario of a seed."""
    draw = random.Random(seed)
    known = draw.random() < _KNOWN_SHARE
    if known:
        name = draw.choice(list(KNOWN))
        topology, planned = KNOWN[name]
        faults = [Fault(round(at + draw.uniform(0.0, 0.6), 3), kind, who, lasts) for kind, who, at, lasts in planned]
    else:
        name, topology, faults = "at random", draw.choice(TOPOLOGIES), _drawn(draw)
        if draw.random() < _UNREPLICATED_SHARE:
            topology = topology | {"server_replicas": 0}
    synchronous = topology.get("nworker_groups", 1) == 1
    return Scenario(
        seed,
        name,
        topology,
        hosts=draw.choice([1, 2, 3]) if synchronous else len(HOSTS),
        spare=draw.choice([0, 1, 4] if known else [0, 1, 1, 2, 4]),
        nannies=known or draw.random() < 0.85,
        max_restarts=3 if known else draw.choice([0, 1, 3, 3]),
        slow={group: draw.choice([0.0, 0.0, 0.3, 1.0]) for group in range(6)},
        faults=tuple(sorted(faults, key=lambda fault: fault.at)),
    )


def _drawn(draw: random.Random) -> list[Fault]:
    kinds, weights = list(KINDS), [weight for weight, _ in KINDS.values()]
    faults = []
    for _ in range(draw.choice([0, 1, 1, 2, 2, 3, 3, 4, 5])):
        kind = draw.choices(kinds, weights)[0]
        at = draw.choice([draw.uniform(0.0, 1.0), draw.uniform(0.5, 5.0), draw.uniform(0.5, 5.0), draw.uniform(4, 25)])
        faults.append(Fault(round(at, 3), kind, draw.randrange(12), draw.choice(KINDS[kind][1])))
    return faults
