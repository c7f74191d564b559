"""What would train nonsense, or fail on the workers, is refused before anything starts."""

from __future__ import annotations

import pytest

from singa_dask import algorithms, layers, updaters
from singa_dask.errors import ConfigError
from singa_dask.job import Job
from singa_dask.training.prepare import prepare


def job(*net, **fields):
    return Job(name="faulty", train_steps=1, layers=net, updater=updaters.SGD(lr=0.1), **fields)


def data(**conf):
    return layers.RecordInput("data", path="shards", shape=[1, 8, 8], batchsize=4, **conf)


def machine(below="data", between="vis"):
    return (
        data(),
        layers.RBMVis("vis", [below, "hid"], hdim=3),
        layers.RBMHid("hid", [between], hdim=3),
    )


@pytest.mark.parametrize(
    ("net", "says"),
    [
        ([data(), layers.InnerProduct("ip", num_output=2), layers.SoftmaxLoss("loss", ["data", "ip"])], "ip"),
        (
            [
                data(),
                layers.InnerProduct("ip", num_output=2),
                layers.ReLU("r"),
                layers.SoftmaxLoss("loss", ["ip", "r"]),
            ],
            "Received: r. Name the layer that reads the data",
        ),
        (
            [data(has_label=False), layers.InnerProduct("ip", num_output=2), layers.SoftmaxLoss("loss")],
            "'data', which has none. Received: has_label: false",
        ),
        (
            [
                *(data(has_label=False), layers.ImagePreprocess("crop"), layers.InnerProduct("ip", num_output=2)),
                layers.SoftmaxLoss("loss", ["ip", "crop"]),
            ],
            "'data', which has none. Received: has_label: false",
        ),
    ],
)
def test_labels_of_what_has_none(net, says):
    with pytest.raises(ConfigError, match=r"neuralnet.layer\[loss\]: reads labels from") as refused:
        prepare(job(*net), with_data=False)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    "stop", [layers.CSVOutput("out", "low", path="out.csv"), layers.ImagePreprocess("out", "low", cropsize=4)]
)
def test_parameters_below_what_stops_gradients(stop):
    net = data(), layers.Convolution("low", "data", num_filters=2, kernel=3), stop
    top = layers.InnerProduct("top", "out", num_output=2), layers.SoftmaxLoss("loss", ["top", "data"])
    with pytest.raises(ConfigError, match=r"neuralnet.layer\[out\]: no gradient flows through this layer"):
        prepare(job(*net, *top), with_data=False)


def test_a_net_that_reads_no_data():
    net = layers.Dummy("data", input=True, shape=[4, 3]), layers.InnerProduct("ip", num_output=2)
    with pytest.raises(ConfigError, match="no layer reads data in phase kTrain"):
        prepare(job(*net, layers.EuclideanLoss("loss", ["ip", "ip"])), with_data=False)


def test_an_algorithm_that_is_none():
    net = data(), layers.InnerProduct("ip", num_output=2), layers.SoftmaxLoss("loss")
    with pytest.raises(ConfigError, match=r"train_one_batch.user_alg: must name a subclass of TrainOneBatch"):
        prepare(job(*net, alg="os:getcwd"), with_data=False)


class Repeated(algorithms.BP):
    """Of a user's own."""

    type = "kUserAlg"

    def prepare(self):
        self.times = self.conf.get("times", 1)


class Forgetful(algorithms.TrainOneBatch):
    def __init__(self, times=1):
        super().__init__()
        self.times = times

    def train_one_batch(self, net, feed, step, on_gradient=None):
        return {}


class Counting(algorithms.BP):
    type = "kUserAlg"

    def __init__(self):
        super().__init__()
        self.count = 0


class Patient(algorithms.CD):
    type = "kUserAlg"


class Unnamed(algorithms.BP):
    pass


def test_settings_of_ones_own_algorithm_reach_the_workers():
    net = data(), layers.InnerProduct("ip", num_output=2), layers.SoftmaxLoss("loss")
    made = prepare(job(*net, alg=Repeated(times=3).proto), with_data=False).job.train_one_batch
    there = algorithms.algorithm(made)
    assert type(there) is Repeated and there.times == 3
    assert algorithms.algorithm(Counting().proto).count == 0
    assert algorithms.algorithm(Patient(cd_k=3).proto).conf.cd_k == 3
    with pytest.raises(ConfigError, match=r"do not reach the workers. Received: times"):
        Forgetful(3)
    with pytest.raises(ConfigError, match=r"type of its base class, kBP.*TrainOneBatch.*kUserAlg"):
        Unnamed()
    with pytest.raises(ConfigError, match=r"BP has no such setting. Received: k=3"):
        algorithms.BP(k=3)


def test_cd_needs_layers_that_read_each_other():
    prepare(job(*machine(), alg="kCD"), with_data=False)
    with pytest.raises(ConfigError, match="no restricted Boltzmann machine"):
        prepare(job(*machine(between="data"), alg="kCD"), with_data=False)
