"""What a worker group measures and reports, and when, with a replica that the test plays and a clock that it sets."""

import os
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from singa_dask.algorithms.measured import Measured
from singa_dask.comm import SoloCommunicator, run_threads
from singa_dask.job.job_pb2 import JobProto, Phase
from singa_dask.layers.context import Metric, Step
from singa_dask.server import ServerTraffic
from singa_dask.training import group_evaluation, reporter
from singa_dask.training.frequencies import due, evaluations_due
from singa_dask.training.history import metrics_of, row_of
from singa_dask.training.reporter import PROGRESS_EVERY_S, Reporter
from singa_dask.training.step_metrics import StepMetrics, sum_over_ranks


@pytest.fixture
def now(monkeypatch):
    now = [1000.0]
    clock = SimpleNamespace(perf_counter=lambda: now[0], time=lambda: 7.0)
    monkeypatch.setattr(reporter, "time", clock)
    return now


def group(comm, *, in_process=True):
    """A reporter of group 3 with mini-batches of 10 samples, and the events of this rank."""
    job = JobProto(train_steps=8)
    job.cluster.nworker_groups = 5
    events: list = []
    replica = SimpleNamespace(
        comm=comm,
        job=job,
        exchange=SimpleNamespace(transport="smoke signals"),
        overflows=comm.rank + 1,
        operations={"sum": {"bytes": 10.0, "seconds": 0.5}, "gather": {"bytes": 5.0, "seconds": 0.5}},
        in_process_servers=in_process,
    )
    return Reporter(replica, events.append, 3, 10), events


def one_step(made, comm, number, seconds=0.5):
    traffic = ServerTraffic(1, 0.1, 0.02, staleness=2, staleness_max=2, nbytes=100)
    _, metrics, ranks = sum_over_ranks(comm, (False,), {"loss": Metric(6.0, 2.0)}, 0.1, 0.2, traffic)
    made.add_step(number, seconds, metrics, ranks)


def test_a_run_is_told_by_its_first_rank(now):
    def member(comm):
        made, events = group(comm)
        made.start(0)
        for number in (1, 2, 3):
            one_step(made, comm, number)
            if comm.rank == 0:
                now[0] += PROGRESS_EVERY_S * 0.6
            comm.barrier()
            if number == 2:
                made.display(number)
        made.display(3)
        made.display(3)  # nothing since: no event
        made.evaluated(Phase.kTest, 3, {"loss": 2.0})
        made.evaluated(Phase.kVal, 2, {"loss": 4.0})
        made.saved(Path("step-3.h5"), 3)
        return made.end(3, interrupted=True), events

    (record, events), (_, silent) = run_threads(2, member)
    assert silent == [] and {(e["group"], e["time"]) for e in events} == {(3, 7.0)}
    start = events[0]
    assert (start["steps"], start["batch"], start["ranks"], start["groups"]) == (8, 10, 2, 5)
    assert (start["exchange"], start["pids"]) == ("smoke signals", [os.getpid()] * 2)
    kinds = [(e["kind"], e.get("phase"), e["step"]) for e in events if e["kind"] != "progress"]
    assert kinds == [
        ("start", None, 0),
        ("metrics", "train", 2),
        ("metrics", "train", 3),
        ("metrics", "test", 3),
        ("metrics", "validate", 2),
        ("checkpoint", None, 3),
        ("end", None, 3),
    ]
    shown = next(e for e in events if e["kind"] == "metrics")
    assert shown["metrics"] == {"loss": 3.0} and shown["samples_per_s"] == pytest.approx(20.0)
    assert shown["wait"] == [pytest.approx(0.2)] * 2 and shown["loading"] == [pytest.approx(0.4)] * 2
    assert events[-1]["record"] == {name: value for name, value in record.items() if name != "details"}
    assert "server" not in shown and 1 <= sum(e["kind"] == "progress" for e in events) <= 2
    assert record["metrics"] == {"train": {"loss": 3.0}, "test": {"loss": 2.0}}, "those of the last step"
    assert (record["step"], record["interrupted"], record["checkpoint"]) == (3, True, "step-3.h5")
    assert (record["steps"], record["samples"], record["seconds"]) == (3, 30, 1.5)
    assert (record["samples_per_s"], record["exchanged_bytes"], record["overflows"]) == (20.0, 15, 3)
    assert record["operations"]["sum"]["bytes"] == 10.0 and record["server"] is None
    assert (record["began"], record["exchange"], record["evaluating_s"]) == (7.0, "smoke signals", 0.0)
    cores = sorted(os.sched_getaffinity(0))
    assert [process["cores"] for process in record["processes"]] == [cores] * 2


def test_compiling_is_said_in_one_line(now):
    made, events = group(SoloCommunicator())
    made.compiles(0, Path("cache"))
    (event,) = events
    assert event["kind"] == "decision" and "ends" not in event
    assert event["text"].endswith("which happens once per machine (kept in cache)")


def test_the_time_besides_steps_is_counted(now):
    made, _ = group(SoloCommunicator())
    for seconds in (2.0, 3.0):
        with made.spending("saving"):
            now[0] += seconds
    with suppress(OSError), made.spending("evaluating"):
        now[0] += 4.0
        raise OSError
    record = made.end(0, interrupted=False)
    assert (record["saving_s"], record["evaluating_s"]) == (5.0, 4.0)


def test_the_bytes_of_a_step_leave_out_the_start_evaluations_and_checkpoints(now):
    def told(number):
        one_step(made, comm, number)
        made.display(number)
        return events[-1]["sent"]

    comm = SoloCommunicator()
    made, events = group(comm)
    sent = made._replica.operations["sum"]
    sent["bytes"] = 1000
    made.start(0)
    sent["bytes"] += 30
    assert told(1) == 30
    with made.spending("evaluating"):
        sent["bytes"] += 500
    sent["bytes"] += 20
    one_step(made, comm, 2)
    assert told(3) == 10, "of each of two steps"


@pytest.mark.parametrize("steps", [1, 0])
def test_servers_elsewhere_are_reported_too(now, steps):
    def member(comm):
        made, events = group(comm, in_process=False)
        for number in range(steps):
            one_step(made, comm, number)
        made.display(steps)
        return made.end(steps, interrupted=False), events

    ((record, events),) = run_threads(1, member)
    assert [event["kind"] for event in events if event["kind"] != "progress"] == ["metrics"] * steps + ["end"]
    for server in [event["server"] for event in events if event["kind"] == "metrics"] + [record["server"]] * steps:
        assert server["staleness"] == 2.0 and server["staleness_max"] == 2
        assert server["update_ms"] == pytest.approx(20.0) and server["stall"] == pytest.approx(0.2)
    assert record["checkpoint"] is None and record["steps"] == steps
    if not steps:
        assert (record["samples_per_s"], record["wait"], record["server"]) == (0.0, [], None)


@pytest.mark.parametrize(("stop_at", "least", "most"), [(99, 12, 12), (2, 3, 8)], ids=["whole", "broken off"])
def test_an_evaluation_is_broken_off_by_all_ranks_at_once(monkeypatch, stop_at, least, most):
    """Ranks ask each other at the first mini-batch, and then about as often as ASK_EVERY_S says for the slowest."""
    clock, measured = [0.0], []
    monkeypatch.setattr(group_evaluation, "time", SimpleNamespace(perf_counter=lambda: clock[0]))

    class Evaluator:
        def __init__(self, *given, rows):
            assert rows == 12 * 7

        def measure(self, batches):
            measured.extend(batches)
            result = Measured()
            result.add({"loss": Metric(sum(measured), len(measured))}, Step(), 1)
            return result

    def next_one(number):
        clock[0] += 0.05
        return number

    monkeypatch.setattr(group_evaluation, "Evaluator", Evaluator)
    net, feed = Mock(), SimpleNamespace(next=next_one, count=12, rows=84)
    replica = SimpleNamespace(comm=SoloCommunicator(), nets={Phase.kTest: net}, algorithm=None, job=JobProto())
    stop = lambda: clock[0] >= 0.05 * (stop_at + 1)  # noqa: E731
    result = group_evaluation.evaluate_group(replica, Phase.kTest, feed, stop)
    assert least <= round(clock[0] / 0.05) <= most and [call[0] for call in net.method_calls][:1] == ["forget"]
    assert net.close.called == (result is not None) == (stop_at == 99)
    assert result is None or (result.numbers == {"loss": 66 / 12} and measured == list(range(12)))


def test_ranks_ask_as_often_as_the_slowest_needs():
    def member(comm):
        ahead = group_evaluation._mini_batches_ahead
        return [
            ahead(comm, 0, 0.0, False),
            ahead(comm, 10, (0.1, 0.3)[comm.rank], False),
            ahead(comm, 1, 60.0, False),
            ahead(comm, 10, 0.1, comm.rank == 1),
        ]

    assert run_threads(2, member) == [[1, 13, 1, 0]] * 2


def _told(comm, wishes=((False, False), (False, False))):
    """A step in which rank 1 has waited .2 s and its server has answered two updates at once, as after a stop."""
    loss = Metric(3.0 + comm.rank, 2 + comm.rank)
    sent = ServerTraffic(2, 0.1, 0.04, staleness=3, staleness_max=2, nbytes=100) if comm.rank else ServerTraffic()
    return sum_over_ranks(comm, wishes[comm.rank], {"loss": loss}, 0.2 * comm.rank, 0.0, sent, memory=7 * comm.rank)


def test_all_ranks_know_the_same():
    for wishes, metrics, ranks in run_threads(2, _told, ((False, False), (True, False))):
        assert wishes == [True, False] and metrics == {"loss": Metric(7.0, 5.0)}
        assert ranks[:, 0].tolist() == [0.0] * 10
    assert run_threads(2, _told)[0][0] == [False, False]


def test_a_window_has_sums_and_means_of_its_steps():
    window, whole = StepMetrics(), StepMetrics()
    _, metrics, ranks = run_threads(2, _told)[0]
    for _ in range(2):
        window.add_step(0.5, metrics, ranks)
    whole.add(window)
    assert window.means() == {"loss": 7.0 / 5.0} and whole.means() == {}
    for each in (window, whole):
        assert each.waits() == {"wait": [0.0, pytest.approx(0.4)], "loading": [0.0, 0.0]}
        servers = each.servers()
        # Of the two updates of a step none was staler than 2, though together they are 3.
        assert (servers["staleness"], servers["staleness_max"]) == (1.5, 2)
        assert servers["update_ms"] == pytest.approx(20.0) and servers["stall"] == pytest.approx(0.1)
        assert servers["bytes"] == 100.0
        assert each.memory == 7, "of one step, not of both, on the rank that takes most"


EVENT = {
    "kind": "metrics",
    "group": 1,
    "time": 5.0,
    "phase": "train",
    "step": 8,
    "metrics": {"loss": 0.5, "accuracy": 0.75},
    "samples_per_s": 100.0,
    "wait": [0.1, 0.2],
    "loading": [0.3, 0.4],
    "server": {"staleness": 1.5},
}


def test_every_measured_value_has_a_column():
    row = row_of(EVENT)
    assert row == {
        "group": 1,
        "phase": "train",
        "step": 8,
        "time": 5.0,
        "samples_per_s": 100.0,
        "loss": 0.5,
        "accuracy": 0.75,
        "wait_rank0": 0.1,
        "wait_rank1": 0.2,
        "loading_rank0": 0.3,
        "loading_rank1": 0.4,
        "server_staleness": 1.5,
    }
    assert list(row)[:7] == ["group", "phase", "step", "time", "samples_per_s", "loss", "accuracy"]
    assert metrics_of(row) == EVENT["metrics"]


def test_a_metric_never_replaces_another_column():
    metrics = {"step": 0.5, "wait_rank0": 0.25, "server_load": 1.0, "stepwise": 2.0}
    row = row_of({**EVENT, "metrics": metrics})
    assert (row["step"], row["wait_rank0"]) == (8, 0.1)
    assert metrics_of(row) == {
        "metric_step": 0.5,
        "metric_wait_rank0": 0.25,
        "metric_server_load": 1.0,
        "stepwise": 2.0,
    }


def test_singas_rule():
    assert [s for s in range(12) if due(s, 3, 2)] == [2, 5, 8, 11]
    assert [s for s in range(12) if due(s, 0, 0)] == []
    assert [s for s in range(5) if due(s, 2, 0)] == [0, 2, 4]


def test_evaluations_need_a_frequency_and_run_at_the_end():
    job = JobProto(train_steps=10, test_freq=4, validate_freq=5, validate_steps=2)
    assert evaluations_due(job, 4) == [Phase.kTest]
    assert evaluations_due(job, 5) == [Phase.kVal]
    assert evaluations_due(job, 10) == [Phase.kVal, Phase.kTest]
    job.test_freq = 0
    assert evaluations_due(job, 0) == [Phase.kVal]
    assert evaluations_due(job, 10) == [Phase.kVal]
