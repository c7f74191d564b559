"""The training loop of the ranks, as threads of one process, on real shards."""

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from support.topologies import run_topology, server_links
from support.trained import POINTS, assert_alike, points_job, saved_at, train_group, write_points

from singa_dask.comm.threads import run_threads
from singa_dask.errors import ClusterError, DataError, SingaError, TrainingError
from singa_dask.job import Job
from singa_dask.memory.owner import WORKERS, Owner, Saved, Version
from singa_dask.memory.region import ImageLayout, Pace, Regions
from singa_dask.training import checkpoint as checkpoints
from singa_dask.training import worker
from singa_dask.training.group_state import GroupState
from singa_dask.training.prepare import prepare
from singa_dask.training.rank_plan import RankServices, WorkerPlan
from singa_dask.training.replica import Replica
from singa_dask.training.shadows import step_of
from singa_dask.training.worker import train_rank


@pytest.fixture
def prepared(tmp_path):
    write_points(tmp_path, train=90, test=90)
    return partial(points_job, tmp_path)


def run(prepared, folder, stop_at=lambda event: False, **group):
    """Train; returns the first rank's report and events. A stop is requested once `stop_at(event)` is true."""
    events, stop = [], threading.Event()

    def emit(event):
        events.append(event)
        if stop_at(event):
            stop.set()

    return train_group(prepared, folder, events, services={"emit": emit, "stop_requested": stop.is_set}, **group)


def told(events):
    return [(e["kind"], e.get("phase"), e["step"]) for e in events if e["kind"] not in ("progress",)]


def test_a_group_leaves_to_grow_after_a_step_that_is_in_memory(prepared, tmp_path, monkeypatch):
    monkeypatch.setattr(worker._TrainingLoop, "_pace", property(lambda loop: Pace(every=3)))
    events, asked = [], {"regroup_requested": lambda: True}
    with pytest.raises(ClusterError, match="formed again, with more workers"):
        train_group(prepared("disp_freq=1"), tmp_path / "run", events, services=asked)
    assert max(event["step"] for event in events if event["kind"] == "metrics") == 2, "it left after the third"


@pytest.mark.parametrize("within", ["test_freq=0", "test_freq=4"], ids=["a step", "an evaluation"])
def test_a_group_that_is_stopped_waits_however_long_for_all_others(prepared, tmp_path, monkeypatch, within):
    """The driver says that they have ended once lost servers are back, and all have exchanged everything."""
    of_two, minutes, asked = prepared("cluster.nworker_groups=2", within), count(0, 60), count(1)
    clock = {"monotonic": minutes.__next__, "perf_counter": minutes.__next__, "sleep": lambda seconds: None}
    monkeypatch.setattr(worker, "time", SimpleNamespace(**clock))
    links, ended = server_links(of_two), lambda: next(asked) == 5
    services = {"links": lambda: links, "stop_requested": lambda: True, "others_ended": ended}
    report, _ = train_group(of_two, tmp_path / "run", services=services, in_process_servers=False)
    assert report["interrupted"] and next(asked) == 6


def test_memory_that_cannot_be_read_is_named(prepared, tmp_path):
    of_another_net = Regions.create([ImageLayout((0, ""), 0, 8)])
    left = (Saved(Owner(WORKERS), Version("run", 1), (of_another_net.address,), model=7, note=False),)
    _, events = run(prepared("train_steps=1"), tmp_path / "run", left=left)
    (said,) = [event for event in events if event["kind"] == "unsaved"]
    assert said["step"] == 0 and "the memory of lost ranks is on another machine" in said["text"]


@pytest.mark.parametrize("where", ["Replica.form", "Replica.train_step"])
def test_a_rank_without_memory_says_how_much_it_asked_for(prepared, tmp_path, monkeypatch, where):
    refuse = Mock(side_effect=MemoryError("Unable to allocate 3.55 PiB"))
    monkeypatch.setattr(f"singa_dask.training.worker.{where}", refuse)
    said = r"rank \d: memory ran out \(Unable to allocate 3\.55 PiB\): the net needs [\d.]+ kB per worker .*batchsize"
    with pytest.raises(TrainingError, match=said):
        run(prepared("train_steps=1"), tmp_path / "run")


def test_the_order_of_things(prepared, tmp_path):
    report, events = run(prepared(), tmp_path / "run")
    saved = [event for event in told(events) if event[0] == "checkpoint"]
    assert saved == [("checkpoint", None, 4), ("checkpoint", None, 8)]  # the first is written beside the next steps
    assert [event for event in told(events) if event not in saved[:1]] == [
        ("start", None, 0),
        ("metrics", "test", 0),
        ("metrics", "train", 4),
        ("metrics", "test", 4),
        ("metrics", "train", 8),
        ("metrics", "test", 8),
        ("checkpoint", None, 8),
        ("end", None, 8),
    ]
    assert (report["step"], report["interrupted"]) == (8, False)
    assert report["metrics"].keys() == {"train", "test"}
    assert report["metrics"]["test"]["loss"] < events[1]["metrics"]["loss"]


@pytest.mark.parametrize("settings", [[], ["updater.ema_decay=0.5", "updater.clip_norm=0.1"]])
def test_a_resumed_run_measures_and_reaches_what_a_whole_one_does(prepared, tmp_path, settings):
    _, whole = run(prepared(*settings), tmp_path / "whole")
    _, events = run(prepared(*settings), tmp_path / "rest", resume=checkpoints.path_of(tmp_path / "whole", 4))
    assert told(events)[:2] == [("start", None, 4), ("metrics", "test", 4)]
    values = {e["step"]: e["metrics"] for e in whole if e.get("phase") == "test"}
    assert {e["step"]: e["metrics"] for e in events if e.get("phase") == "test"} == {4: values[4], 8: values[8]}
    assert_alike(saved_at(tmp_path / "rest", 8), saved_at(tmp_path / "whole", 8))


def test_a_group_that_begins_at_its_end_saves_what_an_earlier_one_could_not(prepared, tmp_path):
    run(prepared(), tmp_path / "whole")
    last = checkpoints.path_of(tmp_path / "whole", 8)
    _, events = run(prepared(), tmp_path / "rest", resume=last)
    assert told(events)[-2:] == [("checkpoint", None, 8), ("end", None, 8)]
    assert_alike(saved_at(tmp_path / "rest", 8), saved_at(tmp_path / "whole", 8))
    _, events = run(prepared(), tmp_path / "rest", resume=last)
    assert "checkpoint" not in {event["kind"] for event in events}


def test_a_checkpoint_that_was_damaged_is_saved_again(prepared, tmp_path):
    for folder in ("damaged", "whole"):
        run(prepared(), tmp_path / folder)
    last = checkpoints.path_of(tmp_path / "damaged", 8)
    last.write_bytes(last.read_bytes()[:1000])
    report, events = run(prepared(), last.parent, resume=checkpoints.path_of(last.parent, 4))
    assert [event["step"] for event in events if event["kind"] == "checkpoint"] == [8]
    assert report["checkpoint"] == str(last)
    assert_alike(checkpoints.load(last), saved_at(tmp_path / "whole", 8))


def test_a_stop_in_training_saves_and_leaves_out_the_test(prepared, tmp_path):
    many = prepared("train_steps=100000", "disp_freq=1", "test_freq=100000", "checkpoint_freq=0")
    report, events = run(many, tmp_path, stop_at=lambda e: e.get("phase") == "train" and e["step"] == 3)
    assert report["interrupted"] and 4 <= report["step"] < 100
    assert told(events)[-2:] == [("checkpoint", None, report["step"]), ("end", None, report["step"])]
    assert "test" not in report["metrics"]


def test_a_stop_in_an_evaluation_breaks_it_off(prepared, tmp_path):
    report, events = run(prepared("test_steps=100000"), tmp_path, stop_at=lambda e: e["kind"] == "start")
    assert report["interrupted"] and report["step"] == 0
    assert told(events) == [("start", None, 0), ("end", None, 0)]


def test_a_stop_at_the_very_end_is_no_completed_run_without_its_test(prepared, tmp_path):
    job = prepared("test_steps=400", "test_freq=8", "checkpoint_freq=0")
    report, _ = run(job, tmp_path, stop_at=lambda e: e.get("phase") == "train" and e["step"] == 8)
    assert report["interrupted"] and report["step"] == 8
    report, _ = run(job, tmp_path, resume=checkpoints.path_of(tmp_path, 8))
    assert not report["interrupted"] and report["metrics"]["test"]


def test_what_is_tested_and_saved_has_all_updates(prepared, tmp_path, monkeypatch):
    job = prepared(
        "cluster.nworker_groups=2",
        "cluster.nservers_per_group=1",
        "cluster.server_worker_separate=true",
        "cluster.one_behind=true",
        "test_freq=3",
    )
    under_way = []

    def noted(call):
        def counting(of, *args, **options):
            stub = of.stub if isinstance(of, Replica) else of._stages.stub
            under_way.append(len(stub._under_way))
            return call(of, *args, **options)

        return counting

    monkeypatch.setattr(worker, "evaluate_group", noted(worker.evaluate_group))
    monkeypatch.setattr(GroupState, "snapshot", noted(GroupState.snapshot))
    ran = run_topology(job, tmp_path / "run")
    assert ran.reports[0]["metrics"]["test"] and ran.reports[0]["step"] == 8
    assert under_way == [0] * 18  # of three workers: four tests, and two checkpoints


def test_divergence_ends_every_rank_at_the_same_step(prepared, tmp_path):
    with pytest.raises(TrainingError, match=r"loss is (nan|inf) at step \d: training diverged. Lower updater"):
        run(prepared("updater.learning_rate.base_lr=1e38"), tmp_path)


def test_other_shards_than_planned_are_refused(prepared, tmp_path):
    job = prepared()
    write_points(tmp_path, seed=1, train=90, test=90)
    with pytest.raises(DataError, match="shards on this host differ"):
        run(job, tmp_path / "run")


def test_input_layers_must_agree_on_the_batch(prepared, tmp_path):
    two = POINTS.replace(
        'layer { name: "scores"',
        'layer { name: "more" type: kRecordInput store_conf { path: "%(folder)s/train" batchsize: 10 } }\n'
        '  layer { name: "scores"',
    )
    with pytest.raises(SingaError, match=r"input layers differ in batchsize"):
        prepare(Job.from_text(two % {"folder": tmp_path}))


SPLIT = ("neuralnet.partition_dim=1", "neuralnet.layer[2].innerproduct_conf.num_output=4")


def test_a_worker_that_fails_does_not_wait_to_release_what_others_use(prepared, tmp_path, monkeypatch):
    made, step = {}, Replica.train_step

    def failing(replica, feed, at):
        made[replica.comm.rank] = replica.group.comm
        if replica.comm.rank == 1 and at.number == 2:
            raise ValueError("one rank fails")
        return step(replica, feed, at)

    monkeypatch.setattr(Replica, "train_step", failing)
    with pytest.raises(ValueError, match="one rank fails"):
        run(prepared(*SPLIT), tmp_path)
    assert made[1].aborted == "the worker failed"


@pytest.mark.parametrize(("share", "late"), [(10.0, False), (1e-7, True)])
def test_copies_of_the_state_take_a_small_share_of_the_time(prepared, tmp_path, monkeypatch, share, late):
    """And what ranks leave is of the same step on all of them."""
    monkeypatch.setattr(worker, "COPIES_SHARE", share)
    job, left = prepared("train_steps=40", "test_freq=0", "checkpoint_freq=0"), {}

    def hold(saved, *, only=False, also=""):
        left[saved.owner.rank] = saved, Regions.open(*saved.regions)  # keeps it
        return True

    def rank(comm, pool):
        own = {"owner": Owner(WORKERS, 0, comm.rank, comm.size), "version": Version("run", 1)}
        holder = SimpleNamespace(place=("machine", f"nanny {comm.rank}"), hold=hold, **own)
        plan = WorkerPlan(job.job.SerializeToString(), tmp_path / "checkpoint", job.data)
        return train_rank(comm, plan, RankServices(pool.submit, holder=holder))

    with ThreadPoolExecutor(3) as pool:
        run_threads(3, rank, pool)
    steps = {step_of(*found) for found in left.values() if found[0].regions[0].layouts}
    assert len(steps) == 1 and (steps.pop() < 40) == late
