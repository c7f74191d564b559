"""Which Dask workers the members of a run get, and what becomes of those that lack some."""

import pytest
from support.played_groups import found
from support.supervised import ALLREDUCE, DOWNPOUR, HOGWILD, Case, Run, becomes

from singa_dask.cluster.formation import WorkersInUse
from singa_dask.errors import ClusterError, ConfigError, DataError, Problem
from singa_dask.supervision import events as ev

STATUS = ("answer", ev.StatusRequest)
LEFT = {"left": {"worker group 0": ("0", "1", "2")}}
TOO_BIG = ConfigError(Problem("neuralnet", "needs 9.0 GB per worker"))
TRIO = {"nworkers_per_group": 3, "nservers_per_group": 3}
PAIRS = DOWNPOUR | {"nworkers_per_group": 2}
LEAST = {"least": 1}
# Worker group 1 of PAIRS goes on with w4 alone.
SHRUNK = ["begin", ("progress", 1, 7), ("lose_host", 1, "w3"), ("until_formed", 2)]

WAITING: dict[str, Case] = {
    "a process that does not answer is replaced, and waited for": (
        ALLREDUCE,
        ["begin", ("lose", 0), "go_on", {"clock": 29.0}, "go_on"],
        {"phases": ["down"], "killed": ["w1"], "over": ""},
    ),
    "and missed after a while": (
        ALLREDUCE,
        ["begin", ("lose", 0), "go_on", {"clock": 30.0}, "go_on"],
        {"over": "no replacement"},
    ),
    "one that comes is taken": (
        ALLREDUCE,
        ["begin", ("lose", 0), "go_on", "start", "settle"],
        {"workers": ["w3 w2"], "phases": ["running"]},
    ),
    "processes without a nanny are not killed": (
        ALLREDUCE | {"nannies": False},
        ["begin", ("lose", 0), "go_on"],
        {"killed": [], "phases": ["down"]},
    ),
    "a group waits for the processes beside its memory, and resumes from it": (
        ALLREDUCE | {"spare": 2},
        ["begin", LEFT | {"found": found(50)}, ("lose", 0, "w2"), "go_on", ("start", "n2"), "settle"],
        {
            "workers": ["w1 w5"],
            "back": [],
            "left": {0: ("0", "1", "2")},
            "begin": {0: 50},
            "resume": {0: found(50).copies},
        },
    ),
    "a group resumes from what it has left once": (
        ALLREDUCE | {"spare": 2},
        [
            *("begin", LEFT | {"found": found(50)}, ("lose", 0), {"clock": 31.0}, "go_on"),
            *({"left": {}}, ("lose", 0), "settle"),
        ],
        {"left": {}, "back": [((0,), 50)]},
    ),
    "others take the place of processes whose nanny takes too long": (
        ALLREDUCE | {"spare": 2},
        ["begin", LEFT, ("lose", 0, "w2"), "go_on", {"clock": 31.0}, "settle"],
        {"workers": ["w1 w3"], "phases": ["running"]},
    ),
    "the nanny of a process that came while its group formed is known": (
        ALLREDUCE | LEAST | {"spare": 1},
        ["begin", {"reborn": {"w3"}}, ("lose_host", 0, "w2"), "settle", {"left": {}}, ("lose", 0, "w4"), "go_on"],
        {"workers": ["w1 w4"], "phases": ["down"]},
    ),
    "a nanny that does not answer gets some time before a checkpoint counts": (
        TRIO | {"spare": 1},
        ["begin", {"silent_nannies": {"n2"}}, ("lose", 0, "w2"), STATUS, {"clock": 5.9}, STATUS],
        {"phases": ["lost"], "restarts": []},
    ),
    "memory that it holds counts": (
        TRIO | {"spare": 1},
        [
            *("begin", {"silent_nannies": {"n2"}}, ("lose", 0, "w2"), STATUS),
            *(LEFT | {"silent_nannies": set(), "clock": 5.9}, "go_on", {"clock": 37.0}, "settle"),
        ],
        {"left": {0: ("0", "1", "2")}, "back": []},
    ),
    "a nanny that stays silent is done without": (
        TRIO | {"spare": 1},
        ["begin", {"silent_nannies": {"n2"}}, ("lose", 0, "w2"), STATUS, {"clock": 6.1}, "settle"],
        {"left": {}, "back": [((0,), None)], "phases": ["running"]},
    ),
    "a group does not wait for the processes of another": (
        DOWNPOUR | {"nworker_groups": 3},
        ["begin", ("lose_host", 1), ("lose_host", 2), "start", "go_on"],
        {"phases": ["running", "running", "down", "running"], "made": [([1], [])]},
    ),
    "all groups that wait in vain are left out at once": (
        DOWNPOUR | {"nworker_groups": 3},
        ["begin", ("lose_host", 1), ("lose_host", 2), "go_on", {"clock": 31.0}, "settle"],
        {"phases": ["running", "ended", "ended", "running"], "over": ""},
    ),
    "newcomers too": (
        DOWNPOUR | {"spare": 1},
        ["begin", "join", "settle", ("lose_host", 2), ("lose_host", 1), "go_on", {"clock": 31.0}, "settle"],
        {"phases": ["running", "ended", "ended", "running"], "over": ""},
    ),
    "but no more than it takes": (
        PAIRS | {"nworker_groups": 3},
        ["begin", ("lose_host", 1, "w3"), ("lose_host", 2, "w5"), "go_on", {"clock": 31.0}, "settle"],
        {"phases": ["running", "running", "ended", "running"], "workers": ["w1 w2", "w6 w4", "w5 w6"], "over": ""},
    ),
    "each of two groups takes what its own nanny starts": (
        DOWNPOUR | {"nworker_groups": 3},
        ["begin", ("lose", 1), ("lose", 2), "start", "go_on", ("start", "n2"), "settle"],
        {"workers": ["w1", "w6", "w5"]},
    ),
}

FEWER: dict[str, Case] = {
    "a group that goes on with fewer workers takes in others later": (
        TRIO | LEAST,
        ["begin", LEFT, ("lose_host", 0, "w2"), ("until_formed", 2), "start", "settle"],
        {"workers": ["w1 w3 w4"], "lacks": [""], "grown": [(0,)], "restarts": [((0,), (), ())]},
    ),
    "a group with servers goes on with fewer workers": (
        PAIRS | LEAST,
        [*SHRUNK, "join", "go_on"],
        {"workers": ["w1 w2", "w4"], "made": [([1], [])], "begin": {0: 0, 1: 7}, "replies": {"joins": "too few free"}},
    ),
    "a group that cannot go on with fewer workers waits for the others": (
        TRIO | LEAST,
        ["begin", LEFT, ("lose_host", 0, "w2"), ("until_formed", 2), ("rank_raises", 0, TOO_BIG), "go_on"],
        {"phases": ["down"], "over": ""},
    ),
    "a group that fails with one worker goes on with two": (
        {"nworkers_per_group": 4, "nservers_per_group": 1, "server_worker_separate": True} | LEAST,
        [
            *(
                "begin",
                {"lost_nannies": {"n2", "n3"}},
                ("kill", "w2", "w3"),
                ("lose_host", 0, "w4"),
                ("until_formed", 2),
            ),
            *(("rank_raises", 0, MemoryError()), "start", ("until_formed", 3)),
        ],
        {"workers": ["w1 w6"], "lacks": ["w3 w4"]},
    ),
    "a group all of whose workers are lost waits for the first that comes": (
        PAIRS | LEAST,
        [
            "begin",
            {"lost_nannies": {"n4"}},
            ("kill", "w4"),
            ("lose_host", 1, "w3"),
            "go_on",
            "start",
            ("until_formed", 2),
        ],
        {"workers": ["w1 w2", "w6"]},
    ),
    "fewer workers than the least are too few": (
        ALLREDUCE | {"least": 2},
        ["begin", ("lose_host", 0), "go_on", {"clock": 29.0}, "go_on"],
        {"phases": ["down"]},
    ),
    "the lead does not grow at the end": (
        PAIRS | LEAST,
        ["begin", ("lose_host", 0, "w1"), ("until_formed", 2), ("end", 1), "start", "go_on"],
        {"workers": ["w2", "w3 w4"], "made": [([0], [])], "lead heard": [True]},
    ),
    "a worker that is not taken in goes under the address that it got meanwhile": (
        PAIRS | LEAST,
        [
            *(*SHRUNK, "start", "until_forming"),
            *(
                ("not_formed", ClusterError("it does not suit"), {"lost": True, "moved": {"w6": "w9"}}),
                ("until_formed", 4),
            ),
        ],
        {"workers": ["w1 w2", "w4"], "lacks": ["", "w9"]},
    ),
    "a worker that another run takes first is done without": (
        PAIRS | LEAST,
        [*SHRUNK, "start", ("not_formed", WorkersInUse("w6 is in use")), ("until_formed", 4)],
        {"workers": ["w1 w2", "w4"], "over": ""},
    ),
}

# Servers whose memory is held by nannies, and which lack processes.
KEPT = {"kept": {0, 1, 2}}
TWO_SERVERS = DOWNPOUR | {"nservers_per_group": 2}
COLOCATED: dict[str, Case] = {
    "servers are co-located in other processes until there is a free one": (
        TWO_SERVERS,
        ["begin", KEPT, ("kill_host", "w4"), ("lose_servers", "w4"), "go_on", "start", "settle"],
        {"servers": ["w3 w5"], "colocated": [[]], "from": ["generation 2"], "restarts": [((), (), (0,))]},
    ),
    "servers are co-located beside a worker until both get processes": (
        DOWNPOUR,
        ["begin", KEPT, ("kill_host", "w3"), ("lose_host", 1), "go_on", "start", "start", "settle", ("lose", 0)],
        {"colocated": [[]], "phases": ["lost", "running", "running"]},
    ),
    "servers that nobody waits for are not co-located": (
        TWO_SERVERS,
        ["begin", KEPT, ("kill_host", "w4"), ("lose_host", 0), ("lose_host", 1), ("lose_servers", "w4"), "go_on"],
        {"phases": ["down"] * 3, "colocated": [[]]},
    ),
    "servers wait for the process that their nanny starts": (
        TWO_SERVERS,
        ["begin", KEPT, ("lose_servers", "w4"), "go_on", ("start", "n4"), "settle"],
        {"servers": ["w3 w5"], "colocated": [[]]},
    ),
    "a worker group without processes is left out after a while": (
        DOWNPOUR,
        ["begin", KEPT, ("lose_host", 1), "go_on", {"clock": 31.0}, "settle", "start", "join", "settle"],
        {
            "phases": ["running", "ended", "running", "running"],
            "dismissed": [[(1, 1)]],
            "replies": {"joins": "joins w4"},
        },
    ),
    "a lead without processes ends the run": (
        DOWNPOUR,
        ["begin", KEPT, ("lose_host", 0), "go_on", {"clock": 31.0}, "settle"],
        {"over": "no replacement"},
    ),
    "of groups that are lost together those go on that get processes": (
        HOGWILD | {"spare": 2},
        [
            *("begin", KEPT, ("lose_host", 0), ("lose_host", 1), ("lose_host", 2), "go_on"),
            *(each for clock in (31.0, 62.0, 93.0) for each in ({"clock": clock}, "go_on")),
        ],
        {
            "workers": ["w4", "w5", "w3"],
            "servers": ["w4", "w5", "w4"],
            "phases": ["running", "running", "ended", *["running"] * 3],
            "over": "",
        },
    ),
    "servers between two others are co-located though their worker group is left out": (
        HOGWILD,
        ["begin", KEPT, ("lose_host", 1), "go_on", {"clock": 31.0}, "go_on"],
        {"phases": ["running", "ended", *["running"] * 4], "servers": ["w1", "w1", "w3"], "colocated": [[], [0], []]},
    ),
}

CASES = WAITING | FEWER | COLOCATED


@pytest.mark.parametrize("case", CASES)
def test_who_gets_which_workers(monkeypatch, case):
    assert becomes(monkeypatch, CASES[case]) == CASES[case][2]


def test_status_requests_that_wait_for_processes_leave_time_between_them(monkeypatch):
    run = Run(monkeypatch, **TRIO, least=1).play(["begin", LEFT, ("lose", 0, "w2"), "go_on"])
    waiting = run.all(ev.StatusRequest)[-1].delay_s
    run.play([{"lost_nannies": {"n2"}}, ("until_formed", 2), "go_on"])
    assert 0 < waiting < run.all(ev.StatusRequest)[-1].delay_s, "for one that it lacks it is in less of a hurry"


@pytest.mark.parametrize("raised", [None, ConfigError(Problem("gpu", "there is none")), MemoryError()])
def test_a_group_that_cannot_take_in_a_worker_goes_on_without_it(monkeypatch, raised):
    run = Run(monkeypatch, **PAIRS, least=1).play([*SHRUNK, ("progress", 1, 8), "start", ("until_formed", 3)])
    group = run.worker_groups[1]
    assert group.where == ("w4", "w6")
    run.handle(ev.WorkerGroupFailed(1, group.generation, "its process does not suit", raised))
    run.play([("until_formed", 4), STATUS, STATUS, STATUS])
    assert (group.where, group.lacks, len(run.made())) == (("w4",), ("w6",), 4), "it is not tried again"
    run.play(["start", ("until_formed", 5)])
    assert group.where == ("w4", "w7")
    run.play([("progress", 1, 8, 9), ("rank_raises", 1, DataError("a shard is damaged"))])
    assert isinstance(run.state.error, DataError), "it is no matter of size any more"


def test_a_worker_that_could_not_be_taken_in_is_tried_again_later_and_later(monkeypatch):
    run = Run(monkeypatch, **PAIRS, least=1).play([*SHRUNK, "start"])
    for attempt, looks in ((3, 30), (5, 60)):
        run.until_formed(attempt)
        run.handle(ev.WorkerGroupFailed(1, run.worker_groups[1].generation, "its process does not suit"))
        run.play([("until_formed", attempt + 1), *[STATUS] * looks])
        assert len(run.made()) == attempt + 1
        run.answer(ev.StatusRequest)
    run.until_formed(7)
