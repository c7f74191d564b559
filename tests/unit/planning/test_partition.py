"""The choice of a partition: nets realise it, and it is the cheapest of all that a job can ask for."""

from itertools import product
from zlib import crc32

import pytest
from support.random_nets import RandomNet

from singa_dask.errors import ConfigError
from singa_dask.job.assemble import assemble
from singa_dask.job.job_pb2 import JobProto, NetProto, Phase
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
        replicated, own = (sum(p.size for p in net.params if (p.portion is None) == whole) for whole in (True, False))
        seconds = self.exchange(NBYTES * replicated) + self.update(replicated / size + own)
        for calls, backward in ((step.forward, False), (step.backward, True)):
            for call in calls:
                seconds += self.call(call.work)[backward] + sum(map(self.collective, call.collectives))
        return seconds


def job_of(layers, workers, batchsize=7):
    job = JobProto(name="net", neuralnet=NetProto(layer=assemble(layers), partition=NetProto.auto))
    job.neuralnet.layer[0].store_conf.batchsize.append(batchsize)
    job.updater.type = job.updater.kSGD
    job.cluster.nworkers_per_group = job.cluster.nservers_per_group = workers
    return job


@pytest.mark.parametrize("seed", range(40))
def test_nets_realise_a_choice_at_its_cost(seed):
    workers, costs = 2 + seed % 3, DrawnCosts(seed)
    job = job_of(RandomNet(seed).layers, workers)
    choice = choose(job, costs, evaluate=costs.of_step)
    forms = worker_step(choice.job()).forms
    assert {name: forms[name] for name in choice.forms} == choice.forms
    assert sum(choice.seconds.values()) == pytest.approx(costs.of_step(choice.job())) == pytest.approx(choice.step_s)


@pytest.mark.parametrize("seed", range(40))
def test_the_search_finds_the_cheapest_of_all_assignments(seed):
    workers, costs = 2 + seed % 3, DrawnCosts(seed)
    job = job_of(RandomNet(seed, depth=(1, 2)).layers, workers)
    job.neuralnet.ClearField("partition")
    ways, least = Ways(job, costs), float("inf")
    every = [ways.of(name) for name in ways.layers]
    for chosen in product(*every):
        asked = JobProto()
        asked.CopyFrom(job)
        for layer, way in zip(asked.neuralnet.layer, chosen, strict=True):
            way.write(layer)
        try:
            least = min(least, costs.of_step(asked))
        except ConfigError:
            continue
    found = cheapest(ways, Weights())
    assert sum(map(Weights().cost, found.placed.values())) == pytest.approx(least)
