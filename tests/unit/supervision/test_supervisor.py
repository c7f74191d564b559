"""The IO around the state: what is polled, what becomes of commands, what Ctrl-C does at any moment."""

import signal
import threading
from types import SimpleNamespace

import pytest
from support.supervised import failed, found

from singa_dask.cluster import WorkerInfo, remote
from singa_dask.cluster.deposits import Deposit
from singa_dask.cluster.group import GroupFailed, RankFailure
from singa_dask.cluster.held import Left
from singa_dask.cluster.rank import Looks
from singa_dask.errors import ClusterError, DataError
from singa_dask.job import ClusterTopology
from singa_dask.supervision import events as ev
from singa_dask.supervision import standstill
from singa_dask.supervision import supervisor as supervision
from singa_dask.supervision.launch import Launched, own_error
from singa_dask.supervision.members import Members, Phase, ServerGroup, WorkerGroup
from singa_dask.supervision.state import Supervision
from singa_dask.supervision.supervisor import Supervisor


class Ranks:
    """A group that the test lets end or fail. script: what each poll does, the last one for good."""

    def __init__(self, number, where):
        self.number, self.workers, self.addresses = number, (WorkerInfo(where),), (where,)
        self.script, self.log, self.replaced, self.cancelled = [lambda: False], [], {}, set()
        self.looked = {}

    def looks(self):
        return dict(self.looked)

    def give_up(self, causes):
        self.log.append(("give up", causes))
        self.script = [_raising(failed())]

    def poll(self):
        return (self.script.pop(0) if len(self.script) > 1 else self.script[0])()

    def results(self):
        return [{"step": 10, "of": "the first rank"}, {"step": 10}]

    def stop(self):
        self.log.append("stop")
        self.script = [lambda: True]

    def tell(self, name, value):
        self.log.append((name, value))
        if name == "others ended":
            self.script = [lambda: True]
        return True

    def abort(self, reason):
        self.log.append("abort")

    def close(self):
        self.log.append("close")

    def replace_processes(self):
        self.log.append("replace")


class Servers:
    def __init__(self, number):
        self.number, self.log = number, []

    def flush(self):
        self.log.append("flush")

    def dismiss(self, group, generation):
        self.log.append(("dismiss", group, generation))
        raise ClusterError("lost too")

    def stop(self):
        self.log.append("stop")


class Launcher:
    """Forms at once, in the thread that it is called in. made: requests and what each thread was called."""

    client = None

    def __init__(self):
        self.all_servers: list[Servers] = []
        self.made, self.groups, self.servers, self.before = [], {}, {}, lambda request: None
        self.released = self.earlier_released = 0
        self.in_memory = None
        self.let_deposits_go = []

    def left_behind(self, nannies):
        return Left(), None

    def checkpoint_in(self, left):
        return self.in_memory

    def let_go(self, nannies, *, own=True, earlier=False, deposits):
        self.let_deposits_go.append(deposits)
        self.released += own
        self.earlier_released += earlier

    def form(self, request, running, groups):
        self.before(request)
        self.made.append((request, dict(running), threading.current_thread().name))
        groups = {g.plan.number: Ranks(g.plan.number, g.where[0]) for g in request.worker_groups}
        servers = {group.number: Servers(group.number) for group in request.server_groups}
        for number in groups:
            if number:
                groups[number].script = [lambda: True]
        self.groups |= groups
        self.servers |= servers
        self.all_servers += servers.values()
        return Launched(groups, servers, event=ev.Formed(request.number))


@pytest.fixture(autouse=True)
def python_handles_ctrl_c():
    """As in a process of its own: an earlier test may have called the command, which handles it otherwise."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def made(monkeypatch):
    """A supervisor of two worker groups and a server group; `dead` are the workers that the scheduler misses."""
    monkeypatch.setattr(supervision, "_POLL_S", 0.001)
    monkeypatch.setattr(supervision, "_SERVERS_POLL_S", 0.0)
    groups = [WorkerGroup((f"w{i}",), i, 0, (1,)) for i in range(2)]
    topology = ClusterTopology(nworker_groups=2, server_worker_separate=True)
    members = Members(topology, groups, [ServerGroup(("s0",), 0)])
    dead, workers = set(), ["w0", "w1", "s0", "free"]
    monkeypatch.setattr(supervision, "alive", lambda client, watched: set(watched) - dead)
    monkeypatch.setattr(
        supervision, "answering", lambda client, s: ([WorkerInfo(a) for a in workers if a not in dead], "")
    )
    monkeypatch.setattr(supervision, "replace_stopped", lambda client, nannies: None)
    stopped = set()
    monkeypatch.setattr(remote, "stopped_processes", lambda client, pids: stopped & pids.keys())
    monkeypatch.setattr(remote, "_STOPPED_EVERY_S", 0.0)
    monkeypatch.setattr(remote, "_LOOK_SHARE_S", 0.0)
    kills = []
    monkeypatch.setattr(supervision, "kill_processes", lambda client, pids: kills.append(pids))
    notes, rewound, restarted, outdated = [], [], [], []
    made = Supervisor(
        Supervision(members),
        Launcher(),
        note=notes.append,
        newest=lambda: None,
        rewound=lambda *given: rewound.append(given),
        restarted=lambda restart: restarted.append((restart.groups, made.notes[-1])),
        outdated=outdated.append,
        giving_up=lambda: made.launcher.groups[0].log.append("record"),
    )
    made.told_restarts = restarted
    made.stopped, made.told_outdated = stopped, outdated
    made.dead, made.notes, made.back, made.kills = dead, notes, rewound, kills
    return made


def test_workers_that_do_not_see_the_files_are_left_out_and_the_user_is_told(made):
    def seeing(workers):
        return [info for info in workers if info.address != "free"], "left out: free"

    made.seeing = seeing
    made.post(ev.JoinAsked(lambda answer: said.append(answer)))
    said = []
    made.run()
    assert said == ["refused: 1 free Dask workers are needed, 0 are there; start more and join again"]
    assert "left out: free" in made.notes


def test_a_run_from_start_to_end(made):
    reports = made.run()
    assert reports == {number: {"step": 10, "of": "the first rank"} for number in (0, 1)}
    assert made.launcher.groups[0].log == [("others ended", True), "close"]
    assert made.launcher.groups[1].log == ["close"]
    assert made.launcher.servers[0].log == ["stop"]
    (_, running, thread), *others = made.launcher.made
    assert running == {} and thread.startswith("launcher") and not others
    assert not [t.name for t in threading.enumerate() if t.name.startswith(("launcher", "survey"))]


def test_a_group_that_fails_is_closed_and_formed_anew_with_the_servers_that_run(made):
    first = made.launcher

    def lost(request):
        if request.number == 1:
            return
        first.old, first.groups[0].script = first.groups[1], [lambda: False]

    made.launcher.before = lost
    form = made.launcher.form

    def fail_once(request, running, groups):
        launched = form(request, running, groups)
        if request.number == 1:
            launched.groups[1].script = [_raising(failed())]
            launched.groups[1].replaced = {"w1": 7}
        return launched

    made.launcher.form = fail_once
    made.run()
    assert [list(running) for _, running, _ in made.launcher.made] == [[], [0]]
    assert made.launcher.old.log == ["abort", "close", "replace"]
    ((groups, note),) = made.told_restarts
    assert groups == (1,) and "Restart 1 of 3" in note
    assert made.state.restarts[0].groups == (1,) and ("w1", 7) in made.state.processes.replaced
    assert made.notes[0].startswith("rank 0 on w1 (host 127.0.0.1, pid 0): its process died (step 0). Restart 1 of 3")


def test_servers_that_the_scheduler_misses_are_lost(made):
    def lose(request):
        if request.number == 1:
            made.post(lambda: made.dead.add("s0"))

    form = made.launcher.form

    def form_and_wait(request, running, groups):
        launched = form(request, running, groups)
        if request.number == 1:
            launched.groups[1].script = [lambda: False]
        return launched

    made.launcher.before, made.launcher.form = lose, form_and_wait
    made.run()
    assert [servers.log for servers in made.launcher.all_servers] == [["stop"], ["stop"]]
    assert made.state.members.server_groups[0].where == ("free",)
    assert [len(r.server_groups) for r, _, _ in made.launcher.made] == [1, 1]
    assert made.back == [((0, 1), None)], "without a checkpoint they go back to the start"


def test_servers_that_are_stopped_are_lost_once_they_were_seen_so_twice(made):
    made.state.processes.there([WorkerInfo("s0", pid=7, nanny="n0"), WorkerInfo("w0", pid=8, nanny="n1")])
    made.state.members.server_groups[0].phase = Phase.RUNNING
    handled = []
    made._handle = handled.append
    for stopped in (set(), {"n0", "n1"}, set(), {"n0", "n1"}):
        made.stopped.clear()
        made.stopped.update(stopped)
        made._poll_servers()
    assert not handled
    made._poll_servers()
    assert handled == [ev.ServersLost(frozenset({"s0"}), frozenset({"s0"}))]


def test_what_a_rank_raised_ends_the_run_with_its_own_error(made):
    error = DataError("shard 7 is damaged")
    made.launcher.before = lambda request: made.post(
        lambda: setattr(made.launcher.groups[0], "script", [_raising(failed(error))])
    )
    with pytest.raises(DataError, match="shard 7"):
        made.run()
    assert made.launcher.groups[0].log[-1] == "close" and made.launcher.servers[0].log == ["stop"]


def test_an_error_in_a_thread_ends_the_run(made):
    made.newest = _raising(OSError("the disk is gone"))
    with pytest.raises(OSError, match="the disk is gone"):
        made.run()


def test_what_is_formed_while_the_run_fails_is_closed_too(made):
    def fail(request):
        made.post(_raising(RuntimeError("meanwhile")))

    made.launcher.before = fail
    with pytest.raises(RuntimeError, match="meanwhile"):
        made.run()
    assert all(group.log == ["close"] for group in made.launcher.groups.values())
    assert made.launcher.servers[0].log == ["stop"]


def test_who_joins_and_leaves_is_answered_by_the_thread_that_supervises(made):
    said = []

    def ask(request):
        if request.number == 1:
            made.post(ev.JoinAsked(lambda text: said.append((text, threading.current_thread().name))))
            made.post(ev.LeaveAsked(lambda text: said.append((text, "")), 7))

    form = made.launcher.form

    def slow_lead(request, running, groups):
        launched = form(request, running, groups)
        if request.number == 1:
            launched.groups[1].script = [lambda: bool(len(made.launcher.made) > 1)]
        return launched

    made.launcher.before, made.launcher.form = ask, slow_lead
    reports = made.run()
    assert ("worker group 2 joins on free", threading.current_thread().name) in said
    assert ("refused: there is no worker group 7 at work", "") in said and reports.keys() == {0, 1, 2}


def test_a_newcomer_that_fails_is_dismissed_whatever_its_servers_say(made):
    form = made.launcher.form

    def refuse(request, running, groups):
        if request.number > 1:
            return Launched(event=ev.NotFormed(request.number, ClusterError("w is in use")))
        launched = form(request, running, groups)
        launched.groups[1].script = [lambda: bool(made.notes)]
        made.post(ev.JoinAsked(lambda text: None))
        return launched

    made.launcher.form = refuse
    made.run()
    assert made.notes == ["worker group 2 could not join: w is in use"]
    assert ("dismiss", 2, 1) in made.launcher.servers[0].log


def test_progress_comes_from_any_thread(made):
    made.launcher.before = lambda request: made.post(ev.Progress(1, 25))
    made.run()
    assert made.state.steps == {1: 25}


@pytest.mark.parametrize("moment", ["survey", "submit", "state", "poll", "stop"])
def test_ctrl_c_at_any_moment_stops_the_run_in_order(made, monkeypatch, moment):
    pressed = []

    def press():
        if not pressed:
            pressed.append(True)
            signal.raise_signal(signal.SIGINT)

    def pressing(function):
        def pressed_in(*args, **kwargs):
            press()
            return function(*args, **kwargs)

        return pressed_in

    if moment == "survey":
        monkeypatch.setattr(made, "_begin", pressing(made._begin))
    elif moment == "submit":
        monkeypatch.setattr(made._operations, "submit", pressing(made._operations.submit))
    elif moment == "state":
        monkeypatch.setattr(made.state.members, "move", pressing(made.state.members.move))
    elif moment == "poll":
        monkeypatch.setattr(made, "_poll", pressing(made._poll))
    else:
        monkeypatch.setattr(made, "_poll_servers", pressing(made._poll_servers))
    assert made.run().keys() == {0, 1}
    assert made.state.stopped == "Ctrl-C" and pressed
    assert made.notes == ["Ctrl-C: stopping after this step (press Ctrl-C again to abort)"]
    assert len(made.launcher.made) == 1 and "stop" in made.launcher.groups[0].log
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize(
    ("number", "by"), [(signal.SIGTERM, "SIGTERM"), (signal.SIGHUP, "SIGHUP"), (signal.SIGUSR1, "SIGUSR1")]
)
def test_a_signal_that_stops_the_run_is_named(made, number, by):
    before = signal.signal(number, signal.default_int_handler)
    try:
        made.launcher.before = lambda request: made.post(lambda: signal.raise_signal(number))
        made.run()
    finally:
        signal.signal(number, before)
    assert made.notes == [f"{by}: stopping after this step (press Ctrl-C to abort)"]


def test_cancelled_tasks_stop_the_run_instead_of_restarting_it(made):
    form = made.launcher.form

    def cancelled(request, running, groups):
        launched = form(request, running, groups)
        launched.groups[1].cancelled = {0}
        launched.groups[1].results = lambda: [None]
        return launched

    made.launcher.form = cancelled
    assert made.run().keys() == {0}, "what the cancelled one reports comes with its last event"
    assert made.state.stopped == "cancelled from Dask" and not made.state.restarts
    assert made.notes == ["cancelled from Dask: stopping after this step (press Ctrl-C to abort)"]
    assert all("stop" in group.log for group in made.launcher.groups.values())


def test_tasks_that_are_cancelled_while_groups_form_stop_the_run(made):
    error = GroupFailed("group", RankFailure(0, WorkerInfo("w1"), "its task was cancelled", cancelled=True))
    made.launcher.form = lambda request, running, groups: Launched(
        event=ev.NotFormed(request.number, error, lost=True)
    )
    assert made.run() == {}
    assert made.state.stopped == "cancelled from Dask" and not made.state.restarts


@pytest.fixture
def still(made, monkeypatch):
    """The lead's only rank has stood still for 40 s, since step 150."""
    monkeypatch.setattr(standstill, "QUIET_S", 0.0)
    monkeypatch.setattr(standstill, "ASK_EVERY_S", 0.0)
    form = made.launcher.form

    def stands(request, running, groups):
        launched = form(request, running, groups)
        launched.groups[0].looked = {0: Looks(40.0, 0.2, place)}
        launched.groups[0].stop = lambda: launched.groups[0].looked.update({0: Looks(40.0, 0.2, place, asked=True)})
        launched.groups[0].tell = lambda *args: True
        return launched

    place = "forward, own.py:7"
    made.launcher.form = stands
    made.state.steps[0] = 150
    return made


def test_a_rank_that_makes_no_step_is_named(still):
    def end(text):
        still.notes.append(text)
        still.launcher.groups[0].script = [lambda: True]

    still.note = end
    still.run()
    assert still.notes == [
        "rank 0 on w0 (host 127.0.0.1, pid 0) has made no step for 40 s, since step 150: it is in forward, own.py:7"
    ]
    assert not any("give up" in entry for entry in still.launcher.groups[0].log)


def test_a_stop_ends_ranks_that_make_no_step(still):
    still.launcher.before = lambda request: still.post(ev.StopAsked("SIGTERM"))
    assert 0 not in still.run()
    recorded, (_, given), *_ = (entry for entry in still.launcher.groups[0].log if entry != "stop")
    assert recorded == "record", "before the launcher of an MPI job ends this process with its ranks"
    assert given == {0: "has made no step for 40 s, since step 150, and is in forward, own.py:7"}
    assert still.state.stopped == "SIGTERM" and not still.state.restarts
    assert "The run is being stopped, so it ends here." in still.notes[-1]
    assert still.launcher.released == 0, "the nannies hold what ranks have left, and --resume goes on from there"


def test_a_second_ctrl_c_aborts(made):
    def never():
        signal.raise_signal(signal.SIGINT)
        return False

    form = made.launcher.form

    def endless(request, running, groups):
        launched = form(request, running, groups)
        launched.groups[0].script = [never]
        launched.groups[0].stop = lambda: None
        return launched

    made.launcher.form = endless
    with pytest.raises(KeyboardInterrupt):
        made.run()
    assert made.state.stopped and made.launcher.groups[0].log[-1] == "close"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
@pytest.mark.parametrize("moment", ["the last step", "the end"])
def test_a_batch_system_may_signal_several_times(made, monkeypatch, number, moment):
    sent = []

    def saving():
        if moment == "the last step" or not sent:
            signal.raise_signal(number)
        sent.append(number)
        return len(sent) > 3

    form, close = made.launcher.form, made._close

    def slow_to_stop(request, running, groups):
        launched = form(request, running, groups)
        launched.groups[0].script, launched.groups[0].stop = [saving], lambda: None
        return launched

    def closed():
        signal.raise_signal(number)
        close()

    made.launcher.form = slow_to_stop
    if moment == "the end":
        monkeypatch.setattr(made, "_close", closed)
    before = signal.signal(number, signal.default_int_handler)
    try:
        assert made.run().keys() == {0, 1}
    except KeyboardInterrupt:
        pytest.fail("the second one aborts")
    finally:
        signal.signal(number, before)
    assert made.state.stopped == signal.Signals(number).name and made.launcher.groups[0].log[-1] == "close"


def test_signals_that_interrupt_nothing_stay_as_they_are(made, monkeypatch):
    got = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: got.append(number))
    try:
        made.launcher.before = lambda request: made.post(lambda: signal.raise_signal(signal.SIGUSR1))
        made.run()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert got == [signal.SIGUSR1] and not made.state.stopped


def test_what_a_rank_raised_itself_and_what_others_made_it_raise():
    error = DataError("no")
    assert own_error(failed(error)) is error
    assert own_error(failed(ClusterError("aborted"))) is None and own_error(failed()) is None
    assert own_error(ClusterError("in use")) is None
    wrapped = failed(ValueError("a bug"))
    assert own_error(wrapped) is wrapped


def _raising(error):
    def function(*args):
        raise error

    return function


@pytest.mark.parametrize(
    ("disk", "memory", "newest"), [(None, None, None), (5, None, 5), (5, 5, 5), (None, 3, -3), (5, 6, -6), (7, 6, 7)]
)
def test_the_newest_checkpoint_is_on_the_disk_or_in_memory(made, disk, memory, newest):
    made.newest = lambda: disk and found(disk)
    made.launcher.in_memory = memory and found(memory, Deposit(None, 0))
    chosen = made._survey(ev.Survey(1, checkpoint=True)).found
    assert newest == (chosen and (-chosen.step if chosen.deposits else chosen.step))
    assert made._survey(ev.Survey(1)).found is None


def test_what_earlier_starts_have_left_is_let_go_when_this_one_has_it_and_when_it_ends_well(made):
    made.run()
    assert (made.launcher.released, made.launcher.earlier_released) == (1, 1)
    assert made.launcher.let_deposits_go == [True]


def test_a_driver_that_fails_leaves_the_memory_of_earlier_starts(made):
    made.launcher.before = lambda request: 1 / 0
    with pytest.raises(ZeroDivisionError):
        made.run()
    assert (made.launcher.released, made.launcher.earlier_released) == (1, 0)
    assert made.launcher.let_deposits_go == [False], "--resume may go on from its last checkpoint"


def test_an_outdated_replica_is_recorded_before_its_server_hears_that_it_is_known(made):
    heard = []
    made.state.handle = lambda event: [ev.RecordOutdated(0, 1, 0, 2), ev.ReplaceReplica(0, 0, 2, "n1")]
    lost = SimpleNamespace(replica_lost=lambda *given: heard.append((given, list(made.told_outdated))), stop=lambda: 0)
    made._servers[0] = lost
    made._handle(ev.ReplicaLost(0, 1, 0, 2, True))
    assert heard == [((0, 2, "n1"), [ev.RecordOutdated(0, 1, 0, 2)])]
    made._carry_out(ev.LetEarlierGo(frozenset({"n0"})))
    made._surveys.shutdown()
    assert (made.launcher.released, made.launcher.earlier_released) == (0, 1)
