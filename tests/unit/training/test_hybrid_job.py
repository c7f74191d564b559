"""A job with the features of SINGA's hybrid jobs is ready to run, but for its data."""

import pytest
from support.hybrid import HYBRID

from singa_dask.errors import ConfigError
from singa_dask.job import Job
from singa_dask.training.prepare import prepare


def test_without_its_data_it_is_ready(caplog):
    prepared = prepare(Job.from_text(HYBRID), with_data=False)
    rows = {row.layer: row.partition for row in prepared.layers["train"]}
    assert (rows["conv1"], rows["norm1"], rows["ip1"], rows["loss"]) == ("batch", "batch", "features", "batch")
    assert prepared.topology.nprocesses == 2
    (note,) = caplog.messages
    assert note == "cluster.nworkers_per_procs: 2 is ignored: every worker has a process of its own"


def test_its_data_are_the_only_fault():
    with pytest.raises(ConfigError) as error:
        prepare(Job.from_text(HYBRID))
    (problem,) = error.value.problems
    assert problem.key == "layer 'data'.store_conf.backend"
    assert "singa-dask shard" in problem.hint


def test_without_workers_per_process_nothing_is_noted(caplog):
    prepare(Job.from_text(HYBRID.replace("nworkers_per_procs: 2", "")), with_data=False)
    assert not caplog.messages
