"""Servers that are lost, themselves or with their driver, and resume from what they have left in memory."""

from dataclasses import replace

import pytest
from support.played_groups import failed, found, left_by
from support.supervised import DOWNPOUR, HOGWILD, SANDBLASTER, Case, Run, becomes

from singa_dask.server.ledger import Ledger
from singa_dask.supervision import events as ev
from singa_dask.supervision.events import Inherited
from singa_dask.training.forms import OUTDATED

ONE, TWO, THREE = ({"spare": spare} for spare in (1, 2, 3))
# All server groups are kept in memory, and worker groups have made 20 steps.
KEPT = ["begin", {"kept": {0, 1, 2}}, ("progress", 0, 20)]

BACK: dict[str, Case] = {
    "worker groups wait for servers that come back": (
        DOWNPOUR | ONE,
        [*KEPT, ("lose_servers", "w3"), "settle"],
        {
            "made": [([], [0])],
            "fresh": [True, False],
            "from": ["generation 1"],
            "restarts": [((), (), (0,))],
            "counted": [0, 0, 1],
        },
    ),
    "a synchronous group that is lost with its servers goes on too": (
        SANDBLASTER | THREE,
        [*KEPT, ("kill", "w1"), ("lose_servers", "w3", "w4"), "settle"],
        {"made": [([0], [0])], "from": ["generation 1"], "fresh": [True, False], "back": []},
    ),
    "a synchronous group goes on with its servers": (
        SANDBLASTER | ONE,
        [*KEPT, {"found": found(10)}, ("lose", 0), "settle"],
        {"made": [([0], [])], "begin": {0: 20}, "resume": {}, "put": []},
    ),
    "a group gives parameters to servers that may have none": (
        DOWNPOUR | ONE,
        ["begin", ("lose", 0), "settle"],
        {"put": [0]},
    ),
    "whatever late news of it come": (
        DOWNPOUR | ONE,
        ["begin", ("lose", 0), ("progress", 0, 3), "settle"],
        {"put": [0]},
    ),
    "and to no others": (DOWNPOUR | ONE, ["begin", ("progress", 1, 3), ("lose", 0), "settle"], {"put": []}),
    "servers that are stopped are replaced at once": (
        DOWNPOUR,
        [*KEPT, ("servers_stop", "w3")],
        {"killed": ["w3"], "phases": ["running", "running", "lost"]},
    ),
    "a worker group that is lost with its server goes on where it was": (
        HOGWILD | ONE,
        [*KEPT, ("progress", 1, 20), ("lose", 1), "settle"],
        {
            "made": [([1], [1])],
            "from": ["workers", "generation 1", "workers"],
            "begin": {0: 0, 1: 20, 2: 0},
            "met": [2, 1, 0],
            "restarts": [((1,), (), (1,))],
        },
    ),
    "worker groups whose servers come back in vain are formed again": (
        DOWNPOUR,
        [*KEPT, ("lose_servers", "w3"), "go_on", {"kept": set()}, "start", "settle"],
        {"made": [([0, 1], [0])], "fresh": [True, True], "restarts": [((), (), (0,)), ((0, 1), (0,), ())]},
    ),
    "what an earlier generation has left is void": (
        DOWNPOUR | TWO,
        [
            *KEPT,
            ("lose_servers", "w3"),
            "settle",
            {"kept": set(), "left": left_by(0, 1, 0)},
            ("lose_servers", "w4"),
            "settle",
        ],
        {"made": [([], [0]), ([0, 1], [0])], "fresh": [True, False, True]},
    ),
    "a run that is being stopped waits for its servers": (
        DOWNPOUR | ONE,
        [*KEPT, "stop", ("lose_servers", "w3"), "settle", ("end", 1, 0), "settle"],
        {"made": [([], [0])], "phases": ["ended", "ended", "running"], "over": "well"},
    ),
    "servers of a run that is being stopped are co-located after a while": (
        DOWNPOUR,
        [*KEPT, "stop", ("lose_servers", "w3"), "go_on", {"clock": 31.0}, "settle"],
        {"servers": ["w1"], "phases": ["running"] * 3},
    ),
}

HOSTS = DOWNPOUR | {"nservers_per_group": 2, "spare": 2, "hosts": 2}  # w1, w3, w5 and w2, w4, w6
REPLICAS: dict[str, Case] = {
    "servers have replicas on another host": (HOSTS, ["begin"], {"replicas": [["n2", "n3"]]}),
    "one host has none": (HOSTS | {"hosts": 1}, ["begin"], {"replicas": [["", ""]]}),
    "unless they are wanted": (
        HOSTS | {"hosts": 1, "server_replicas": 1},
        ["begin"],
        {"replicas": [["n1", "n2"]]},
    ),
    "nor have servers any if none are wanted": (HOSTS | {"server_replicas": 0}, ["begin"], {"replicas": [["", ""]]}),
    "a lost replica is replaced": (
        HOSTS,
        ["begin", ("handle", ev.ReplicaLost(0, 1, 0, 1, True))],
        {"replicas": [["n4", "n3"]]},
    ),
    "a server resumes from its replica": (
        HOSTS,
        ["begin", {"left": left_by(0, 1, 0, 1)}, ("lose_servers", "w3", "w4"), "settle"],
        {"made": [([], [0])], "from": ["generation 1"], "restarts": [((), (), (0,))]},
    ),
    "or from the one after it": (
        HOSTS,
        [
            *("begin", ("handle", ev.ReplicaLost(0, 1, 1, 1, True)), {"left": left_by(0, 1, 1, 2)}),
            *(("lose_servers", "w3", "w4"), "settle"),
        ],
        {"made": [([], [0])], "from": ["generation 1"], "restarts": [((), (), (0,))]},
    ),
    "a replica that was lost does not count": (
        HOSTS,
        [
            *("begin", ("handle", ev.ReplicaLost(0, 1, 1, 1, True)), {"left": left_by(0, 1, 0, 1)}),
            *(("lose_servers", "w3", "w4"), "settle"),
        ],
        {"made": [([0, 1], [0])], "restarts": [((0, 1), (0,), ())]},
    ),
}


def ledger(*steps: int) -> Ledger:
    """Of two worker groups that have made so many steps."""
    made = Ledger()
    made.begin(2, 0)
    for group, count in enumerate(steps):
        for step in range(count):
            made.add(group, step)
    return made


def inherits(steps=None, replica=0, **about):
    """What is left, by server group, when a driver is lost whose newest checkpoint has steps (10, 8)."""
    steps = steps or {0: (30, 20)}
    inherited = Inherited(ledgers={f"server group {group}": ledger(*of) for group, of in steps.items()}, **about)
    saved = replace(found(10), ledger=ledger(10, 8))
    left = {name: of for group in steps for name, of in left_by(group, 3, replica).items()}
    return {"left": left, "inherited": inherited, "found": saved}


SECOND = DOWNPOUR | ONE | {"starts": 1, "steps": {0: 10}}
VOID = {"fresh": [True], "restarts": [], "back": [((0, 1), 10)], "resume": dict.fromkeys((0, 1), found(10).copies)}
INHERITED: dict[str, Case] = {
    "servers resume from memory, and worker groups ask them for their step": (
        SECOND,
        [inherits(), "begin"],
        {
            "fresh": [False],
            "from": ["generation 3"],
            "restarts": [((0, 1), (), (0,))],
            "lost at": [0],
            "back": [],
            "let go": 1,
        },
    ),
    "memory of servers that never had parameters is void: worker groups give them some": (
        DOWNPOUR | TWO,
        [*KEPT, ("lose_servers", "w3"), ("not_formed", failed(), {"lost": True, "void": (0,)}), "settle"],
        {"fresh": [True, False, True], "put": [0], "from": ["workers"]},
    ),
    "memory of another net is void": (SECOND, [inherits(fits=False), "begin"], VOID),
    "memory with fewer updates than the checkpoint is void": (SECOND, [inherits({0: (5, 12)}), "begin"], VOID),
    "with as many it counts, though it lacks some of the checkpoint": (
        SECOND,
        [inherits({0: (5, 13)}), "begin"],
        {"fresh": [False], "from": ["generation 3"], "back": []},
    ),
    "so do those of several server groups together": (
        SECOND | HOGWILD | {"server_worker_separate": False},
        [inherits({1: (4, 14), 2: (6, 6)}), "begin"],
        {"fresh": [False], "from": ["server group 1", "generation 3", "generation 3"], "back": []},
    ),
    "a server group that has left nothing takes over a neighbour's parameters": (
        SECOND | HOGWILD | {"server_worker_separate": False},
        [inherits({1: (30, 20)}), "begin"],
        {"from": ["server group 1", "generation 3", "server group 1"], "restarts": [((0, 1, 2), (0, 2), (1,))]},
    ),
    "an attempt that fails is repeated from the same memory, and recorded once": (
        SECOND,
        [inherits(), ("handle", None), ("not_formed", failed(), {"lost": True}), "settle"],
        {"fresh": [False, False], "from": ["generation 3"], "restarts": [((0, 1), (), (0,)), ((0,), (), ())]},
    ),
    "what an earlier start has left is void once this one has begun": (
        SECOND,
        [inherits(), "begin", ("lose_servers", "w3"), "settle"],
        {"fresh": [False, True], "made": [([0, 1], [0])]},
    ),
}

CASES = BACK | REPLICAS | INHERITED


@pytest.mark.parametrize("case", CASES)
def test_what_servers_go_on_from(monkeypatch, case):
    assert becomes(monkeypatch, CASES[case]) == CASES[case][2]


def test_a_lost_replica_is_told_and_recorded_once(monkeypatch):
    run = Run(monkeypatch, **HOSTS).begin()

    def kinds(replica, *, awaited):
        return [type(command) for command in run.handle(ev.ReplicaLost(0, 1, 0, replica, awaited))]

    assert kinds(1, awaited=True) == [ev.Note, ev.RecordOutdated, ev.ReplaceReplica]
    assert kinds(1, awaited=True) == [ev.ReplaceReplica], "repeated"
    assert kinds(2, awaited=False) == [ev.ReplaceReplica], "never whole"
    assert run.all(ev.RecordOutdated) == [ev.RecordOutdated(0, 1, 0, 1)]


def test_a_server_of_a_lost_group_does_not_hear_that_its_replica_is_known_to_be_lost(monkeypatch):
    """Its successor may have read the replica, and know nothing that it acknowledges from now on."""
    run = Run(monkeypatch, **HOSTS | {"spare": 0}).play(["begin", {"left": left_by(0, 1, 1, 1)}])
    lost = ev.ReplicaLost(0, 1, 0, 1, awaited=True)
    run.lose_servers("w3", "w4")
    assert run.handle(lost) == []
    run.answer()
    assert run.handle(lost) == [] and run.server_groups[0].outdated == {}
    run.play(["start", "start", "settle"])
    assert run.servers[0].parameters == "generation 1"
    assert run.handle(lost) == [], "of the former generation"


@pytest.mark.parametrize(("group", "counts"), [(9, True), (0, False)])
def test_a_replica_that_the_lost_driver_knew_to_be_outdated_does_not_count(monkeypatch, group, counts):
    run = Run(monkeypatch, **SECOND).play([inherits(replica=1)])
    lost = {"server_group": group, "generation": 3, "rank": 0, "replica": 1}
    run.members.recall([{"event": "start", "step": 0}, {"event": OUTDATED, **lost}])
    assert [request.fresh for request in run.begin().requests] == [not counts]
