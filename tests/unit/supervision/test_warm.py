"""What is trained to compile a job's kernels on all machines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from singa_dask.job import ClusterTopology, JobProto
from singa_dask.supervision.warm import few_steps, smallest_batch, widened

TOPOLOGIES = [
    ClusterTopology.allreduce(2),
    ClusterTopology.sandblaster(2, 2),
    ClusterTopology.downpour(2, 2, 1),
    ClusterTopology.hogwild(3),
    ClusterTopology(nworker_groups=4, nserver_groups=2, nservers_per_group=2, server_worker_separate=True),
]


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=lambda topology: topology.describe())
@given(free=st.integers(1, 40), batch=st.integers(1, 100))
def test_all_free_workers_take_part_that_the_job_can_use(topology, free, batch):
    wide = widened(topology, free, batch)
    assert wide.strategy == topology.strategy
    assert wide.nprocesses <= max(free, topology.nprocesses)
    assert wide.nworkers >= topology.nworkers
    unused = free - wide.nprocesses
    if topology.nworker_groups > 1:
        assert unused < topology.nserver_groups * topology.nworkers_per_group
    elif batch >= free:
        assert unused <= 0


def test_a_group_has_no_more_workers_than_the_smallest_mini_batch_has_samples():
    assert widened(ClusterTopology.allreduce(2), 16, 6).nworkers == 6


def test_few_steps_save_and_stop_nothing():
    job = JobProto(train_steps=500, test_freq=100, test_steps=20, test_after=50, checkpoint_freq=10, keep_best="loss")
    for size in (64, 32):
        job.neuralnet.layer.add(name=f"data{size}").store_conf.batchsize.append(size)
    short = few_steps(job)
    assert (short.train_steps, short.test_freq, short.test_steps, short.validate_steps) == (2, 1, 1, 0)
    assert not any(short.HasField(name) for name in ("checkpoint_freq", "keep_best", "test_after"))
    assert smallest_batch(short) == 32
    assert job.train_steps == 500
