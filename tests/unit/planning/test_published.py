"""The cost model against published scaling, from published figures of the machines.

Synchronous training with a mini-batch of the same size on every processor. The profile has what was published of one
processor and of few; the model says what 128, 512 and 1,024 of them do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from support import planned

from singa_dask.job import ClusterTopology
from singa_dask.job.job_pb2 import JobProto
from singa_dask.layers import Convolution, InnerProduct, Pooling, RecordInput, ReLU, SoftmaxLoss
from singa_dask.layers.base import Layer
from singa_dask.planning.model import predict
from singa_dask.planning.prediction import Candidate, Machines, Prediction
from singa_dask.planning.profile import Curve, LayerSample, Point, Profile
from singa_dask.planning.rates import passes_work
from singa_dask.planning.work import NBYTES, worker_step

WITHIN = 0.25
# A backward pass computes two products for each one of the forward pass: both gradients of a layer.
FORWARD, BACKWARD = 1 / 3, 2 / 3


@dataclass(frozen=True)
class Published:
    """A training that was published.

    batch: of a processor. alone: samples/s of one. bucket_size: elements of gradients that are sent at once. per_host:
    processors. curves: of the profile; bandwidth and latency as in Machines.
    """

    net: Sequence[Layer]
    batch: int
    alone: float
    bucket_size: int
    per_host: int
    curves: dict[str, Curve]
    bandwidth: float | None = None
    latency: float | None = None

    def predicted(self, workers: int) -> Prediction:
        """On as many processors."""
        job = self._job(workers)
        work = worker_step(job)
        total = sum(call.work.operations for call in work.forward)
        share = {call.work: self.batch / self.alone * call.work.operations / total for call in work.forward}
        samples = [LayerSample(key, FORWARD * seconds, BACKWARD * seconds) for key, seconds in share.items()]
        samples.append(LayerSample(passes_work(job, work), 0.0, 0.0))
        nothing = dict.fromkeys((f"{name} {self.per_host}" for name in ("update kSGD", "load", "loop")), line(0.0))
        profile = Profile(cores=self.per_host, layers=samples, curves=nothing | self.curves)
        given = {"bandwidth": self.bandwidth, "latency": self.latency}
        machines = Machines(cores=self.per_host, hosts=None, workers_per_host=self.per_host, imagined=True, **given)
        return predict(Candidate(job), profile, machines, work)

    def speedup(self, workers: int) -> float:
        """Samples/s, as a multiple of those of one processor."""
        return self.predicted(workers).samples_per_s / self.alone

    def _job(self, workers: int) -> JobProto:
        topology = ClusterTopology(
            nworkers_per_group=workers, nservers_per_group=workers, bucket_size=self.bucket_size
        )
        job = planned.job_of(self.net, topology)
        job.neuralnet.layer[0].store_conf.batchsize[:] = [workers * self.batch]
        return job


def line(seconds_per_byte: float, *, occupies: bool = False) -> Curve:
    """occupies: whether the processor cannot compute meanwhile."""
    cpu = seconds_per_byte if occupies else 0.0
    return Curve((Point(0, 0.0), Point(1e9, 1e9 * seconds_per_byte, 1e9 * cpu)))


def exchanges(where: str, ranks: int, seconds_per_byte: float, *, occupies: bool = False) -> dict[str, Curve]:
    """Curves of the collectives of so many ranks. seconds_per_byte: of a reduce-scatter or an all-gather."""
    each = {"reduce_scatter": 1, "all_gather": 1, "all_reduce": 2}
    return {f"{n} {where} {ranks}": line(f * seconds_per_byte, occupies=occupies) for n, f in each.items()}


def chain(layers: int, parameters: int) -> list[Layer]:
    """As many layers, of one size, that have about so many parameters together."""
    width = round((parameters / layers) ** 0.5)
    net: list[Layer] = [RecordInput("data", shape=[width], batchsize=1)]
    return [*net, *(InnerProduct(f"ip{i}", num_output=width) for i in range(layers)), SoftmaxLoss("loss")]


def vgg_16() -> list[Layer]:
    """Simonyan and Zisserman 2015, configuration D, for images of 224 x 224: 138 million parameters."""
    net: list[Layer] = [RecordInput("data", shape=[3, 224, 224], batchsize=1)]
    for block, (count, filters) in enumerate(((2, 64), (2, 128), (3, 256), (3, 512), (3, 512))):
        for place in range(count):
            name = f"{block}_{place}"
            net += [Convolution(f"conv{name}", num_filters=filters, kernel=3, pad=1, stride=1), ReLU(f"relu{name}")]
        net.append(Pooling(f"pool{block}", pool="MAX", kernel=2, stride=2))
    for place, outputs in enumerate((4096, 4096, 1000)):
        net.append(InnerProduct(f"fc{place}", num_output=outputs))
    return [*net, SoftmaxLoss("loss")]


def singa() -> Published:
    """SINGA, "Benchmark for Distributed Training" (singa.apache.org/docs/benchmark-train): ResNet-50, 32 images for
    each Tesla K80, 8 of them in a p2.8xlarge, with 10 Gbit/s. Images/s by GPUs, read off its chart: 46 on 1, 583 on
    16, 1184 on 32, 2111 on 64, 4142 on 128.

    The model knows what its first two instances did: by how much the exchange, as far as nothing hid it, made a step
    of 16 GPUs longer. ResNet-50 has 25.56 million parameters (He et al. 2016). SINGA's DistOpt sends gradients of more
    than 2,097,152 elements at once.
    """
    parameters, batch = 25_560_000, 32
    alone, sixteen = 46.0, 583.0
    longer = 16 * batch / sixteen - batch / alone
    curves = exchanges("network", 16, longer / 2 / (NBYTES * parameters), occupies=True)
    return Published(chain(50, parameters), batch, alone, 2_097_152, 8, curves)


def horovod(net: list[Layer], alone: float) -> Published:
    """Horovod (horovod.readthedocs.io, "Benchmarks"): 128 servers with 4 Pascal GPUs each, RoCE of 25 Gbit/s. On 512
    GPUs Inception V3 and ResNet-101 run at 90 % and VGG-16 at 68 % of 512 times one GPU.

    alone: images/s of a Tesla P100 (tensorflow.org/performance/benchmarks, synthetic data, batches of 64). Inside a
    server, PCIe 3.0 x16 carries 15.75 GB/s; 5 microseconds are usual for a message of RoCE. Horovod's buffer for the
    fusion of tensors has 64 MB.
    """
    curves = exchanges("machine", 4, 3 / 4 / 15.75e9)
    return Published(net, 64, alone, (64 << 20) // NBYTES, 4, curves, bandwidth=25e9, latency=5e-6)


def test_resnet_50_of_singa_on_128_gpus():
    published = singa()
    assert published.speedup(128) == pytest.approx(91, rel=WITHIN)
    assert published.speedup(32) == pytest.approx(1184 / 46, rel=WITHIN)
    assert published.speedup(64) == pytest.approx(2111 / 46, rel=WITHIN)


def test_vgg_16_of_horovod_on_512_gpus():
    published = horovod(vgg_16(), 154)
    assert sum(entry.size for entry in worker_step(published._job(1)).net.flat.entries) == 138_357_544
    assert published.speedup(512) / 512 == pytest.approx(0.68, rel=WITHIN)


def test_inception_v3_of_horovod_on_512_gpus():
    """23.85 million parameters (keras.io/api/applications) in 94 convolutions and a product."""
    published = horovod(chain(95, 23_850_000), 142)
    assert published.speedup(512) / 512 == pytest.approx(0.90, rel=WITHIN)


@pytest.mark.parametrize("published", [singa(), horovod(vgg_16(), 154)], ids=["singa", "horovod"])
def test_more_gpus_are_faster_and_less_efficient_up_to_1024(published):
    counts = [16, 64, 256, 1024]
    speedups = [published.speedup(count) for count in counts]
    efficiencies = [speedup / count for speedup, count in zip(speedups, counts, strict=True)]
    assert sorted(speedups) == speedups
    assert sorted(efficiencies, reverse=True) == efficiencies
    # The bytes that a worker sends hardly grow with their number, so the network hardly limits them.
    assert efficiencies[-1] > 0.85 * efficiencies[0]
