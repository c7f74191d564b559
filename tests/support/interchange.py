"""A small net on any number of workers, under any partition, trained to the half of a run and from there on."""

from functools import cache
from types import SimpleNamespace

import numpy as np
from google.protobuf import text_format
from support.snapshots import snapshot

from singa_dask.comm import SoloCommunicator, run_threads
from singa_dask.job.job_pb2 import JobProto, Phase
from singa_dask.layers.context import Step
from singa_dask.layers.partition import LayerPartition, Sharding, even_bounds
from singa_dask.net import Batch
from singa_dask.ops import Ops, get_ops
from singa_dask.training.replica import Replica

BATCH, STEPS, HALF = 10, 6, 3
CLOSE = {"rtol": 1e-4, "atol": 1e-6}
# Workers, and the partition_dim of each layer with parameters.
PLANS = {"serial": (1, "000"), "rows": (2, "000"), "columns": (2, "111"), "mixed": (3, "101"), "four": (4, "110")}
NET = """
name: "mlp" seed: 3
train_one_batch { alg: kBP }
cluster { nworkers_per_group: %(n)d nservers_per_group: %(n)d }
updater { type: kSGD momentum: 0.9 weight_decay: 0.01 learning_rate { type: kFixed base_lr: 0.05 } }
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { batchsize: 10 shape: 12 } }
  layer { name: "ip1" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: %(hidden)d }
          partition_dim: %(a)s }
  layer { name: "tanh" type: kTanh srclayers: "ip1" }
  layer { name: "ip2" type: kInnerProduct srclayers: "tanh" innerproduct_conf { num_output: 9 } partition_dim: %(b)s }
  layer { name: "relu" type: kReLU srclayers: "ip2" }
  layer { name: "ip3" type: kInnerProduct srclayers: "relu" innerproduct_conf { num_output: 10 } partition_dim: %(c)s }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "ip3" srclayers: "data" }
}
"""


def job_of(plan, hidden=14, codec=None, servers=None):
    n, dims = PLANS[plan]
    job = text_format.Parse(NET % {"n": n, "hidden": hidden, **dict(zip("abc", dims, strict=True))}, JobProto())
    job.cluster.nservers_per_group = servers or n
    if codec:
        job.cluster.codec = getattr(job.cluster, codec)
        job.cluster.sparsity = 0.2
    return job


def on_workers(plan, member, *args):
    """member(comm, ...) on every worker of the plan."""
    n = PLANS[plan][0]
    return run_threads(n, member, *args) if n > 1 else [member(SoloCommunicator(), *args)]


def advance(replica, first, last):
    bounds = even_bounds(BATCH, replica.comm.size)
    own = slice(*bounds[replica.comm.rank :][:2])
    counts = tuple(np.diff(bounds).tolist())
    for number in range(first, last):
        draw = np.random.default_rng(number)
        features, labels = draw.random((BATCH, 12), np.float32), draw.integers(0, 10, BATCH)
        feed = {"data": Batch(features[own], labels[own])}
        replica.train_step(feed, Step(Phase.kTrain, number, replica.job.seed, own.start, BATCH, counts))


def formed(job, comm, links=None, **options):
    return Replica.form(job, comm, get_ops("cpu"), links, **options)


def begun(job, comm, steps, links=None):
    replica = formed(job, comm, links)
    replica.group_state.initialise()
    replica.group_state.fetch()
    advance(replica, 0, steps)
    return replica


def resumed(job, comm, saved, steps=STEPS, links=None):
    replica = formed(job, comm, links)
    replica.group_state.restore(saved if comm.rank == 0 else None)
    assert replica.group_state.fetch() == HALF
    advance(replica, HALF, steps)
    return replica


@cache
def saved_after(plan, steps):
    return on_workers(plan, lambda comm: snapshot(begun(job_of(plan), comm, steps), steps))[0]


def carrying(sharding, rank, size, whole):
    """A net whose recurrent layer has this rank's share of states of 7 rows and 5 columns."""
    own = {
        Sharding.BATCH: np.s_[slice(*even_bounds(7, size)[rank:][:2])],
        Sharding.FEATURES: np.s_[:, slice(*even_bounds(5, size)[rank:][:2])],
        Sharding.REPLICATED: np.s_[:],
    }[sharding]
    partition = LayerPartition(makes=sharding, rank=rank, size=size)
    layer = SimpleNamespace(recurrent=True, partition=partition, proto=job_of("serial").neuralnet.layer[1])
    return SimpleNamespace(layers={"ip1": layer}, state={"ip1": [array[own] for array in whole]}, ops=Ops(np.float32))
