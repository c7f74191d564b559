"""A job that is in order, for tests to break."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from singa_dask.errors import ConfigError, Problem
from singa_dask.job import JobProto, check_job, read_job

GOOD = """\
name: "digits"
train_steps: 500
test_freq: 100
test_steps: 5
train_one_batch { alg: kBP }
updater {
  type: kSGD
  momentum: 0.9
  learning_rate { type: kFixed base_lr: 0.1 }
}
neuralnet {
  layer {
    name: "data"
    type: kRecordInput
    store_conf { path: "dataset:digits/train" batchsize: 64 shape: [1, 8, 8] }
    include: kTrain
  }
  layer {
    name: "data"
    type: kRecordInput
    store_conf { path: "dataset:digits/test" batchsize: 64 shape: [1, 8, 8] }
    include: kTest
  }
  layer {
    name: "conv1"
    type: kConvolution
    srclayers: "data"
    convolution_conf { num_filters: 8 kernel: 3 pad: 1 }
    param { name: "w1" init { type: kUniformSqrtFanIn } }
    param { name: "b1" lr_scale: 2 init { type: kConstant value: 0 } }
  }
  layer { name: "relu1" type: kReLU srclayers: "conv1" }
  layer {
    name: "ip1"
    type: kInnerProduct
    srclayers: "relu1"
    innerproduct_conf { num_output: 10 }
  }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "ip1" srclayers: "data" }
  layer { name: "accuracy" type: kAccuracy srclayers: "ip1" srclayers: "data" include: kTest }
}
cluster { nworkers_per_group: 3 nservers_per_group: 3 }
"""


@pytest.fixture
def good() -> str:
    return GOOD


@pytest.fixture
def problems_of() -> Callable[[str | JobProto], tuple[Problem, ...]]:
    """The problems that reading and checking a text finds, or checking a message."""

    def problems(given: str | JobProto) -> tuple[Problem, ...]:
        try:
            if isinstance(given, JobProto):
                check_job(given)
            else:
                job, positions = read_job(given)
                check_job(job, positions.find)
        except ConfigError as error:
            return error.problems
        return ()

    return problems


@pytest.fixture
def broken() -> Callable[[str, str], str]:
    """The good job with `old` replaced by `new`, once; old must be there."""

    def replace(old: str, new: str) -> str:
        assert re.search(re.escape(old), GOOD), old
        return GOOD.replace(old, new, 1)

    return replace
