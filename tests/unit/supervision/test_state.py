"""What a run does about losses, newcomers and leavers: the state that results, and who is told what."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.supervised import Run, failed, found

from singa_dask.cluster.deposits import Deposit
from singa_dask.cluster.formation import NoAnswer, WorkersInUse
from singa_dask.errors import ClusterError, ConfigError, DataError, DriverUnreachable, Problem
from singa_dask.supervision import events as ev
from singa_dask.supervision import launch
from singa_dask.supervision.members import TRANSITIONS, GroupLost, NoReplacement, Phase
from singa_dask.training.worker import GroupPlan

ALLREDUCE = {"nworkers_per_group": 2, "nservers_per_group": 2}
DOWNPOUR = {"nworker_groups": 2, "server_worker_separate": True}
HOGWILD = {"nworker_groups": 3, "nserver_groups": 3}
HYBRID = {"nworker_groups": 4, "nserver_groups": 2, "nworkers_per_group": 2}


@pytest.fixture
def start(monkeypatch):
    """A run of this topology that has started."""
    return lambda **options: Run(monkeypatch, **options).begin()


def where(run):
    return [group.where for group in run.worker_groups], [group.where for group in run.server_groups]


def test_a_run_begins_with_a_survey_and_forms_everything_at_once(monkeypatch):
    run = Run(monkeypatch, **HOGWILD)
    assert run.handle(None) == [ev.Survey(1, checkpoint=True)]
    (request,) = run.answer()
    assert request == ev.FormRequest(
        number=1,
        worker_groups=tuple(
            ev.WorkerGroupRequest(
                GroupPlan(g, 1, in_process_servers=False, cores=(2,), nannies=nannies), (f"w{g + 1}",), g
            )
            for g, nannies in enumerate([(("", "n1"), ("", "n2"), ("", "n3")), (), ()])
        ),
        server_groups=(
            ev.ServerGroupRequest(0, ("w1",), 1, (0,), {"right": (1, 1)}, ("right",), ("n2",), ("",)),
            ev.ServerGroupRequest(
                1, ("w2",), 1, (1,), {"left": (1, 1), "right": (1, 1)}, ("left", "right"), ("n3",), ("",)
            ),
            ev.ServerGroupRequest(2, ("w3",), 1, (2,), {"left": (1, 1)}, ("left",), ("n1",), ("",)),
        ),
        fresh=True,
    )
    assert run.answer() == []
    assert [group.phase for group in run.worker_groups] == [Phase.RUNNING] * 3
    assert run.ranks[1].told == [("servers", run.servers[1].addresses)]
    assert run.members.history[0] == "the start"
    assert "worker group 2 on w3: formed: forming -> running" in run.members.history


def test_one_worker_group_has_in_process_servers_and_begins_at_the_checkpoint(monkeypatch):
    run = Run(monkeypatch, steps={0: 40}, **ALLREDUCE)
    run.found = found(40)
    run.begin()
    (request,) = (c for c in run.commands if isinstance(c, ev.FormRequest))
    assert request.server_groups == () and request.fresh
    (group,) = request.worker_groups
    assert group.where == ("w1", "w2")
    nannies = ("", "n1"), ("", "n2")
    assert group.plan == GroupPlan(0, 1, resume=Path("step-40.h5"), first=40, cores=(4, 4), nannies=nannies)
    assert not any(isinstance(c, ev.Rewind) for c in run.commands)


def waits(commands):
    """The surveys among commands: (number, delay)."""
    return [(c.number, c.delay_s) for c in commands if isinstance(c, ev.Survey)]


# Losses


def test_the_synchronous_group_goes_back_to_the_newest_checkpoint(monkeypatch):
    run = Run(monkeypatch, spare=1, **ALLREDUCE).begin()
    run.found = found(50)
    run.handle(ev.Progress(0, 77))
    run.lose(0, "w2")
    assert run.answer() == [
        ev.Note("its process died (step 77). Restart 1 of 3, from step 50."),
        ev.Close((0,), ()),
    ]
    assert run.answer() == [ev.Survey(3, checkpoint=True, nannies=frozenset({"n1", "n2", "n3"}))]
    rewind, request = run.answer()
    assert rewind == ev.Rewind((0,), 50) and run.state.steps == {0: 50}
    (group,) = request.worker_groups
    assert group.where == ("w1", "w3")
    assert (group.plan.generation, group.plan.first, group.plan.resume) == (2, 50, Path("step-50.h5"))
    run.settle()
    assert [(r.groups, r.step, r.cause) for r in run.state.restarts] == [((0,), 77, "its process died")]


def test_a_checkpoint_in_memory_is_one_like_others(start):
    run = start(spare=1, **ALLREDUCE)
    deposit = Deposit("its contents", 8)
    run.found = found(70, deposit)
    run.handle(ev.Progress(0, 77))
    run.lose(0)
    run.settle()
    assert ev.Rewind((0,), 70) in run.commands
    assert run.notes == ["its process died (step 77). Restart 1 of 3, from step 70 in memory."]
    assert (run.ranks[0].plan.group.resume, run.ranks[0].plan.group.first) == ((deposit,), 70)


def test_a_run_that_resumes_from_memory_says_so(monkeypatch):
    run = Run(monkeypatch, steps={0: 40}, starts=1, **ALLREDUCE)
    run.found = found(70, Deposit("its contents", 8))
    run.begin()
    assert run.notes == ["the run goes on from step 70, which is in memory"] and run.state.steps == {0: 70}


def test_without_a_checkpoint_it_goes_back_to_the_start(start):
    run = start(spare=1, **ALLREDUCE)
    run.handle(ev.Progress(0, 77))
    run.lose(0)
    run.settle()
    assert ev.Rewind((0,), None) in run.commands and run.state.steps == {0: 0}
    assert run.notes == ["its process died (step 77). Restart 1 of 3, from step 0."]
    assert run.ranks[0].plan.group.first == 0


def test_a_group_goes_on_from_the_memory_of_lost_processes(monkeypatch):
    run = Run(monkeypatch, spare=2, **ALLREDUCE).begin()
    run.found, run.left = found(50), {"worker group 0": ("rank 0's", "rank 1's")}
    run.handle(ev.Progress(0, 77))
    run.lose(0, "w2")
    run.answer(), run.answer()
    for _ in range(3):
        run.answer()
        assert run.worker_groups[0].phase is Phase.DOWN, "others are free, but may be on other machines"
    came = run.start(nanny="n2")
    run.settle()
    assert run.worker_groups[0].where == ("w1", came)
    assert run.notes == [
        "its process died (step 77). Restart 1 of 3, from the state that its processes have left in memory."
    ]
    assert not any(isinstance(c, ev.Rewind) for c in run.commands)
    plan = run.ranks[0].plan.group
    assert (plan.left, plan.resume, plan.first) == (("rank 0's", "rank 1's"), Path("step-50.h5"), 50)
    run.left = {}
    run.lose(0)
    run.settle()
    assert run.ranks[0].plan.group.left == () and ev.Rewind((0,), 50) in run.commands


@pytest.mark.parametrize("why", ["its nanny is lost too", "its nanny takes too long"])
def test_others_take_the_place_of_processes_that_do_not_come_back(start, why):
    run = start(spare=2, **ALLREDUCE)
    run.left = {"worker group 0": ("rank 0's", "rank 1's")}
    run.lose(0, "w2")
    if why == "its nanny is lost too":
        run.lost_nannies.add("n2")
    run.answer(), run.answer(), run.answer()
    assert (run.worker_groups[0].phase is Phase.DOWN) == (why == "its nanny takes too long")
    run.clock = 31.0
    run.settle()
    assert run.worker_groups[0].where == ("w1", "w3")


def test_the_nanny_of_a_process_that_came_while_its_group_formed_is_known(start, monkeypatch):
    run = start(least=1, **ALLREDUCE)
    run.lose(0, "w2")
    came = run.start(nanny="n2")
    form_group = launch.form_group

    def restarted(client, where, *args, **options):
        run.kill("w1")
        return form_group(client, [run.start(nanny="n1"), came], *args, **options)

    monkeypatch.setattr(launch, "form_group", restarted)
    run.settle()
    run.lose(0)
    run.answer(), run.answer()
    for _ in range(3):
        run.answer()
        assert run.worker_groups[0].phase is Phase.DOWN, "its nanny is starting another process"


def test_a_group_of_downpour_goes_on_from_the_servers(start):
    run = start(spare=1, **DOWNPOUR)
    server = run.servers[0]
    run.handle(ev.Progress(1, 33))
    run.handle(ev.Progress(0, 50))
    run.lose(1)
    run.settle()
    assert where(run) == ([("w1",), ("w4",)], [("w3",)])
    assert (
        [group.generation for group in run.worker_groups] == [1, 2] and run.servers[0] is server and not server.stopped
    )
    plan = run.ranks[1].plan.group
    assert (plan.first, plan.fresh, plan.puts, plan.generation) == (33, False, False, 2)
    assert run.ranks[1].told == [("servers", server.addresses)]
    assert run.notes == ["its process died (step 33). Restart 1 of 3 of worker group 1, from the servers' parameters."]
    assert not any(isinstance(c, ev.Rewind) for c in run.commands)
    assert [c.checkpoint for c in run.commands if isinstance(c, ev.Survey)] == [True, False, False]


def test_a_loss_takes_along_what_shares_processes_only(start):
    run = start(spare=1, **HOGWILD)
    run.handle(ev.Progress(1, 20))
    before = run.servers[0]
    run.lose(1)
    run.settle()
    assert run.made()[1:] == [([1], [1])]
    assert where(run) == ([("w1",), ("w4",), ("w3",)],) * 2
    assert [group.generation for group in run.server_groups] == [1, 2, 1]
    assert [restart.groups for restart in run.state.restarts] == [(1,)]
    made = run.servers[1]
    assert made.parameters == "server group 0" and run.servers[2].parameters == "server group 1"
    assert run.servers[0] is before and before.met == 2 and made.met == 1, "it meets both neighbours"
    assert run.notes == [
        "its process died (step 20). Restart 1 of 3 of worker group 1, "
        "from the parameters of a neighbouring server group."
    ]
    assert all(plan.accounts == {} for plan in made.plans)


@pytest.mark.parametrize(("lost", "met"), [(0, [1, 1]), (1, [2, 1]), (2, [1, 2])])
def test_a_server_group_that_is_made_again_meets_its_neighbours_again(start, lost, met):
    run = start(spare=1, **HOGWILD)
    run.lose(lost)
    run.settle()
    assert [run.servers[left].met for left in (0, 1)] == met


def test_all_server_groups_lost_begin_with_the_checkpoint_and_open_their_accounts_anew(start):
    run = start(spare=3, **HOGWILD)
    run.found = found(30)
    for number in range(3):
        run.handle(ev.Progress(number, 40 + number))
        run.kill(f"w{number + 1}")
    run.handle(ev.ServersLost(frozenset({"w1", "w2", "w3"})))
    run.settle()
    assert run.made()[-1] == ([0, 1, 2], [0, 1, 2])
    assert ev.Rewind((0, 1, 2), 30) in run.commands
    assert [run.ranks[g].plan.group.first for g in range(3)] == [30, 30, 30]
    assert run.servers[1].plans[0].accounts == {"left": (2, 2), "right": (2, 2)}
    assert "from step 30" in run.notes[0] and "server group 0: the process of w1 died or is stopped" in run.notes[0]


def test_a_server_group_that_no_worker_group_gives_parameters_takes_over_a_neighbours(start):
    run = start(spare=3, **HOGWILD)
    run.end(1)
    for number in range(3):
        run.kill(f"w{number + 1}")
    run.handle(ev.ServersLost(frozenset({"w1", "w2", "w3"})))
    run.settle()
    assert run.made()[1:] == [([0, 2], [0, 2]), ([], [1])]
    assert run.servers[1].parameters == "server group 0" and run.servers[2].parameters == "server group 1"
    assert [run.servers[left].met for left in (0, 1)] == [2, 2]


def test_two_server_groups_are_made_from_the_nearest_one_that_is_up(start):
    run = start(spare=2, **HOGWILD)
    run.kill("w1")
    run.kill("w2")
    run.handle(ev.ServersLost(frozenset({"w1", "w2"})))
    run.settle()
    assert run.made()[-1] == ([0, 1], [0, 1])
    assert run.servers[1].parameters == "server group 2" and run.servers[0].parameters == "server group 1"


def test_lost_servers_take_along_the_groups_that_they_serve(start):
    run = start(spare=1, **DOWNPOUR)
    run.found = found(20)
    run.lose_servers(0)
    run.settle()
    assert run.made()[-1] == ([0, 1], [0])
    assert where(run) == ([("w1",), ("w2",)], [("w4",)])
    assert run.server_groups[0].restarts == 1 and run.worker_groups[0].restarts == 0
    assert run.notes == [
        "server group 0: the process of w3 died or is stopped (step 0). "
        "Restart 1 of 3 of worker group 0 and worker group 1, from step 20."
    ]


def test_a_worker_group_of_two_processes_takes_along_the_servers_in_both(start):
    """Both processes are replaced when it is formed anew: the world of a failed group is spent."""
    run = start(spare=1, **HYBRID)
    assert run.worker_groups[0].where == ("w1", "w2") and run.server_groups[0].where == ("w1",)
    run.lose(0, "w2")
    run.settle()
    assert run.made()[-1] == ([0, 1], [0])
    assert run.worker_groups[0].where == ("w1", "w9")


def test_a_mute_process_takes_its_server_along_though_the_scheduler_lists_it(start):
    run = start(spare=1, **HOGWILD)
    run.kill("w3")  # answers no survey; nobody says that its server is lost
    group = run.worker_groups[2]
    run.handle(ev.WorkerGroupFailed(2, group.generation, "the server does not answer"))
    run.settle()
    assert run.made()[1:] == [([2], [2])]


def test_losses_of_one_process_are_one_restart(start):
    run = start(spare=1, **HOGWILD)
    run.lose(1)
    run.handle(ev.ServersLost(frozenset({"w2"})))
    run.settle()
    assert len(run.state.restarts) == 1 and run.made()[1:] == [([1], [1])]


def test_a_loss_while_another_is_being_formed_waits_for_its_turn(start):
    run = start(spare=2, **DOWNPOUR)
    run.lose(1)
    while not isinstance(run.state.busy, ev.FormRequest):
        run.answer()
    run.lose(0)
    assert [group.phase for group in run.worker_groups] == [Phase.LOST, Phase.FORMING]
    run.settle()
    assert run.made()[1:] == [([1], []), ([0], [])]
    assert [group.generation for group in run.worker_groups] == [2, 2]


def test_a_survey_from_before_the_loss_decides_nothing(start):
    run = start(spare=1, **DOWNPOUR)
    run.handle(ev.JoinAsked("asker"))
    (survey,) = run.open
    old = run.answer_to(survey)
    run.lose(1)
    run.answer(ev.Survey, old)
    assert run.worker_groups[1].phase is Phase.LOST and "asker" not in run.replies
    run.settle()
    assert run.worker_groups[1].where == ("w4",)
    assert run.replies["asker"].startswith("refused: 1 free Dask workers are needed, 0 are there")


def test_events_of_an_earlier_generation_are_ignored(start):
    run = start(spare=1, **DOWNPOUR)
    run.lose(1)
    run.settle()
    for event in (
        ev.WorkerGroupFailed(1, 1, "late"),
        ev.WorkerGroupEnded(1, 1),
        ev.Formed(1),
        ev.NotFormed(1, ClusterError("late")),
    ):
        assert run.handle(event) == []
    assert run.worker_groups[1].phase is Phase.RUNNING
    assert run.handle(ev.Surveyed(1, ())) == []


def test_restarts_are_counted_for_each_and_bounded(start):
    run = start(spare=4, max_restarts=1, **DOWNPOUR)
    for number in (0, 1):
        run.lose(number)
        run.settle()
    assert [group.restarts for group in run.worker_groups] == [1, 1] and not run.state.over
    commands = run.handle(ev.WorkerGroupFailed(1, 2, "its process died again"))
    run.kill(run.worker_groups[1].where[0])
    (end,) = (c for c in run.answer() if isinstance(c, ev.End))
    said = "its process died again (step 0). The group was restarted 1 time without progress (max_restarts)."
    assert isinstance(end.error, GroupLost) and str(end.error) == said and run.state.error is end.error
    assert "worker group 1 on w5: formed: forming -> running" in end.error.__notes__[0]
    assert len(run.state.restarts) == 2 and [c.number for c in commands] == [6]
    assert run.handle(ev.Progress(0, 99)) == [] and run.state.steps.get(0) != 99


def test_an_error_of_a_ranks_own_ends_the_run(start):
    run = start(**DOWNPOUR)
    error = DataError("shard 7 is damaged")
    run.lose(1, raised=error)
    assert run.commands[-1] == ev.End(error) and run.state.error is error


# Forming


def test_servers_of_a_request_that_failed_are_made_again(monkeypatch):
    """As they have no parameters, nobody may begin with what they have."""
    run = Run(monkeypatch, spare=1, **HOGWILD)
    run.handle(None)
    run.answer()
    run.kill("w3")
    run.settle()
    assert run.made() == [([0, 1, 2], [0, 1, 2])] * 2
    assert len(run.groups) == 3 and run.worker_groups[2].where == ("w4",)
    assert [c.fresh for c in run.commands if isinstance(c, ev.FormRequest)] == [True, True]
    assert [restart.groups for restart in run.state.restarts] == [(0, 2)]
    assert run.state.restarts[0].cause == "Dask workers are gone: w3"


def test_a_rank_lost_while_it_forms_is_a_loss_for_certain(monkeypatch):
    run = Run(monkeypatch, **DOWNPOUR)
    run.fault = failed()
    run.begin()
    assert [restart.cause for restart in run.state.restarts] == [str(failed())]
    assert [group.generation for group in run.worker_groups] == [2, 2]


def test_what_no_loss_explains_ends_the_run(monkeypatch):
    run = Run(monkeypatch, **DOWNPOUR)
    run.fault = ClusterError("MPI cannot be loaded")
    run.begin()
    assert str(run.state.error) == "MPI cannot be loaded" and run.state.over


def test_an_error_of_a_ranks_own_while_it_forms_ends_the_run(monkeypatch):
    run = Run(monkeypatch, **DOWNPOUR)
    run.fault = failed(DataError("no shards"))
    run.begin()
    assert isinstance(run.state.error, DataError)


def test_restarted_processes_are_known_by_their_new_addresses(start):
    run = start(spare=1, **HOGWILD)
    run.lose(1)
    run.answer()
    run.answer()
    run.answer(ev.Survey)
    request = run.state.busy
    assert [group.where for group in request.worker_groups] == [("w4",)]
    run.open.clear()
    run.there["w9"] = run.there.pop("w4")
    run.ranks[1] = type(run.ranks[0])(run, ("w9",), SimpleNamespace(group=SimpleNamespace(generation=2)))
    run.servers[1] = run.servers[0].__class__(run, 1, 2, ("w9",), [], met=1)
    run.servers[0].met = 2
    run.handle(ev.Formed(request.number, {"w4": "w9"}, {"w9": 77}))
    assert run.worker_groups[1].where == run.server_groups[1].where == ("w9",)
    assert run.state.processes.stuck(["w9"], again=False) == {"w9": 77}


# Places


def test_a_replacement_is_waited_for_and_then_missed(start):
    run = start(**ALLREDUCE)
    run.lose(0)
    run.answer()
    run.answer()
    assert ev.Kill({"w1": 1}) in run.answer(), "a stopped process lives, and its nanny is content with it"
    assert waits(run.open) == [(4, 0.05)]
    run.clock = 29.0
    assert waits(run.answer()) == [(5, 0.05)]
    run.clock = 30.0
    (end,) = run.answer()
    assert isinstance(end.error, NoReplacement)
    assert str(end.error) == (
        "Dask workers were lost (w1): 1 must be replaced, and 0 are free after 30 s. Start more."
    )


def test_a_replacement_that_comes_is_taken(start):
    run = start(**ALLREDUCE)
    run.lose(0)
    for _ in range(3):
        run.answer()
    came = run.start()
    run.settle()
    assert run.worker_groups[0].where == (came, "w2") and run.worker_groups[0].phase is Phase.RUNNING


def test_a_group_goes_on_with_fewer_workers_and_takes_in_others_later(start):
    run = start(least=1, nworkers_per_group=3, nservers_per_group=3)
    assert not run.open, "it has all its workers"
    run.left = {"worker group 0": ("0", "1", "2")}
    run.lose(0, "w2")
    run.answer(), run.answer()
    for _ in range(3):
        run.answer()
        assert run.worker_groups[0].phase is Phase.DOWN, "its nanny is starting another process"
    run.lost_nannies.add("n2")
    note, request = run.answer()
    assert note == ev.Note("worker group 0 goes on with 2 of 3 workers")
    (group,) = request.worker_groups
    assert group.where == ("w1", "w3") and len(group.plan.cores) == 2
    run.answer()
    run.answer(ev.TellLead)
    ((number, delay_s),) = waits(run.open)
    assert delay_s == 2.0 and waits(run.answer()) == [(number + 1, 2.0)], "nobody is free"
    came = run.start()
    assert run.answer() == [ev.Note("worker group 0 goes on with all 3 workers"), ev.Close((0,), (), (0,))]
    run.settle()
    assert run.worker_groups[0].where == ("w1", "w3", came) and len(run.state.restarts) == 1
    assert len(run.ranks[0].plan.group.cores) == 3


def test_a_group_with_servers_goes_on_with_fewer_workers_and_takes_in_others_later(start):
    run = start(least=1, **DOWNPOUR | {"nworkers_per_group": 2})
    run.handle(ev.Progress(1, 7))
    run.lose(1, "w3")
    run.lost_nannies.add("n3")
    (group,) = run.until_formed(2).worker_groups
    assert run.notes[-1] == "worker group 1 goes on with 1 of 2 workers" and run.made()[1:] == [([1], [])]
    assert group.where == ("w4",) and group.plan.first == 7
    assert [g.phase for g in run.worker_groups] == [Phase.RUNNING] * 2
    assert run.ask_join().startswith("refused: 2 free Dask workers are needed, 0 are there")
    came = run.start()
    assert run.until_formed(3).worker_groups[0].where == ("w4", came)
    assert run.notes[-1] == "worker group 1 goes on with all 2 workers" and len(run.state.restarts) == 1


def test_a_group_that_cannot_go_on_with_fewer_workers_waits_for_the_others(start):
    run = start(least=1, nworkers_per_group=3, nservers_per_group=3)
    run.left = {"worker group 0": ("0", "1", "2")}
    run.lose(0, "w2")
    run.lost_nannies.add("n2")
    run.until_formed(2)
    assert run.worker_groups[0].where == ("w1", "w3") and run.worker_groups[0].lacks == ("w2",)
    run.lose(0, raised=ConfigError(Problem("neuralnet", "needs 9.0 GB per worker")))
    for _ in range(8):
        run.answer()
        assert run.worker_groups[0].phase is not Phase.FORMING
    assert "worker group 0 cannot go on with fewer workers" in run.notes[-1] and not run.state.over
    came = run.start()
    run.until_formed(3)
    assert run.worker_groups[0].where == ("w1", "w3", came) and run.worker_groups[0].lacks == ()


@pytest.mark.parametrize("comes", [True, False])
def test_a_nanny_that_does_not_answer_gets_some_time_before_a_checkpoint_counts(start, comes):
    run = start(spare=1, nworkers_per_group=3, nservers_per_group=3)
    run.found = found(50)
    run.silent_nannies.add("n2")
    run.lose(0, "w2")
    for run.clock in (2.0, 4.0, 6.0):
        run.answer(ev.Survey)
        assert run.worker_groups[0].phase is Phase.LOST and not run.notes
    if comes:
        run.silent_nannies.clear()
        run.left = {"worker group 0": ("0", "1", "2")}
    else:
        run.clock = 8.1
    run.answer(ev.Survey)
    goes_on = "from the state that its processes have left in memory" if comes else "from step 50"
    assert run.notes == [f"its process died (step 0). Restart 1 of 3, {goes_on}."]


def test_servers_wait_for_a_nanny_that_may_hold_them_and_their_groups_wait_for_them(start):
    run = start(spare=1, **DOWNPOUR)
    run.silent_nannies.add("n3")
    run.lose_servers(0)
    for run.clock in (2.0, 4.0):
        run.answer(ev.Survey)
        assert run.server_groups[0].phase is Phase.LOST
        assert [group.phase for group in run.worker_groups] == [Phase.RUNNING] * 2
    run.clock = 8.1
    run.until_formed(2)
    assert [r.groups for r in run.state.restarts] == [(0, 1)]


def shrunk(start, **more):
    """A run of Downpour whose worker group 1 goes on with w4 alone."""
    run = start(least=1, **DOWNPOUR | {"nworkers_per_group": 2} | more)
    run.lose(1, "w3")
    run.lost_nannies.add("n3")
    run.until_formed(2)
    return run


def works(run, number, step):
    for each in (step, step + 1):
        run.handle(ev.Progress(number, each))


@pytest.mark.parametrize("raised", [None, ConfigError(Problem("gpu", "there is none")), MemoryError()])
def test_a_group_that_cannot_take_in_a_worker_goes_on_without_it(start, raised):
    run = shrunk(start)
    works(run, 1, 7)
    came = run.start()
    run.until_formed(3)
    assert run.worker_groups[1].where == ("w4", came)
    run.handle(ev.WorkerGroupFailed(1, run.worker_groups[1].generation, "its process does not suit", raised))
    run.until_formed(4)
    assert run.worker_groups[1].where == ("w4",) and run.worker_groups[1].lacks == (came,)
    assert any(f"worker group 1 could not take in {came}: its process does not suit" in note for note in run.notes)
    for _ in range(3):
        run.answer(ev.Survey)
    assert len(run.made()) == 4, "it is not tried again"
    another = run.start()
    run.until_formed(5)
    assert run.worker_groups[1].where == ("w4", another)
    works(run, 1, 8)
    run.lose(1, raised=DataError("a shard is damaged"))
    assert isinstance(run.state.error, DataError), "it is no matter of size any more"


def test_a_worker_that_could_not_be_taken_in_is_tried_again_later(start):
    run = shrunk(start)
    run.start()
    for attempt, looks in ((3, 30), (5, 60)):
        run.until_formed(attempt)
        run.handle(ev.WorkerGroupFailed(1, run.worker_groups[1].generation, "its process does not suit", None))
        run.until_formed(attempt + 1)
        for _ in range(looks):
            run.answer(ev.Survey)
            assert len(run.made()) == attempt + 1
        run.answer(ev.Survey)
    run.until_formed(7)


def test_a_worker_that_is_not_taken_in_goes_under_the_address_that_it_got_meanwhile(start):
    run = shrunk(start)
    came = run.start()
    while not isinstance(run.state.busy, ev.FormRequest):
        run.answer()
    moved, error = {came: "w9"}, ClusterError("its process does not suit")
    run.answer(ev.FormRequest, ev.NotFormed(run.state.busy.number, error, lost=True, moved=moved))
    run.until_formed(4)
    assert run.worker_groups[1].where == ("w4",) and run.worker_groups[1].lacks == ("w9",)


def test_a_worker_that_another_run_takes_first_is_done_without(start):
    run = shrunk(start)
    came = run.start()
    while not isinstance(run.state.busy, ev.FormRequest):
        run.answer()
    run.answer(ev.FormRequest, ev.NotFormed(run.state.busy.number, WorkersInUse(f"{came} is in use")))
    run.until_formed(4)
    assert run.worker_groups[1].where == ("w4",) and not run.state.over


def test_the_group_that_leads_does_not_grow_at_the_end(start):
    run = start(least=1, **DOWNPOUR | {"nworkers_per_group": 2})
    run.lose(0, "w1")
    run.lost_nannies.add("n1")
    run.until_formed(2)
    run.end(1)
    for _ in range(4):
        run.answer()
    assert len(run.made()) == 2 and run.told(0)[-1] == ("others ended", True)


def test_a_group_that_fails_with_one_worker_goes_on_with_two(start):
    run = start(least=1, nworkers_per_group=4, nservers_per_group=1, server_worker_separate=True)
    for address in ("w2", "w3"):
        del run.there[address]
    run.lost_nannies |= {"n2", "n3"}
    run.lose(0, "w4")
    run.lost_nannies.add("n4")
    run.until_formed(2)
    group = run.worker_groups[0]
    assert group.where == ("w1",) and group.lacks == ("w2", "w3", "w4")
    run.lose(0, raised=MemoryError())
    assert group.least == 2 and group.where == ("w1", "w2", "w3", "w4")
    came = run.start()
    run.until_formed(3)
    assert group.where == ("w1", came) and len(group.lacks) == 2, "one more may suffice"


def test_an_invalid_job_ends_the_run(start):
    run = start(least=1, nworkers_per_group=3, nservers_per_group=3)
    run.lose(0, raised=ConfigError(Problem("neuralnet", "needs 9.0 GB per worker")))
    assert isinstance(run.state.error, ConfigError)


def test_a_group_all_of_whose_workers_are_lost_waits(start):
    run = start(least=1, **DOWNPOUR | {"nworkers_per_group": 2})
    run.lose(1, "w3")
    del run.there["w4"]
    run.lost_nannies |= {"n3", "n4"}
    for _ in range(5):
        run.answer(ev.Survey if isinstance(run.open[0], ev.Survey) else None)
    assert run.worker_groups[1].phase is Phase.DOWN and run.made()[1:] == []
    came = run.start()
    assert came in run.until_formed(2).worker_groups[0].where


def test_fewer_workers_than_the_least_are_too_few(start):
    run = start(least=2, **ALLREDUCE)
    run.lose(0)
    run.lost_nannies.add("n1")
    run.answer(), run.answer()
    for run.clock in range(10, 39):
        run.answer()
        assert run.worker_groups[0].phase is Phase.DOWN
    run.clock = 41.0
    run.answer()
    assert isinstance(run.state.error, NoReplacement)


def test_a_run_that_makes_progress_may_be_restarted_any_number_of_times(start):
    run = start(spare=9, max_restarts=2, **ALLREDUCE)
    for step in (10, 20, 20, 30, 31, 32):
        run.handle(ev.Progress(0, step))
        run.lose(0)
        run.settle()
        assert run.worker_groups[0].phase is Phase.RUNNING
    assert [note.split(". ")[1].split(",")[0] for note in run.notes] == [
        f"Restart {n} of 2" for n in (1, 1, 2, 1, 1, 1)
    ]
    for _ in range(2):
        run.handle(ev.Progress(0, 32))
        run.lose(0)
        run.settle()
    assert isinstance(run.state.error, GroupLost)


def test_processes_without_a_nanny_are_not_killed(start):
    run = start(nannies=False, **ALLREDUCE)
    run.lose(0)
    for _ in range(3):
        run.answer()
    assert not any(isinstance(c, ev.Kill) for c in run.commands)


def test_a_process_that_is_being_replaced_is_not_taken_when_it_answers_once_more(start):
    run = start(**ALLREDUCE)
    run.stuck.add("w2")
    run.lose(0, "w1")
    run.answer()
    run.answer()
    assert run.state.processes.replaced == {("w2", 2)}, "what was told to leave, and did not react"
    assert ev.Kill({"w2": 2}) in run.answer()
    run.start(), run.start()
    run.settle()
    assert run.worker_groups[0].where == ("w3", "w4")


def test_a_process_that_is_replaced_since_its_rank_failed_is_lost_though_it_answers(start):
    run = start(spare=1, **HOGWILD)
    run.handle(ev.WorkerGroupFailed(1, 1, "its process died", replaced={"w2": 2}))
    run.answer()
    assert run.state.processes.replaced == {("w2", 2)} and ev.Kill({"w2": 2}) in run.commands
    run.settle()
    assert run.made()[1:] == [([1], [1])] and run.worker_groups[1].where == ("w4",)


def test_a_process_that_a_failed_forming_replaced_is_not_taken_either(monkeypatch):
    run = Run(monkeypatch, spare=1, **DOWNPOUR)
    run.handle(None)
    run.answer()
    run.answer(event=ev.NotFormed(1, failed(), lost=True, replaced={"w1": 1}))
    run.settle()
    assert [group.where for group in run.worker_groups] == [("w4",), ("w2",)] and ev.Kill({"w1": 1}) in run.commands
    run.there["w1"] = replace(run.there["w1"], pid=99)  # a fresh process where the old one was
    assert run.ask_join() == "worker group 2 joins on w1"


def test_a_driver_that_workers_cannot_reach_ends_the_run_at_once_and_without_its_history(monkeypatch):
    run, error = Run(monkeypatch, spare=1, **DOWNPOUR), DriverUnreachable("rank 1 on far cannot reach the driver")
    run.handle(None)
    run.answer()
    run.answer(event=ev.NotFormed(1, error))
    run.settle()
    assert run.state.error is error and not hasattr(error, "__notes__")
    assert run.state.restarts == [] and run.notes == []


def test_a_newcomer_and_a_replacement_never_take_the_same_worker(start):
    """Whoever asks in the meantime: the survey that both could use is decided on once."""
    run = start(spare=1, **DOWNPOUR)
    run.lose(1)
    run.answer()
    run.answer()  # the loss is closed, and "w4" is free
    run.handle(ev.JoinAsked("asker"))
    run.settle()
    assert run.worker_groups[1].where == ("w4",) and len(run.worker_groups) == 2
    assert run.replies["asker"] == ("refused: 1 free Dask workers are needed, 0 are there; start more and join again")


@pytest.mark.parametrize("answered", range(5))
def test_one_free_worker_is_for_the_loss_whenever_somebody_wants_to_join(start, answered):
    run = start(spare=1, **DOWNPOUR)
    run.lose(1)
    for _ in range(answered):
        if run.open:
            run.answer()
    run.handle(ev.JoinAsked("asker"))
    run.settle()
    assert run.worker_groups[1].where == ("w4",) and run.replies["asker"].startswith("refused")


def test_what_is_restarted_while_it_forms_is_not_free(start):
    """Its nanny has a process under another address, and none under the old one."""
    run = start(**DOWNPOUR)
    assert run.ask_join("first").startswith("refused")
    run.start()
    run.handle(ev.WorkerGroupFailed(1, 1, "its process died"))
    while not isinstance(run.state.busy, ev.FormRequest):
        run.answer()
    run.there["w20"] = replace(run.there.pop("w2"), address="w20", pid=20)
    assert run.ask_join() == "worker group 2 joins on w4"


# Who joins and leaves


def test_who_joins_comes_alone_from_the_step_of_the_others(start):
    run = start(spare=1, **DOWNPOUR)
    run.handle(ev.Progress(0, 70))
    run.handle(ev.Progress(1, 30))
    assert run.ask_join() == "worker group 2 joins on w4"
    run.settle()
    assert run.made()[1:] == [([2], [])]
    plan = run.ranks[2].plan.group
    assert (plan.first, plan.puts, plan.cores) == (70, False, (2,))
    assert run.ranks[2].told == [("servers", run.servers[0].addresses)]


def test_who_joins_takes_turns_through_the_server_groups(start):
    run = start(spare=2, **{**HYBRID, "nworkers_per_group": 1})
    for asker, number, used in (("a", 4, 0), ("b", 5, 1)):
        assert run.ask_join(asker).startswith(f"worker group {number} joins")
        assert run.settle().worker_groups[number].server_group == used


def test_a_newcomer_of_several_processes_needs_them_all(start):
    run = start(spare=1, **HYBRID)
    assert run.ask_join().startswith("refused: 2 free Dask workers are needed, 1 are there")
    run.start()
    assert run.ask_join() == "worker group 4 joins on w10, w9"
    assert run.settle().ranks[4].plan.group.cores == (1, 1)


def test_newcomers_that_cannot_join_are_left_out(start):
    run = start(spare=3, **DOWNPOUR)
    run.fault = ClusterError("w4 is in use")
    assert run.ask_join() == "worker group 2 joins on w4"
    run.settle()
    assert "worker group 2 could not join: w4 is in use" in run.notes
    assert run.ask_join() == "worker group 3 joins on w4"
    for address in ("w4", "w5", "w6"):
        run.kill(address)
    for _ in range(3):
        run.answer()
        run.clock += 31
    run.settle()
    assert any(note.startswith("worker group 3 could not join: Dask workers were lost (w4)") for note in run.notes)
    run.start()
    assert run.ask_join() == "worker group 4 joins on w7"
    run.settle()
    run.lose(4, raised=DataError("there are no shards here"))
    run.settle()
    assert "worker group 4 could not join: its process died" in run.notes
    assert run.servers[0].dismissed == [(2, 1), (3, 0), (4, 1)]
    assert not run.state.restarts and not run.state.over
    assert [group.phase for group in run.worker_groups] == [Phase.RUNNING] * 2 + [Phase.ENDED] * 3


def test_a_newcomer_that_has_worked_is_restarted_like_the_others(start):
    run = start(spare=2, **DOWNPOUR)
    run.ask_join()
    run.settle()
    run.handle(ev.Progress(2, 5))
    run.lose(2)
    run.settle()
    assert (
        run.worker_groups[2].generation == 2
        and run.worker_groups[2].phase is Phase.RUNNING
        and run.worker_groups[2].restarts == 1
    )


def test_a_newcomer_that_is_left_alone_gives_new_servers_the_parameters_of_the_checkpoint(start):
    run = start(spare=2, **DOWNPOUR)
    run.ask_join()
    run.settle()
    run.found = found(60)
    run.end(0, 1)
    run.lose_servers(0)
    run.settle()
    assert run.made()[-1] == ([2], [0])
    plan = run.ranks[2].plan.group
    assert (plan.first, plan.puts, plan.fresh) == (60, True, True)


def test_an_error_of_a_newcomer_that_has_worked_ends_the_run(start):
    run = start(spare=1, **DOWNPOUR)
    run.ask_join()
    run.settle()
    run.handle(ev.Progress(2, 5))
    run.lose(2, raised=DataError("shard 3"))
    assert isinstance(run.state.error, DataError)


def test_nobody_joins_a_synchronous_run_nor_one_that_ends(start):
    assert "synchronous" in start(spare=1, **ALLREDUCE).ask_join()
    run = start(spare=1, **DOWNPOUR)
    run.handle(ev.StopAsked())
    assert run.ask_join() == "refused: the run is ending"


def test_who_asked_when_the_run_is_stopped_is_refused(start):
    run = start(spare=1, **DOWNPOUR)
    run.handle(ev.JoinAsked("asker"))
    run.handle(ev.StopAsked())
    assert run.replies["asker"] == "refused: the run is ending"
    run.settle()
    assert len(run.state.members.worker_groups) == 2


def test_who_asked_when_the_run_ends_is_answered(start):
    run = start(**DOWNPOUR)
    run.handle(ev.JoinAsked("asker"))
    run.end(0, 1)
    assert run.replies["asker"] == "refused: the run is ending" and run.commands[-1] == ev.End()


def test_who_leaves_ends_after_its_step_and_is_not_brought_back(start):
    run = start(spare=1, **DOWNPOUR)
    assert run.ask_leave(1) == "worker group 1 leaves after its step"
    assert ev.Stop(1) in run.commands
    run.lose(1)  # dies on its way out
    run.settle()
    assert run.worker_groups[1].phase is Phase.ENDED and "worker group 1 left: its process died" in run.notes
    assert not run.state.restarts and run.servers[0].dismissed == [(1, 1)]
    assert ("others ended", True) in run.told(0)
    assert run.ask_leave(1) == "refused: there is no worker group 1 at work"


def test_who_leaves_does_not_take_its_servers_along(start):
    run = start(spare=1, **HOGWILD)
    run.ask_leave(1)
    run.lose(1)
    run.settle()
    assert run.worker_groups[1].phase is Phase.ENDED and run.made()[1:] == [([], [1])]
    assert run.server_groups[1].where == ("w4",) and run.servers[1].parameters == "server group 0"


def test_the_lead_does_not_leave(start):
    run = start(**HYBRID)
    assert "worker group 0 tests and saves" in run.ask_leave(0)
    assert run.ask_leave(3) == "worker group 3 leaves after its step"
    assert [c for c in run.commands if isinstance(c, ev.Stop)] == [ev.Stop(3)]
    assert run.ask_leave(9) == "refused: there is no worker group 9 at work"


def test_who_is_being_formed_does_not_leave(start):
    run = start(spare=1, **DOWNPOUR)
    run.lose(1)
    assert run.ask_leave(1) == "refused: worker group 1 is being formed"


# The end


def test_the_lead_hears_once_all_others_have_ended(start):
    run = start(**HOGWILD)
    run.end(1)
    assert run.open == []
    run.end(2)
    assert run.open == [ev.TellLead(True, (0, 1, 0))], "along the line, and back"
    run.settle()
    assert run.told(0) == [("others ended", True)]
    run.end(0)
    assert run.commands[-1] == ev.End() and run.state.over and run.state.error is None


def test_the_lead_is_told_until_it_hears(start):
    run = start(**DOWNPOUR)
    run.hears = False
    run.end(1)
    for _ in range(3):
        run.answer(ev.TellLead)
    run.hears = True
    run.settle()
    assert run.told(0) == [("others ended", True)] * 4


def test_who_joins_after_the_others_ended_is_waited_for(start):
    run = start(spare=1, **DOWNPOUR)
    run.end(1)
    run.settle()
    run.ask_join()
    assert isinstance(run.open[0], ev.TellLead) and not run.open[0].ended
    run.settle()
    assert run.told(0) == [("others ended", True), ("others ended", False)]
    run.end(2)
    run.settle()
    assert run.told(0)[-1] == ("others ended", True)


def test_who_joins_while_servers_come_back_is_waited_for_too(start):
    run = start(spare=3, **DOWNPOUR)
    run.kept = {0}
    run.end(1)
    run.settle()
    run.lose_servers(0)
    run.ask_join()
    run.settle()
    assert run.told(0)[-1] == ("others ended", False), "though the loss of servers made the last exchange void"


def test_a_lead_that_is_formed_anew_is_told_again(start):
    run = start(spare=1, **DOWNPOUR)
    run.end(1)
    run.settle()
    run.lose(0)
    run.settle()
    assert run.ranks[0].generation == 2 and run.told(0) == [("others ended", True)]


def test_a_failed_last_exchange_is_tried_again_after_the_loss(start):
    run = start(spare=1, **HOGWILD)
    run.end(1, 2)
    run.kill("w2")  # the process of an ended group, with its server
    run.answer(ev.TellLead, ev.LeadTold(True, False, "server group 1 does not answer"))
    run.answer(ev.Survey)
    assert run.notes == [] and isinstance(run.state.busy, ev.TellLead)
    run.answer(ev.TellLead, ev.LeadTold(True, False, "server group 1 does not answer"))
    run.handle(ev.ServersLost(frozenset({"w2"})))
    run.settle()
    assert run.made()[1:] == [([], [1])] and run.told(0) == [("others ended", True)]
    assert "of the servers, from the parameters of a neighbouring server group" in run.notes[0]


def test_a_last_exchange_that_no_loss_explains_is_done_without(start):
    run = start(**HOGWILD)
    run.end(1, 2)
    run.answer(ev.TellLead, ev.LeadTold(True, False, "out of memory"))
    run.answer(ev.Survey)
    assert run.notes == ["the last exchange between server groups failed: out of memory"]
    assert run.open == [ev.TellLead(True, ())]
    run.settle()
    assert run.told(0) == [("others ended", True)]


# Being stopped


def test_a_stop_reaches_what_runs_and_what_is_formed_later(start):
    run = start(spare=1, **DOWNPOUR)
    run.lose(1)
    while not isinstance(run.state.busy, ev.FormRequest):
        run.answer()
    note = ev.Note("Ctrl-C: stopping after this step (press Ctrl-C again to abort)")
    assert run.handle(ev.StopAsked()) == [ev.Stop(0), note], "writing the note may take a while"
    assert run.handle(ev.StopAsked()) == []
    assert run.answer() == [ev.Stop(1)]


def test_a_loss_while_the_run_is_being_stopped_is_told_once(start):
    run = start(spare=1, **HOGWILD)
    run.handle(ev.StopAsked())
    run.lose_servers(2)
    run.settle()
    assert [group.phase for group in run.worker_groups] == [Phase.RUNNING, Phase.RUNNING, Phase.ENDED]
    run.end(0, 1)
    assert run.notes[1:] == [
        "server group 2: the process of w3 died or is stopped. The run is being stopped, so it ends here."
    ]
    assert not run.state.restarts and run.commands[-1] == ev.End()
    assert run.ranks.keys() == {0, 1}, "what is left of the third is closed"


def test_servers_without_work_that_are_lost_while_the_run_is_being_stopped_are_not_mentioned(start):
    run = start(spare=1, **HOGWILD)
    run.end(2)
    run.handle(ev.StopAsked())
    run.lose_servers(2)
    run.settle()
    assert run.notes == ["Ctrl-C: stopping after this step (press Ctrl-C again to abort)"]
    assert run.server_groups[2].phase is Phase.ENDED and run.made()[1:] == []


def test_servers_that_have_lost_the_way_to_a_neighbour_are_not_made_while_the_run_is_being_stopped(monkeypatch):
    run = Run(monkeypatch, spare=1, **HOGWILD)
    run.handle(None)
    run.answer()
    run.handle(ev.StopAsked())
    run.kill("w2")
    run.fault = NoAnswer("worker group 0 does not answer")
    run.settle()
    assert [group.phase for group in run.worker_groups] == [Phase.ENDED, Phase.ENDED, Phase.RUNNING]
    assert [group.phase for group in run.server_groups] == [Phase.ENDED, Phase.ENDED, Phase.RUNNING]
    run.end(2)
    assert run.commands[-1] == ev.End()


EARLY = ev.StopAsked("early stopping", early=True)


def test_an_early_end_stops_all_groups_but_the_lead_which_is_told_when_they_have_ended(start):
    run = start(spare=1, **HOGWILD)
    run.lose(1)
    while not isinstance(run.state.busy, ev.FormRequest):
        run.answer()
    assert run.handle(EARLY) == [ev.Stop(2)]
    assert run.answer() == [ev.Stop(1)], "formed later"
    assert run.ask_join() == "refused: the run is ending"
    run.end(1, 2)
    run.settle()
    assert run.told(0) == [("others ended", True)]
    run.end(0)
    assert run.commands[-1] == ev.End()


# The table


def test_the_table_leads_from_everywhere_to_the_end():
    reached, phases = {Phase.DOWN}, set()
    while reached - phases:
        phases |= reached
        reached |= {to for (phase, _), to in TRANSITIONS.items() if phase in phases}
    assert phases == set(Phase)
    assert {phase for phase, _ in TRANSITIONS} == set(Phase) - {Phase.ENDED}


def test_a_transition_that_is_not_in_the_table_is_an_error(start):
    run = start(**DOWNPOUR)
    with pytest.raises(KeyError):
        run.members.move(run.worker_groups[0], "form")


def test_a_group_does_not_wait_for_the_processes_of_another(start):
    run = start(spare=0, nworker_groups=3, server_worker_separate=True)
    for number in (1, 2):
        where = run.worker_groups[number].where[0]
        run.lost_nannies.add(run.there[where].nanny)
        run.lose(number)
    run.start()
    for _ in range(12):
        run.answer()
    assert [group.phase for group in run.worker_groups] == [Phase.RUNNING, Phase.RUNNING, Phase.DOWN]
    run.start()
    run.settle()
    assert run.worker_groups[2].phase is Phase.RUNNING and run.made()[1:] == [([1], []), ([2], [])]


def test_a_group_whose_nanny_starts_a_process_takes_no_other(start):
    run = start(spare=0, nworker_groups=3, server_worker_separate=True)
    nanny = run.there[run.worker_groups[1].where[0]].nanny
    for number in (1, 2):
        run.lose(number)
    other = run.start()
    for _ in range(12):
        run.answer()
    assert [group.phase for group in run.worker_groups] == [Phase.RUNNING, Phase.DOWN, Phase.DOWN]
    own = run.start(nanny=nanny)
    run.settle()
    assert [run.worker_groups[number].where for number in (1, 2)] == [(own,), (other,)]
