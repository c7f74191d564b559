"""The loop of a run, by a clock of its own."""

import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from singa_dask.comm.solo import SoloCommunicator
from singa_dask.profiling import loop
from singa_dask.profiling.loop import LoopPlan, measure_loop
from singa_dask.training.rank_plan import RankServices
from singa_dask.training.worker import train_rank

PASS, UPDATE, LATE = 1e-3, 5e-4, 0.02


class Clock:
    """Time passes where somebody looks, for each row of the mini-batch, and where a step is late."""

    now, rows = 0.0, 1

    def perf_counter(self):
        self.now += PASS * self.rows
        return self.now

    def laps(self, rows):
        self.rows = rows
        return [SimpleNamespace(seconds=PASS * rows, update=UPDATE)] * 3


def test_the_loop_is_what_a_run_adds_to_its_passes(monkeypatch):
    clock, ran, real = Clock(), [], loop.TimedBP.train_one_batch

    def slower(self, *args, **more):
        metrics = real(self, *args, **more)
        clock.now += LATE
        return metrics

    def train(comm, plan, topic):
        ran.append(plan.group.cores)
        with ThreadPoolExecutor(1) as pool:
            return train_rank(comm, plan, RankServices(pool.submit, cores=1))

    settings = {"train_on_dask_worker": train, "ROWS": (2, 8), "SAMPLES": 64, "_FEWEST_STEPS": 25}
    looked = SimpleNamespace(time=time.time, sleep=time.sleep, perf_counter=clock.perf_counter)
    for name, value in (settings | {"time": looked}).items():
        monkeypatch.setattr(loop, name, value)
    monkeypatch.setattr(loop.Trial, "laps", lambda self, rows, seconds: clock.laps(rows))
    monkeypatch.setattr(loop.TimedBP, "train_one_batch", slower)
    found = measure_loop(SoloCommunicator(), LoopPlan(threads=1, seconds=0.02, start_at=0.0))
    assert ran == [(1,)] * 2
    for rows, point in zip((2, 8), found.points, strict=True):
        assert point.size == pytest.approx(PASS * rows)
        assert point.seconds == pytest.approx(LATE + PASS * rows - UPDATE)
