import time
from concurrent.futures import ThreadPoolExecutor

from singa_dask.comm.solo import SoloCommunicator
from singa_dask.profiling import loop
from singa_dask.profiling.loop import LoopPlan, measure_loop
from singa_dask.training.worker import RankServices, train_rank


def test_the_loop_is_what_a_run_adds_to_its_passes(monkeypatch):
    """A run in which every step waits for 20 ms more."""
    late, ran, real = 0.02, [], loop.Watched.train_one_batch

    def slower(self, *args, **more):
        metrics = real(self, *args, **more)
        time.sleep(late)
        return metrics

    def train(comm, plan, topic):
        ran.append(plan.group.cores)
        with ThreadPoolExecutor(1) as pool:
            return train_rank(comm, plan, RankServices(pool.submit, cores=1))

    monkeypatch.setattr(loop, "train_on_dask_worker", train)
    monkeypatch.setattr(loop, "ROWS", (2, 8))
    monkeypatch.setattr(loop, "SAMPLES", 64)
    monkeypatch.setattr(loop, "_FEWEST_STEPS", 25)
    plan = LoopPlan(threads=1, seconds=0.02, start_at=0.0)
    usual = measure_loop(SoloCommunicator(), plan)
    monkeypatch.setattr(loop.Watched, "train_one_batch", slower)
    found = measure_loop(SoloCommunicator(), plan)
    assert ran == [(1,)] * 4
    assert [point.size for point in found.points] == sorted(point.size for point in found.points)
    for before, after in zip(usual.points, found.points, strict=True):
        assert before.seconds < late and after.seconds > late / 2  # passes vary, and are subtracted
        assert after.size < late
