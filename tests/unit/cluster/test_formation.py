"""How Dask workers become a group, with workers that the test plays, by its own clock."""

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
from support.played_workers import Future, PlayedWorkers

from singa_dask.cluster import formation, group
from singa_dask.cluster.bootstrap import MpiReport
from singa_dask.cluster.formation import NoAnswer, WorkersInUse, form_group, restart_workers
from singa_dask.cluster.group import GroupFailed
from singa_dask.cluster.pmi_server import PmiEndpoint
from singa_dask.cluster.rank import JoinFailed, abort_rank, rank_formed, rank_task, release_worker, reserve_worker
from singa_dask.cluster.workers import WorkerInfo
from singa_dask.errors import ClusterError, DriverUnreachable, MpiUnusable

ALONE = MpiReport("alone", 0, 1)
ENDPOINT = PmiEndpoint("here", 1, "token", "kvs")


class Client(PlayedWorkers):
    """holders: of workers in use; unformed: workers whose rank has not met the others; back: where workers come back
    and what MPI is to them then, by old address; world: why the world fails; servers: of PMI, as (nodes, host)."""

    def __init__(self, monkeypatch, *workers, mute=(), unformed=(), back=(), world=""):
        super().__init__(monkeypatch, [formation, group], {worker.address: worker for worker in workers}, mute)
        self.unformed, self.back, self.world, self.holders, self.servers = unformed, dict(back), world, {}, []
        monkeypatch.setattr(formation, "random", SimpleNamespace(uniform=lambda low, high: low))
        monkeypatch.setattr(formation, "PmiServer", self.serve)
        monkeypatch.setattr(formation, "this_node", lambda: "here")
        monkeypatch.setattr(formation, "get_ip", lambda host: f"ip towards {host}")

    @contextmanager
    def serve(self, nodes, host="127.0.0.1"):
        self.servers.append((nodes, host))
        state = SimpleNamespace(failure=self.world)
        yield SimpleNamespace(endpoint=ENDPOINT, state=state, missing=dict, fail=self.servers.append)
        self.servers.append("closed")

    def answer(self, function, address, *given):
        if function is rank_formed:
            return address not in self.unformed
        held = function is reserve_worker and self.holders.get(address)
        return held or super().answer(function, address, *given)

    def kill_processes(self, client, pids):
        old = [self.there[address] for address in pids]
        super().kill_processes(client, pids)
        for worker in old:
            new, mpi = self.back.get(worker.address, ("", None))
            if new:
                self.there[new] = WorkerInfo(new, node="here", pid=worker.pid + 100, nanny=worker.nanny, mpi=mpi)


def worker(number, **more):
    return WorkerInfo(f"w{number}", **{"node": "here", "pid": number, "nanny": f"n{number}", **more})


@pytest.fixture
def played(monkeypatch):
    return lambda *workers, **options: Client(monkeypatch, *workers, **options)


def test_workers_are_reserved_and_get_a_rank_each_in_a_new_world(played):
    client = played(worker(0), worker(1))
    group = form_group(client, ["w1", "w0"], print, 7, timeout_s=20.0, comm_timeout_s=3.0, name="job", run="r")
    assert group.id.startswith("job-") and group.addresses == ("w1", "w0")
    assert client.called(reserve_worker) == [(a, (group.id, "r", 5.0)) for a in ("w1", "w0")]
    assert [(function, fn, args) for function, _, fn, args, _ in client.submitted] == [(rank_task, print, (7,))] * 2
    first, second = (plan for _, plan, *_ in client.submitted)
    assert (first.group, first.rank, first.size, first.world_ranks) == (group.id, 0, 2, (0, 1))
    assert (first.endpoint, first.host) == (ENDPOINT, "")
    assert (second.rank, second.forming_s, second.comm_timeout_s) == (1, 20.0, 3.0)
    options = client.submitted[0][4]
    assert options["workers"] == ["w1"] and options["key"] == f"{group.id}-rank0" and options["retries"] == 0
    assert client.servers == [(["here", "here"], "127.0.0.1"), "closed"] and not client.called(release_worker)
    client.futures["w0"].settle("cancelled")
    assert not group.poll(), "the group has formed: who cancels a task may be anybody"


@pytest.mark.parametrize(
    ("workers", "servers", "hosts"),
    [
        ([worker(0)], [], [""]),
        ([worker(0), worker(1, node="there", host="10.0.0.2")], ["ip towards 10.0.0.2"], ["127.0.0.1", "10.0.0.2"]),
    ],
    ids=["one-needs-no-world", "another-machine"],
)
def test_where_ranks_reach_each_other(played, workers, servers, hosts):
    client = played(*workers)
    form_group(client, [worker.address for worker in workers], print)
    assert [served[1] for served in client.servers[::2]] == servers
    assert [plan.host for _, plan, *_ in client.submitted] == hosts
    assert client.submitted[0][1].endpoint is (ENDPOINT if servers else None)


@pytest.mark.parametrize(
    ("workers", "ranks", "match"),
    [
        ([worker(0)], [], "one Dask worker per rank"),
        ([worker(0)], ["w0", "w0"], "one Dask worker per rank"),
        ([worker(0)], ["w0", "w9"], r"gone: w9\. There are now: w0\."),
        ([worker(0, pid=5), worker(1, pid=5)], ["w0", "w1"], "ranks need a process each"),
    ],
)
def test_workers_that_can_be_no_group_are_refused(played, workers, ranks, match):
    with pytest.raises(ClusterError, match=match):
        form_group(played(*workers), ranks, print)


def test_a_worker_in_use_is_waited_for_and_the_others_are_left_free_meanwhile(played):
    client = played(worker(0), worker(1))
    client.holders["w1"] = "other-group"
    sleep = client.sleep

    def until_it_is_free(seconds):
        sleep(seconds)
        if client.now > 1001.0:
            client.holders.clear()

    formation.time.sleep = until_it_is_free
    assert form_group(client, ["w0", "w1"], print, timeout_s=5.0)
    assert set(client.asked(release_worker)) == {"w0", "w1"}


@pytest.mark.parametrize("options", [{"timeout_s": 5.0}, {"timeout_s": 9.0, "in_use_s": 5.0}])
def test_a_worker_that_stays_in_use_is_named_with_its_holder(played, options):
    client = played(worker(0), worker(1))
    client.holders["w1"] = "other-group"
    with pytest.raises(WorkersInUse, match=r"still in use: w1 by other-group\. Wait for it to end"):
        form_group(client, ["w0", "w1"], print, **options)
    assert 1005.0 <= client.now < 1005.3 and not client.submitted


def test_a_worker_that_does_not_answer_ends_the_forming_at_once(played):
    client = played(worker(0), worker(1), mute={"w1"})
    with pytest.raises(NoAnswer, match=r"cannot form: .* do not answer \(stopped, or cut off\): w1: TimeoutError"):
        form_group(client, ["w0", "w1"], print)
    assert client.now == 1000.0 and client.asked(release_worker) == ["w0"]


def test_processes_of_an_older_world_are_restarted_first(played):
    spent, replaced = MpiReport("w", 0, 2, ours=True, spent=True), {}
    client = played(worker(0, mpi=spent), worker(1), back={"w0": ("w9", MpiReport())})
    group = form_group(client, ["w0", "w1"], print, replaced=replaced)
    assert group.addresses == ("w9", "w1") and client.killed == [{"w0": 0}] and replaced == {"w0": 0}
    assert ("w9", (group.id, "", 5.0)) in client.called(reserve_worker), "the fresh process is reserved too"


def test_a_retired_process_is_restarted_also_for_a_group_of_one(played):
    client = played(worker(0, retired=True), back={"w0": ("w9", MpiReport())})
    assert form_group(client, ["w0"], print).addresses == ("w9",) and client.killed == [{"w0": 0}]


@pytest.mark.parametrize("for_s", [4.0, 9.0])
def test_the_tasks_and_data_of_others_are_waited_for_and_named(played, caplog, for_s):
    old = MpiReport("w", 0, 2, ours=True)
    client = played(worker(0, mpi=old), worker(1), back={"w0": ("w9", MpiReport())})
    client.held["w0"] = "runs mine"
    sleep = client.sleep

    def until_they_are_done(seconds):
        sleep(seconds)
        if client.now > 1000.0 + for_s:
            client.held.clear()

    formation.time.sleep = until_they_are_done
    words = r"since they were in another group: {'w0': 'runs mine'}\. Wait for these tasks, delete the data"
    with pytest.raises(ClusterError, match=words) if for_s > 6.0 else nullcontext():
        assert form_group(client, ["w0", "w1"], print, timeout_s=6.0).addresses == ("w9", "w1")
    assert [record.message for record in caplog.records if "waiting up to 3 s" in record.message]
    assert len(client.asked(reserve_worker)) > 12, "they stay reserved"
    assert client.killed == ([] if for_s > 6.0 else [{"w0": 0}])


@pytest.mark.parametrize("for_s", [4.0, 9.0])
def test_threads_that_tasks_of_others_have_are_waited_for(played, caplog, for_s):
    client = played(worker(0), worker(1))
    client.threads["w1"] = "w1 runs mine"
    sleep = client.sleep

    def until_they_are_done(seconds):
        sleep(seconds)
        if client.now > 1000.0 + for_s:
            client.threads.clear()

    formation.time.sleep = until_they_are_done
    words = r"form: tasks of others occupy all threads of these workers: w1 runs mine\. Wait for these tasks, or start"
    with pytest.raises(ClusterError, match=words) if for_s > 6.0 else nullcontext():
        assert form_group(client, ["w0", "w1"], print, timeout_s=6.0).addresses == ("w0", "w1")
    assert [record.message for record in caplog.records if "waiting up to 3 s" in record.message]
    assert len(client.asked(reserve_worker)) > 12 and not client.killed


@pytest.mark.parametrize("for_s", [2.0, 9.0])
def test_a_worker_that_another_group_has_reserved_meanwhile_is_not_killed(played, monkeypatch, for_s):
    old = MpiReport("w", 0, 2, ours=True)
    client = played(worker(0, mpi=old), worker(1), back={"w0": ("w9", MpiReport())})

    def after_its_data_have_moved(_, addresses):
        client.now += 1.0
        client.holders = {"w0": "other-group"} if client.now < 1001.0 + for_s else {}
        return set(addresses), ""

    monkeypatch.setattr(formation, "without_tasks_and_data", after_its_data_have_moved)
    late = for_s > 6.0
    with pytest.raises(ClusterError, match="w0 is in use by other-group") if late else nullcontext():
        assert form_group(client, ["w0", "w1"], print, timeout_s=6.0).addresses == ("w9", "w1")
    assert client.killed == ([] if late else [{"w0": 0}]) and {*client.given_back} == {"w0"}


def test_workers_whose_restart_is_interrupted_take_tasks_again(played, monkeypatch):
    client = played(worker(0, mpi=MpiReport("w", 0, 2, ours=True)), worker(1))

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(formation, "kill_processes", interrupted)
    with pytest.raises(KeyboardInterrupt):
        form_group(client, ["w0", "w1"], print)
    assert client.given_back == ["w0"] and client.asked(release_worker) == ["w0", "w1"]


def test_a_world_that_all_share_is_used_again(played):
    client = played(*(worker(i, mpi=MpiReport("w", rank, 3, ours=True)) for i, rank in enumerate((2, 0))))
    form_group(client, ["w0", "w1"], print)
    assert all(plan.world_ranks == (2, 0) and plan.endpoint is None for _, plan, *_ in client.submitted)
    assert not client.killed


def test_mpi_that_starts_by_itself_in_fresh_processes_is_named(played):
    client = played(worker(0, mpi=ALONE), worker(1), back={"w0": ("w9", ALONE)})
    with pytest.raises(ClusterError, match=r"MPI is initialised in fresh processes of w9.*inside functions"):
        form_group(client, ["w0", "w1"], print)
    assert client.asked(release_worker) == ["w0", "w1"], "what was reserved at first"


@pytest.mark.parametrize(
    ("world", "unformed", "match", "seconds"),
    [
        ("", {"w1"}, "could not form: rank 1 on w1 .*did not join", 4.0),
        ("rank 0 was lost", {"w0", "w1"}, r"rank 0 on w0 .*did not join; rank 1", 1.0),
    ],
    ids=["in-time", "once-their-world-has-failed"],
)
def test_ranks_that_do_not_form_are_named_and_ended(played, world, unformed, match, seconds):
    client = played(worker(0), worker(1), unformed=unformed, world=world)
    with pytest.raises(ClusterError, match=match):
        form_group(client, ["w0", "w1"], print, timeout_s=4.0)
    assert seconds <= client.now - 1000.0 < seconds + 0.1
    assert client.asked(abort_rank) == client.asked(release_worker) == ["w0", "w1"]


FAR = "rank 1 on far cannot reach the driver at 10.0.0.2:99 (No route to host)"


@pytest.mark.parametrize(
    ("error", "raised", "match"),
    [
        (MpiUnusable("no MPI here"), ClusterError, "cannot form: rank 1 on w1 .*: no MPI here"),
        (JoinFailed("became rank 3"), GroupFailed, "became rank 3"),
        (DriverUnreachable(FAR), DriverUnreachable, r"^rank 1 on far .* host\)\. Run it .*client\.submit"),
        (ValueError("a bug"), None, ""),
    ],
)
def test_a_rank_that_cannot_join_is_the_reason_and_one_that_fails_later_is_told_by_the_group(
    played, error, raised, match
):
    client = played(worker(0), worker(1))
    client.futures["w1"] = Future("rank1")
    client.futures["w1"].settle("error", error=error)
    with pytest.raises(raised, match=match) if raised else nullcontext():
        assert form_group(client, ["w0", "w1"], print).failure.exception is error


def test_restarted_workers_are_known_by_their_nannies(played):
    client = played(worker(0), worker(1), worker(2), back={"w0": ("w9", None), "w1": ("w1", None)})
    assert restart_workers(client, [worker(0), worker(1)]) == {"w0": "w9", "w1": "w1"}


@pytest.mark.parametrize(
    ("other", "match", "seconds"),
    [
        (worker(1), "did not come back within 3 s of their restart: w1 ", 3.0),
        (worker(5, nanny=""), "have no nanny to start one: w5 ", 0.0),
    ],
)
def test_workers_that_do_not_come_back_are_named(played, other, match, seconds):
    client = played(worker(0), worker(1), back={"w0": ("w9", None)})
    with pytest.raises(ClusterError, match=match):
        restart_workers(client, [worker(0), other], 3.0)
    assert seconds <= client.now - 1000.0 < seconds + 0.1
