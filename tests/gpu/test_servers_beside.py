"""Groups whose servers are in other processes: buckets and activations travel between the GPUs by NCCL, and only what
the servers need comes to the host. The parameters are those of the way through the host, to the last bit."""

from functools import partial

import numpy as np
import pytest
from google.protobuf import text_format

from singa_dask.comm import form_nccl, run_threads
from singa_dask.comm.solo import SoloCommunicator
from singa_dask.job import ClusterTopology
from singa_dask.job.job_pb2 import JobProto, Phase
from singa_dask.layers.context import Step
from singa_dask.net import Batch
from singa_dask.net.flat import GroupLayout
from singa_dask.ops import get_ops
from singa_dask.server import LocalLink, Server
from singa_dask.training.nets import make_nets
from singa_dask.training.placement import parameter_partition, server_plan
from singa_dask.training.replica import Replica

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("emulated")]
ROWS, STEPS = 12, 3
JOB = """
name: "small" seed: 3 gpu: [0, 1, 2]
train_one_batch { alg: kBP }
cluster { nworkers_per_group: %(n)d nservers_per_group: 2 server_worker_separate: true bucket_size: 16 }
updater { type: kSGD momentum: 0.9 %(updater)s learning_rate { type: kFixed base_lr: 0.05 } }
neuralnet {
  %(net)s
  layer { name: "data" type: kRecordInput store_conf { batchsize: 12 shape: 20 } }
  layer { name: "hidden" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 9 } }
  layer { name: "relu" type: kReLU srclayers: "hidden" }
  layer { name: "ip" type: kInnerProduct srclayers: "relu" innerproduct_conf { num_output: 5 } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "ip" srclayers: "data" }
}
"""
KINDS = {
    "plain": {},
    "clipped": {"updater": "clip_norm: 0.1"},
    "split": {"net": "partition_dim: 1"},
}


class Elsewhere(LocalLink):
    """To a server whose replies are copies, as those of another process."""

    local = False


def links_of(job):
    topology, n = ClusterTopology.from_proto(job.cluster), job.cluster.nworkers_per_group
    nets = [make_nets(job, get_ops("cpu"), rank, n, allocate=False)[Phase.kTrain] for rank in range(n)]
    layout = GroupLayout.of(nets[0].flat, nets[0].own, n)
    cut = parameter_partition(topology, layout, job.updater)
    links = {}
    for number in range(topology.nservers_per_group):
        plan = server_plan(job, layout.entries, cut.of_server(number))
        links[number] = Elsewhere(Server(plan.protocol()))
    return links


def trained(job, links, over_nccl, control):
    ops = get_ops("gpu", device_id=control.rank)
    device_comm = None
    if over_nccl:
        device_comm = form_nccl(control, control.rank) if control.size > 1 else SoloCommunicator()
    replica = Replica.form(job, control, ops, links, device_comm)
    replica.group_state.initialise()
    replica.group_state.fetch()
    rows = ROWS // control.size
    for number in range(STEPS):
        draw = np.random.default_rng(number)
        features, labels = draw.random((ROWS, 20), np.float32), draw.integers(0, 5, ROWS)
        own = slice(rows * control.rank, rows * (control.rank + 1))
        feed = {"data": Batch(features[own], labels[own])}
        replica.train_step(feed, Step(Phase.kTrain, number, job.seed, own.start, ROWS, (rows,) * control.size))
    replica.drain()
    found = ops.to_host(replica.net.flat.values).copy(), ops.to_host(replica.net.own.values).copy()
    operations = replica.operations
    replica.close()
    if device_comm is not None:
        device_comm.close()
    return found, operations


@pytest.mark.parametrize(("kind", "n"), [("plain", 3), ("clipped", 3), ("split", 3), ("clipped", 1)])
def test_gradients_travel_between_gpus_also_where_servers_are_elsewhere(kind, n):
    settings = {"n": n, "updater": "", "net": "", **KINDS[kind]}
    job = text_format.Parse(JOB % settings, JobProto())
    through_host, over_nccl = (
        run_threads(n, partial(trained, job, links_of(job), way), timeout_s=120) for way in (False, True)
    )
    for (host, _), (device, operations) in zip(through_host, over_nccl, strict=True):
        for one, other in zip(host, device, strict=True):
            np.testing.assert_array_equal(one, other)
        names = {name for name in operations if "reduce_scatter" in name or "all_gather" in name}
        assert n == 1 or (names and not names & {"reduce_scatter"}), "no gradient travelled through the host"
