"""A net that is larger than the memory of a worker."""

import shutil
import subprocess

import h5py
import pytest
from support.commands import COMMAND, Ran, sets, summary

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


@pytest.fixture
def train(environment, tmp_path):
    """Train the net, every process of the command within the limit."""
    (tmp_path / "job.conf").write_text(JOB)
    # Threads and their heaps take address space by the number of cores.
    one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "MALLOC_ARENA_MAX"), "1")

    def run(*options):
        limited = ["bash", "-c", f'ulimit -v {LIMIT_KIB} && exec "$@"', "bash", *COMMAND]
        command = [*limited, "train", "job.conf", "--workspace", "run", *options]
        done = subprocess.run(
            command, cwd=tmp_path, env={**environment, **one}, capture_output=True, text=True, timeout=200
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    return run


@pytest.mark.long
@pytest.mark.timeout(240)
def test_a_net_larger_than_a_worker_trains_split_over_four(train, tmp_path, no_leaks):
    assert (1 + STATES) * 4 * PARAMETERS > LIMIT_KIB * 1024, "values and updater state alone exceed the limit"
    refused = train()
    assert refused.code == 2
    assert "gradients 403.0 MB" in refused.err and "are missing" in refused.err, refused.err
    assert "Split it: with neuralnet.partition_dim: 1, each of 4 workers needs 405.6 MB." in refused.err
    assert "step" not in refused.out, "it is refused before the first step"

    ran = train(*sets(neuralnet__partition_dim=1))
    assert ran.code == 0, ran.err
    assert summary(tmp_path / "run")["step"] == 2
    with h5py.File(tmp_path / "run" / "checkpoint" / "step-00000002.h5") as file:
        assert file["parameters/ip2_weight"].shape == (UNITS, UNITS)
    shutil.rmtree(tmp_path / "run")  # a gigabyte
