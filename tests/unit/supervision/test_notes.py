"""What a run's state says, and when: every code, once. test_words.py has the sentences."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from support.played_groups import deposit, found, left_by
from support.supervised import ALLREDUCE, DOWNPOUR, HOGWILD, SANDBLASTER, Run

from singa_dask.errors import ClusterError, ConfigError, Problem
from singa_dask.server.ledger import Ledger
from singa_dask.supervision import events as ev
from singa_dask.supervision.events import Inherited
from singa_dask.supervision.facts import Code, Fact

ONE = {"spare": 1}
KEPT = {"kept": {0, 1, 2}}
TRIO = {"nworkers_per_group": 3, "nservers_per_group": 3, "least": 1}
LEFT = {"left": {"worker group 0": ("0", "1", "2")}}
TOO_BIG = ConfigError(Problem("neuralnet", "needs 9.0 GB per worker"))
AGAIN = DOWNPOUR | {"starts": 1, "steps": {0: 10}}
HOSTS = DOWNPOUR | {"hosts": 3}
AHEAD = Ledger()
AHEAD.begin(2, 0)
AHEAD.add(0, 0)
FULL = ev.LeadTold(True, False, "out of memory")
IN_VAIN = ["begin", ("lose", 0), "go_on", {"clock": 31.0}, "go_on"]
# A code and the names that it is about, and the run in which it is in one note, reply or error.
SAID = {
    (Code.FROM_CHECKPOINT, 50): (
        ALLREDUCE | ONE,
        ["begin", {"found": found(50)}, ("progress", 0, 77), ("lose", 0), "settle"],
    ),
    (Code.FROM_CHECKPOINT_IN_MEMORY, 70): (
        ALLREDUCE | ONE,
        ["begin", {"found": found(70, deposit("its contents"))}, ("lose", 0), "settle"],
    ),
    (Code.FROM_RANKS,): (ALLREDUCE | ONE, ["begin", LEFT, ("lose_host", 0), "settle"]),
    (Code.FROM_SERVERS,): (DOWNPOUR | ONE, ["begin", ("lose", 1), "settle"]),
    (Code.FROM_NEIGHBOUR,): (HOGWILD | ONE, ["begin", ("lose", 1), "settle"]),
    (Code.WITH_EVERYTHING,): (HOGWILD | ONE, ["begin", KEPT, ("lose", 1), "settle"]),
    (Code.RESTARTED, 77, 1, 3, True): (ALLREDUCE | ONE, ["begin", ("progress", 0, 77), ("lose", 0), "settle"]),
    (Code.RESTARTED, "worker group 1", 0, 1, 3, False): (DOWNPOUR | ONE, ["begin", ("lose", 1), "settle"]),
    (Code.RESTARTED, "worker group 1", "server group 1"): (HOGWILD | ONE, ["begin", KEPT, ("lose", 1), "settle"]),
    (Code.RESTARTED, "worker group 0", "worker group 1"): (
        DOWNPOUR | ONE,
        ["begin", ("lose_servers", "w3"), "settle"],
    ),
    (Code.SERVERS_DIED, "server group 0", ("w3", "w4")): (
        SANDBLASTER | {"spare": 2},
        ["begin", KEPT, ("lose_servers", "w3", "w4"), "settle"],
    ),
    (Code.SERVERS_GONE, "worker group 0", 0): (
        DOWNPOUR,
        ["begin", KEPT, ("lose_servers", "w3"), "go_on", {"kept": set()}, "start", "settle"],
    ),
    (Code.UNKEPT, "server group 0"): (DOWNPOUR, [{"keeps": False}, "begin"]),
    (Code.REPLICATED,): (HOSTS, ["begin"]),
    (Code.REPLICA_LOST, "server group 0", 0): (HOSTS, ["begin", ("handle", ev.ReplicaLost(0, 1, 0, 1, True))]),
    (Code.EXCHANGE_FAILED, "out of memory"): (
        HOGWILD,
        ["begin", ("end", 1, 2), ("answer", ev.TellLead, FULL), "settle"],
    ),
    (Code.STOPPING, "Ctrl-C"): (DOWNPOUR, ["begin", "stop", "stop"]),
    (Code.ENDS_HERE,): (HOGWILD, ["begin", "stop", ("lose_servers", "w3"), "settle"]),
    (Code.NOT_JOINED, "worker group 2", "ClusterError"): (
        DOWNPOUR | ONE,
        ["begin", {"fault": ClusterError("w4 is in use")}, "join", "settle"],
    ),
    (Code.LEFT, "worker group 1", "its process died"): (DOWNPOUR, ["begin", ("leave", 1), ("lose", 1), "settle"]),
    (Code.LEFT_OUT, "worker group 1"): (DOWNPOUR, ["begin", ("lose_host", 1), "go_on", {"clock": 31.0}, "settle"]),
    (Code.NOT_BACK, "server group 2"): (
        HOGWILD,
        ["begin", ("end", 2), ("lose_servers", "w3"), "go_on", "stop", {"clock": 31.0}, "go_on"],
    ),
    (Code.BEGINS_IN_MEMORY, 70): (
        ALLREDUCE | {"starts": 1, "steps": {0: 40}},
        [{"found": found(70, deposit("its contents"))}, "begin"],
    ),
    (Code.TAKEN_OVER, "server group 0"): (
        AGAIN,
        [{"left": left_by(0, 3, 0), "inherited": Inherited(ledgers={"server group 0": Ledger()})}, "begin"],
    ),
    (Code.NOT_TAKEN_OVER, 10): (AGAIN, [{"inherited": Inherited(fits=False), "found": found(10)}, "begin"]),
    (Code.MISFIT,): (AGAIN, [{"inherited": Inherited(fits=False)}, "begin"]),
    (Code.FEWER,): (
        AGAIN,
        [
            {"left": left_by(0, 3, 0), "inherited": Inherited(ledgers={"server group 0": Ledger()})},
            *({"found": replace(found(10), ledger=AHEAD)}, "begin"),
        ],
    ),
    (Code.TORN, ("server group 0",)): (AGAIN, [{"inherited": Inherited(torn=("server group 0",))}, "begin"]),
    (Code.GONE,): (AGAIN, [{"inherited": Inherited()}, "begin"]),
    (Code.SHRUNK, "worker group 0", 2, 3): (TRIO, ["begin", LEFT, ("lose_host", 0), "go_on"]),
    (Code.COMPLETE, "worker group 0", 3): (
        TRIO,
        ["begin", LEFT, ("lose_host", 0), ("until_formed", 2), "start", "settle"],
    ),
    (Code.NOT_SHRUNK, "worker group 0"): (
        TRIO,
        ["begin", LEFT, ("lose_host", 0), ("until_formed", 2), ("rank_raises", 0, TOO_BIG), "go_on"],
    ),
    (Code.NOT_TAKEN_IN, "worker group 0", ("w4",)): (
        TRIO,
        [
            *("begin", LEFT, ("lose_host", 0), ("until_formed", 2), "start"),
            *(("until_formed", 3), ("rank_raises", 0, TOO_BIG), "go_on"),
        ],
    ),
    (Code.RESIZED_IN_VAIN, "its process died"): (
        TRIO,
        [
            *("begin", LEFT, ("lose_host", 0), ("until_formed", 2), "start"),
            *(("until_formed", 3), ("rank_raises", 0, TOO_BIG), "go_on"),
        ],
    ),
    (Code.COLOCATED, "server group 0"): (
        SANDBLASTER,
        ["begin", KEPT, ("kill_host", "w4"), ("lose_servers", "w4"), "go_on"],
    ),
    (Code.OWN_PROCESSES, "server group 0", ("w5",)): (
        SANDBLASTER,
        ["begin", KEPT, ("kill_host", "w4"), ("lose_servers", "w4"), "go_on", "start", "settle"],
    ),
    (Code.SYNCHRONOUS,): (ALLREDUCE, ["begin", "join"]),
    (Code.ENDING,): (DOWNPOUR, ["begin", "stop", "join"]),
    (Code.TOO_FEW_FREE, 1, 0): (DOWNPOUR, ["begin", "join", "settle"]),
    (Code.JOINS, "worker group 2", ("w4",)): (DOWNPOUR | ONE, ["begin", "join", "settle"]),
    (Code.NOT_AT_WORK, 9): (DOWNPOUR, ["begin", ("leave", 9)]),
    (Code.LEAD_STAYS,): (DOWNPOUR, ["begin", ("leave", 0)]),
    (Code.BEING_FORMED, "worker group 1"): (DOWNPOUR | ONE, ["begin", ("lose", 1), ("leave", 1)]),
    (Code.LEAVES, "worker group 1"): (DOWNPOUR, ["begin", ("leave", 1)]),
    (Code.GIVEN_UP, "its process died", 0, 2): (
        ALLREDUCE | {"spare": 3, "max_restarts": 2},
        ["begin", *[("lose", 0), "settle"] * 3],
    ),
    (Code.NO_REPLACEMENT, ("w1",), 1, 0, 30.0): (ALLREDUCE, IN_VAIN),
}


def facts(what: Any) -> Iterator[Fact]:
    """All that is said in this."""
    if isinstance(what, tuple):
        for part in what:
            yield from facts(part)
    elif isinstance(what, Fact):
        yield what
        yield from facts((what.cause, *what.figures.values()))


def about(what: Fact) -> list:
    """Whom and what it is about, one after the other."""
    causes = [cause if isinstance(cause, str) else type(cause).__name__ for cause in (what.cause,) if cause]
    return [what.code, *what.whom, *causes, *what.figures.values()]


@pytest.mark.parametrize("said", SAID, ids=str)
def test_the_user_is_told(monkeypatch, said):
    options, steps = SAID[said]
    run = Run(monkeypatch, **options).play(steps)
    told = [*facts((*(getattr(command, "what", None) for command in run.commands), run.state.error))]
    found = [each for each in map(about, told) if each[0] is said[0] and not [w for w in said[1:] if w not in each]]
    assert len(found) == 1, told


def test_every_code_is_said():
    start_point = {Code.PASSED_OVER, Code.ONLY_IN_MEMORY, Code.OTHER_CLUSTER, Code.OTHER_CODE, Code.DEALT_ANEW}
    start_point |= {Code.OTHER_EVALUATED}
    supervisor = {Code.STANDS_STILL, Code.STOOD_STILL}
    record = {Code.DRIVER_LOST}
    assert {code for code, *_ in SAID} == {*Code} - start_point - supervisor - record


@pytest.mark.parametrize("options", [HOGWILD, HOSTS | {"server_replicas": 1}, HOSTS | {"server_replicas": 0}], ids=str)
def test_nothing_is_said_of_a_run_that_loses_nothing(monkeypatch, options):
    assert not Run(monkeypatch, **options).play(["begin", ("progress", 0, 5)]).notes
