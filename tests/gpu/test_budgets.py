"""How often a training step launches kernels and products, waits, copies and allocates: budgets of nets.

Counted on the emulation, under the real CuPy.
"""

import pytest
from support.programs import imported

from singa_dask.comm import SoloCommunicator
from singa_dask.job.job_pb2 import Phase
from singa_dask.layers.context import Step
from singa_dask.net import Batch
from singa_dask.ops import get_ops
from singa_dask.training.replica import Replica

ROWS = 2  # launches do not depend on them
# Launches, products among them; allocations; uploads. Every step waits once, for one download.
BUDGETS = {
    "mnist-cnn": (39, 5, 2),
    "cifar10-cnn": (50, 7, 2),
    "resnet20-64": (301, 102, 2),
    "transformer-12": (217, 98, 1),
    "gru-512": (238, 17, 1),
    "conv3d-8": (38, 5, 2),
}
CLIPPED = 10  # launches that AdamW and clip_norm add to momentum SGD, whatever the size of the net


def adamw(job):
    job.updater.Clear()
    job.updater.type, job.updater.clip_norm, job.updater.weight_decay = job.updater.kAdamW, 1.0, 0.1
    job.updater.learning_rate.type, job.updater.learning_rate.base_lr = job.updater.learning_rate.kFixed, 1e-3
    return job


def counts_of_step(name, emulated, changed=lambda job: job):
    """Of the second step, whose arrays are there."""
    with imported("tools.workloads", "benchmarks") as workloads, imported("tools.jobs", "benchmarks") as jobs:
        workload = workloads.WORKLOADS[name]
        features, labels = (array[:ROWS] for array in workloads.data_of(workload))
        ops, job = get_ops("gpu"), changed(jobs.job_of(workload))
        replica = Replica.form(job, SoloCommunicator(), ops, device_comm=SoloCommunicator())
    replica.group_state.initialise()
    for number in range(2):
        emulated.counts()
        batch = Batch(ops.asarray(features), None if workload.symbols else ops.asarray(labels))
        feed = {replica.net.input_layers[0]: batch}
        replica.train_step(feed, Step(Phase.kTrain, number, total_rows=ROWS))
    counts = emulated.counts()
    launches = sum(times for what, times in counts.items() if what == "product" or what.startswith("launch "))
    assert (counts["wait"], counts["download"]) == (1, 1), counts
    return launches, counts["allocation"], counts["upload"], counts


@pytest.mark.parametrize("name", BUDGETS)
def test_a_step_keeps_to_its_budget(name, emulated):
    *spent, counts = counts_of_step(name, emulated)
    assert all(used <= most for used, most in zip(spent, BUDGETS[name], strict=True)), (spent, counts)


@pytest.mark.parametrize("name", ["mnist-cnn", "resnet20-64", "transformer-12"])
def test_adamw_and_clip_norm_take_few_launches(name, emulated):
    launches, *_, counts = counts_of_step(name, emulated, adamw)
    assert launches <= BUDGETS[name][0] + CLIPPED, counts
