"""How the driver notices, names and ends failures, with futures and workers that the test plays, by its own clock."""

from types import SimpleNamespace

import pytest

from singa_dask.cluster import group as grouping
from singa_dask.cluster import remote
from singa_dask.cluster.group import Group, GroupFailed
from singa_dask.cluster.join import RankPlan
from singa_dask.cluster.rank import abort_rank, clean_segments, keep_rank, tell_rank
from singa_dask.cluster.workers import WorkerInfo, describe
from singa_dask.errors import ClusterError, CommTimeout, DataError, DriverUnreachable, MpiUnusable


class Future:
    def __init__(self):
        self.status, self.error, self.value, self.released = "pending", None, None, False

    def end(self, value):
        self.status, self.value = "finished", value

    def fail(self, error):
        self.status, self.error = "error", error

    def exception(self, timeout):
        return self.error

    def traceback(self, timeout):
        return None

    def result(self, timeout):
        return self.value

    def release(self):
        self.released = True


class Cluster:
    """Ranks on w0, w1 and w2. mute: workers that do not answer; stubborn: those whose rank does not leave."""

    def __init__(self, monkeypatch, nannies=(True, True, True), **options):
        self.now, self.dead, self.mute, self.stubborn = 1000.0, set(), set(), set()
        self.left: set[str] = set()
        self.stopped: set[str] = set()
        self.seen = {f"w{i}": 1.0 for i in range(3)}
        self.calls, self.killed, self.cancelled, self.looks = [], [], [], 0
        self.workers = [WorkerInfo(f"w{i}", pid=10 + i, nanny=f"n{i}" if nannies[i] else "") for i in range(3)]
        self.futures = [Future() for _ in range(3)]
        monkeypatch.setattr(grouping, "time", SimpleNamespace(monotonic=lambda: self.now, sleep=self.sleep))
        for name in ("alive", "run_each", "kill_processes", "last_seen"):
            monkeypatch.setattr(grouping, name, getattr(self, name))
        monkeypatch.setattr(grouping, "ending_of", lambda client, nanny, pid: f"ended as {nanny} says of {pid}")
        monkeypatch.setattr(remote, "time", grouping.time)
        monkeypatch.setattr(remote, "stopped_processes", self.stopped_processes)
        client = SimpleNamespace(cancel=lambda futures, force: self.cancelled.append((len(futures), force)))
        plans = [RankPlan("job-1", rank, 3) for rank in range(3)]
        self.group = Group(client, plans, self.workers, self.futures, **options)

    def sleep(self, seconds):
        self.now += seconds

    def alive(self, client, addresses):
        self.looks += 1
        return set(addresses) - self.dead

    def last_seen(self, client):
        return {address: seen for address, seen in self.seen.items() if address not in self.dead}

    def run_each(self, client, function, args, timeout_s):
        answers = {}
        for address, given in args.items():
            self.calls.append((function, address, given))
            answers[address] = TimeoutError() if address in self.mute | self.dead else None
            if function is keep_rank and answers[address] is None:
                answers[address] = address not in self.left
            if function is abort_rank and address not in self.mute | self.stubborn | self.dead:
                self.left.add(address)
                if self.futures[int(address[1])].status == "pending":
                    self.futures[int(address[1])].fail(ClusterError(given[1]))
        return answers

    def stopped_processes(self, client, pids):
        return {nanny for nanny, pid in pids.items() if f"w{pid - 10}" in self.stopped}

    def kill_processes(self, client, pids):
        self.killed.append(dict(pids))
        self.dead |= pids.keys()

    def failure(self):
        with pytest.raises(GroupFailed) as caught:
            self.group.poll()
        return caught.value.failure

    def called(self, function):
        return [(address, given) for name, address, given in self.calls if name is function]


@pytest.fixture
def cluster(monkeypatch):
    return lambda **options: Cluster(monkeypatch, **options)


def test_a_group_has_ended_when_all_ranks_have_returned(cluster):
    played = cluster()
    assert not played.group.poll()
    for rank, future in enumerate(played.futures):
        future.end(rank)
        assert played.group.poll() == (rank == 2)
    assert played.group.results() == [0, 1, 2]
    played.group.close()
    assert all(future.released for future in played.futures) and not played.called(abort_rank)


def test_results_that_do_not_come_name_the_ranks(cluster):
    played = cluster()
    played.futures[1].end("done")
    with pytest.raises(ClusterError, match=r"job-1: ranks \[0, 2\] still run after 3 s"):
        played.group.results(3.0)
    assert 1003.0 <= played.now < 1003.1


def test_a_wait_ends_in_time(cluster):
    played = cluster()
    assert not played.group.wait(1.0) and 1001.0 <= played.now < 1001.1


def test_a_lost_process_is_named_and_the_others_are_told_to_leave(cluster):
    played = cluster()
    played.dead.add("w1")
    failure = played.failure()
    assert (failure.rank, failure.worker.address) == (1, "w1")
    assert failure.cause == "its worker process ended as n1 says of 11"
    assert failure.exception is None and "rank 1 on w1" in str(failure)
    told = [(address, given[0]) for address, given in played.called(abort_rank)]
    assert sorted(told) == [("w0", "job-1"), ("w2", "job-1")] and played.cancelled == [(3, True)]
    assert played.failure() is failure, "the first failure counts, and is found once"
    assert len(played.called(abort_rank)) == 2


def test_a_process_that_dies_after_its_rank_has_returned_is_not_lost(cluster):
    played = cluster()
    played.futures[1].end("done")
    played.dead.add("w1")
    assert not played.group.poll()


def test_the_scheduler_is_asked_every_quarter_of_a_second(cluster):
    played = cluster()
    for _ in range(4):
        played.group.poll()
        played.now += 0.1
    assert played.looks == 2
    played.dead.add("w2")
    played.now += 0.3
    assert played.failure().rank == 2


def test_a_task_that_dask_lost_is_a_failure(cluster):
    played = cluster()
    played.futures[2].status = "cancelled"
    played.futures[1].status = "lost"
    assert (played.failure().rank, played.group.failure.cause) == (1, "Dask lost its task")


def test_a_task_that_is_cancelled_while_its_group_forms_is_a_failure(cluster):
    played = cluster()
    played.futures[2].status = "cancelled"
    failure = played.failure()
    assert (failure.rank, failure.cause, failure.cancelled) == (2, "its task was cancelled", True)


def test_ranks_whose_tasks_were_cancelled_are_kept_until_they_return(cluster):
    played = cluster()
    played.group.formed()
    played.futures[0].end("done")
    for rank in (1, 2):
        played.futures[rank].status = "cancelled"
    played.mute.add("w2")
    assert not played.group.poll() and played.group.cancelled == {1, 2}
    assert played.called(keep_rank) == [("w1", ("job-1",)), ("w2", ("job-1",))]
    played.group.poll()
    assert len(played.called(keep_rank)) == 2, "not in every turn"
    played.left = {"w1"}
    played.now += 0.3
    assert not played.group.poll(), "one that does not answer may be there"
    played.dead.add("w1")
    played.mute.clear()
    played.left.add("w2")
    played.now += 0.3
    assert played.group.poll(), "a process that dies after its rank has returned is not lost"
    assert played.group.results() == ["done", None, None]
    played.group.close()
    assert not played.called(abort_rank)


def test_a_cancelled_rank_that_is_still_there_is_made_to_leave(cluster):
    played = cluster()
    played.group.formed()
    for future in played.futures:
        future.status = "cancelled"
    played.group.poll()
    played.left = {"w0"}
    played.now += 0.3
    played.group.poll()
    played.group.abort("enough")
    assert sorted(address for address, _ in played.called(abort_rank)) == ["w1", "w2"] and not played.killed


@pytest.mark.parametrize(
    ("errors", "rank"),
    [
        ({0: ClusterError("aborted"), 1: CommTimeout("no rank 2"), 2: DataError("shard 7")}, 2),
        ({0: ClusterError("aborted"), 2: CommTimeout("no rank 1")}, 2),
        ({0: CommTimeout("no rank 1"), 1: MpiUnusable("no MPI")}, 1),
        ({0: ClusterError("not every rank came"), 1: DriverUnreachable("no route")}, 1),
        ({1: ValueError("a"), 2: ValueError("b")}, 1),
        ({0: ClusterError("aborted"), 1: ClusterError("aborted")}, 0),
    ],
)
def test_the_root_cause_is_named(cluster, errors, rank):
    played = cluster()
    for number, error in errors.items():
        played.futures[number].fail(error)
    failure = played.failure()
    assert (failure.rank, failure.exception) == (rank, errors[rank])
    assert failure.cause == f"{type(errors[rank]).__name__}: {errors[rank]}" and str(errors[rank]) in failure.traceback
    consequence = type(errors[rank]) in (ClusterError, CommTimeout, DriverUnreachable)
    assert bool(played.called(describe)) == consequence, "all are asked whether one is silent"


def test_a_silent_rank_is_a_better_cause_than_the_timeout_of_the_others(cluster):
    """MPI may miss a rank before Dask does."""
    played = cluster()
    played.mute.add("w2")
    error = CommTimeout("no rank 2")
    played.futures[0].fail(error)
    failure = played.failure()
    assert failure.rank == 2 and failure.exception is error
    assert failure.cause == "does not answer (stopped, or cut off), so CommTimeout on the others: no rank 2"


def test_a_lost_process_is_a_better_cause_than_any_error(cluster):
    played = cluster()
    played.group.poll()
    played.dead.add("w2")
    played.futures[0].fail(CommTimeout("no rank 2"))
    assert (played.failure().rank, played.group.failure.exception) == (2, None)


def test_a_worker_that_sends_no_heartbeats_is_asked_and_then_named(cluster):
    played = cluster()
    for _ in range(10):
        assert not played.group.poll()
        played.now += 1.5
        played.seen |= {"w0": played.now, "w2": played.now}
    assert {address for address, _ in played.called(describe)} == {"w1"}, "it answers, so it is only late"
    played.mute.add("w1")
    played.now += 3.0
    failure = played.failure()
    assert failure.rank == 1
    assert failure.cause.startswith("does not answer (stopped, or cut off) for 1") and failure.cause.endswith(" s")
    assert played.killed == [{"w1": 11}]


def test_a_process_that_stays_stopped_is_lost_and_not_asked_to_leave(cluster):
    played = cluster()
    for stopped in ({"w2"}, set(), {"w1"}, {"w2"}):
        played.stopped = stopped
        for _ in range(2):  # the second time, it is too early to look again
            assert not played.group.poll(), "it was continued"
        played.now += 0.3
    played.mute.add("w2")
    failure = played.failure()
    assert (failure.rank, failure.cause) == (2, "its process is stopped (SIGSTOP)")
    assert played.killed == [{"w2": 12}]
    assert {address for address, _ in played.called(abort_rank)} == {"w0", "w1"}, "that would take until its timeout"


def test_the_processes_of_a_failed_group_are_replaced_if_mpi_cannot_start_again_in_them(monkeypatch):
    for ours, killed in ((True, [{"w0": 10, "w2": 12}]), (False, [])):
        played = Cluster(monkeypatch, nannies=(True, True, True))
        played.group._own_world = ours
        played.group.replace_processes()
        assert played.killed == [], "it has not failed"
        played.dead.add("w1")
        played.failure()
        played.group.replace_processes()
        assert played.killed == killed


def test_a_rank_that_has_returned_is_not_asked_whether_it_lives(cluster):
    played = cluster()
    played.futures[1].end("done")
    played.mute.add("w1")
    for _ in range(10):
        assert not played.group.poll()
        played.now += 3.0
        played.seen |= {"w0": played.now, "w2": played.now}


def test_only_the_processes_that_do_not_answer_are_replaced(cluster):
    played = cluster()
    played.mute.add("w1")
    played.group.abort("enough")
    assert played.killed == [{"w1": 11}] and played.group.replaced == {"w1": 11}
    assert played.now < 1001.0, "the others have left at once"


def test_a_rank_that_does_not_leave_is_replaced_after_its_time_of_grace(cluster):
    played = cluster()
    played.stubborn.add("w2")
    played.group.abort("enough")
    assert played.killed == [{"w2": 12}] and 1005.0 <= played.now < 1005.1
    played.group.abort("again")
    assert len(played.killed) == 1


def test_processes_without_a_nanny_are_left_alone(cluster):
    played = cluster(nannies=(True, False, True))
    played.mute.add("w1")
    played.group.abort("enough")
    assert played.killed == [{}] and played.group.replaced == {}


def test_what_is_replaced_is_known_to_whoever_forms_the_group(cluster):
    known = {"other": 1}
    played = cluster(replaced=known)
    played.mute.add("w0")
    played.group.abort("enough")
    assert known == {"other": 1, "w0": 10}


def test_a_group_that_is_closed_while_it_runs_is_ended(cluster):
    played = cluster()
    with played.group:
        pass
    assert [given for _, given in played.called(abort_rank)] == [("job-1", "the driver closed the group")] * 3
    assert all(future.released for future in played.futures)


def test_a_word_to_all_ranks_tells_whether_all_heard(cluster):
    played = cluster()
    assert played.group.tell("servers", {0: "a"})
    assert played.called(tell_rank) == [(f"w{i}", ("job-1", "servers", {0: "a"})) for i in range(3)]
    played.mute.add("w1")
    assert not played.group.tell("servers", {})
    played.group.stop()
    assert played.called(tell_rank)[-1] == ("w2", ("job-1", "stop", True))


def test_a_group_that_did_not_form_gives_its_world_up(cluster):
    log = []
    server = SimpleNamespace(fail=log.append, endpoint=SimpleNamespace(kvsname="kvs"))
    played = cluster(server=server)
    played.dead.add("w1")
    played.group.abort("rank 1 died")
    assert log == ["rank 1 died"] and sorted(played.called(clean_segments)) == [("w0", ("kvs",)), ("w2", ("kvs",))]
    formed = cluster(server=server)
    formed.group.formed()
    formed.group.abort("enough")
    assert log == ["rank 1 died"] and not formed.called(clean_segments)


def test_a_failure_survives_pickling():
    import pickle

    failure = grouping.RankFailure(1, WorkerInfo("w1"), "DataError: shard 7", DataError("shard 7"), "Traceback ...")
    error = pickle.loads(pickle.dumps(GroupFailed("job-1", failure)))
    assert str(error).startswith("job-1 failed: rank 1 on w1") and "The traceback of rank 1:\nTraceback" in str(error)
    assert isinstance(error.__cause__, DataError)


def test_ranks_are_asked_when_they_last_looked_for_a_stop(cluster):
    played = cluster()
    played.mute.add("w1")
    assert played.group.looks() == {0: None, 1: None, 2: None}
    assert {function.__name__ for function, *_ in played.calls} == {"rank_looks"}


@pytest.mark.parametrize("nannies", [(True, True, True), (False, True, True)])
def test_ranks_that_are_given_up_are_replaced_and_named(cluster, nannies):
    played = cluster(nannies=nannies)
    played.stubborn |= {"w0", "w1"}
    played.group.give_up({0: "has made no step for 9 s", 1: "has made no step for 8 s"})
    assert played.killed[0] == {"w0": 10, "w1": 11} if nannies[0] else {"w1": 11}
    failure = played.failure()
    assert (failure.rank, failure.cause, failure.exception) == (0, "has made no step for 9 s", None)
    assert "w2" in {address for address, _ in played.called(abort_rank)}
