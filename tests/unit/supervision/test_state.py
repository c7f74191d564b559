"""What a run does about losses. What holds in every run is told by test_state_properties.py and by tests/simulation;
test_notes.py has what is said about it."""

import pytest
from support.played_groups import deposit, failed, found
from support.supervised import ALLREDUCE, DOWNPOUR, HOGWILD, HYBRID, Case, Run, becomes

from singa_dask.errors import ClusterError, DataError
from singa_dask.job import ClusterTopology
from singa_dask.supervision import events as ev
from singa_dask.supervision.facts import Code
from singa_dask.supervision.members import Members
from singa_dask.training.rank_plan import GroupPlan

DEPOSIT = deposit("its contents")
ONE, TWO, THREE = ({"spare": spare} for spare in (1, 2, 3))

LOSSES: dict[str, Case] = {
    "a synchronous group goes back to the newest checkpoint": (
        ALLREDUCE | ONE,
        ["begin", {"found": found(50)}, ("progress", 0, 77), ("lose", 0, "w2"), "settle"],
        {
            "workers": ["w1 w3"],
            "restarts": [((0,), (), ())],
            "lost at": [77],
            "steps": {0: 50},
            "back": [((0,), 50)],
            "begin": {0: 50},
            "resume": {0: found(50).copies},
        },
    ),
    "a checkpoint in memory is one like others": (
        ALLREDUCE | ONE,
        ["begin", {"found": found(70, DEPOSIT)}, ("lose", 0), "settle"],
        {"back": [((0,), 70)], "begin": {0: 70}, "resume": {0: (DEPOSIT,)}},
    ),
    "a run begins at its checkpoint and goes back nowhere": (
        ALLREDUCE | {"steps": {0: 40}},
        [{"found": found(40)}, "begin"],
        {"begin": {0: 40}, "resume": {0: found(40).copies}, "back": [], "restarts": [], "put": [0], "let go": 0},
    ),
    "a group goes on with the servers that run": (
        DOWNPOUR | ONE,
        ["begin", ("progress", 1, 33), ("progress", 0, 50), ("lose", 1), "settle"],
        {
            "workers": ["w1", "w4"],
            "made": [([1], [])],
            "fresh": [True, False],
            "begin": {0: 0, 1: 33},
            "put": [0],
            "back": [],
            "counted": [0, 1, 0],
        },
    ),
    "a loss takes along what shares processes only": (
        HOGWILD | ONE,
        ["begin", ("progress", 1, 20), ("lose", 1), "settle"],
        {
            "workers": ["w1", "w4", "w3"],
            "servers": ["w1", "w4", "w3"],
            "made": [([1], [1])],
            "from": ["workers", "server group 0", "server group 1"],
            "met": [2, 1, 0],
            "restarts": [((1,), (1,), ())],
        },
    ),
    "a last server group that is formed again meets its neighbour": (
        HOGWILD | ONE,
        ["begin", ("lose", 2), "settle"],
        {"from": ["workers", "workers", "server group 1"], "met": [1, 2, 0]},
    ),
    "all lost server groups begin with the checkpoint": (
        HOGWILD | THREE,
        ["begin", {"found": found(30)}, ("progress", 0, 40), ("lose_servers", "w1", "w2", "w3"), "settle"],
        {
            "made": [([0, 1, 2], [0, 1, 2])],
            "back": [((0, 1, 2), 30)],
            "begin": {0: 30, 1: 30, 2: 30},
            "put": [0, 1, 2],
        },
    ),
    "a server group that no worker group gives parameters takes over a neighbour's": (
        HOGWILD | THREE,
        ["begin", ("end", 1), ("lose_servers", "w1", "w2", "w3"), "settle"],
        {
            "made": [([0, 2], [0, 2]), ([], [1])],
            "from": ["workers", "server group 0", "server group 1"],
            "met": [2, 2, 0],
        },
    ),
    "lost servers without memory take along the groups that they serve": (
        DOWNPOUR | ONE,
        ["begin", {"found": found(20)}, ("lose_servers", "w3"), "settle"],
        {
            "made": [([0, 1], [0])],
            "workers": ["w1", "w2"],
            "servers": ["w4"],
            "counted": [0, 0, 1],
            "begin": {0: 20, 1: 20},
        },
    ),
    "a worker group of two processes takes along the servers in both": (
        HYBRID | ONE,
        ["begin", ("lose", 0, "w2"), "settle"],
        {"made": [([0, 1], [0])], "workers": ["w1 w9", "w3 w4", "w5 w6", "w7 w8"], "restarts": [((0, 1), (0,), ())]},
    ),
    "losses of one process are one restart": (
        HOGWILD | ONE,
        ["begin", ("lose", 1), ("lose_servers", "w2"), "settle"],
        {"made": [([1], [1])], "restarts": [((1,), (1,), ())]},
    ),
    "a loss while another group forms is assigned with afterwards": (
        DOWNPOUR | TWO,
        ["begin", ("lose", 1), "until_forming", ("lose", 0), "settle"],
        {"made": [([1], []), ([0], [])], "phases": ["running"] * 3},
    ),
    "a process that is replaced since its rank failed is lost though it answers": (
        HOGWILD | ONE,
        ["begin", ("handle", ev.WorkerGroupFailed(1, 1, "its process died", replaced={"w2": 2})), "settle"],
        {"made": [([1], [1])], "workers": ["w1", "w4", "w3"], "killed": ["w2"]},
    ),
    "a process that did not leave is not taken when it answers once more": (
        ALLREDUCE,
        ["begin", {"stuck": {"w2"}}, ("lose", 0, "w1"), "go_on", "start", "start", "settle"],
        {"workers": ["w3 w4"]},
    ),
}

FORMING: dict[str, Case] = {
    "servers of a request that failed are formed again, without parameters": (
        HOGWILD | ONE,
        [("handle", None), "until_forming", ("kill", "w3"), "settle"],
        {
            "made": [([0, 1, 2], [0, 1, 2])],
            "fresh": [True, True],
            "workers": ["w1", "w2", "w4"],
            "restarts": [((0, 2), (2,), ())],
        },
    ),
    "what no loss explains ends the run": (
        DOWNPOUR,
        [{"fault": ClusterError("MPI cannot be loaded")}, "begin"],
        {"over": "ClusterError", "restarts": []},
    ),
    "an error of a rank's own ends the run": (
        DOWNPOUR,
        [{"fault": failed(DataError("no shards"))}, "begin"],
        {"over": "DataError", "restarts": []},
    ),
    "restarted processes are known by their new addresses": (
        HOGWILD | ONE,
        ["begin", {"reborn": {"w4"}}, ("lose", 1), "settle", ("servers_stop", "w5")],
        {"workers": ["w1", "w5", "w3"], "servers": ["w1", "w5", "w3"], "killed": ["w5"]},
    ),
    "a process that a failed forming replaced is not taken": (
        DOWNPOUR | ONE,
        [("handle", None), ("not_formed", failed(), {"lost": True, "replaced": {"w1": 1}}), "settle"],
        {"workers": ["w4", "w2"], "killed": ["w1"]},
    ),
}

CASES = LOSSES | FORMING


@pytest.mark.parametrize("case", CASES)
def test_what_becomes_of_a_run(monkeypatch, case):
    assert becomes(monkeypatch, CASES[case]) == CASES[case][2]


def test_the_first_start_of_a_run_has_the_first_generations():
    assert Members(ClusterTopology(), (), ()).before == 0


def test_a_loss_takes_two_status_requests(monkeypatch):
    """Each may take seconds."""
    run = Run(monkeypatch, spare=1, **ALLREDUCE).begin()
    before = len(run.commands)
    kinds = [type(command) for command in run.play([("lose", 0), "settle"]).commands[before:]]
    assert kinds == [ev.StatusRequest, ev.Note, ev.Close, ev.StatusRequest, ev.Rewind, ev.FormRequest, ev.TellLead]


def test_the_launcher_gets_all_that_it_must_know(monkeypatch):
    run = Run(monkeypatch, **HOGWILD).begin()
    (request,) = run.requests
    nannies = ("host0", "n1"), ("host0", "n2"), ("host0", "n3")
    first = run.commands[0]
    assert first.checkpoint and first.nannies == {nanny for _, nanny in nannies}, "it may begin with what it finds"
    plans = [
        GroupPlan(g, 1, in_process_servers=False, cores=(2,), nannies=nannies if g == 0 else ()) for g in range(3)
    ]
    workers = (ev.WorkerGroupRequest(plan, (f"w{g + 1}",), g) for g, plan in enumerate(plans))
    left, right = {"left": (1, 1)}, {"right": (1, 1)}
    servers = (
        ev.ServerGroupRequest(0, ("w1",), 1, (0,), right, ("right",), ("n2",), ("",)),
        ev.ServerGroupRequest(1, ("w2",), 1, (1,), left | right, ("left", "right"), ("n3",), ("",)),
        ev.ServerGroupRequest(2, ("w3",), 1, (2,), left, ("left",), ("n1",), ("",)),
    )
    assert request == ev.FormRequest(1, tuple(workers), servers, fresh=True)
    assert run.ranks[1].told == [("servers", run.servers[1].addresses)]


def test_restarts_are_counted_for_each_and_bounded(monkeypatch):
    run = Run(monkeypatch, spare=4, max_restarts=1, **DOWNPOUR).play(
        ["begin", ("lose", 0), "settle", ("lose", 1), "settle"]
    )
    assert run.seen()["counted"] == [1, 1, 0] and not run.state.over
    run.play([("lose", 1), ("answer", ev.StatusRequest)])
    assert run.state.error.code is Code.GIVEN_UP and run.commands[-1] == ev.End(run.state.error)
    assert {"the start", "worker group 1 on w5: formed: forming -> running"} < {*run.members.history}
    assert run.handle(ev.Progress(0, 99)) == [] and 0 not in run.state.steps


def test_a_run_that_makes_progress_may_be_restarted_any_number_of_times(monkeypatch):
    run, counted = Run(monkeypatch, spare=9, max_restarts=2, **ALLREDUCE).begin(), []
    for step in (10, 20, 20, 30, 31, 32, 32):
        run.play([("progress", 0, step), ("lose", 0), "settle"])
        counted += run.seen()["counted"]
    assert counted == [1, 1, 2, 1, 1, 1, 2] and not run.state.over
    run.play([("lose", 0), "settle"])
    assert run.state.error.code is Code.GIVEN_UP
