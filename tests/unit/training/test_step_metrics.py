"""What the ranks of a group tell each other of their steps."""

import pytest

from singa_dask.comm import run_threads
from singa_dask.layers.context import Metric
from singa_dask.server import ServerTraffic
from singa_dask.training.step_metrics import StepMetrics, sum_over_ranks


def _told(comm, wishes=((False, False), (False, False))):
    """A step in which rank 1 has waited .2 s and its server has answered two updates at once, as after a stop."""
    loss = Metric(3.0 + comm.rank, 2 + comm.rank)
    sent = ServerTraffic(2, 0.1, 0.04, staleness=3, staleness_max=2, nbytes=100) if comm.rank else ServerTraffic()
    return sum_over_ranks(comm, wishes[comm.rank], {"loss": loss}, 0.2 * comm.rank, 0.0, sent)


def test_all_ranks_know_the_same():
    for wishes, metrics, ranks in run_threads(2, _told, ((False, False), (True, False))):
        assert wishes == [True, False] and metrics == {"loss": Metric(7.0, 5.0)}
        assert ranks[:, 0].tolist() == [0.0] * 9
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
