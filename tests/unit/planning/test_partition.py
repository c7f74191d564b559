"""The choice of a partition: nets realise it, and it is the cheapest of all that a job can ask for."""

from itertools import product
from zlib import crc32

import pytest
from support import planned
from support.random_nets import RandomNet

from singa_dask.errors import ConfigError
from singa_dask.job import ClusterTopology
from singa_dask.job.job_pb2 import JobProto, NetProto, Phase
from singa_dask.layers import GRU, BatchNorm, InnerProduct, RecordInput, SoftmaxLoss, Tanh
from singa_dask.net import Net
from singa_dask.ops import Ops
from singa_dask.planning.partition import choose
from singa_dask.planning.partition_search import Weights, cheapest
from singa_dask.planning.ways import Ways
from singa_dask.planning.work import NBYTES, worker_step


class DrawnCosts:
    """Seconds that are drawn for every call, so that no rule of thumb finds the cheapest partition."""

    def __init__(self, seed=0, exchange=0.01):
        self.seed, self.per_byte = seed, exchange

    def _drawn(self, what):
        return crc32(f"{self.seed} {what}".encode()) / 2**32

    def call(self, work):
        return self._drawn(work), self._drawn((work, "backward"))

    def collective(self, collective):
        return self._drawn(collective)

    def exchange(self, nbytes):
        return self.per_byte * nbytes

    def update(self, elements):
        return 0.001 * elements

    def of_step(self, job):
        """The sum of the costs of a worker's step, by the net that the worker builds."""
        step, size = worker_step(job), job.cluster.nworkers_per_group
        net = Net(job.neuralnet, Phase.kTrain, Ops(), rank=size - 1, size=size, allocate=False)
        replicated, own = (sum(p.size for p in net.params if (p.shard is None) == whole) for whole in (True, False))
        seconds = self.exchange(NBYTES * replicated) + self.update(replicated / size + own)
        for calls, backward in ((step.forward, False), (step.backward, True)):
            for call in calls:
                seconds += self.call(call.work)[backward] + sum(map(self.collective, call.collectives))
        return seconds


def job_of(layers, workers, batchsize=7):
    job = planned.job_of(layers, ClusterTopology.allreduce(workers))
    job.neuralnet.partition = NetProto.auto
    job.neuralnet.layer[0].store_conf.batchsize.append(batchsize)
    return job


def evaluated(costs):
    """What `choose` evaluates with: the additive costs, and the memory of messages."""
    return lambda job: (costs.of_step(job), worker_step(job).need)


@pytest.mark.parametrize("seed", range(12))
def test_nets_realise_a_choice_at_its_cost(seed):
    costs = DrawnCosts(seed)
    choice = choose(job_of(RandomNet(seed).layers, 2 + seed % 3), costs, evaluated(costs))
    shardings = worker_step(choice.job()).shardings
    assert {name: shardings[name] for name in choice.shardings} == choice.shardings
    assert sum(choice.seconds.values()) == pytest.approx(costs.of_step(choice.job())) == pytest.approx(choice.step_s)


@pytest.mark.parametrize("seed", range(4))
def test_no_parameter_is_split_that_the_updater_needs_as_a_whole(seed):
    layers = [RecordInput("x", shape=[9]), InnerProduct("a", num_output=30), Tanh(), InnerProduct("b", num_output=4)]
    costs, job = DrawnCosts(seed, exchange=10.0), job_of([*layers, SoftmaxLoss()], 3)
    split = []
    for rule in ("kAdamW", "kLAMB"):
        job.updater.type = job.updater.UpdaterType.Value(rule)
        chosen = choose(job, costs, evaluated(costs)).job()
        net = Net(chosen.neuralnet, Phase.kTrain, Ops(), rank=0, size=3, allocate=False)
        split.append(bool(net.own.params))
    assert split == [True, False]


def assignments(job, ways):
    """The job with every assignment of its layers that a net can have."""
    for chosen in product(*(ways.of(name) for name in ways.layers)):
        asked = JobProto()
        asked.CopyFrom(job)
        for layer, way in zip(asked.neuralnet.layer, chosen, strict=True):
            way.write(layer)
        try:
            worker_step(asked)
        except ConfigError:
            continue
        yield asked


@pytest.mark.parametrize("seed", [0, 1, 2, 7, 19, 21, 24])
def test_the_search_finds_the_cheapest_of_all_assignments(seed):
    costs = DrawnCosts(seed)
    job = job_of(RandomNet(seed, depth=(1, 3), heads=1).layers, 2 + seed % 3)
    job.neuralnet.ClearField("partition")
    ways = Ways(job, costs)
    found = cheapest(ways, Weights())
    least = min(map(costs.of_step, assignments(job, ways)))
    assert sum(map(Weights().cost, found.placed.values())) == pytest.approx(least)


class Machine:
    """Calls in proportion to their operations, and a network: what a profile would say."""

    def __init__(self, per_operation=1e-10, per_byte=1e-8):
        self.per_operation, self.per_byte = per_operation, per_byte

    def call(self, work):
        seconds = self.per_operation * (work.operations + work.elements)
        return seconds, 2 * seconds

    def collective(self, collective):
        return 1e-4 + self.per_byte * collective.nbytes

    def exchange(self, nbytes):
        return 2 * self.per_byte * nbytes

    def update(self, elements):
        return 1e-9 * elements

    of_step = DrawnCosts.of_step


def wide(workers=4, **fields):
    data = RecordInput("data", shape=[100], **fields)
    return job_of(
        [
            data,
            InnerProduct("wide", num_output=4000),
            Tanh("tanh"),
            InnerProduct("out", num_output=10),
            SoftmaxLoss("loss"),
        ],
        workers,
    )


def chosen(job, costs=None, memory=None):
    costs = costs or Machine()
    return choose(job, costs, evaluated(costs), memory)


def test_large_layers_are_split_and_the_reason_has_their_bytes():
    choice = chosen(wide())
    shardings = choice.shardings
    assert shardings["wide"] == ("replicated", "features") and shardings["out"] == ("features", "partial sum")
    assert choice.step_s < choice.unsplit_s
    assert choice.reasons["wide"] == "its gradients would be 1.62 MB, its activations are 2.8 kB"
    assert choice.reasons["tanh"] == "goes on with the features of 'wide'"
    by_name = {layer.name: layer for layer in choice.job().neuralnet.layer}
    assert by_name["out"].partition_dim == 1 and by_name["out"].param[0].partition_dim == 0
    assert not choice.job().neuralnet.HasField("partition")


def test_nothing_is_split_where_that_gains_less_than_a_hundredth():
    choice = chosen(wide(), Machine(per_byte=0.0))
    assert set(choice.shardings.values()) == {("batch", "batch")} and not choice.reasons


def test_memory_splits_a_net_that_is_faster_undivided():
    slow = Machine(per_byte=0.0)
    job = wide()
    whole, least = chosen(job, slow).need.total, chosen(job).need.total
    choice = chosen(job, slow, memory=(whole + least) / 2)
    assert choice.need.total <= (whole + least) / 2 and choice.step_s > choice.unsplit_s
    assert "does not fit into" in choice.reasons["wide"]


def test_a_net_that_fits_in_no_partition_is_an_error():
    with pytest.raises(ConfigError, match=r"neuralnet.partition: needs .* MB per worker .* over 4 workers.*0.1 MB"):
        chosen(wide(), memory=1e5)


def test_what_the_job_says_of_a_layer_holds():
    job = wide()
    job.neuralnet.layer[1].partition_dim = 0
    choice = chosen(job)
    assert choice.shardings["wide"] == ("batch", "batch")
    job.neuralnet.layer[1].partition_dim = 1
    assert chosen(job, Machine(per_byte=0.0)).shardings["wide"] == ("replicated", "features")


def test_the_time_steps_of_an_unrolled_layer_go_one_way():
    steps = [
        InnerProduct("in", num_output=12),
        BatchNorm("bn"),
        GRU("gru", dim_hidden=9),
        InnerProduct("out", num_output=5),
    ]
    steps.append(SoftmaxLoss("loss"))
    for layer in steps:  # the BatchNorm needs the rows of each step apart
        layer.proto.unroll_len = 4
    costs = DrawnCosts(4)
    choice = chosen(job_of([RecordInput("data", shape=[8], sequence=4), *steps], 3), costs)
    shardings = worker_step(choice.job()).shardings
    assert {name: shardings[name] for name in choice.shardings} == choice.shardings
    assert choice.shardings["0#gru"] == choice.shardings["3#gru"] == ("replicated", "features")
    assert sum(choice.seconds.values()) == pytest.approx(choice.step_s)


def test_one_worker_has_nothing_to_choose():
    choice = chosen(wide(workers=1))
    assert choice.job().neuralnet == NetProto(layer=wide().neuralnet.layer)
