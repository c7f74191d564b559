"""Nets and data that are larger than the memory of a worker."""

import os
import shutil

import dask.array as da
import h5py
import psutil
import pytest
from distributed import Client, LocalCluster
from support.commands import COMMAND, run_command, sets, summary

from singa_dask import ClusterTopology, Job, layers, load_model, shard, train, updaters
from singa_dask.monitor.progress import Display

UNITS = 10_000
PARAMETERS = 64 * UNITS + UNITS + UNITS * UNITS + UNITS + UNITS * 10 + 10
# A worker without a net takes about 500 MB of address space, and 100 MB more while it trains.
LIMIT_KIB = 1_180_000
STATES = 2  # of Adam
JOB = f"""
name: "large"
train_steps: 2
disp_freq: 1
seed: 1
train_one_batch {{ alg: kBP }}
updater {{ type: kAdam learning_rate {{ type: kFixed base_lr: 0.0001 }} }}
neuralnet {{
  layer {{
    name: "data"
    type: kRecordInput
    store_conf {{ path: "dataset:digits/train" batchsize: 16 shape: 1 shape: 8 shape: 8 std_value: 16 }}
  }}
  layer {{ name: "ip1" type: kInnerProduct srclayers: "data" innerproduct_conf {{ num_output: {UNITS} }} }}
  layer {{ name: "relu1" type: kReLU srclayers: "ip1" }}
  layer {{ name: "ip2" type: kInnerProduct srclayers: "relu1" innerproduct_conf {{ num_output: {UNITS} }} }}
  layer {{ name: "relu2" type: kReLU srclayers: "ip2" }}
  layer {{ name: "ip3" type: kInnerProduct srclayers: "relu2" innerproduct_conf {{ num_output: 10 }} }}
  layer {{ name: "loss" type: kSoftmaxLoss srclayers: "ip3" srclayers: "data" }}
}}
cluster {{ nworkers_per_group: 4 nservers_per_group: 4 }}
"""


@pytest.mark.long
@pytest.mark.timeout(240)
def test_a_net_larger_than_a_worker_trains_split_over_four(environment, tmp_path, no_leaks):
    assert (1 + STATES) * 4 * PARAMETERS > LIMIT_KIB * 1024, "values and updater state alone exceed the limit"
    (tmp_path / "job.conf").write_text(JOB)
    # Threads and their heaps take address space by the number of cores.
    one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "MALLOC_ARENA_MAX"), "1")
    limited = ["bash", "-c", f'ulimit -v {LIMIT_KIB} && exec "$@"', "bash", *COMMAND]
    command = [*limited, "train", "job.conf", "--workspace", "run"]
    refused = run_command(command, cwd=tmp_path, env=environment | one, code=2, timeout=200)
    assert "gradients 403.0 MB" in refused.err and "are missing" in refused.err, refused.err
    assert "Split it: with neuralnet.partition_dim: 1, each of 4 workers needs 405.6 MB." in refused.err
    assert "step" not in refused.out, "it is refused before the first step"

    run_command([*command, *sets(neuralnet__partition_dim=1)], cwd=tmp_path, env=environment | one, timeout=200)
    assert summary(tmp_path / "run")["step"] == 2
    with h5py.File(tmp_path / "run" / "checkpoint" / "step-00000002.h5") as file:
        assert file["parameters/ip2_weight"].shape == (UNITS, UNITS)
    shutil.rmtree(tmp_path / "run")  # a gigabyte


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_data_of_four_times_the_memory_of_a_worker(tmp_path):
    """Written as shards, trained on and predicted by two workers of 640 MiB; none is lost."""
    limit = 640 << 20
    rows = 4 * limit // (3 * 32 * 32 * 4)
    local = LocalCluster(2, threads_per_worker=1, memory_limit=limit, dashboard_address=None)
    with local as cluster, Client(cluster) as client:
        x = da.random.default_rng(0).normal(size=(rows, 3, 32, 32), chunks=(1500, 3, 32, 32)).astype("f4")
        y = x.mean(axis=(1, 2, 3)) * 50
        before = psutil.Process().memory_info().rss
        processes = client.run(os.getpid)
        shard(x, y, tmp_path / "shards", client=client, channels="first", progress=False)
        assert client.run(os.getpid) == processes
        net = [
            layers.RecordInput(path=str(tmp_path / "shards"), batchsize=128, normalise=True, normalise_target=True),
            layers.InnerProduct(num_output=16),
            layers.ReLU(),
            layers.InnerProduct(num_output=1),
            layers.EuclideanLoss(),
        ]
        job = Job(
            name="large",
            layers=net,
            updater=updaters.Adam(lr=0.001),
            train_steps=rows // 128,
            cluster=ClusterTopology.allreduce(2),
        )
        result = train(job, client, workspace=tmp_path / "run", display=Display())
        assert result.summary["restarts"] == 0
        predicted = load_model(result.checkpoint).predict(x)
        processes = client.run(os.getpid)
        error = float(abs(predicted[:, 0] - y).mean().compute())
        assert error < 0.3  # the targets vary by 0.9
        assert client.run(os.getpid) == processes
        assert psutil.Process().memory_info().rss - before < 300 << 20
