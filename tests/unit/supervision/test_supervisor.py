"""The IO around the state: what is polled, what becomes of commands, what Ctrl-C does at any moment.

tests/simulation has the same supervisor, where processes are lost."""

import signal
import threading
from functools import partial
from types import SimpleNamespace

import pytest
from support.played_groups import failed, found
from support.supervised import DOWNPOUR, Run

from singa_dask.cluster import remote
from singa_dask.cluster.rank import Looks
from singa_dask.errors import ClusterError, DataError
from singa_dask.memory.newest import Newest
from singa_dask.supervision import events as ev
from singa_dask.supervision import launch, standstill
from singa_dask.supervision import supervisor as supervision
from singa_dask.supervision.supervisor import Supervisor

pytestmark = pytest.mark.usefixtures("python_handles_signals")


def raising(error):
    def function(*args, **options):
        raise error

    return function


@pytest.fixture
def world(monkeypatch):
    """Two worker groups, on w1 and w2, a server group on w3, and w4, which is free. let_go: what nannies were told."""
    run = Run(monkeypatch, spare=1, **DOWNPOUR)
    run.let_go = []
    for name, value in {
        "_POLL_S": 0.001,
        "_SERVERS_POLL_S": 0.0,
        "alive": lambda client, watched: set(watched) & run.there.keys(),
        "answering": lambda client, timeout_s: (run.answers(), ""),
        "replace_stopped": lambda client, nannies: None,
        "kill_processes": lambda client, pids: run.kill(*pids),
    }.items():
        monkeypatch.setattr(supervision, name, value)
    monkeypatch.setattr(launch, "left_behind", lambda *args, files, **options: Newest(checkpoint=files))
    monkeypatch.setattr(launch, "let_go", lambda client, nannies, topic, **kinds: run.let_go.append(kinds))
    monkeypatch.setattr(remote, "_STOPPED_EVERY_S", 0.0)
    monkeypatch.setattr(remote, "_LOOK_SHARE_S", 0.0)
    run.stopped_nannies = set()
    monkeypatch.setattr(remote, "stopped_processes", lambda client, pids: run.stopped_nannies & pids.keys())
    return run


@pytest.fixture
def made(world):
    """A supervisor of that world. told: what it told of restarts, steps back and replicas."""
    notes, told = world.notes, {"restarted": [], "rewound": [], "outdated": []}
    made = Supervisor(
        world.supervision,
        world.launcher,
        note=notes.append,
        newest=lambda: None,
        rewound=lambda *given: told["rewound"].append(given),
        restarted=lambda restart: told["restarted"].append((restart.groups, len(notes))),
        outdated=told["outdated"].append,
        giving_up=lambda: made._groups[0].log.append("record"),
    )
    made.told = told
    return made


def test_a_run_from_start_to_end(made, world):
    threads = []
    world.formed = lambda group: threads.append(threading.current_thread().name.partition("_")[0])
    made.post(ev.Progress(1, 25))
    report = {"step": 10, "of": "the first rank"}
    assert made.run() == {0: report, 1: report}
    assert made._servers[0].stopped and [group.log for group in world.history] == [["close"]] * 2
    assert threads == ["launcher"] * 2 and made.state.steps == {1: 25}
    assert not [t.name for t in threading.enumerate() if t.name.startswith(("launcher", "status"))]
    assert world.let_go == [{"own": True, "earlier": False, "deposits": True}]


def test_a_lost_group_is_closed_and_formed_anew_and_that_is_told(made, world):
    first = []

    def lose(group):
        if group.plan.group.number == 1 and not first:
            first.append(group)
            group.poll, group.replaced = raising(failed()), {"w2": 2}
            made.post(partial(made._carry_out, ev.Rewind((1,), 5)))

    world.formed = lose
    made.run()
    assert first[0].log == ["abort", "close", "replace"]
    assert made.told["restarted"] == [((1,), 1)], "after the user"
    assert made.told["rewound"] == [((1,), 5)]
    assert ("w2", 2) in made.state.processes.replaced and world.worker_groups[1].where == ("w4",)


def test_servers_that_are_gone_are_lost_and_those_that_are_stopped_once_they_were_seen_so_twice(made, world):
    world.begin()
    handled = []
    made._handle = handled.append
    for stopped in (set(), {"n3", "n1"}, set(), {"n3", "n1"}):
        world.stopped_nannies = stopped
        made._poll_servers()
    assert not handled
    made._poll_servers()
    world.stopped_nannies = set()
    world.kill("w3")
    made._poll_servers()
    assert handled == [ev.ServersLost(frozenset({"w3"}), frozenset({"w3"})), ev.ServersLost(frozenset({"w3"}))]


@pytest.mark.parametrize("where", ["a rank", "a thread", "a callback"])
def test_an_error_ends_the_run_and_closes_all_that_was_formed(made, world, where):
    error = DataError("shard 7 is damaged")
    if where == "a rank":
        world.formed = lambda group: setattr(group, "poll", raising(failed(error)))
    elif where == "a thread":
        world.formed = raising(error)
    else:
        world.formed = lambda group: made.post(raising(error))
    with pytest.raises(DataError) as caught:
        made.run()
    assert caught.value is error and not world.groups
    assert all(servers.stopped for servers in made._servers.values())
    assert world.let_go[-1] == {"own": True, "earlier": False, "deposits": False}, "--resume may resume from them"


def test_what_earlier_starts_have_left_is_let_go_when_the_run_ends_well(made, world):
    world.launcher.resumes = True
    made._carry_out(ev.LetEarlierGo(frozenset({"n1"})))
    made.run()
    assert world.let_go == [
        {"own": False, "earlier": True, "deposits": False},
        {"own": True, "earlier": True, "deposits": True},
    ]


def test_who_joins_and_leaves_is_answered_by_the_thread_that_supervises(made, world):
    said = []

    def answer(text):
        said.append((text.split(":")[0], threading.current_thread()))

    def ask(group):
        if group.plan.group.number == 1:
            group.poll = lambda: 2 in made._reports
            made.post(ev.JoinAsked(answer))
            made.post(ev.LeaveAsked(answer, 7))

    world.formed = ask
    assert made.run().keys() == {0, 1, 2}
    here = threading.current_thread()
    assert sorted(said, key=str) == [("refused", here), ("worker group 2 joins on w4", here)]


def test_a_newcomer_that_fails_is_dismissed_whatever_its_servers_say(made, world):
    def refuse(group):
        number = group.plan.group.number
        if number == 1:
            group.poll = lambda: bool(world.notes)
            made.post(ev.JoinAsked(lambda text: None))
        world.fault = ClusterError("w4 is in use") if number == 1 else None

    world.formed = refuse
    assert made.run().keys() == {0, 1} and made._servers[0].dismissed == [(2, 1)]


def test_workers_that_do_not_see_the_files_are_left_out_and_the_user_is_told(made, world):
    said = []
    made.seeing = lambda workers: ([info for info in workers if info.address != "w4"], "left out: w4")
    made.post(ev.JoinAsked(said.append))
    made.run()
    assert said[0].startswith("refused") and "left out: w4" in world.notes


@pytest.mark.parametrize("moment", ["_begin", "_poll", "_poll_servers", "submit", "move"])
def test_ctrl_c_at_any_moment_stops_the_run_in_order(made, world, monkeypatch, moment):
    pressed = []
    of = {"submit": made._operations, "move": made.state.members}.get(moment, made)
    function = getattr(of, moment)

    def pressing(*args, **options):
        if not pressed:
            pressed.append(True)
            signal.raise_signal(signal.SIGINT)
        return function(*args, **options)

    monkeypatch.setattr(of, moment, pressing)
    assert made.run().keys() == {0, 1} and pressed
    assert made.state.stopped == "Ctrl-C" and not made.state.restarts
    assert len(world.history) == 2 and "stop" in world.history[0].log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
@pytest.mark.parametrize("moment", ["the last step", "the end"])
def test_a_batch_system_may_signal_several_times(made, world, monkeypatch, number, moment):
    sent, close = [], made._close

    def saving():
        if moment == "the last step" or not sent:
            signal.raise_signal(number)
        sent.append(number)
        return len(sent) > 3

    def slow_to_stop(group):
        group.stop = lambda: None
        if group.plan.group.number == 0:
            group.poll = saving

    def closed():
        signal.raise_signal(number)
        close()

    world.formed = slow_to_stop
    if moment == "the end":
        monkeypatch.setattr(made, "_close", closed)
    try:
        assert made.run().keys() == {0, 1}
    except KeyboardInterrupt:
        pytest.fail("the second one aborts")
    assert made.state.stopped == signal.Signals(number).name and not world.groups


def test_a_second_ctrl_c_aborts(made, world):
    def never():
        signal.raise_signal(signal.SIGINT)
        return False

    def endless(group):
        if group.plan.group.number == 0:
            group.poll, group.stop = never, lambda: None

    world.formed = endless
    with pytest.raises(KeyboardInterrupt):
        made.run()
    assert made.state.stopped and not world.groups


@pytest.mark.parametrize(("forming", "reports"), [(True, {1}), (False, {0})])
def test_cancelled_tasks_stop_the_run_instead_of_restarting_it(made, world, forming, reports):
    def cancelled(group):
        if group.plan.group.number == 1:
            group.cancelled, group.results = {0}, lambda: [None]

    if forming:
        world.fault = failed(cancelled=True)
    else:
        world.formed = cancelled
    assert made.run().keys() == reports, "what the cancelled one reports comes with its last event"
    assert made.state.stopped == "cancelled from Dask" and not made.state.restarts


@pytest.fixture
def still(made, world, monkeypatch):
    """The lead's only rank has stood still for 40 s, since step 150."""
    monkeypatch.setattr(standstill, "QUIET_S", 0.0)
    monkeypatch.setattr(standstill, "ASK_EVERY_S", 0.0)
    place = "forward, own.py:7"

    def stands(group):
        if group.plan.group.number == 0:
            group.looks = lambda: {0: Looks(40.0, 0.2, place, asked=bool(made.state.stopped))}
            group.stop, group.tell = (lambda: None), (lambda *args: True)
            group.give_up = lambda causes: (group.log.append(causes), setattr(group, "poll", raising(failed())))

    world.formed = stands
    made.state.steps[0] = 150
    return made


def test_a_rank_that_makes_no_step_is_named(still):
    def end(text):
        still.notes.append(text)
        still._groups[0].poll = lambda: True

    still.note, still.notes = end, []
    still.run()
    assert still.notes == [
        "rank 0 on w1 (host host0, pid 1) has made no step for 40 s, since step 150: it is in forward, own.py:7"
    ]


def test_a_stop_ends_ranks_that_make_no_step(still, world):
    log = []
    still.giving_up = lambda: log.append("record")
    stands = world.formed

    def logged(group):
        stands(group)
        group.log = log if group.plan.group.number == 0 else []
        still.post(ev.StopAsked("SIGTERM"))

    world.formed = logged
    assert 0 not in still.run()
    assert log[0] == "record", "before the launcher of an MPI job ends this process with its ranks"
    assert list(log[1]) == [0] and log[1][0].endswith(", and is in forward, own.py:7")
    assert still.state.stopped == "SIGTERM" and not still.state.restarts
    assert not world.let_go, "the nannies hold what ranks have left, and --resume resumes from there"


def test_the_newest_checkpoint_is_looked_for_where_the_status_is_asked_for(made):
    made.newest = lambda: found(5)
    assert made._request_status(ev.StatusRequest(1, checkpoint=True)).found.step == 5
    assert made._request_status(ev.StatusRequest(1)).found is None


def test_an_outdated_replica_is_recorded_before_its_server_hears_that_it_is_known(made):
    heard = []
    made.supervision.handle = lambda event: [ev.RecordOutdated(0, 1, 0, 2), ev.ReplaceReplica(0, 0, 2, "n1")]
    made._servers[0] = SimpleNamespace(replica_lost=lambda *given: heard.append((given, [*made.told["outdated"]])))
    made._handle(ev.ReplicaLost(0, 1, 0, 2, True))
    assert heard == [((0, 2, "n1"), [ev.RecordOutdated(0, 1, 0, 2)])]
