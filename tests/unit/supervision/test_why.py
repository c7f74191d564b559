"""What limits a run: ten causes, each in records that have it in two forms, and healthy runs."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from singa_dask.cli import main
from singa_dask.job.job_pb2 import JobProto
from singa_dask.supervision.why import Cause, findings, verdict

JOB = JobProto(name="net", train_steps=1000, test_freq=10, validate_freq=50, checkpoint_freq=1)


def processes(*cores, host="a"):
    return [{"host": host, "cores": list(own)} for own in cores]


def group(ranks=3, **changes):
    """A worker group of 1,000 steps of 20 ms, with hardly any waiting. Every rank has a core of its own."""
    return {
        "step": 1000, "steps": 1000, "samples": 96_000, "seconds": 20.0, "evaluating_s": 0.5, "saving_s": 0.2,
        "samples_per_s": 4800.0, "began": 103.0, "exchange": "shared memory", "wait": [0.06] * ranks,
        "loading": [0.01] * ranks, "operations": {"reduce_scatter": {"bytes": 10**9, "seconds": 0.8}},
        "processes": processes(*([n] for n in range(ranks))), **changes,
    }  # fmt: skip


def summary(*groups, **changes):
    numbered = {str(number): of for number, of in enumerate(groups or [group()])}
    return {"status": "completed", "began": 100.0, "wall_s": 24.0, "groups": numbered, **changes}


def server(**changes):
    return {"staleness": 1.0, "staleness_max": 3, "update_ms": 3.0, "stall": 0.1, "bytes": 1e6, **changes}


def of_their_own(count, **changes):
    """Worker groups of a worker each, with a core of its own, and servers."""
    return [group(1, processes=processes([core]), server=server(**changes)) for core in range(count)]


TINY = summary(
    group(1, seconds=0.4, samples=4000, wait=[0.0], evaluating_s=0.05, saving_s=0.05, began=100.2), wall_s=0.9
)
FOUND = [
    (Cause.SLOW_RANK, summary(group(wait=[0.48, 0.02, 0.5])), ["rank 1 on a", "49 %", "2 %"]),
    (
        Cause.SLOW_RANK,
        summary(
            *(
                group(1, samples_per_s=rate, server=server(), processes=processes([core]))
                for core, rate in enumerate((900, 400, 1000, 950))
            )
        ),
        ["group 1 on a", "400 samples/s", "950"],
    ),
    (
        Cause.NETWORK,
        summary(
            group(exchange="MPI", wait=[0.8] * 3, operations={"all_reduce": {"bytes": 175 * 10**6, "seconds": 15}})
        ),
        ["80 %", "175 kB", "10.9 MB/s", "codec"],
    ),
    (
        Cause.NETWORK,
        summary(
            *(
                group(
                    1, processes=processes([core]), server=server(stall=0.7, update_ms=180, bytes=2e6, elsewhere=far)
                )
                for core, far in enumerate((False, True))
            )
        ),
        ["70 %", "2 MB", "11.1 MB/s"],
    ),
    (Cause.LOADING, summary(group(loading=[0.4, 0.42, 0.4])), ["42 %", "shards"]),
    (Cause.LOADING, summary(group(1, wait=[0.0], loading=[0.9])), ["90 %"]),
    (Cause.CORES, summary(group(4, wait=[0.7] * 4, processes=processes([0], [0], [0], [0]))), ["4 workers", "1 core"]),
    (Cause.CORES, summary(*(group(1, processes=processes([0, 1])) for _ in range(4))), ["4 workers", "2 cores"]),
    (
        Cause.SMALL_STEPS,
        summary(group(seconds=2.0, wait=[0.5] * 3, samples=12_000, began=100.5), wall_s=5.0),
        ["2 ms", "4 samples"],
    ),
    (Cause.SMALL_STEPS, TINY, ["0.4 ms", "4 samples"]),
    (Cause.SAVING, summary(group(saving_s=9.0), wall_s=33.0), ["31 %", "checkpoint_freq (1)"]),
    (Cause.SAVING, summary(group(1, wait=[0.0], saving_s=60.0), wall_s=84.0), ["75 %"]),
    (Cause.SERVERS, summary(group(server=server(stall=0.6, update_ms=12.0))), ["60 %", "12 ms", "--servers"]),
    (
        Cause.SERVERS,
        summary(*of_their_own(2, stall=0.6, update_ms=20.0)),
        ["60 %", "20 ms", "2 worker groups"],
    ),
    (Cause.EVALUATING, summary(group(evaluating_s=20.0), wall_s=44.0), ["50 %", "test_freq (10)"]),
    (Cause.EVALUATING, summary(group(1, wait=[0.0], evaluating_s=8.0), wall_s=31.0), ["28 %"]),
    (Cause.START, summary(group(began=140.0), wall_s=62.0), ["40 of 62 s"]),
    (Cause.START, summary(group(1, seconds=1.0, samples=96_000, steps=100, began=106.0), wall_s=7.9), ["6 of 7.9 s"]),
    (
        Cause.STALENESS,
        summary(*of_their_own(8, staleness=7.2, staleness_max=40)),
        ["7.2 updates", "at most 40", "max_staleness"],
    ),
    (Cause.STALENESS, summary(*of_their_own(2, staleness=5.0)), ["5 updates"]),
]


@pytest.mark.parametrize(("cause", "told", "figures"), FOUND)
def test_each_cause_is_the_first_that_is_named(cause, told, figures):
    found = findings(told, JOB)
    assert found[0].cause is cause
    for figure in figures:
        assert figure in found[0].text
    assert len(found) <= 3 and all(each.text.endswith(".") and ". " not in each.text for each in found)


def test_every_cause_has_two_records():
    assert {cause: sum(cause is of for of, *_ in FOUND) for cause in Cause} == dict.fromkeys(Cause, 2)


@pytest.mark.parametrize(
    "told",
    [
        summary(),
        summary(group(1, wait=[0.0])),
        summary(*of_their_own(3)),
        summary(group(2, wait=[0.2, 0.1], processes=processes([0, 1], [0, 1]), evaluating_s=2.0, saving_s=2.0)),
        summary({"step": 0, "samples_per_s": 0.0, "wait": [], "loading": [], "operations": {}}),
    ],
)
def test_nothing_stands_out_in_healthy_runs(told):
    assert findings(told, JOB) == []
    assert verdict(told, JOB).startswith("Nothing stands out")


def test_several_causes_are_ordered_by_what_they_take():
    told = summary(group(evaluating_s=20.0, saving_s=25.0, loading=[0.6] * 3), wall_s=70.0)
    assert [found.cause for found in findings(told, JOB)] == [Cause.SAVING, Cause.EVALUATING, Cause.LOADING]


def test_what_takes_little_of_the_whole_time_is_left_out():
    told = summary(group(1, wait=[0.0], seconds=0.3, evaluating_s=0.2, began=105.0), wall_s=6.4)
    assert [found.cause for found in findings(told, JOB)] == [Cause.START]


@pytest.mark.parametrize("active", [True, False])
def test_the_command(active, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "job.conf").write_text('name: "a"\ntrain_steps: 100\n')
    told = {"group": 0, "phase": "train", "samples_per_s": 640.0, "loss": 1.0}
    waits = {"wait_rank0": 0.1, "wait_rank1": 0.1, "loading_rank0": 0.5, "loading_rank1": 0.5}
    rows = [{**told, **waits, "step": step, "time": 5.0 + step} for step in (10, 20, 30)]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    if not active:
        (folder / "summary.json").write_text(json.dumps(summary(group(loading=[0.5, 0.5]))))
    done = CliRunner().invoke(main, ["why", str(folder)])
    assert done.exit_code == 0 and "wait for data 50 % of the time" in " ".join(done.stdout.split())
    assert done.stdout.count("\n") == 1
    (folder / "summary.json").unlink(missing_ok=True)
    (folder / "metrics.jsonl").write_text("")
    done = CliRunner().invoke(main, ["why", str(folder)])
    assert done.exit_code == 2 and "has no metrics of training yet" in done.stderr
