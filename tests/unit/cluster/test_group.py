"""How the driver notices, names and ends failures, with futures and workers that the test plays, by its own clock."""

import pickle
from types import SimpleNamespace

import pytest
from support.played_workers import Future, PlayedWorkers

from singa_dask.cluster import group as grouping
from singa_dask.cluster.group import Group, GroupFailed
from singa_dask.cluster.join import RankPlan
from singa_dask.cluster.rank import Looks, abort_rank, clean_segments, keep_rank, rank_looks, tell_rank
from singa_dask.cluster.workers import WorkerInfo, describe
from singa_dask.errors import ClusterError, CommTimeout, DataError, DriverUnreachable, MpiUnusable

LOOKS = Looks(2.0, 1.0)


class Cluster(PlayedWorkers):
    """Ranks on w0, w1 and w2. alone: workers without a nanny; endpoint: of the world that the group makes."""

    def __init__(self, monkeypatch, mute=(), stubborn=(), alone=(), endpoint=None, **options):
        workers = [WorkerInfo(f"w{i}", pid=10 + i, nanny="" if f"w{i}" in alone else f"n{i}") for i in range(3)]
        super().__init__(monkeypatch, [grouping], {worker.address: worker for worker in workers}, mute, stubborn)
        plans, self.looks = [RankPlan("job-1", rank, 3, endpoint=endpoint) for rank in range(3)], 0
        self.futures = {f"w{i}": Future(f"rank{i}") for i in range(3)}
        self.ranks = tuple(self.futures.values())
        self.group = Group(self, plans, workers, self.ranks, **options)

    def alive(self, client, addresses=None):
        self.looks += 1
        return super().alive(client, addresses)

    def answer(self, function, address, *given):
        return LOOKS if function is rank_looks else super().answer(function, address, *given)

    def failure(self):
        with pytest.raises(GroupFailed) as caught:
            self.group.poll()
        return caught.value.failure


@pytest.fixture
def cluster(monkeypatch):
    return lambda **options: Cluster(monkeypatch, **options)


def test_a_group_has_ended_when_all_ranks_have_returned(cluster):
    played = cluster()
    assert not played.group.poll()
    for rank, future in enumerate(played.ranks):
        future.settle("finished", rank)
        assert played.group.poll() == (rank == 2)
    assert played.group.results() == [0, 1, 2]
    played.group.close()
    assert all(future.released for future in played.ranks) and not played.asked(abort_rank)


def test_results_that_do_not_come_name_the_ranks(cluster):
    played = cluster()
    played.ranks[1].settle("finished")
    with pytest.raises(ClusterError, match=r"job-1: ranks \[0, 2\] still run after 3 s"):
        played.group.results(3.0)
    assert 1003.0 <= played.now < 1003.1


def test_a_lost_process_is_noticed_soon_and_the_others_are_told_to_leave(cluster):
    played = cluster()
    for _ in range(4):
        played.group.poll()
        played.now += 0.1
    assert played.looks == 2, "not in every turn"
    del played.there["w1"]
    played.now += 0.3
    failure = played.failure()
    assert (failure.rank, failure.worker.address) == (1, "w1")
    assert failure.cause == "its worker process ended as n1 says of 11" and "rank 1 on w1" in str(failure)
    for _ in range(2):
        assert played.asked(abort_rank) == ["w0", "w2"] and played.cancelled == [(3, True)]
        assert played.failure() is failure, "the first failure counts, and is found once"


def test_a_rank_that_has_returned_may_be_lost_and_silent(cluster):
    played = cluster(mute={"w1"})
    played.ranks[1].settle("finished")
    for _ in range(10):
        assert not played.group.poll()
        played.now += 3.0
        played.seen |= {"w0": played.now, "w2": played.now}
    del played.there["w1"]
    assert not played.group.poll()


@pytest.mark.parametrize(
    ("ends", "mute", "dead", "rank", "raised", "cause"),
    [
        ({2: "cancelled", 1: "lost"}, "", "", 1, None, "Dask lost its task"),
        ({2: "cancelled"}, "", "", 2, None, "its task was cancelled"),
        ({0: CommTimeout("no rank 2")}, "", "w2", 2, None, "its worker process ended as n2 says of 12"),
        ({0: CommTimeout("no rank 2")}, "w2", "", 2, 0, "does not answer (stopped, or cut off), so CommTimeout on"),
        ({0: DataError("shard 7")}, "w2", "", 0, 0, "DataError: shard 7"),
        ({0: ClusterError("aborted"), 1: CommTimeout("no 2"), 2: DataError("a")}, "", "", 2, 2, "DataError: a"),
        ({0: ClusterError("aborted"), 2: CommTimeout("no rank 1")}, "", "", 2, 2, "CommTimeout: no rank 1"),
        ({0: CommTimeout("no rank 1"), 1: MpiUnusable("no MPI")}, "", "", 1, 1, "MpiUnusable: no MPI"),
        ({0: ClusterError("not all came"), 1: DriverUnreachable("far")}, "", "", 1, 1, "DriverUnreachable: far"),
        ({1: ValueError("a"), 2: ValueError("b")}, "", "", 1, 1, "ValueError: a"),
        ({0: ClusterError("aborted"), 1: ClusterError("aborted")}, "", "", 0, 0, "ClusterError: aborted"),
    ],
)
def test_the_root_cause_is_named(cluster, ends, mute, dead, rank, raised, cause):
    """MPI may miss a rank before Dask does."""
    played = cluster(mute={mute})
    played.group.poll()
    played.there.pop(dead, None)
    for number, end in ends.items():
        played.ranks[number].settle("error" if isinstance(end, Exception) else end, error=end)
    failure = played.failure()
    assert (failure.rank, failure.exception) == (rank, ends.get(raised)) and failure.cause.startswith(cause)
    assert failure.cancelled == ("cancelled" in cause) and (cause if rank == raised else "") in failure.traceback


def test_ranks_whose_tasks_were_cancelled_are_kept_until_they_return(cluster):
    played = cluster(mute={"w2"})
    played.group.formed()
    for future, status in zip(played.ranks, ("finished", "cancelled", "cancelled"), strict=True):
        future.settle(status, status)
    assert not played.group.poll() and played.group.cancelled == {1, 2}
    assert played.called(keep_rank) == [("w1", ("job-1",)), ("w2", ("job-1",))]
    played.group.poll()
    assert len(played.called(keep_rank)) == 2, "not in every turn"
    played.left = {"w1"}
    played.now += 0.3
    assert not played.group.poll(), "one that does not answer may be there"
    del played.there["w1"]
    played.mute.clear()
    played.left.add("w2")
    played.now += 0.3
    assert played.group.poll(), "a process that dies after its rank has returned is not lost"
    assert played.group.results() == ["finished", None, None]
    played.group.close()
    assert not played.called(abort_rank)


def test_a_cancelled_rank_that_is_still_there_is_made_to_leave(cluster):
    played = cluster()
    played.group.formed()
    for future in played.ranks:
        future.settle("cancelled")
    played.group.poll()
    played.left = {"w0"}
    played.now += 0.3
    played.group.poll()
    played.group.abort("enough")
    assert played.asked(abort_rank) == ["w1", "w2"] and not played.killed


def test_a_worker_that_sends_no_heartbeats_is_asked_and_then_named(cluster):
    played = cluster()
    for _ in range(10):
        assert not played.group.poll()
        played.now += 1.5
        played.seen |= {"w0": played.now, "w2": played.now}
    assert set(played.asked(describe)) == {"w1"}, "it answers, so it is only late"
    played.mute.add("w1")
    played.now += 3.0
    failure = played.failure()
    assert failure.rank == 1 and played.killed == [{"w1": 11}]
    assert failure.cause.startswith("does not answer (stopped, or cut off) for 1") and failure.cause.endswith(" s")


def test_a_process_that_stays_stopped_is_lost_and_not_asked_to_leave(cluster):
    played = cluster()
    for stopped in ({"n2"}, set(), {"n1"}, {"n2"}):
        played.stopped = stopped
        for _ in range(2):  # the second time, it is too early to look again
            assert not played.group.poll(), "it was continued"
        played.now += 0.3
    played.mute.add("w2")
    failure = played.failure()
    assert (failure.rank, failure.cause) == (2, "its process is stopped (SIGSTOP)") and played.killed == [{"w2": 12}]
    assert played.asked(abort_rank) == ["w0", "w1"], "that would take until its timeout"


@pytest.mark.parametrize(("endpoint", "killed"), [("made", [{"w0": 10, "w2": 12}]), (None, [])])
def test_the_processes_of_a_failed_group_are_replaced_if_mpi_cannot_start_again_in_them(cluster, endpoint, killed):
    played = cluster(endpoint=endpoint)
    played.group.replace_processes()
    assert played.killed == [], "it has not failed"
    del played.there["w1"]
    played.failure()
    played.group.replace_processes()
    assert played.killed == killed


@pytest.mark.parametrize(
    ("ranks", "replaced", "seconds"),
    [
        ({"mute": {"w1"}}, {"w1": 11}, 0.0),
        ({"stubborn": {"w2"}}, {"w2": 12}, 5.0),
        ({"mute": {"w1"}, "alone": {"w1"}}, {}, 0.0),
    ],
    ids=["only-those-that-do-not-answer", "after-a-time-of-grace", "not-without-a-nanny"],
)
def test_processes_that_do_not_leave_are_replaced_and_whoever_forms_groups_knows(cluster, ranks, replaced, seconds):
    known = {"other": 1}
    played = cluster(**ranks, replaced=known)
    for _ in range(2):
        played.group.abort("enough")
        assert played.killed == [replaced] and known == {"other": 1, **replaced}
        assert seconds <= played.now - 1000.0 < seconds + 0.1


def test_a_group_that_is_closed_while_it_runs_is_ended(cluster):
    played = cluster()
    with played.group:
        pass
    assert [given for _, given in played.called(abort_rank)] == [("job-1", "the driver closed the group")] * 3
    assert all(future.released for future in played.ranks)


def test_a_word_to_all_ranks_tells_whether_all_heard(cluster):
    played = cluster()
    assert played.group.tell("servers", {0: "a"})
    assert played.called(tell_rank) == [(f"w{i}", ("job-1", "servers", {0: "a"})) for i in range(3)]
    played.mute.add("w1")
    assert not played.group.tell("servers", {}) and played.group.looks() == {0: LOOKS, 1: None, 2: LOOKS}
    played.group.stop()
    assert played.called(tell_rank)[-1] == ("w2", ("job-1", "stop", True))


@pytest.mark.parametrize("forms", [False, True])
def test_a_group_that_did_not_form_gives_its_world_up(cluster, forms):
    log = []
    played = cluster(server=SimpleNamespace(fail=log.append, endpoint=SimpleNamespace(kvsname="kvs")))
    if forms:
        played.group.formed()
    del played.there["w1"]
    played.group.abort("rank 1 died")
    assert log == ["rank 1 died"] * (not forms)
    assert sorted(played.called(clean_segments)) == [("w0", ("kvs",)), ("w2", ("kvs",))] * (not forms)


def test_a_failure_survives_pickling():
    failure = grouping.RankFailure(1, WorkerInfo("w1"), "DataError: shard 7", DataError("shard 7"), "Traceback ...")
    error = pickle.loads(pickle.dumps(GroupFailed("job-1", failure)))
    assert str(error).startswith("job-1 failed: rank 1 on w1") and "The traceback of rank 1:\nTraceback" in str(error)
    assert isinstance(error.__cause__, DataError)


@pytest.mark.parametrize(("alone", "killed"), [((), {"w0": 10, "w1": 11}), ({"w0"}, {"w1": 11})])
def test_ranks_that_are_given_up_are_replaced_and_named(cluster, alone, killed):
    played = cluster(alone=alone, stubborn={"w0", "w1"})
    played.group.give_up({0: "has made no step for 9 s", 1: "has made no step for 8 s"})
    assert played.killed[0] == killed and "w2" in played.asked(abort_rank)
    failure = played.failure()
    assert (failure.rank, failure.cause, failure.exception) == (0, "has made no step for 9 s", None)
