"""How a request is carried out, with groups and servers that only say that they are there."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from support.supervised import Run, failed, found

from singa_dask.cluster.deposits import Deposit
from singa_dask.cluster.formation import NoAnswer
from singa_dask.cluster.held import Left
from singa_dask.comm.shared_memory import MemoryAddress
from singa_dask.errors import ClusterError
from singa_dask.server import KeptServer, ShadowAddress
from singa_dask.server.ledger import Ledger
from singa_dask.supervision import events as ev
from singa_dask.supervision import launch
from singa_dask.supervision.events import Inherited
from singa_dask.supervision.launch import close, model_of


@pytest.fixture
def run(monkeypatch):
    """Three worker groups beside three server groups, before their first request; the request is `run.request`."""
    run = Run(monkeypatch, nworker_groups=3, nserver_groups=3)
    run.handle(None)
    run.answer()
    run.request = run.state.busy
    return run


def test_a_request_is_formed_as_a_whole(run):
    launched = run.launcher.form(run.request, {}, {})
    assert launched.groups.keys() == launched.servers.keys() == {0, 1, 2}
    assert launched.event == ev.Formed(1, {}, {"w1": 1, "w2": 2, "w3": 3})
    assert [launched.servers[i].met for i in range(3)] == [1, 1, 0]


def test_only_workers_that_were_free_are_not_waited_for_when_another_run_has_them(run, monkeypatch):
    asked = []
    form_group = launch.form_group
    monkeypatch.setattr(
        launch, "form_group", lambda *args, **o: asked.append(o.pop("in_use_s")) or form_group(*args, **o)
    )
    run.launcher.form(run.request, {}, {})
    assert asked == [launch._IN_USE_S] * 3
    again = [replace(group, plan=replace(group.plan, generation=2)) for group in run.request.worker_groups]
    run.launcher.form(replace(run.request, worker_groups=tuple(again)), {}, {})
    assert asked[3:] == [None] * 3


def test_servers_go_where_form_group_has_put_their_processes(run, monkeypatch):
    form_group = launch.form_group

    def restarted(client, where, *args, **options):
        if where != ("w2",):
            return form_group(client, where, *args, **options)
        run.kill("w2")
        return form_group(client, [run.start()], *args, **options)

    monkeypatch.setattr(launch, "form_group", restarted)
    launched = run.launcher.form(run.request, {}, {})
    assert launched.event.moved == {"w2": "w4"} and launched.servers[1].where == ("w4",)


def test_nothing_is_left_of_a_request_that_fails(run):
    made = []
    make_servers = launch.make_servers
    launch.make_servers = lambda *args: made.append(make_servers(*args)) or made[-1]
    run.stuck.add("w2")
    run.servers_fail = True
    original = launch.make_servers

    def third_fails(client, number, *args):
        if number == 2:
            raise ClusterError("server group 2 could not be made")
        return original(client, number, *args)

    launch.make_servers = third_fails
    launched = run.launcher.form(run.request, {}, {})
    assert not launched.groups and not launched.servers and run.groups == []
    assert [servers.stopped for servers in made] == [True, True]
    assert launched.event.replaced == {"w2": 2}, "its rank was told to leave, and did not react"
    assert (launched.event.raised, launched.event.lost) == (None, False)


def test_a_lost_rank_and_an_error_of_its_own_are_told_apart(run):
    run.fault = failed()
    event = run.launcher.form(run.request, {}, {}).event
    assert event.lost and event.raised is None
    run.fault = failed(ValueError("a bug"))
    event = run.launcher.form(run.request, {}, {}).event
    assert event.lost and isinstance(event.raised, ClusterError)


def test_processes_that_do_not_answer_count_as_lost_even_if_they_answer_again(run):
    run.fault = NoAnswer("Dask workers do not answer")
    event = run.launcher.form(run.request, {}, {}).event
    assert event.lost and event.raised is None
    run.open.remove(run.request)
    run.handle(event)
    run.settle()
    assert [note.partition(" of 3")[0] for note in run.notes] == ["Dask workers do not answer (step 0). Restart 1"]
    assert run.made()[-1] == ([0, 1, 2], [0, 1, 2]) and not run.state.over


def test_an_error_that_is_none_of_the_clusters_is_raised_and_leaves_nothing(run):
    launch.server_plan = lambda *args, **options: 1 / 0
    with pytest.raises(ZeroDivisionError):
        run.launcher.form(run.request, {}, {})
    assert run.groups == []


def test_closing_tells_which_processes_are_replaced(run):
    launched = run.launcher.form(run.request, {}, {})
    run.stuck |= {"w1", "w3"}
    assert close(launched.groups.values(), launched.servers.values()) == {"w1": 1, "w3": 3}
    assert all(servers.stopped for servers in launched.servers.values())


def test_worker_groups_that_run_are_told_where_their_servers_are_until_they_hear_it(run):
    class Deaf:
        def __init__(self, times):
            self.times, self.told = times, []

        def tell(self, name, value):
            self.told.append((name, value))
            return len(self.told) > self.times

    servers = replace(run.request.server_groups[0], groups=(0, 1, 2, 3))
    request = replace(run.request, worker_groups=(), server_groups=(servers,))
    groups = {0: Deaf(0), 1: Deaf(2), 2: Deaf(1000)}  # the last one is being formed
    launched = run.launcher.form(request, {}, groups)
    assert [len(group.told) for group in groups.values()] == [1, 3, launch._TELLS]
    assert groups[0].told == [("servers", launched.servers[0].addresses)]


def test_servers_whose_memory_nobody_holds_are_named(run):
    run.keeps = False
    assert run.launcher.form(run.request, {}, {}).event.unkept == (0, 1, 2)


def test_memory_of_an_earlier_start_must_be_of_the_same_model_and_readable(run, monkeypatch):
    """run: of three server groups. Nanny n2 does not answer when it is asked for ledgers."""
    launcher, ledger = run.launcher, Ledger()
    ledger.begin(3, 0)

    def left(model, start="an earlier start"):
        kept = [
            KeptServer(0, 1, 1, ShadowAddress(MemoryAddress(0, 0, 0, 0), (), (), ""), None, {}, model, f"n{i}")
            for i in range(3)
        ]
        found = Left(start, {f"server group {i}": (kept[i],) for i in range(3)}, ("server group 7", "worker group 0"))
        monkeypatch.setattr(launch, "left_behind", lambda *args, earlier: found)
        return launcher.left_behind(["n0", "n1", "n2"])[1]

    def ask(client, function, args, timeout_s):
        answers = {nanny: function(*given, dask_worker=None) for nanny, given in args.items()}
        return answers | {"n2": TimeoutError()}

    monkeypatch.setattr(launch, "ask_nannies", ask)
    monkeypatch.setattr(launch, "kept_ledger", lambda kept: None if kept.holder == "n1" else ledger)
    assert left(launcher.model) == Inherited(True, ("server group 7",), {"server group 0": ledger})
    assert left(launcher.model + 1) == Inherited(False, ("server group 7",))
    assert left(launcher.model, start="run") is None, "of this start"


@pytest.mark.parametrize(
    ("there", "fits"),
    [
        ({}, True),
        ({"data": {"train/data": "a", "test/data": "other"}}, True),
        ({"data": {"train/data": "other"}}, False),
        ({"shapes": {"w": (3,)}}, False),
        ({"updater_state": ()}, False),
        ({"step": 11}, False),
    ],
)
def test_a_checkpoint_in_memory_must_be_of_the_same_net_updater_and_data(run, there, fits):
    made = run.launcher.prepared
    made.shapes, made.updater_state, made.data = {"w": (2,)}, ("velocity",), {"train/data": "a"}
    made.job.train_steps = 10
    of = {"shapes": made.shapes, "updater_state": made.updater_state, "data": made.data} | there
    deposit = Deposit(replace(found(7), **of), 8)
    held = run.launcher.checkpoint_in(Left(deposits=(deposit, deposit)))
    assert held == (replace(deposit.content, deposits=(deposit, deposit)) if fits else None)
    assert run.launcher.checkpoint_in(Left()) is None


@pytest.mark.parametrize("change", ["groups", "server groups", "data", "state", "slices"])
def test_the_model_of_servers_is_all_that_their_memory_depends_on(run, change):
    made = run.launcher.prepared
    before = model_of(made)
    numbers = {"groups": {"nworker_groups": 6}, "server groups": {"nserver_groups": 1}}.get(change, {})
    made.topology = replace(made.topology, **numbers)
    made.data = {"train/data": "other"} if change == "data" else {"test/data": "other"}
    made.updater_state = ("velocity",) if change == "state" else ()
    made.partition = SimpleNamespace(of_server=lambda i: (i, i)) if change == "slices" else made.partition
    assert model_of(made) != before
