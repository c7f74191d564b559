"""One net as a class, a list, a graph and a job file: the same parameters after 100 steps, bit for bit."""

import numpy as np
import pytest

from singa_dask import Job, Model, Module, opt
from singa_dask.layers import Add, Convolution, InnerProduct, Pooling, RecordInput, ReLU, SoftmaxLoss

TEXT = """
name: "spelled"
train_steps: 100
train_one_batch { alg: kBP }
updater { type: kSGD momentum: 0.9 learning_rate { type: kFixed base_lr: 0.05 } }
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { path: "none" batchsize: 16 shape: 1 shape: 8 shape: 8 } }
  layer { name: "conv" type: kConvolution srclayers: "data" convolution_conf { num_filters: 4 kernel: 3 pad: 1 } }
  layer { name: "relu" type: kReLU srclayers: "conv" }
  layer { name: "inner" type: kConvolution srclayers: "relu" convolution_conf { num_filters: 4 kernel: 3 pad: 1 } }
  layer { name: "again" type: kConvolution srclayers: "inner" share_params: "inner"
          convolution_conf { num_filters: 4 kernel: 3 pad: 1 } }
  layer { name: "sum" type: kAdd srclayers: "relu" srclayers: "again" }
  layer { name: "pool" type: kPooling srclayers: "sum" pooling_conf { kernel: 2 stride: 2 } }
  layer { name: "fc" type: kInnerProduct srclayers: "pool" innerproduct_conf { num_output: 10 } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "fc" srclayers: "data" }
}
"""
WINDOW = {"num_filters": 4, "kernel": 3, "pad": 1}


class Net(Module):
    def __init__(self):
        self.conv, self.relu, self.inner = Convolution(**WINDOW), ReLU(), Convolution(**WINDOW)
        self.pool, self.fc = Pooling(kernel=2, stride=2), InnerProduct(num_output=10)

    def forward(self, x):
        x = self.relu(self.conv(x))
        return self.fc(self.pool(x + self.inner(self.inner(x))))


def data():
    return RecordInput("data", path="none", batchsize=16, shape=[1, 8, 8])


def as_list():
    return [
        data(),
        Convolution("conv", **WINDOW),
        ReLU("relu"),
        Convolution("inner", **WINDOW),
        Convolution("again", param=[{"share_from": "inner_weight"}, {"share_from": "inner_bias"}], **WINDOW),
        Add("sum", ["relu", "again"]),
        Pooling("pool", kernel=2, stride=2),
        InnerProduct("fc", num_output=10),
        SoftmaxLoss("loss"),
    ]


def as_graph():
    x = data()
    inner = Convolution("inner", **WINDOW)
    relu = ReLU("relu")(Convolution("conv", **WINDOW)(x))
    summed = relu + inner(inner(relu))
    return [SoftmaxLoss("loss")(InnerProduct("fc", num_output=10)(Pooling("pool", kernel=2, stride=2)(summed)), x)]


SPELLINGS = {
    "class": lambda: [data(), Net(), SoftmaxLoss("loss")],
    "called class": lambda: [SoftmaxLoss("loss")(Net()(x := data()), x)],
    "list": as_list,
    "graph": as_graph,
}


def trained(layers):
    rng, model = np.random.default_rng(1), Model(layers, seed=3)
    sgd = opt.DistOpt(opt.SGD(lr=0.05, momentum=0.9), model)
    for _ in range(100):
        sgd(model(rng.normal(size=(16, 8, 8, 1)).astype(np.float32), rng.integers(0, 10, 16)))
    return model.state_dict()


@pytest.fixture(scope="module")
def of_job_file():
    return trained(Job.from_text(TEXT).proto.neuralnet)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_gives_the_same_parameters(spelling, of_job_file):
    state = trained(SPELLINGS[spelling]())
    assert sorted(state) == sorted(of_job_file)
    for name, value in of_job_file.items():
        np.testing.assert_array_equal(state[name], value, err_msg=name)
