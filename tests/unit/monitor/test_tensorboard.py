"""What TensorBoard reads."""

import sys
import time

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from singa_dask import TensorBoard
from singa_dask.errors import ConfigError
from singa_dask.supervision.callbacks import RunEvent


def scalars(folder):
    """{tag: [(step, value), ...]}"""
    read = EventAccumulator(str(folder)).Reload()
    return {tag: [(e.step, round(e.value, 4)) for e in read.Scalars(tag)] for tag in read.Tags()["scalars"]}


def event(folder, kind, step, **more):
    return RunEvent(kind, "digits", folder, 100, step=step, time=50.0 + step, **more)


def play(logger, folder, groups=(0, 1), steps=(10, 20)):
    for step in steps:
        for group in groups:
            more = {"group": group, "phase": "train", "metrics": {"loss": group + 1 / step}, "samples_per_s": 50.0}
            server = {"staleness": 2.0}
            logger.on_step(event(folder, "step", step, **more, wait=(0.25, 0.5), loading=(0.0, 0.125), server=server))
        logger.on_test(event(folder, "test", step, phase="test", metrics={"loss": 0.25}))
    logger.on_end(event(folder, "end", steps[-1]))


def test_every_group_and_every_rank_is_a_run(tmp_path):
    play(TensorBoard(), tmp_path)
    folder = tmp_path / "tensorboard"
    found = sorted(str(path.parent.relative_to(folder)) for path in folder.rglob("events.out.tfevents.*"))
    assert found == sorted([*(f"group-{g}/{name}" for g in (0, 1) for name in ("train", "rank-0", "rank-1")), "test"])
    assert scalars(folder / "group-1" / "train") == {
        "loss": [(10, 1.1), (20, 1.05)],
        "samples_per_s": [(10, 50.0), (20, 50.0)],
        "server/staleness": [(10, 2.0), (20, 2.0)],
    }
    assert scalars(folder / "group-0" / "rank-1") == {
        "wait": [(10, 0.5), (20, 0.5)],
        "loading": [(10, 0.125)] * 1 + [(20, 0.125)],
    }
    assert scalars(folder / "test") == {"loss": [(10, 0.25), (20, 0.25)]}


def test_what_is_measured_again_after_a_restart_or_in_a_resumed_run_replaces_what_was(tmp_path, monkeypatch):
    logger = TensorBoard(tmp_path / "here")
    play(logger, tmp_path, groups=(0,), steps=(10, 20, 30, 20, 30))
    assert scalars(tmp_path / "here" / "test") == {"loss": [(10, 0.25), (20, 0.25), (30, 0.25)]}
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 60)  # files are read in the order of the time in their names
    play(logger, tmp_path, groups=(0,), steps=(30, 40))
    assert [step for step, _ in scalars(tmp_path / "here" / "group-0" / "train")["loss"]] == [10, 20, 30, 40]
    assert not (tmp_path / "tensorboard").exists()


def test_without_tensorboard_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.event_file_writer", None)
    with pytest.raises(ConfigError, match=r"tensorboard: cannot .*pip install 'singa-dask\[tensorboard\]'"):
        TensorBoard()
