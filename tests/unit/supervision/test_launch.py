"""How a request is carried out, with groups and servers that only say that they are there."""

from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock, call

import pytest
from support.played_groups import deposit, failed, left_by
from support.supervised import HOGWILD, Run

from singa_dask.cluster.formation import NoAnswer
from singa_dask.errors import ClusterError, DataError
from singa_dask.memory.newest import Newest
from singa_dask.server.ledger import Ledger
from singa_dask.supervision import events as ev
from singa_dask.supervision import launch
from singa_dask.supervision.events import Inherited
from singa_dask.supervision.launch import close, model_of, own_error
from singa_dask.training.checkpoint import model_of as checkpoint_model


@pytest.fixture
def run(monkeypatch):
    """Three worker groups beside three server groups, before their first request; the request is `run.request`."""
    run = Run(monkeypatch, **HOGWILD).play([("handle", None), "until_forming"])
    run.request = run.state.request
    run.form = lambda **changes: run.launcher.form(replace(run.request, **changes), {}, {})
    return run


def test_a_request_is_formed_as_a_whole_where_form_group_has_put_its_processes(run):
    run.reborn = {"w2"}
    launched = run.form()
    assert launched.groups.keys() == launched.servers.keys() == {0, 1, 2}
    assert launched.event == ev.Formed(1, {"w2": "w4"}, {"w1": 1, "w4": 4, "w3": 3})
    assert launched.servers[1].where == ("w4",)


def test_only_workers_that_were_free_are_not_waited_for_when_another_run_has_them(run):
    first, *_ = run.request.worker_groups
    again = replace(first, plan=replace(first.plan, generation=2))
    grows = replace(again, grows=True)
    asked = [run.form(worker_groups=(each,)).groups[0].in_use_s for each in (first, again, grows)]
    assert asked == [launch._IN_USE_S, None, launch._IN_USE_S]


def test_nothing_is_left_of_a_request_that_fails(run):
    run.stuck, run.unmade = {"w2"}, {2}
    launched = run.form()
    assert not launched.groups and not launched.servers and run.groups == []
    assert launched.event.replaced == {"w2": 2}, "its rank was told to leave, and did not react"


@pytest.mark.parametrize(
    ("fault", "lost", "raised"),
    [
        (ClusterError("in use"), False, None),
        (NoAnswer("Dask workers do not answer"), True, None),  # though they may answer again
        (failed(), True, None),
        (failed(ClusterError("aborted")), True, None),  # others made it raise that
        (failed(DataError("no shards")), True, DataError),
        (failed(ValueError("a bug")), True, ClusterError),
    ],
)
def test_a_lost_rank_and_an_error_of_its_own_are_told_apart(run, fault, lost, raised):
    run.fault = fault
    event = run.form().event
    assert event.error is fault and event.lost == lost
    assert event.raised is own_error(fault) and isinstance(event.raised, raised or type(None))


def test_an_error_that_is_none_of_the_clusters_is_raised_and_leaves_nothing(run, monkeypatch):
    monkeypatch.setattr(launch, "server_plan", lambda *args, **options: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run.form()
    assert run.groups == []


def test_closing_tells_which_processes_are_replaced_and_lets_growing_groups_end_their_step(run):
    launched = run.form()
    run.stuck |= {"w1", "w3"}
    growing = launched.groups[1]
    assert close(launched.groups.values(), launched.servers.values(), [growing]) == {"w1": 1, "w3": 3}
    assert all(servers.stopped for servers in launched.servers.values()) and run.groups == []
    assert [("regroup", True) in group.told for group in launched.groups.values()] == [False, True, False]


def test_worker_groups_that_run_are_told_where_their_servers_are_until_they_hear_it(run, monkeypatch):
    servers = replace(run.request.server_groups[0], groups=(0, 1, 2, 3, 4))
    request = replace(run.request, worker_groups=(), server_groups=(servers,))
    places = [(0, "w1"), (2, "w1"), (99, "w1"), (99, "lost")]  # how often each does not hear it, and where it is
    groups = {
        i: Mock(addresses=["w2", place], **{"tell.side_effect": [False] * deaf + [True]})
        for i, (deaf, place) in enumerate(places)
    }
    slept = []
    monkeypatch.setattr(launch, "time", SimpleNamespace(sleep=slept.append))
    launched = run.launcher.form(request, {}, groups)  # without the last one, which is being formed
    assert [group.tell.call_count for group in groups.values()] == [1, 3, 5, 1]
    assert groups[0].tell.call_args == call("servers", launched.servers[0].addresses)
    assert sum(slept) > 7.0, "a network that loses messages for some seconds is waited for"


def test_servers_whose_memory_nobody_holds_are_named(run):
    run.keeps = False
    assert run.form().event.unkept == (0, 1, 2)


def test_memory_of_an_earlier_start_must_be_of_the_same_model_and_readable(run, monkeypatch):
    """run: of three server groups. Nanny n2 does not answer when it is asked for ledgers."""
    launcher, ledger = run.launcher, Ledger()
    ledger.begin(3, 0)

    def left(model, start="an earlier start"):
        groups = {}
        for i in range(3):
            ((name, (kept,)),) = left_by(i, 1, 0).items()
            groups[name] = (replace(kept, model=model, holder=f"n{i}"),)
        found = Newest(start, groups, ("server group 7", "worker group 0"))
        monkeypatch.setattr(launch, "left_behind", lambda *args, **options: found)
        return launcher.left_behind(["n0", "n1", "n2"])[1]

    def ask(client, function, args, timeout_s):
        return {nanny: function(*given, dask_worker=None) for nanny, given in args.items()} | {"n2": TimeoutError()}

    monkeypatch.setattr(launch, "ask_nannies", ask)
    monkeypatch.setattr(launch, "kept_ledger", lambda kept: None if kept.holder == "n1" else ledger)
    assert left(launcher.model) == Inherited(True, ("server group 7",), {"server group 0": ledger})
    assert left(launcher.model + 1) == Inherited(False, ("server group 7",))
    assert left(launcher.model, start="run") is None, "of this start"


@pytest.fixture
def memory(run, monkeypatch):
    """The server groups of another request than the first, which have left this: "all", "void" or "" for nothing."""

    def ask(client, function, args, timeout_s):
        return {nanny: function(*given, dask_worker=None) for nanny, given in args.items()}

    def groups(*left):
        requests = zip(run.request.server_groups, left, strict=True)
        kept = {i: replace(left_by(i, 1, 0)[f"server group {i}"][0], holder=each) for i, each in enumerate(left)}
        return tuple(replace(group, left=(kept[group.number],) if each else ()) for group, each in requests)

    monkeypatch.setattr(launch, "ask_nannies", ask)
    monkeypatch.setattr(launch, "never_served", lambda kept: kept.holder == "void")
    return groups


def test_servers_that_left_memory_without_parameters_take_over_a_neighbours(run, memory):
    launched = run.form(fresh=False, server_groups=memory("", "void", "all"))
    assert [servers.parameters for _, servers in sorted(launched.servers.items())] == [
        "server group 1",
        "server group 2",
        "generation 1",
    ]


def test_a_request_whose_servers_all_left_memory_without_parameters_is_not_formed(run, memory):
    groups = memory("", "void", "void")[1:]
    event = run.form(fresh=False, server_groups=groups).event
    assert event.lost and event.void == (1, 2) and event.raised is None and run.groups == []


@pytest.mark.parametrize(
    ("there", "fits"),
    [
        ({}, True),
        ({"data": {"train/data": "a", "test/data": "other"}}, True),
        ({"data": {"train/data": "other"}}, False),
        ({"contents": {"w": ((3,), ("velocity",))}}, False),
        ({"contents": {"w": ((2,), ())}}, False),
        ({"step": 11}, False),
    ],
)
def test_a_checkpoint_in_memory_must_be_of_the_same_net_updater_and_data(run, there, fits):
    made = run.launcher.prepared
    made.contents, made.data = {"w": ((2,), ("velocity",))}, {"train/data": "a"}
    made.job.train_steps = 10
    of = {"contents": made.contents, "data": made.data} | there
    kept = replace(deposit(), model=checkpoint_model(of["contents"], of["data"]))
    kept = replace(kept, version=replace(kept.version, number=there.get("step", 7)))
    assert run.launcher._fits(kept) == fits


@pytest.mark.parametrize(
    "change",
    [
        {"topology": {"nworker_groups": 6}},
        {"topology": {"nserver_groups": 1}},
        {"data": {"train/data": "other"}},
        {"updater_state": ("velocity",)},
        {"partition": SimpleNamespace(of_server=lambda i: (i, i))},
    ],
)
def test_the_model_of_servers_is_all_that_their_memory_depends_on(run, change):
    made = run.launcher.prepared
    before = model_of(made)
    made.data = {"test/data": "other"}
    assert model_of(made) == before
    vars(made).update(change | {"topology": replace(made.topology, **change.get("topology", {}))})
    assert model_of(made) != before
