"""Before deadlines count, a worker has compiled what a step needs, and NCCL has connected the ranks."""

import sys
from functools import partial
from importlib import import_module

import numpy as np
import pytest
from google.protobuf import text_format

from singa_dask.comm import form_nccl, run_threads
from singa_dask.job.job_pb2 import JobProto, Phase
from singa_dask.layers.context import Step
from singa_dask.net import Batch
from singa_dask.ops import get_ops
from singa_dask.training.replica import Replica

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("emulated")]
BATCH = 12
JOB = """
name: "small" seed: 3
train_one_batch { alg: kBP }
cluster { nworkers_per_group: 3 nservers_per_group: 3 }
updater { %s learning_rate { type: kFixed base_lr: 0.01 } }
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { batchsize: 12 shape: 20 } }
  layer { name: "hidden" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 9 } }
  layer { name: "norm" type: kBM srclayers: "hidden" }
  layer { name: "ip" type: kInnerProduct srclayers: "norm" innerproduct_conf { num_output: 5 } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "ip" srclayers: "data" }
}
"""
UPDATERS = {
    "sgd": "type: kSGD momentum: 0.9",
    "adamw": 'type: kAdamW weight_decay: 0.01 group { match: "*" wd_scale: 0.5 }',
    "lamb": "type: kLAMB clip_norm: 0.1",
    "average": "type: kSGD ema_decay: 0.9 clip_norm: 0.1",
}


def warmed(updater, compiled, control):
    cupy = sys.modules["cupy"]
    job = text_format.Parse(JOB % UPDATERS[updater], JobProto())
    ops, device_comm = get_ops("gpu", device_id=control.rank), form_nccl(control, control.rank, 5.0, 60.0)
    replica = Replica.form(job, control, ops, device_comm=device_comm)
    replica.group_state.initialise()
    rows = BATCH // control.size
    draw = np.random.default_rng(0)
    feed = {"data": Batch(draw.random((rows, 20), np.float32), draw.integers(0, 5, rows))}
    step = Step(Phase.kTrain, 0, job.seed, rows * control.rank, BATCH)
    before = ops.to_host(replica.net.flat.values).copy()
    assert device_comm.timeout_s == 5.0
    replica.warm_up(feed, step, 60.0)
    assert (device_comm.timeout_s, replica.operations.get("device reduce_scatter")) == (5.0, None)
    assert (ops.to_host(replica.net.flat.values) == before).all(), "the update was discarded"
    control.barrier()
    cupy.cuda.runtime.deviceSynchronize()
    compiled.clear()
    control.barrier()
    replica.train_step(feed, step)
    assert (ops.to_host(replica.net.flat.values) != before).any()
    control.barrier()
    found = list(compiled)
    replica.close()
    device_comm.close()
    return found


@pytest.mark.parametrize("updater", UPDATERS)
def test_the_first_step_compiles_nothing(cupy, monkeypatch, updater):
    compiled, compiler = [], import_module("cupy.cuda.compiler")
    whole = compiler._compile_module_with_cache

    def noted(source, *args, **kwargs):
        compiled.append(source)
        return whole(source, *args, **kwargs)

    monkeypatch.setattr(compiler, "_compile_module_with_cache", noted)
    cupy.clear_memo()  # what other tests have compiled
    assert run_threads(3, partial(warmed, updater, compiled), timeout_s=200) == [[]] * 3
