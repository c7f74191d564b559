"""Who joins a run and who leaves it, and how it ends."""

import pytest
from support.played_groups import failed, found
from support.supervised import DOWNPOUR, HOGWILD, HYBRID, Case, Run, becomes

from singa_dask.errors import DataError
from singa_dask.supervision import events as ev
from singa_dask.supervision.phases import Phase

ONE, TWO, THREE = ({"spare": spare} for spare in (1, 2, 3))

NEWCOMERS: dict[str, Case] = {
    "who joins comes alone from the step of the others": (
        DOWNPOUR | ONE,
        ["begin", ("progress", 0, 70), ("progress", 1, 30), "join", "settle"],
        {
            "workers": ["w1", "w2", "w4"],
            "begin": {0: 0, 1: 0, 2: 70},
            "put": [0],
            "cores": {0: (2,), 1: (2,), 2: (2,)},
        },
    ),
    "who joins takes turns through the server groups": (
        HYBRID | TWO | {"nworkers_per_group": 1},
        ["begin", ("join", "a"), "settle", ("join", "b"), "settle"],
        {
            "replies": {"a": "joins w5", "b": "joins w6"},
            "made": [([4], []), ([5], [])],
        },
    ),
    "a newcomer without processes is left out after a while": (
        DOWNPOUR | ONE,
        [
            "begin",
            {"fault": failed()},
            "join",
            ("answer", ev.StatusRequest),
            ("kill", "w4"),
            "go_on",
            {"clock": 31.0},
            "settle",
        ],
        {"phases": ["running", "running", "ended", "running"], "dismissed": [[(2, 0)]], "restarts": [], "over": ""},
    ),
    "a newcomer whose rank raises before its first step is left out": (
        DOWNPOUR | ONE,
        ["begin", "join", "settle", ("rank_raises", 2, DataError("no shards")), "settle"],
        {"phases": ["running", "running", "ended", "running"], "dismissed": [[(2, 1)]], "over": ""},
    ),
    "an error of a newcomer that has worked ends the run": (
        DOWNPOUR | ONE,
        ["begin", "join", "settle", ("progress", 2, 5), ("rank_raises", 2, DataError("shard 3"))],
        {"over": "DataError"},
    ),
    "a newcomer that has worked is restarted like the others": (
        DOWNPOUR | TWO,
        ["begin", "join", "settle", ("progress", 2, 5), ("lose", 2), "settle"],
        {"workers": ["w1", "w2", "w5"], "counted": [0, 0, 1, 0], "phases": ["running"] * 4},
    ),
    "a newcomer that is left alone gives new servers the parameters of the checkpoint": (
        DOWNPOUR | TWO,
        ["begin", "join", "settle", {"found": found(60)}, ("end", 0, 1), ("lose_servers", "w3"), "settle"],
        {"made": [([2], []), ([2], [0])], "begin": {0: 0, 1: 0, 2: 60}, "put": [0, 2], "fresh": [True, False, True]},
    ),
    "nobody joins a run that is being stopped, nor who asked before": (
        DOWNPOUR | ONE,
        ["begin", ("join", "before"), "stop", "join", "settle"],
        {"replies": {"before": "ending", "joins": "ending"}, "made": []},
    ),
    "who asked when the run ends is answered": (
        DOWNPOUR | ONE,
        ["begin", "join", ("end", 0, 1)],
        {"replies": {"joins": "ending"}, "over": "well"},
    ),
    "what is restarted while it forms is not free": (
        DOWNPOUR,
        [
            *("begin", ("join", "first"), "settle", "start", ("lose", 1), "until_forming"),
            *("start", ("kill", "w4"), ("start", "n4"), "join", ("answer", ev.StatusRequest)),
        ],
        {"replies": {"first": "too few free", "joins": "joins w5"}},
    ),
    "who leaves ends after its step and is not brought back": (
        DOWNPOUR | ONE,
        ["begin", ("leave", 1), ("lose", 1), "settle"],
        {
            "replies": {"leaves": "leaves"},
            "stopped": [1],
            "phases": ["running", "ended", "running"],
            "restarts": [],
            "dismissed": [[(1, 1)]],
            "lead heard": [True],
        },
    ),
    "who leaves does not take its servers along": (
        HOGWILD | ONE,
        ["begin", ("leave", 1), ("lose", 1), "settle"],
        {
            "made": [([], [1])],
            "phases": ["running", "ended", *["running"] * 4],
            "servers": ["w1", "w4", "w3"],
            "from": ["workers", "server group 0", "server group 1"],
        },
    ),
    "who has left does not leave": (
        DOWNPOUR,
        ["begin", ("end", 1), ("leave", 1)],
        {"replies": {"leaves": "not at work"}, "stopped": []},
    ),
}

FAULT = ev.LeadTold(True, False, "server group 1 does not answer")
EARLY = ("stop", "early stopping", True)
ENDS: dict[str, Case] = {
    "the lead hears once all others have ended, and the run ends with it": (
        HOGWILD,
        ["begin", ("end", 1), ("end", 2), "settle", ("end", 0)],
        {"lead heard": [True], "flushed": [(0, 1, 0)], "over": "well"},  # along the line, and back
    ),
    "the lead is told until it hears": (
        DOWNPOUR,
        ["begin", {"hears": False}, ("end", 1), ("go_on", 3), {"hears": True}, "settle"],
        {"lead heard": [True] * 4},
    ),
    "who joins after the others ended is waited for": (
        DOWNPOUR | ONE,
        ["begin", ("end", 1), "settle", "join", "settle"],
        {"lead heard": [True, False]},
    ),
    "and after its end the lead hears again": (
        DOWNPOUR | ONE,
        ["begin", ("end", 1), "settle", "join", "settle", ("end", 2), "settle"],
        {"lead heard": [True, False, True]},
    ),
    "who joins while servers come back is waited for too": (
        DOWNPOUR | THREE,
        ["begin", {"kept": {0}}, ("end", 1), "settle", ("lose_servers", "w3"), "join", "settle"],
        {"lead heard": [True, False], "from": ["generation 1"]},
    ),
    "a lead that is formed anew is told again": (
        DOWNPOUR | ONE,
        ["begin", ("end", 1), "settle", ("lose", 0), "settle"],
        {"lead heard": [True], "workers": ["w4", "w2"]},
    ),
    "a last exchange that failed is repeated after the loss": (
        HOGWILD | ONE,
        [
            *("begin", ("end", 1, 2), ("kill", "w2"), ("answer", ev.TellLead, FAULT), ("answer", ev.StatusRequest)),
            *(("answer", ev.TellLead, FAULT), ("lose_servers", "w2"), "settle"),
        ],
        {"made": [([], [1])], "lead heard": [True]},
    ),
    "a last exchange that no loss explains is done without": (
        HOGWILD,
        ["begin", ("end", 1, 2), ("answer", ev.TellLead, FAULT), "settle"],
        {"made": [], "flushed": [(0, 1, 0), ()], "lead heard": [True]},
    ),
    "a stop reaches what is formed later": (
        DOWNPOUR | ONE,
        ["begin", ("lose", 1), "until_forming", "stop", "settle"],
        {"stopped": [0, 1], "made": [([1], [])]},
    ),
    "what is lost while the run is being stopped ends": (
        HOGWILD | ONE,
        ["begin", "stop", ("lose_servers", "w3"), "settle", ("end", 0, 1)],
        {"phases": ["ended", "ended", "ended", "running", "running", "ended"], "restarts": [], "over": "well"},
    ),
    "servers without a way to a neighbour are not made while the run is being stopped": (
        HOGWILD | ONE,
        [("handle", None), ("answer",), "stop", ("kill", "w2"), ("not_formed", failed(), {"lost": True}), "settle"],
        {"phases": ["ended", "ended", "running"] * 2, "over": ""},
    ),
    "an early end stops all groups but the lead": (HOGWILD, ["begin", EARLY], {"stopped": [1, 2], "over": ""}),
    "also those that are formed later": (
        HOGWILD | ONE,
        ["begin", ("lose", 1), "until_forming", EARLY, "settle", "join", ("end", 1, 2), "settle", ("end", 0)],
        {"stopped": [2, 1], "replies": {"joins": "ending"}, "over": "well"},
    ),
}

CASES = NEWCOMERS | ENDS


@pytest.mark.parametrize("case", CASES)
def test_what_becomes_of_a_run(monkeypatch, case):
    assert becomes(monkeypatch, CASES[case]) == CASES[case][2]


def test_a_status_report_from_before_the_loss_decides_nothing(monkeypatch):
    run = Run(monkeypatch, spare=1, **DOWNPOUR).play(["begin", "join"])
    (request,) = run.open
    old = run.answer_to(request)
    run.play([("lose", 1), ("answer", ev.StatusRequest, old)])
    assert run.worker_groups[1].phase is Phase.LOST and not run.replies
    run.settle()
    assert run.worker_groups[1].where == ("w4",) and run.replies["joins"] == "too few free"


@pytest.mark.parametrize("answered", range(5))
def test_one_free_worker_is_for_the_loss_whenever_somebody_wants_to_join(monkeypatch, answered):
    run = Run(monkeypatch, spare=1, **DOWNPOUR).play(["begin", ("lose", 1), ("go_on", answered), "join", "settle"])
    assert run.worker_groups[1].where == ("w4",) and run.replies["joins"] == "too few free"
