"""Servers that are lost and go on from what they have left in memory."""

import pytest
from support.supervised import Run, failed, found

from singa_dask.supervision import events as ev
from singa_dask.supervision.members import Phase, Restart

DOWNPOUR = {"nworker_groups": 2, "server_worker_separate": True}
SANDBLASTER = {"nworkers_per_group": 2, "nservers_per_group": 2, "server_worker_separate": True}
HOGWILD = {"nworker_groups": 3, "nserver_groups": 3}


@pytest.fixture
def start(monkeypatch):
    """A run whose server groups are all kept in memory, and whose worker groups have made 20 steps."""

    def start(spare=1, **options):
        run = Run(monkeypatch, spare=spare, **options)
        run.begin()
        run.kept = {group.number for group in run.server_groups}
        for group in run.worker_groups:
            run.handle(ev.Progress(group.number, 20))
        return run

    return start


def last_request(run):
    return [command for command in run.commands if isinstance(command, ev.FormRequest)][-1]


def test_worker_groups_wait_for_servers_that_come_back(start):
    run = start(**DOWNPOUR)
    before = dict(run.ranks)
    run.lose_servers(0)
    run.settle()
    request = last_request(run)
    assert (request.worker_groups, request.fresh) == ((), False)
    assert [left.generation for left in request.server_groups[0].left] == [1]
    assert run.servers[0].parameters == "generation 1" and run.ranks == before
    assert [ranks.told[-1] for ranks in run.ranks.values()] == [("servers", run.servers[0].addresses)] * 2
    assert run.state.restarts == [Restart((), 20, "server group 0: the process of w3 died or is stopped", (), (0,))]
    assert run.notes == [
        "server group 0: the process of w3 died or is stopped (step 20). "
        "Restart 1 of 3 of server group 0, with everything that it had acknowledged."
    ]


def test_the_servers_of_a_synchronous_group_come_back_too(start):
    run = start(spare=2, **SANDBLASTER)
    run.kill(run.server_groups[0].where[1])
    run.handle(ev.ServersLost(frozenset(run.server_groups[0].where[1:])))
    run.settle()
    assert run.made()[1:] == [([], [0])] and run.servers[0].parameters == "generation 1"
    assert run.worker_groups[0].phase is Phase.RUNNING


def test_a_synchronous_group_that_is_lost_with_its_servers_goes_on_too(start):
    run = start(spare=3, **SANDBLASTER)
    run.kill(run.worker_groups[0].where[0])
    run.lose_servers(0)
    run.settle()
    assert run.made()[1:] == [([0], [0])] and run.servers[0].parameters == "generation 1"
    assert not run.ranks[0].plan.group.fresh and not any(isinstance(c, ev.Rewind) for c in run.commands)


def test_a_synchronous_group_goes_on_with_its_servers(start):
    run = start(**SANDBLASTER)
    run.found = found(10)
    before = run.servers[0]
    run.lose(0)
    run.settle()
    plan = run.ranks[0].plan.group
    assert run.made()[1:] == [([0], [])] and run.servers[0] is before
    assert (plan.fresh, plan.resume, plan.first) == (False, None, 20)
    assert "of worker group 0, from the servers' parameters" in run.notes[0]


def test_a_group_gives_parameters_only_to_servers_that_may_have_none(monkeypatch):
    run = Run(monkeypatch, spare=3, **DOWNPOUR).begin()
    assert [run.ranks[i].plan.group.puts for i in range(2)] == [True, False]
    for step, puts in ((None, True), (3, False), (5, False)):
        if step is not None:
            run.handle(ev.Progress(1, step))
        run.lose(0)
        run.settle()
        assert run.ranks[0].plan.group.puts is puts


def test_servers_that_are_stopped_are_replaced_at_once(start):
    run = start(spare=0, **DOWNPOUR)
    (address,) = run.server_groups[0].where
    pid = run.there[address].pid
    run.handle(ev.ServersLost(frozenset({address}), frozenset({address})))
    assert run.commands[-2] == ev.Kill({address: pid}) and isinstance(run.commands[-1], ev.Survey)
    run.kill(address)
    run.start(nanny=f"n{pid}")
    run.settle()
    assert run.made()[1:] == [([], [0])] and run.servers[0].parameters == "generation 1"


def test_a_worker_group_that_is_lost_with_its_server_goes_on_where_it_was(start):
    run = start(**HOGWILD)
    run.lose(1)
    run.settle()
    assert run.made()[1:] == [([1], [1])] and run.servers[1].parameters == "generation 1"
    assert (run.ranks[1].plan.group.fresh, run.ranks[1].plan.group.first) == (False, 20)
    assert [run.servers[number].met for number in (0, 1)] == [2, 1], "neighbours meet again, with the same accounts"
    assert run.state.restarts[0].whole == (1,) and run.state.restarts[0].servers == ()


def test_server_groups_that_come_back_are_there_for_those_that_do_not(start):
    run = start(spare=3, **HOGWILD)
    run.kept = {1}
    for number in range(3):
        run.kill(f"w{number + 1}")
    run.handle(ev.ServersLost(frozenset({"w1", "w2", "w3"})))
    run.settle()
    assert run.made()[1:] == [([0, 1, 2], [0, 1, 2])] and not last_request(run).fresh
    assert run.servers[0].parameters == run.servers[2].parameters == "server group 1"
    assert run.servers[1].parameters == "generation 1"
    assert run.state.restarts[0].whole == (1,) and run.state.restarts[0].servers == (0, 2)
    assert "of worker group 0 and worker group 1 and worker group 2, from the parameters of a neigh" in run.notes[0]


def go_on(run):
    """Answer what is open: surveys follow each other as long as a process is missing."""
    for _ in range(12):
        if run.open:
            run.answer()


def lose_with_nanny(run, address):
    run.lost_nannies.add(run.there[address].nanny)
    run.kill(address)


def test_lost_servers_are_guests_in_other_processes_until_there_are_free_ones(start):
    run = start(spare=0, **DOWNPOUR, nservers_per_group=2)
    stays, lost = run.server_groups[0].where
    before = dict(run.ranks)
    lose_with_nanny(run, lost)
    run.handle(ev.ServersLost(frozenset({lost})))
    go_on(run)
    assert run.server_groups[0].where == (stays, stays) and run.servers[0].parameters == "generation 1"
    assert run.notes[1:] == ["server group 0 goes on in other processes of the run until there are free ones"]
    new = run.start()
    run.settle()
    assert run.server_groups[0].where == (stays, new) and run.servers[0].parameters == "generation 2"
    assert run.notes[2:] == [f"server group 0 goes on in {new}, which had no work"] and run.ranks == before
    assert [ranks.told[-1] for ranks in run.ranks.values()] == [("servers", run.servers[0].addresses)] * 2
    assert len(run.state.restarts) == 1 and not run.server_groups[0].guests


def test_servers_of_a_host_are_guests_while_its_worker_group_waits_for_processes(start):
    run = start(spare=0, **DOWNPOUR)
    lose_with_nanny(run, run.server_groups[0].where[0])
    lose_with_nanny(run, run.worker_groups[1].where[0])
    run.handle(ev.WorkerGroupFailed(1, run.worker_groups[1].generation, "its process died"))
    go_on(run)
    assert run.server_groups[0].where == run.worker_groups[0].where and run.servers[0].parameters == "generation 1"
    assert run.worker_groups[1].phase is Phase.DOWN
    first, second = run.start(), run.start()
    run.settle()
    assert {run.worker_groups[1].where, run.server_groups[0].where} == {(first,), (second,)}
    run.lose(0)
    assert run.server_groups[0].phase is Phase.RUNNING, "it is no guest any more"


def test_servers_that_nobody_waits_for_are_no_guests(start):
    run = start(spare=0, **DOWNPOUR, nservers_per_group=2)
    lost = run.server_groups[0].where[1]
    lose_with_nanny(run, lost)
    for number in range(2):
        lose_with_nanny(run, run.worker_groups[number].where[0])
        run.handle(ev.WorkerGroupFailed(number, run.worker_groups[number].generation, "its process died"))
    run.handle(ev.ServersLost(frozenset({lost})))
    go_on(run)
    assert {group.phase for group in run.members.all()} == {Phase.DOWN} and not run.server_groups[0].guests


def test_a_worker_group_without_processes_is_left_out_and_the_others_go_on(start):
    run = start(spare=0, **DOWNPOUR)
    lose_with_nanny(run, run.worker_groups[1].where[0])
    run.handle(ev.WorkerGroupFailed(1, run.worker_groups[1].generation, "its process died"))
    go_on(run)
    assert run.worker_groups[1].phase is Phase.DOWN
    run.clock = 31.0
    run.settle()
    assert run.worker_groups[1].phase is Phase.ENDED and run.worker_groups[0].phase is Phase.RUNNING
    assert run.servers[0].dismissed == [(1, 1)]
    assert run.notes[-1] == (
        "worker group 1 is left out, and the others go on: Dask workers were lost (w2): 1 must be replaced, and 0 are "
        "free after 30 s. Start more. `singa-dask join` adds a group."
    )
    run.start()
    assert run.ask_join().startswith("worker group 2 joins")


def test_of_groups_that_are_lost_together_those_go_on_that_get_processes(start):
    run = start(spare=2, **HOGWILD)
    for group in run.worker_groups:
        lose_with_nanny(run, group.where[0])
        run.handle(ev.WorkerGroupFailed(group.number, group.generation, "its process died"))
    for run.clock in (31.0, 62.0, 93.0, 124.0):
        for _ in range(8):
            if run.open:
                run.answer()
    first, second, third = run.worker_groups
    assert (first.where, second.where) == (("w4",), ("w5",))
    assert [group.phase for group in run.worker_groups] == [Phase.RUNNING, Phase.RUNNING, Phase.ENDED]
    assert [group.phase for group in run.server_groups] == [Phase.RUNNING] * 3
    assert [group.where for group in run.server_groups] == [("w4",), ("w5",), ("w4",)]
    assert any(note.startswith("worker group 2 is left out, and the others go on") for note in run.notes)
    assert third.phase is Phase.ENDED and not run.state.over


def test_a_lead_without_processes_ends_the_run(start):
    run = start(spare=0, **DOWNPOUR)
    lose_with_nanny(run, run.worker_groups[0].where[0])
    run.handle(ev.WorkerGroupFailed(0, run.worker_groups[0].generation, "its process died"))
    go_on(run)
    run.clock = 31.0
    run.settle()
    assert run.state.over and "1 must be replaced" in str(run.state.error)


def test_servers_between_two_others_are_guests_though_their_worker_group_is_left_out(start):
    run = start(spare=0, **HOGWILD)
    lose_with_nanny(run, run.worker_groups[1].where[0])
    run.handle(ev.WorkerGroupFailed(1, run.worker_groups[1].generation, "its process died"))
    go_on(run)
    assert run.server_groups[1].phase is Phase.DOWN
    run.clock = 31.0
    go_on(run)
    assert run.worker_groups[1].phase is Phase.ENDED and run.servers[1].parameters == "generation 1"
    assert run.server_groups[1].where == run.worker_groups[0].where and run.server_groups[1].phase is Phase.RUNNING


def test_servers_wait_for_the_process_that_their_nanny_starts(start):
    run = start(spare=0, **DOWNPOUR, nservers_per_group=2)
    lost = run.server_groups[0].where[1]
    nanny = run.there[lost].nanny
    run.kill(lost)
    run.handle(ev.ServersLost(frozenset({lost})))
    go_on(run)
    assert run.server_groups[0].phase is Phase.DOWN
    new = run.start(nanny=nanny)
    run.settle()
    assert run.server_groups[0].where[1] == new and not run.server_groups[0].guests


def test_worker_groups_whose_servers_come_back_in_vain_are_formed_again(start):
    """The memory is lost too before a process is there for the servers."""
    run = start(spare=0, **DOWNPOUR)
    run.lose_servers(0)
    for _ in range(3):  # the loss is known, and what is lost is closed
        run.answer()
    assert [group.phase for group in run.worker_groups] == [Phase.RUNNING] * 2
    run.kept.clear()
    run.start()
    run.settle()
    assert run.made()[1:] == [([0, 1], [0])] and last_request(run).fresh
    assert run.notes[1:] == [
        "worker group 0: server group 0 is lost, and what it had left in memory (step 20). "
        "Restart 1 of 3 of worker group 0 and worker group 1, from step 0."
    ]


def test_what_an_earlier_generation_has_left_is_void(start):
    run = start(**DOWNPOUR)
    run.lose_servers(0)
    run.settle()
    run.server_groups[0].formed += 1  # nannies hold what came before the last time
    run._kept, kept = dict, run._kept()
    run.left = kept
    run.server_groups[0].formed += 1
    run.start()
    run.lose_servers(0)
    run.settle()
    assert last_request(run).fresh and run.made()[-1] == ([0, 1], [0])


def test_a_failed_attempt_is_repeated(start):
    run = start(spare=2, **DOWNPOUR)
    run.lose_servers(0)
    while not isinstance(run.state.busy, ev.FormRequest):
        run.answer()
    request = run.state.busy
    run.answer(ev.FormRequest, ev.NotFormed(request.number, failed(), lost=True))
    run.settle()
    assert run.made()[1:] == [([], [0])] * 2 and [len(r.groups) for r in run.state.restarts] == [0, 0]
    assert last_request(run).server_groups[0].left[0].generation == 1


def test_a_run_that_is_being_stopped_waits_for_its_servers(start):
    run = start(**DOWNPOUR)
    run.handle(ev.StopAsked())
    run.lose_servers(0)
    run.settle()
    assert run.made()[1:] == [([], [0])] and [g.phase for g in run.worker_groups] == [Phase.RUNNING] * 2
    run.end(1, 0)
    run.settle()
    assert run.state.over and run.state.error is None


def stopped_without_a_process_for_its_servers(start):
    run = start(spare=0, **DOWNPOUR)
    run.handle(ev.StopAsked())
    run.lose_servers(0)
    go_on(run)
    return run


def test_a_run_that_is_being_stopped_has_guests_if_the_process_of_a_server_does_not_come(start):
    run = stopped_without_a_process_for_its_servers(start)
    run.clock = 31.0
    run.settle()
    assert run.server_groups[0].where == run.worker_groups[0].where
    run.end(1, 0)
    run.settle()
    assert run.state.over and run.state.error is None


def test_a_run_that_is_being_stopped_goes_without_servers_that_have_no_process_and_no_memory(start):
    run = stopped_without_a_process_for_its_servers(start)
    run.kept.clear()
    run.clock = 31.0
    go_on(run)
    assert run.state.over and any("The run is being stopped, so it ends here" in note for note in run.notes)


def test_it_is_said_if_no_memory_is_held(monkeypatch):
    run = Run(monkeypatch, **DOWNPOUR)
    run.keeps = False
    run.begin()
    assert run.notes == [
        "server group 0 leaves no copies in memory, as its processes have no nannies or too little memory: "
        "after its loss, updates that no other server group has are lost"
    ]
