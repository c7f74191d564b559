"""How Dask workers become a group, with workers that the test plays, by its own clock."""

from types import SimpleNamespace

import pytest

from singa_dask.cluster import formation
from singa_dask.cluster.bootstrap import MpiReport
from singa_dask.cluster.formation import NoAnswer, WorkersInUse, form_group, restart_workers
from singa_dask.cluster.group import GroupFailed, RankFailure
from singa_dask.cluster.rank import JoinFailed, rank_formed, rank_task, release_worker, reserve_worker
from singa_dask.cluster.workers import WorkerInfo, describe
from singa_dask.errors import ClusterError, DriverUnreachable, MpiUnusable


class Group:
    """What form_group makes. ends: what its polls say or raise."""

    def __init__(self, client, plans, workers, futures, server, replaced):
        self.id, self.plans, self.workers, self.futures = plans[0].group, plans, workers, futures
        self.addresses, self.aborted, self.is_formed = tuple(w.address for w in workers), "", False
        self.ends, self.server = client.ends, server
        client.groups.append(self)

    def poll(self):
        if isinstance(self.ends, Exception):
            raise self.ends
        return self.ends

    def wait(self, timeout_s):
        return False

    def abort(self, reason):
        self.aborted = reason

    def formed(self):
        self.is_formed = True


class PmiServer:
    def __init__(self, nodes, host="127.0.0.1"):
        self.nodes, self.host, self.state, self.closed = nodes, host, SimpleNamespace(failure=""), False
        self.endpoint, self.absent = f"endpoint for {len(nodes)}", {}
        PmiServer.made.append(self)

    def missing(self):
        return self.absent

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.closed = True


class Client:
    """workers: by address; holders: of those in use; formed: addresses whose rank has met the others."""

    def __init__(self, monkeypatch, *workers):
        self.workers = {worker.address: worker for worker in workers}
        self.holders, self.mute, self.unformed, self.ends = {}, set(), set(), False
        self.now, self.groups, self.submitted, self.calls, self.killed, self.back = 0.0, [], [], [], [], {}
        PmiServer.made = []
        clock = SimpleNamespace(monotonic=lambda: self.now, sleep=self.sleep)
        monkeypatch.setattr(formation, "time", clock)
        monkeypatch.setattr(formation, "random", SimpleNamespace(uniform=lambda low, high: low))
        monkeypatch.setattr(formation, "Group", Group)
        monkeypatch.setattr(formation, "PmiServer", PmiServer)
        monkeypatch.setattr(formation, "this_node", lambda: "here")
        monkeypatch.setattr(formation, "get_ip", lambda host: f"ip towards {host}")
        for name in ("alive", "run_each", "kill_processes"):
            monkeypatch.setattr(formation, name, getattr(self, name))

    def sleep(self, seconds):
        self.now += seconds

    def alive(self, client, addresses=None):
        return {a for a in self.workers if addresses is None or a in addresses}

    def run_each(self, client, function, args, timeout_s):
        answers = {}
        for address, given in args.items():
            self.calls.append((function, address, *given))
            if address in self.mute:
                answers[address] = TimeoutError("no answer")
            elif function is reserve_worker:
                answers[address] = self.holders.get(address) or self.workers[address]
            elif function is describe:
                answers[address] = self.workers[address]
            elif function is rank_formed:
                answers[address] = address not in self.unformed
        return answers

    def kill_processes(self, client, pids):
        self.killed.append(dict(pids))
        for address in pids:
            old = self.workers.pop(address)
            if address in self.back:
                new = self.back[address]
                self.workers[new] = WorkerInfo(new, node=old.node, pid=old.pid + 100, nanny=old.nanny)

    def submit(self, function, plan, fn, args, **options):
        self.submitted.append((function, plan, fn, args, options))
        return SimpleNamespace(status="pending")

    def called(self, function):
        return [call[1:] for call in self.calls if call[0] is function]


def worker(number, **more):
    return WorkerInfo(f"w{number}", **{"node": "here", "pid": number, "nanny": f"n{number}", **more})


@pytest.fixture
def played(monkeypatch):
    return lambda *workers: Client(monkeypatch, *workers)


def test_workers_are_reserved_and_get_a_rank_each_in_a_new_world(played):
    client = played(worker(0), worker(1))
    group = form_group(client, ["w1", "w0"], print, 7, timeout_s=20.0, comm_timeout_s=3.0, name="job", run="r")
    assert group.is_formed and group.id.startswith("job-") and not group.aborted
    assert client.called(reserve_worker) == [(a, group.id, "r", 5.0) for a in ("w1", "w0")]
    assert [(function, fn, args) for function, _, fn, args, _ in client.submitted] == [(rank_task, print, (7,))] * 2
    first, second = group.plans
    assert (first.rank, first.size, first.world_ranks, first.endpoint, first.host) == (
        0,
        2,
        (0, 1),
        "endpoint for 2",
        "",
    )
    assert (second.rank, second.forming_s, second.comm_timeout_s) == (1, 20.0, 3.0)
    options = client.submitted[0][4]
    assert options["workers"] == ["w1"] and options["key"] == f"{group.id}-rank0" and options["retries"] == 0
    (server,) = PmiServer.made
    assert server.closed and server.nodes == ["here", "here"] and server.host == "127.0.0.1"
    assert not client.called(release_worker)


def test_a_group_of_one_needs_no_world(played):
    client = played(worker(0))
    group = form_group(client, ["w0"], print)
    assert PmiServer.made == [] and group.plans[0].endpoint is None and group.plans[0].world_ranks == (0,)


def test_workers_on_another_machine_reach_the_server_and_each_other(played):
    client = played(worker(0), worker(1, node="there", host="10.0.0.2"))
    group = form_group(client, ["w0", "w1"], print)
    assert PmiServer.made[0].host == "ip towards 10.0.0.2"
    assert [plan.host for plan in group.plans] == ["127.0.0.1", "10.0.0.2"]


def test_a_worker_twice_or_none_is_refused(played):
    for ranks in ([], ["w0", "w0"]):
        with pytest.raises(ClusterError, match="one Dask worker per rank"):
            form_group(played(worker(0)), ranks, print)


def test_a_worker_that_is_gone_is_named_with_those_that_are_there(played):
    with pytest.raises(ClusterError, match=r"gone: w9\. There are now: w0\."):
        form_group(played(worker(0)), ["w0", "w9"], print)


def test_a_worker_in_use_is_waited_for_and_the_others_are_left_free_meanwhile(played):
    client = played(worker(0), worker(1))
    client.holders["w1"] = "other-group"
    sleep = client.sleep

    def until_it_is_free(seconds):
        sleep(seconds)
        if client.now > 1.0:
            client.holders.clear()

    formation.time.sleep = until_it_is_free
    assert form_group(client, ["w0", "w1"], print, timeout_s=5.0).is_formed
    assert {address for address, _ in client.called(release_worker)} == {"w0", "w1"}


def test_a_worker_that_stays_in_use_is_named_with_its_holder(played):
    client = played(worker(0), worker(1))
    client.holders["w1"] = "other-group"
    for options, seconds in (({"timeout_s": 5.0}, 5.0), ({"timeout_s": 5.0, "in_use_s": 2.0}, 2.0)):
        began = client.now
        with pytest.raises(WorkersInUse, match=r"still in use: w1 by other-group\. Wait for it to end"):
            form_group(client, ["w0", "w1"], print, **options)
        assert seconds <= client.now - began < seconds + 0.3 and not client.submitted


def test_a_worker_that_does_not_answer_ends_the_forming_at_once(played):
    client = played(worker(0), worker(1))
    client.mute.add("w1")
    with pytest.raises(NoAnswer, match=r"cannot form: .* do not answer \(stopped, or cut off\): w1: TimeoutError"):
        form_group(client, ["w0", "w1"], print)
    assert client.now == 0.0 and [address for address, _ in client.called(release_worker)] == ["w0"]


def test_processes_of_an_older_world_are_restarted_first(played):
    spent = MpiReport("w", 0, 2, ours=True, spent=True)
    client = played(worker(0, mpi=spent), worker(1))
    client.back["w0"], replaced = "w9", {}
    group = form_group(client, ["w0", "w1"], print, replaced=replaced)
    assert group.addresses == ("w9", "w1") and client.killed == [{"w0": 0}] and replaced == {"w0": 0}
    assert ("w9", group.id, "", 5.0) in client.called(reserve_worker), "the fresh process is reserved too"


def test_a_world_that_all_share_is_used_again(played):
    reports = [MpiReport("w", rank, 3, ours=True) for rank in (2, 0)]
    client = played(worker(0, mpi=reports[0]), worker(1, mpi=reports[1]))
    group = form_group(client, ["w0", "w1"], print)
    assert group.plans[0].world_ranks == (2, 0) and group.plans[0].endpoint is None and not client.killed


def test_mpi_that_starts_by_itself_in_fresh_processes_is_named(played, monkeypatch):
    alone = MpiReport("alone", 0, 1)
    client = played(worker(0, mpi=alone), worker(1))
    kill = client.kill_processes

    def again(client_, pids):
        kill(client_, pids)
        client.workers["w9"] = WorkerInfo("w9", node="here", pid=109, nanny="n0", mpi=alone)

    monkeypatch.setattr(formation, "kill_processes", again)
    with pytest.raises(ClusterError, match=r"MPI is initialised in fresh processes of w9.*inside functions"):
        form_group(client, ["w0", "w1"], print)
    assert {a for a, *_ in client.called(release_worker)} == {"w0", "w1"}, "what was reserved at first"


def test_threads_of_one_process_are_no_ranks(played):
    client = played(worker(0, pid=5), worker(1, pid=5))
    with pytest.raises(ClusterError, match="ranks need a process each"):
        form_group(client, ["w0", "w1"], print)


def test_ranks_that_do_not_form_in_time_are_named_and_ended(played):
    client = played(worker(0), worker(1))
    client.unformed.add("w1")
    with pytest.raises(ClusterError, match=r"could not form: rank 1 on w1 .*did not join"):
        form_group(client, ["w0", "w1"], print, timeout_s=4.0)
    (group,) = client.groups
    assert 4.0 <= client.now < 4.1 and "could not form" in group.aborted and not group.is_formed
    assert len(client.called(release_worker)) == 2


def test_a_world_that_fails_is_not_waited_for(played, monkeypatch):
    class Failing(PmiServer):
        def __init__(self, *given):
            super().__init__(*given)
            self.state.failure = "rank 0 was lost"

    monkeypatch.setattr(formation, "PmiServer", Failing)
    client = played(worker(0), worker(1))
    monkeypatch.setattr(formation, "PmiServer", Failing)
    client.unformed = {"w0", "w1"}
    with pytest.raises(ClusterError, match=r"rank 0 on w0 .*did not join; rank 1"):
        form_group(client, ["w0", "w1"], print)
    assert client.now == 0.0


@pytest.mark.parametrize(
    ("error", "raised", "match"),
    [
        (MpiUnusable("no MPI here"), ClusterError, "cannot form: rank 1 on w1 .*: no MPI here"),
        (JoinFailed("became rank 3"), GroupFailed, "became rank 3"),
        (
            DriverUnreachable("rank 1 on far cannot reach the driver at 10.0.0.2:99 (No route to host)"),
            DriverUnreachable,
            r"^rank 1 on far cannot reach the driver at 10\.0\.0\.2:99 \(No route to host\)\. Run it .*client\.submit",
        ),
    ],
)
def test_a_rank_that_cannot_join_is_the_reason(played, error, raised, match):
    client = played(worker(0), worker(1))
    client.ends = GroupFailed("job-1", RankFailure(1, worker(1), str(error), error))
    with pytest.raises(raised, match=match):
        form_group(client, ["w0", "w1"], print)


def test_a_rank_that_fails_after_it_has_formed_is_told_by_the_group(played):
    client = played(worker(0), worker(1))
    client.ends = GroupFailed("job-1", RankFailure(1, worker(1), "a bug", ValueError("a bug")))
    assert form_group(client, ["w0", "w1"], print).is_formed


def test_restarted_workers_are_known_by_their_nannies(played):
    client = played(worker(0), worker(1), worker(2))
    client.back = {"w0": "w9", "w1": "w1"}
    assert restart_workers(client, [worker(0), worker(1)]) == {"w0": "w9", "w1": "w1"}


def test_workers_that_do_not_come_back_are_named(played):
    client = played(worker(0), worker(1))
    client.back["w0"] = "w9"
    with pytest.raises(ClusterError, match=r"did not come back within 3 s of their restart: w1 "):
        restart_workers(client, [worker(0), worker(1)], 3.0)
    assert 3.0 <= client.now < 3.1
    with pytest.raises(ClusterError, match=r"have no nanny to start one: w5 "):
        restart_workers(client, [worker(0), worker(5, nanny="")])
