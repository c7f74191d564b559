"""Where parameters lie, and what its server is told."""

import numpy as np
import pytest

from singa_dask.comm import SoloCommunicator
from singa_dask.job import ClusterTopology, Job
from singa_dask.job.job_pb2 import JobProto
from singa_dask.net.flat import Entry, FlatParams, GroupLayout
from singa_dask.training import placement
from singa_dask.training.placement import parameter_partition, products_on_gpus, server_plan
from singa_dask.updaters import LAMB, SGD

ENTRIES = [Entry("a", (32,), 0, 32), Entry("b", (32,), 32, 32), Entry("c", (32,), 64, 32)]


def parted(topology, updater=SGD, **options):
    return parameter_partition(topology, GroupLayout(tuple(ENTRIES), 96), updater(lr=0.1).proto, **options)


@pytest.mark.parametrize(
    ("workers", "bucket_size", "whole", "expected"),
    [
        (2, 32, False, [(0, 32), (32, 64), (64, 96)]),
        (2, 33, False, [(0, 32), (32, 96)]),
        (2, 32, True, [(0, 96)]),
        (1, 32, False, [(0, 96)]),
    ],
)
def test_parameters_are_cut_into_buckets_where_a_group_has_a_network(workers, bucket_size, whole, expected):
    cut = parted(ClusterTopology(1, 1, workers, workers, bucket_size=bucket_size), whole=whole)
    assert [(bucket.start, bucket.stop) for bucket in cut.buckets] == expected


@pytest.mark.parametrize("whole", [True, False])
def test_a_rule_for_whole_parameters_has_them_on_one_server_each(whole):
    topology = ClusterTopology(1, 1, 2, 2, bucket_size=96)
    assert [(s.start, s.stop) for s in parted(topology, whole=whole).slices] == [(0, 48), (48, 96)]
    assert [(s.start, s.stop) for s in parted(topology, LAMB, whole=whole).slices] == [(0, 32), (32, 96)]


def test_a_run_on_gpus_says_what_its_products_are_of_and_what_convolves():
    job = JobProto()
    job.neuralnet.layer.add(name="a").innerproduct_conf.num_output = 2
    assert products_on_gpus(job) == "products of float32 by cuBLAS, added up in float32"
    job.compute, job.neuralnet.layer[0].convolution_conf.num_filters = job.kBFloat16, 3
    said = "products of bfloat16 by cuBLAS, added up in float32; convolutions by im2col and cuBLAS"
    assert products_on_gpus(job) == said


def test_a_server_is_told_the_settings_of_its_job():
    text = 'name: "x" updater { type: kAdaGrad learning_rate { type: kFixed base_lr: 0.5 } } cluster { %s }\n'
    job = Job.from_text(text % "nworker_groups: 2 max_staleness: 3 server_worker_separate: true").proto
    cutting = parted(ClusterTopology.from_proto(job.cluster))
    plan = server_plan(job, tuple(ENTRIES), cutting.of_server(0), key="key", groups=(0, 1), accounts={"left": (1, 2)})
    assert (plan.key, plan.groups, plan.max_staleness, plan.sync_freq) == ("key", (0, 1), 3, 1)
    assert plan.updater == job.updater.SerializeToString() and plan.accounts == {"left": (1, 2)}
    assert plan.entries == tuple(ENTRIES) and sum(s.size for s in plan.slices) == 96


def test_parameters_stay_where_a_group_cannot_share_memory(monkeypatch):
    monkeypatch.setattr(placement, "form_shared_flat", lambda *given: None)
    values = np.ones(96)
    flat = FlatParams(values, np.ones(96), [], (), 96)
    assert placement.form_shared_parameters(flat, SoloCommunicator()) is None and flat.values is values
