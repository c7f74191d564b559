"""What launch tells about ranks that failed, without processes."""

from types import SimpleNamespace

import cloudpickle
import pytest

from singa_dask.cluster import join
from singa_dask.cluster.bootstrap import launched_size
from singa_dask.cluster.cores import THREAD_VARIABLES, cores_each
from singa_dask.errors import ClusterError, CommTimeout, MpiUnusable
from singa_dask.loops.distopt import launcher, member, world
from singa_dask.loops.distopt.launcher import _death
from singa_dask.loops.distopt.member import ProcessPlan, Returned, _failure


def raised(error):
    try:
        raise error
    except BaseException as caught:
        return _failure(caught)


def test_a_rank_that_misses_another_one_is_not_the_cause():
    assert raised(CommTimeout("rank 0: lost")).consequence
    assert raised(ClusterError("aborted")).consequence
    assert not raised(ValueError("bad batch")).consequence
    assert not raised(MpiUnusable("none")).consequence


def test_a_failure_travels_with_traceback_and_exception():
    failure = cloudpickle.loads(cloudpickle.dumps(raised(ValueError("bad batch"))))
    assert failure.what == "raised ValueError: bad batch"
    assert "test_launcher.py" in failure.traceback
    assert isinstance(failure.exception, ValueError)


def test_how_processes_die():
    assert _death(-9, None) == "was killed by signal 9"
    assert _death(3, None) == "died with exit code 3"
    forming, formed = (SimpleNamespace(state=SimpleNamespace(formed=formed)) for formed in (False, True))
    assert "must stand below" in _death(1, forming) and "must stand" not in _death(1, formed) + _death(2, forming)


class Gone:
    """Processes and pipes of a launch whose ranks report what the test says, in this order."""

    def __init__(self, monkeypatch, *reports, size=3):
        self.ranks = launcher._Ranks(None)
        self.ranks._processes, self.ranks._pipes = [None] * size, [[] for _ in range(size)]
        self.reports, self.now = list(reports), 0.0
        monkeypatch.setattr(launcher.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(self.ranks, "_listen", self._listen)
        monkeypatch.setattr(self.ranks, "_tell", lambda rank, reason: self.ranks._pipes[rank].append(reason))

    def _listen(self, timeout_s):
        if self.reports:
            self.ranks._reports |= [self.reports.pop(0)]
        else:
            self.now += timeout_s


def test_launch_returns_what_all_ranks_return(monkeypatch):
    reports = [(rank, Returned(cloudpickle.dumps(rank * 10))) for rank in (2, 0, 1)]
    assert Gone(monkeypatch, *reports).ranks.results() == [0, 10, 20]


def test_the_root_cause_of_a_launch_is_named_though_another_rank_reports_first(monkeypatch):
    aborted, late, own = (raised(e) for e in (ClusterError("aborted"), CommTimeout("no rank 1"), ValueError("bad")))
    gone = Gone(monkeypatch, (0, aborted), (2, late), (1, own))
    with pytest.raises(ClusterError, match=r"rank 1 of 3 raised ValueError: bad(.|\n)*test_launcher") as caught:
        gone.ranks.results()
    assert isinstance(caught.value.__cause__, ValueError)
    assert gone.ranks._pipes == [[], ["rank 0 failed"], ["rank 0 failed"]]
    gone = Gone(monkeypatch, (0, aborted), (2, late), (1, Returned(b"")))
    with pytest.raises(ClusterError, match="rank 2 of 3 raised CommTimeout: no rank 1"):
        gone.ranks.results()


def test_a_rank_that_says_nothing_may_be_the_cause(monkeypatch):
    gone = Gone(monkeypatch, (0, raised(CommTimeout("no rank 2"))), (1, Returned(b"")))
    with pytest.raises(ClusterError, match=r"rank 0 of 3 raised CommTimeout: no rank 2; no answer from rank 2"):
        gone.ranks.results()
    gone = Gone(monkeypatch, (0, raised(ValueError("bad"))))
    with pytest.raises(ClusterError) as caught:
        gone.ranks.results()
    assert "no answer" not in str(caught.value)


def test_cores_are_shared_unless_the_environment_says_otherwise(monkeypatch):
    import os

    monkeypatch.setenv(THREAD_VARIABLES[0], "5")
    for name in THREAD_VARIABLES[1:]:
        monkeypatch.delenv(name, raising=False)
    with cores_each(2):
        assert [os.environ[name] for name in THREAD_VARIABLES] == ["5", "2", "2", "2"]
    assert [name for name in THREAD_VARIABLES if name in os.environ] == [THREAD_VARIABLES[0]]


@pytest.mark.parametrize("name", ["PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PALS_NRANKS"])
def test_launchers_say_how_many_processes_they_started(name):
    assert launched_size({name: "4", "OTHER": "9"}) == 4
    assert launched_size({name: "many"}) == 0


def test_a_process_that_nobody_launched_is_a_group_of_one(monkeypatch):
    monkeypatch.setattr("singa_dask.loops.distopt.worlds._worlds", [])
    monkeypatch.setattr("singa_dask.loops.distopt.worlds.launched_size", lambda environment: 0)
    monkeypatch.setattr("singa_dask.loops.distopt.worlds.mpi_report", lambda: type("None", (), {"world": ""}))
    assert (world().rank, world().size) == (0, 1)
    assert world() is world()


def test_open_mpi_is_pointed_to_mpiexec(monkeypatch):
    def unusable():
        raise MpiUnusable("cannot form groups inside running Dask workers")

    monkeypatch.setattr(join, "load_mpi", unusable)
    monkeypatch.setattr(member, "mpi_report", lambda: type("Report", (), {"library": "Open MPI v5.0.6"}))
    with pytest.raises(MpiUnusable, match=r"Open MPI v5.0.6 has no PMI-1.*`mpiexec -n 3 python SCRIPT`"):
        member._joined(ProcessPlan(0, 3, object(), 1.0, 1.0))
