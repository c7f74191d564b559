"""What is said about a run: every note, reply and error of its supervision, once."""

from dataclasses import replace

import pytest
from support.played_groups import deposit, found, left_by
from support.supervised import ALLREDUCE, DOWNPOUR, HOGWILD, SANDBLASTER, Run

from singa_dask.errors import ClusterError, ConfigError, Problem
from singa_dask.server.ledger import Ledger
from singa_dask.supervision import events as ev
from singa_dask.supervision.events import Inherited

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
# A part of the only note that has it, as far as no other note of this table has it too.
NOTES = {
    "its process died (step 77). Restart 1 of 3, from step 50.": (
        ALLREDUCE | ONE,
        ["begin", {"found": found(50)}, ("progress", 0, 77), ("lose", 0), "settle"],
    ),
    " 70 in memory.": (
        ALLREDUCE | ONE,
        ["begin", {"found": found(70, deposit("its contents"))}, ("lose", 0), "settle"],
    ),
    ", from the state that its processes have left in memory.": (
        ALLREDUCE | ONE,
        ["begin", LEFT, ("lose_host", 0), "settle"],
    ),
    " of worker group 1, from the servers' parameters.": (DOWNPOUR | ONE, ["begin", ("lose", 1), "settle"]),
    " of worker group 1, from the parameters of a neighbouring server group.": (
        HOGWILD | ONE,
        ["begin", ("lose", 1), "settle"],
    ),
    " of the servers, ": (HOGWILD | ONE, ["begin", ("end", 1, 2), ("lose_servers", "w2"), "settle"]),
    " of worker group 0 and worker group 1, ": (DOWNPOUR | ONE, ["begin", ("lose_servers", "w3"), "settle"]),
    " of worker group 1 and server group 1, with everything that it had acknowledged.": (
        HOGWILD | ONE,
        ["begin", KEPT, ("lose", 1), "settle"],
    ),
    "server group 0: the process of w3, w4 died or is stopped": (
        SANDBLASTER | {"spare": 2},
        ["begin", KEPT, ("lose_servers", "w3", "w4"), "settle"],
    ),
    "worker group 0: server group 0 is lost, and what it had left in memory": (
        DOWNPOUR,
        ["begin", KEPT, ("lose_servers", "w3"), "go_on", {"kept": set()}, "start", "settle"],
    ),
    "server group 0 leaves no copies in memory, as its processes have no nannies or too little memory": (
        DOWNPOUR,
        [{"keeps": False}, "begin"],
    ),
    "servers keep replicas on other hosts; cluster.server_replicas: 0 trains without them": (HOSTS, ["begin"]),
    "server group 0 has no replica of server 0 now, as its nanny does not answer": (
        HOSTS,
        ["begin", ("handle", ev.ReplicaLost(0, 1, 0, 1, True))],
    ),
    "the last exchange between server groups failed: out of memory": (
        HOGWILD,
        ["begin", ("end", 1, 2), ("answer", ev.TellLead, ev.LeadTold(True, False, "out of memory")), "settle"],
    ),
    "Ctrl-C: stopping after this step (press Ctrl-C again to abort)": (DOWNPOUR, ["begin", "stop", "stop"]),
    "SIGTERM: stopping after this step (press Ctrl-C to abort)": (DOWNPOUR, ["begin", ("stop", "SIGTERM")]),
    ". The run is being stopped, so it ends here.": (HOGWILD, ["begin", "stop", ("lose_servers", "w3"), "settle"]),
    "worker group 2 could not join: w4 is in use": (
        DOWNPOUR | ONE,
        ["begin", {"fault": ClusterError("w4 is in use")}, "join", "settle"],
    ),
    "worker group 1 left: ": (DOWNPOUR, ["begin", ("leave", 1), ("lose", 1), "settle"]),
    "worker group 1 is left out, and the others go on: ": (
        DOWNPOUR,
        ["begin", ("lose_host", 1), "go_on", {"clock": 31.0}, "settle"],
    ),
    "server group 2 does not come back: ": (
        HOGWILD,
        ["begin", ("end", 2), ("lose_servers", "w3"), "go_on", "stop", {"clock": 31.0}, "go_on"],
    ),
    "the run goes on from step 70, which is in memory": (
        ALLREDUCE | {"starts": 1, "steps": {0: 40}},
        [{"found": found(70, deposit("its contents"))}, "begin"],
    ),
    "server group 0: back from memory, with everything acknowledged under the lost driver": (
        AGAIN,
        [{"left": left_by(0, 3, 0), "inherited": Inherited(ledgers={"server group 0": Ledger()})}, "begin"],
    ),
    "the memory of the lost driver's servers is of another topology, net, updater or data. The run goes on": (
        AGAIN,
        [{"inherited": Inherited(fits=False)}, "begin"],
    ),
    " has fewer updates than the newest checkpoint. ": (
        AGAIN,
        [
            {"left": left_by(0, 3, 0), "inherited": Inherited(ledgers={"server group 0": Ledger()})},
            *({"found": replace(found(10), ledger=AHEAD)}, "begin"),
        ],
    ),
    " is not whole: server group 0. ": (AGAIN, [{"inherited": Inherited(torn=("server group 0",))}, "begin"]),
    " is not whole: it is gone, or has no parameters yet. ": (AGAIN, [{"inherited": Inherited()}, "begin"]),
    "worker group 0 goes on with 2 of 3 workers": (TRIO, ["begin", LEFT, ("lose_host", 0), "go_on"]),
    "worker group 0 goes on with all 3 workers": (
        TRIO,
        ["begin", LEFT, ("lose_host", 0), ("until_formed", 2), "start", "settle"],
    ),
    "worker group 0 cannot go on with fewer workers: ": (
        TRIO,
        ["begin", LEFT, ("lose_host", 0), ("until_formed", 2), ("rank_raises", 0, TOO_BIG), "go_on"],
    ),
    "worker group 0 could not take in w4: ": (
        TRIO,
        [
            *("begin", LEFT, ("lose_host", 0), ("until_formed", 2), "start"),
            *(("until_formed", 3), ("rank_raises", 0, TOO_BIG), "go_on"),
        ],
    ),
    "server group 0 goes on in other processes of the run until there are free ones": (
        SANDBLASTER,
        ["begin", KEPT, ("kill_host", "w4"), ("lose_servers", "w4"), "go_on"],
    ),
    "server group 0 goes on in w5, which had no work": (
        SANDBLASTER,
        ["begin", KEPT, ("kill_host", "w4"), ("lose_servers", "w4"), "go_on", "start", "settle"],
    ),
}


@pytest.mark.parametrize("note", NOTES)
def test_the_user_is_told(monkeypatch, note):
    options, steps = NOTES[note]
    told = Run(monkeypatch, **options).play(steps).notes
    assert sum(note in text for text in told) == 1, told


@pytest.mark.parametrize("options", [HOGWILD, HOSTS | {"server_replicas": 1}, HOSTS | {"server_replicas": 0}], ids=str)
def test_nothing_is_said_of_a_run_that_loses_nothing(monkeypatch, options):
    assert not Run(monkeypatch, **options).play(["begin", ("progress", 0, 5)]).notes


REPLIES = {
    "refused: one worker group is synchronous, and cannot take in another": (ALLREDUCE, ["join"]),
    "refused: the run is ending": (DOWNPOUR, ["stop", "join"]),
    "refused: 1 free Dask workers are needed, 0 are there; start more and join again": (DOWNPOUR, ["join", "settle"]),
    "worker group 2 joins on w4": (DOWNPOUR | ONE, ["join", "settle"]),
    "refused: there is no worker group 9 at work": (DOWNPOUR, [("leave", 9)]),
    "refused: worker group 0 tests and saves for the whole run; stop the run instead": (DOWNPOUR, [("leave", 0)]),
    "refused: worker group 1 is being formed": (DOWNPOUR | ONE, [("lose", 1), ("leave", 1)]),
    "worker group 1 leaves after its step": (DOWNPOUR, [("leave", 1)]),
}


@pytest.mark.parametrize("reply", REPLIES)
def test_who_asks_is_told(monkeypatch, reply):
    options, steps = REPLIES[reply]
    run = Run(monkeypatch, **options).play(["begin", *steps])
    assert list(run.replies.values()) == [reply]


ERRORS = {
    "its process died (step 0). The group was restarted 2 times without progress (max_restarts).": (
        ALLREDUCE | {"spare": 3, "max_restarts": 2},
        [("lose", 0), "settle"] * 3,
    ),
    "its process died (step 0).": (ALLREDUCE | ONE | {"max_restarts": 0}, [("lose", 0), "settle"]),
    "Dask workers were lost (w1): 1 must be replaced, and 0 are free after 30 s. Start more.": (
        ALLREDUCE,
        [("lose", 0), "go_on", {"clock": 31.0}, "go_on"],
    ),
}


@pytest.mark.parametrize("error", ERRORS)
def test_a_run_ends_with(monkeypatch, error):
    options, steps = ERRORS[error]
    assert str(Run(monkeypatch, **options).play(["begin", *steps]).state.error) == error
