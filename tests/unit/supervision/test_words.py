"""What users read about a run: each sentence, once."""

import pytest

from singa_dask.errors import ClusterError, DataError, DriverUnreachable
from singa_dask.supervision.facts import Code, fact
from singa_dask.supervision.words import GroupLost, NoReplacement, error, sentence

DIED = "rank 0 on w1: its worker process died"
GROUP, OTHER, SERVERS = "worker group 1", "worker group 2", "server group 0"
AGAIN = {"step": 77, "attempt": 1, "most": 3, "everybody": False, "way": fact(Code.FROM_CHECKPOINT, step=50)}
TAKEN_IN = fact(Code.NOT_TAKEN_IN, GROUP, added=("w5", "w6"))
LACK = fact(Code.NO_REPLACEMENT, lost=("w1", "w2"), missing=2, free=1, after_s=30.0)
SAID = {
    f"{SERVERS}: the process of w3, w4 died or is stopped": fact(Code.SERVERS_DIED, SERVERS, where=("w3", "w4")),
    f"{GROUP}: server group 0 is lost, and what it had left in memory": fact(Code.SERVERS_GONE, GROUP, servers=0),
    f"{GROUP} could not take in w5, w6": TAKEN_IN,
    f"{GROUP} cannot go on with fewer workers": fact(Code.NOT_SHRUNK, GROUP),
    f"{GROUP} could not take in w5, w6, {OTHER} cannot go on with fewer workers: {DIED}": fact(
        Code.RESIZED_IN_VAIN, undone=(TAKEN_IN, fact(Code.NOT_SHRUNK, OTHER)), cause=ClusterError(DIED)
    ),
    "its driver was lost": fact(Code.DRIVER_LOST),
    "Dask workers were lost (w1, w2): 2 must be replaced, and 1 are free after 30 s. Start more.": LACK,
    f"{DIED} (step 7).": fact(Code.GIVEN_UP, cause=DIED, step=7, times=0),
    f"{DIED} (step 7). The group was restarted 1 time without progress (max_restarts).": fact(
        Code.GIVEN_UP, cause=DIED, step=7, times=1
    ),
    f"{DIED} (step 7). The group was restarted 3 times without progress (max_restarts).": fact(
        Code.GIVEN_UP, cause=DIED, step=7, times=3
    ),
    f"{DIED} (step 77). Restart 1 of 3, from step 50.": fact(
        Code.RESTARTED, GROUP, cause=DIED, **AGAIN | {"everybody": True}
    ),
    f"{DIED} (step 77). Restart 1 of 3 of {GROUP} and {OTHER}, from step 50.": fact(
        Code.RESTARTED, GROUP, OTHER, cause=DIED, **AGAIN
    ),
    f"{DIED} (step 77). Restart 1 of 3 of the servers, from step 50.": fact(Code.RESTARTED, cause=DIED, **AGAIN),
    "with everything that it had acknowledged": fact(Code.WITH_EVERYTHING),
    "from the servers' parameters": fact(Code.FROM_SERVERS),
    "from the parameters of a neighbouring server group": fact(Code.FROM_NEIGHBOUR),
    "from the state that its processes have left in memory": fact(Code.FROM_RANKS),
    "from step 50": fact(Code.FROM_CHECKPOINT, step=50),
    "from step 50 in memory": fact(Code.FROM_CHECKPOINT_IN_MEMORY, step=50),
    f"{DIED}. The run is being stopped, so it ends here.": fact(Code.ENDS_HERE, cause=DIED),
    f"{GROUP} could not join: {DIED}": fact(Code.NOT_JOINED, GROUP, cause=DIED),
    f"{GROUP} left: {DIED}": fact(Code.LEFT, GROUP, cause=DIED),
    f"{GROUP} is left out, and the others go on: Dask workers were lost (w1, w2): 2 must be replaced, and 1 are free "
    "after 30 s. Start more. `singa-dask join` adds a group.": fact(Code.LEFT_OUT, GROUP, cause=LACK),
    f"{SERVERS} does not come back: {DIED}": fact(Code.NOT_BACK, SERVERS, cause=DIED),
    "the last exchange between server groups failed: out of memory": fact(Code.EXCHANGE_FAILED, cause="out of memory"),
    f"{SERVERS} has no replica of server 1 now, as its nanny does not answer or has no memory": fact(
        Code.REPLICA_LOST, SERVERS, rank=1
    ),
    f"{GROUP} goes on with 2 of 3 workers": fact(Code.SHRUNK, GROUP, count=2, whole=3),
    f"{GROUP} goes on with all 3 workers": fact(Code.COMPLETE, GROUP, count=3, whole=3),
    f"{SERVERS} goes on in other processes of the run until there are free ones": fact(Code.COLOCATED, SERVERS),
    f"{SERVERS} goes on in w5, which had no work": fact(Code.OWN_PROCESSES, SERVERS, where=("w5",)),
    f"{SERVERS} leaves no copies in memory, as its processes have no nannies or too little memory: after its loss, "
    "updates that no other server group has are lost": fact(Code.UNKEPT, SERVERS),
    "servers keep replicas on other hosts; cluster.server_replicas: 0 trains without them": fact(Code.REPLICATED),
    "the run continues from step 70, which is in memory": fact(Code.BEGINS_IN_MEMORY, step=70),
    f"{SERVERS} and server group 1: back from memory, with everything acknowledged under the lost driver": fact(
        Code.TAKEN_OVER, SERVERS, "server group 1"
    ),
    "the memory of the lost driver's servers has fewer updates than the newest checkpoint. The run continues from "
    "step 10.": fact(Code.NOT_TAKEN_OVER, cause=fact(Code.FEWER), step=10),
    "is of another topology, net, updater or data": fact(Code.MISFIT),
    f"is not whole: {SERVERS}, server group 1": fact(Code.TORN, torn=(SERVERS, "server group 1")),
    "is not whole: it is gone, or has no parameters yet": fact(Code.GONE),
    "has fewer updates than the newest checkpoint": fact(Code.FEWER),
    "rank 1 on w2 has made no step for 61 s, since step 7: it is in forward": fact(
        Code.STANDS_STILL, rank=1, on="w2", ago_s=61.2, step=7, at="forward"
    ),
    "has made no step for 61 s, and is in forward": fact(Code.STOOD_STILL, ago_s=61.2, step=None, at="forward"),
    "there is no checkpoint: the run continues from the memory of its Dask workers, if they still have it, else from "
    "step 0": fact(Code.ONLY_IN_MEMORY),
    "passed over: step-00000004.h5 is damaged": fact(Code.PASSED_OVER, cause="step-00000004.h5 is damaged"),
    "3 worker groups instead of 1 worker group: the training data are assigned anew, and each group goes on with "
    "mini-batch 4 of its own share": fact(Code.DEALT_ANEW, now=3, before=1, step=4),
    "resumed with another cluster. Before: Downpour. Now: Hogwild.": fact(
        Code.OTHER_CLUSTER, before="Downpour", now="Hogwild"
    ),
    "your code differs from that in the checkpoint: m:A, m:B. The run goes on with it as it is now.": fact(
        Code.OTHER_CODE, names=("m:A", "m:B")
    ),
    "the test data differ from those before step 4, so their metrics are not comparable": fact(
        Code.OTHER_EVALUATED, phase="test", step=4
    ),
    "Ctrl-C: stopping after this step (press Ctrl-C again to abort)": fact(Code.STOPPING, by="Ctrl-C"),
    "SIGTERM: stopping after this step (press Ctrl-C to abort)": fact(Code.STOPPING, by="SIGTERM"),
    f"{GROUP} joins on w4, w5": fact(Code.JOINS, GROUP, where=("w4", "w5")),
    f"{GROUP} leaves after its step": fact(Code.LEAVES, GROUP),
    "refused: one worker group is synchronous, and cannot take in another; downpour and hogwild can": fact(
        Code.SYNCHRONOUS
    ),
    "refused: the run is ending": fact(Code.ENDING),
    "refused: 2 free Dask workers are needed, 0 are there; start more and join again": fact(
        Code.TOO_FEW_FREE, needed=2, there=0
    ),
    "refused: there is no worker group 9 at work; the output of the run names those that are": fact(
        Code.NOT_AT_WORK, group=9
    ),
    "refused: worker group 0 tests and saves for the whole run; stop the run instead": fact(Code.LEAD_STAYS),
    f"refused: {GROUP} is being formed; ask again in a moment": fact(Code.BEING_FORMED, GROUP),
}


@pytest.mark.parametrize("text", SAID)
def test_a_fact_in_words(text):
    assert sentence(SAID[text]) == text


def test_each_code_has_a_sentence():
    assert {said.code for said in SAID.values()} == set(Code)


@pytest.mark.parametrize(
    ("said", "kind", "text"),
    [
        (LACK, NoReplacement, sentence(LACK)),
        (fact(Code.GIVEN_UP, cause=DIED, step=7, times=0), GroupLost, f"{DIED} (step 7)."),
        (ClusterError(DIED), ClusterError, DIED),
    ],
    ids=str,
)
def test_an_error_of_the_cluster_tells_what_happened_before(said, kind, text):
    raised = error(said, ["the start", "its loss"])
    assert (type(raised), str(raised)) == (kind, text)
    assert raised.__notes__ == ["What happened before, the latest last:\nthe start\nits loss"]


@pytest.mark.parametrize("known", [DataError("shard 7"), DriverUnreachable("no way to the driver")], ids=str)
def test_an_error_whose_cause_is_known_is_raised_as_it_is(known):
    assert error(known, ["the start"]) is known and not hasattr(known, "__notes__")
