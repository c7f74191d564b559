"""What is measured where, and what becomes of the measurements of several workers."""

from types import SimpleNamespace

import pytest

from singa_dask import layers
from singa_dask.cluster import WorkerInfo
from singa_dask.cluster.bootstrap import MpiReport
from singa_dask.errors import ClusterError
from singa_dask.job import Job
from singa_dask.planning.profile import Curve, LayerSample, Point, Profile
from singa_dask.planning.work import Work, worker_step
from singa_dask.profiling import cluster as profiling
from singa_dask.profiling.cluster import medians, of_one_world, on_workers
from singa_dask.profiling.facts import by_host, facts_of
from singa_dask.profiling.jobs import lacking, lacks_own
from singa_dask.updaters import SGD

WORK = Work("InnerProduct", 8, 4, 2)


def job(width, batch=8):
    net = [layers.RecordInput(batchsize=batch, shape=[4]), layers.InnerProduct(num_output=width), layers.SoftmaxLoss()]
    return Job(name="small", train_steps=1, layers=net, updater=SGD(lr=0.1)).proto


def samples_of(*jobs, concurrency=1, threads=2):
    works = {call.work for job in jobs for call in worker_step(job).calls}
    return [LayerSample(work, 1.0, 1.0, concurrency, threads) for work in works]


def of(trials):
    return [
        (trial.job.neuralnet.layer[1].innerproduct_conf.num_output, trial.concurrency, trial.threads)
        for trial in trials
    ]


def test_a_job_is_measured_once_with_every_concurrency():
    trials = lacking([job(2), job(3), job(2)], Profile(), concurrencies=(1, 2), cores=2, threads=None)
    assert of(trials) == [(2, 1, 2), (2, 2, 1), (3, 1, 2), (3, 2, 1)]


def test_a_job_whose_layers_are_known_is_left_out():
    known = Profile(layers=samples_of(job(2)))
    assert of(lacking([job(2), job(3)], known, concurrencies=(1, 2), cores=2, threads=None)) == [
        (2, 2, 1),
        (3, 1, 2),
        (3, 2, 1),
    ]
    assert of(lacking([job(2)], known, concurrencies=(1,), cores=2, threads=4)) == [(2, 1, 4)]


def test_layers_measured_at_two_numbers_of_rows_are_known_near_these():
    def lacks(rows, *measured, exact=False):
        known = Profile(layers=samples_of(*(job(2, each) for each in measured)))
        return bool(of(lacking([job(2, rows)], known, concurrencies=(1,), cores=2, threads=None, exact=exact)))

    assert lacks(16, 8)
    assert [rows for rows in (4, 8, 12, 16, 32, 64) if lacks(rows, 8, 16)] == [4, 64]
    assert [rows for rows in (4, 8, 12, 16, 32, 64) if lacks(rows, 8, 16, exact=True)] == [4, 12, 64]


def test_a_job_may_have_an_updater_and_a_codec_of_its_own():
    own = job(2)
    known = Profile(curves={"update kSGD 2": Curve((Point(0, 1.0),)), "encode kTopK 0.05 2": Curve((Point(0, 1.0),))})
    assert lacks_own(own, known, 2) == (False, False)
    own.updater.user_type = "rules:Own"
    own.cluster.nworkers_per_group = own.cluster.nservers_per_group = 2
    own.cluster.codec = own.cluster.kTopK
    own.cluster.sparsity = 0.2
    assert lacks_own(own, known, 2) == (True, True)
    own.cluster.sparsity = 0.05
    assert lacks_own(own, known, 2) == (True, False) and lacks_own(own, known, 3) == (True, True)


def test_medians_are_of_each_sample_and_of_each_point():
    measured = [
        Profile(
            layers=[LayerSample(WORK, seconds, 2 * seconds, 3)],
            curves={"sum 3": Curve((Point(0, seconds, 0.5), Point(8, 10 * seconds)))},
        )
        for seconds in (1.0, 5.0, 2.0)
    ]
    assert medians(measured) == Profile(
        layers=[LayerSample(WORK, 2.0, 4.0, 3)], curves={"sum 3": Curve((Point(0, 2.0, 0.5), Point(8, 20.0)))}
    )


def worker(number, host, cpus=frozenset(range(8))):
    return WorkerInfo(f"tcp://{host}:{number}", host, cores=len(cpus), cpus=frozenset(cpus))


def test_the_host_with_most_workers_comes_first():
    workers = [worker(1, "10.0.0.1"), worker(2, "10.0.0.2"), worker(3, "10.0.0.2")]
    assert list(by_host(workers)) == ["10.0.0.2", "10.0.0.1"]
    facts = facts_of(Profile(cpu="EPYC"), workers)
    assert (facts.cpu, facts.cores, facts.hosts) == ("EPYC", 8, 2)


def test_the_cores_of_a_host_are_those_of_all_its_workers():
    bound = [worker(1, "10.0.0.1", {0, 1}), worker(2, "10.0.0.1", {2, 3})]
    assert facts_of(Profile(), bound).cores == 4


def in_world(number, world, *, ours=True, spent=False):
    return WorkerInfo(f"tcp://10.0.0.1:{number}", mpi=MpiReport(world, number, 4, ours, spent))


def test_workers_of_one_world_or_of_none_need_no_fresh_process():
    a, b, other, spent = (in_world(i, world) for i, world in enumerate(("x", "x", "y", "z")))
    spent = in_world(3, "z", spent=True)
    new = [worker(i, "10.0.0.1") for i in (7, 8, 9)]
    assert of_one_world([*new, a, b, other, spent]) == [a, b]
    assert of_one_world([*new, other, spent]) == new
    assert of_one_world([spent]) == []
    launched = [in_world(i, "mpiexec", ours=False, spent=True) for i in (1, 2)]
    assert of_one_world(launched) == launched


class Failed:
    """A Dask future of a task that raised TimeoutError."""

    status = "error"

    def done(self):
        return True

    def result(self, timeout):
        raise TimeoutError("the store did not answer")


def test_a_task_that_raises_timeout_error_has_failed(monkeypatch):
    monkeypatch.setattr(profiling, "run_each", lambda client, function, args, timeout_s: dict.fromkeys(args, 0.0))
    client = SimpleNamespace(submit=lambda *args, **settings: Failed(), cancel=lambda futures, force: None)
    with pytest.raises(ClusterError, match=r"could not measure: TimeoutError.'the store did not answer'"):
        on_workers(client, [worker(1, "10.0.0.1")], print, timeout_s=60.0)


class Clock:
    """Time in which workers have used their processors: as many seconds of each second as `busy` says."""

    def __init__(self, monkeypatch, busy):
        self.s, self.busy, self.answers = 0.0, busy, True
        monkeypatch.setattr(profiling, "time", SimpleNamespace(monotonic=lambda: self.s, sleep=self.sleep))
        monkeypatch.setattr(profiling, "alive", lambda client, addresses: set(addresses))
        monkeypatch.setattr(profiling, "run_each", self.run_each)

    def sleep(self, seconds):
        self.s += seconds

    def run_each(self, client, function, args, timeout_s):
        return {
            a: self.s * share if share is not None else TimeoutError()
            for a, share in zip(args, self.busy, strict=True)
        }


class Compiling(Failed):
    """A task that returns after so many seconds."""

    status = "pending"

    def __init__(self, clock, seconds):
        self.clock, self.seconds = clock, seconds

    def result(self, timeout):
        self.clock.sleep(timeout)
        if self.clock.s < self.seconds:
            raise TimeoutError
        return self.seconds


def measured(clock, seconds):
    """By two workers, each of which takes so many seconds."""
    client = SimpleNamespace(submit=lambda *args, **settings: Compiling(clock, seconds), cancel=lambda *a, **o: None)
    return on_workers(client, [worker(1, "a"), worker(2, "a")], print, timeout_s=64.0)


@pytest.mark.parametrize("busy", [(0.9, 0.9), (0.02, 0.9)])
def test_workers_that_compile_are_waited_for(monkeypatch, busy):
    """One compiles, and the other waits for it."""
    assert measured(Clock(monkeypatch, busy), 200.0) == [200.0, 200.0]


@pytest.mark.parametrize(("busy", "within"), [((0.02, 0.0), 64), ((None, None), 64), ((1.0, 1.0), 664)])
def test_workers_that_do_not_compute_or_do_it_for_ever_are_named(monkeypatch, busy, within):
    clock = Clock(monkeypatch, busy)
    with pytest.raises(ClusterError, match=rf"1 \(host a, pid 0\) has not measured within {within} s: it is stopped"):
        measured(clock, 1e9)
    assert clock.s < 2.2 * within


@pytest.mark.parametrize(("busy", "ends"), [((0.9,), True), ((0.0,), False)])
def test_groups_that_compile_are_waited_for(monkeypatch, busy, ends):
    clock = Clock(monkeypatch, busy)

    class Group:
        addresses = ("tcp://a:1",)

        def wait(self, timeout_s):
            clock.sleep(timeout_s)
            return clock.s >= 200.0

        def results(self, timeout_s):
            if clock.s < 200.0:
                raise ClusterError("ranks [0] still run")
            return ["measured"]

    if ends:
        assert profiling.results_of(None, Group(), 4.0) == ["measured"]
    else:
        with pytest.raises(ClusterError, match="still run"):
            profiling.results_of(None, Group(), 4.0)
        assert clock.s < 140.0
