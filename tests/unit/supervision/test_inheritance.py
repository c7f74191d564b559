"""A run whose driver was lost, and the driver that takes it over."""

from dataclasses import replace
from pathlib import Path

import pytest
from support.supervised import Run, found, kept_server

from singa_dask.server.ledger import Ledger
from singa_dask.supervision import events as ev
from singa_dask.supervision.events import Inherited
from singa_dask.supervision.inheritance import recall
from singa_dask.supervision.members import GENERATIONS, Restart
from singa_dask.training.forms import OUTDATED

DOWNPOUR = {"nworker_groups": 2, "server_worker_separate": True}
HOGWILD = {"nworker_groups": 3, "nserver_groups": 3}
LOST = "its driver was lost"


def ledger(*steps, groups=2):
    """Of worker groups that have made so many steps."""
    made = Ledger()
    made.begin(groups, 0)
    for group, count in enumerate(steps):
        for step in range(count):
            made.add(group, step)
    return made


@pytest.fixture
def start(monkeypatch):
    """The second start of a run: servers of the first one have left their memory."""

    def start(groups=(0,), made=(30, 20), saved=None, replica=0, fits=True, torn=(), **topology):
        run = Run(monkeypatch, starts=1, spare=1, **(topology or DOWNPOUR))
        run.state.processes.there(run.there.values())
        for number in groups:
            group = run.server_groups[number]
            kept = kept_server(0, group)
            run.left[str(group)] = (type(kept)(**vars(kept) | {"generation": 3, "replica": replica}),)
        run.inherited = Inherited(fits, torn, {name: ledger(*made) for name in run.left})
        if saved is not None:
            run.found = replace(found(saved[0]), ledger=ledger(*saved))
            run.state.steps[0] = saved[0]
        return run

    return start


def request(run):
    return next(command for command in run.commands if isinstance(command, ev.FormRequest))


def test_servers_go_on_from_memory_and_worker_groups_ask_them_for_their_step(start):
    run = start(saved=(10, 8)).begin()
    made = request(run)
    assert not made.fresh and [kept.generation for kept in made.server_groups[0].left] == [3]
    assert [(g.plan.generation, g.plan.fresh) for g in made.worker_groups] == [(GENERATIONS + 1, False)] * 2
    assert made.server_groups[0].generation == GENERATIONS + 1 > 3
    assert run.state.restarts == [Restart((0, 1), 0, LOST, (), (0,))]
    assert run.notes == ["server group 0: back from memory, with everything acknowledged under the lost driver"]
    assert run.commands[-1] == ev.LetEarlierGo(run.state.processes.nannies)
    assert not any(isinstance(command, ev.Rewind) for command in run.commands)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"fits": False}, "is of another topology, net, updater or data"),
        ({"groups": (), "torn": ("server group 0",)}, "is not whole: server group 0"),
        ({"groups": ()}, "is not whole: it is gone, or has no parameters yet"),
        ({"made": (30, 7)}, "is older than the newest checkpoint"),
        ({"made": (9, 20)}, "is older than the newest checkpoint"),
    ],
)
def test_memory_that_does_not_count_is_named_once_and_the_checkpoint_counts(start, options, why):
    run = start(saved=(10, 8), **options).begin()
    assert run.notes == [f"the memory of the lost driver's servers {why}. The run goes on from step 10."]
    made = request(run)
    assert made.fresh and made.server_groups[0].left == () and run.state.restarts == []
    assert [g.plan.resume for g in made.worker_groups] == [Path("step-10.h5")] * 2
    assert ev.Rewind((0, 1), 10) in run.commands


def test_a_server_group_that_has_left_nothing_takes_over_a_neighbours_parameters(start):
    run = start((1,), **HOGWILD).begin()
    assert run.servers[1].parameters == "generation 3"
    assert run.servers[0].parameters == run.servers[2].parameters == "server group 1"
    assert run.state.restarts == [Restart((0, 1, 2), 0, LOST, (0, 2), (1,))]


def test_a_replica_that_the_lost_driver_knew_to_be_outdated_does_not_count(start):
    lost = {"server_group": 0, "generation": 3, "rank": 0, "replica": 1}
    run = start(replica=1)
    recall(run.members, [{"event": "start", "step": 0}, {"event": OUTDATED, **lost, "server_group": 9}])
    assert not request(run.begin()).fresh
    run = start(replica=1)
    recall(run.members, [{"event": OUTDATED, **lost}])
    assert request(run.begin()).fresh and "is not whole" in run.notes[0]


def test_an_attempt_that_fails_is_repeated_from_the_same_memory_and_recorded_once(start):
    run = start()
    run.handle(None)
    run.answer(ev.Survey)
    first = run.state.busy
    run.answer(ev.FormRequest, ev.NotFormed(first.number, OSError("gone"), lost=True))
    run.settle()
    again = [command for command in run.commands if isinstance(command, ev.FormRequest)]
    assert [r.server_groups[0].left[0].generation for r in again] == [3, 3] and not again[1].fresh
    assert [restart.cause for restart in run.state.restarts] == [LOST, "gone"]


def test_what_an_earlier_start_has_left_is_void_once_this_one_has_begun(start):
    run = start().begin()
    run.lose_servers(0)
    run.settle()
    assert [c.fresh for c in run.commands if isinstance(c, ev.FormRequest)] == [False, True]
