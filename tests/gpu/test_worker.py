"""Workers of a job with GPUs, in threads: what they exchange and by which way, and the parameters of the CPU."""

from functools import partial

import pytest
from support.topologies import run_topology
from support.trained import assert_alike, points_job, saved_at, train_group, write_points

pytestmark = pytest.mark.timeout(240)
SPLIT = ("neuralnet.partition_dim=1", "neuralnet.layer[2].innerproduct_conf.num_output=4")


@pytest.fixture
def prepared(tmp_path):
    write_points(tmp_path, train=90, test=90)
    return partial(points_job, tmp_path)


@pytest.mark.parametrize("wired", [True, False])
@pytest.mark.parametrize("split", [(), SPLIT])
def test_workers_with_a_gpu_each_exchange_over_nccl(prepared, tmp_path, gpus, wired, split):
    if wired and gpus < 3:
        pytest.skip("needs three GPUs")
    train_group(prepared(*split), tmp_path / "cpu")
    report, events = train_group(prepared("gpu=[0,1,2]" if wired else "gpu=[0,0,0]", *split), tmp_path / "gpu")
    assert events[-1]["kind"] == "end"
    if split:  # no worker has what another one has: only activations are exchanged
        assert "transition all_gather" in report["operations"]
        assert not {"reduce_scatter", "device reduce_scatter"} & report["operations"].keys()
    else:
        here, there = (name in report["operations"] for name in ("reduce_scatter", "device reduce_scatter"))
        assert there == wired == (not here)
    assert report["exchanged_bytes"] == sum(done["bytes"] for done in report["operations"].values())
    assert_alike(saved_at(tmp_path / "gpu", 8), saved_at(tmp_path / "cpu", 8), rtol=1e-5, atol=1e-6)


def test_a_worker_with_a_gpu_on_its_own_exchanges_nothing_by_way_of_the_host(prepared, tmp_path, gpus):
    alone = prepared("gpu=[0]", "cluster.nworkers_per_group=1", "cluster.nservers_per_group=1")
    ran = run_topology(alone, tmp_path / "gpu")
    assert "device all_gather" in ran.reports[0]["operations"]
