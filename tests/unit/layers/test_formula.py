"""Functions as layers: in loops, nets, groups of workers and jobs."""

import pickle

import numpy as np
import pytest
from support import formulas
from support.partitioned import assert_equal_to_serial, batches, net_of

from singa_dask import Job, Model, Module, autograd, check_layer, layers, load_model, opt, tensor
from singa_dask.algorithms import BP
from singa_dask.errors import ConfigError, DataError
from singa_dask.job.code_bundle import pack, unpacked
from singa_dask.job.user_code import user_code
from singa_dask.layers import Convolution, InnerProduct, Lambda, Loss, RecordInput
from singa_dask.loops.distopt import DistOpt
from singa_dask.updaters import SGD

RNG = np.random.default_rng(5)


class Net(Module):
    """Functions, operators, and one function several times."""

    def __init__(self):
        self.conv, self.swish = Convolution(num_filters=3, kernel=3, pad=1), Lambda(formulas.swish, factor=1.5)
        self.scores, self.loss = InnerProduct(num_output=3), Loss(formulas.cross_entropy, labels=1)

    def forward(self, x, y):
        h = Lambda(formulas.swapped)(self.swish(self.conv(x)))
        h = autograd.softmax(h, axis=1) * 2 - h[:, 1:2] / 3
        first, rest = autograd.split(h, 1, [1, 3])
        h = autograd.cat([autograd.mean(autograd.exp(-first), axis=(2, 3)), autograd.max(rest, axis=-1)[:, 0]])
        return self.loss(self.scores(1 - h), y)


def test_a_module_with_functions_is_the_same_in_a_loop_and_a_model(in_float64):
    x, y = RNG.normal(size=(5, 2, 4, 3)), RNG.integers(0, 3, 5)
    model, net = Model([RecordInput("data", shape=[2, 4, 3]), Net()], dtype=np.float64), Net()
    of_model, of_loop = DistOpt(SGD(lr=0.1), model), opt.SGD(lr=0.1)
    for _ in range(3):
        eager, given = net(tensor.from_numpy(x), tensor.from_numpy(y)), model(x.transpose(0, 2, 3, 1), y)
        assert eager.item() == pytest.approx(float(given), rel=1e-12)
        of_loop(eager)
        of_model.backward_and_update(given)
    for name, value in net.state_dict().items():
        np.testing.assert_allclose(model.state_dict()[name], value, rtol=1e-10, atol=1e-13, err_msg=name)


@pytest.mark.parametrize(
    ("layer", "inputs"),
    [
        (Lambda(formulas.swish, factor=2), RNG.normal(size=(4, 3))),
        (Lambda(formulas.swapped), RNG.normal(size=(4, 3, 2, 2))),
        (Lambda(formulas.centred), RNG.normal(size=(4, 3))),
        (Lambda(formulas.differences, unroll_len=3), RNG.normal(size=(6, 2))),
        (Loss(formulas.cross_entropy, labels=1), (RNG.normal(size=(4, 3)), RNG.integers(0, 3, 4))),
        (Loss(formulas.over_steps, labels=1, unroll_len=3), (RNG.normal(size=(6, 2)), RNG.integers(0, 2, 6))),
    ],
)
def test_functions_keep_the_rules_of_layers(layer, inputs):
    check_layer(layer, inputs)


def over_rows(loss, function=formulas.centred):
    return net_of(
        [
            data := RecordInput("data", shape=[2, 3, 3]),
            h := Lambda(function, "rows")(InnerProduct("ip", num_output=4)(data)),
            Loss(loss, "loss", labels=1)(InnerProduct("scores", num_output=4)(h), data),
        ],
    )


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("loss", [formulas.cross_entropy, formulas.in_batch])
def test_workers_compute_together_what_one_computes(loss, dim):
    """A function that reads all rows gets them."""
    net = over_rows(loss)
    net.partition_dim = dim
    assert_equal_to_serial(net, BP(), batches((3, 3, 2), 4), (2, 3), rtol=1e-7, atol=1e-9)


def test_a_loss_in_a_list_reads_what_its_function_takes():
    layers = [RecordInput("data", path="a", batchsize=4), InnerProduct("fc", num_output=3)]
    for loss, sources in ((formulas.cross_entropy, ["fc", "data"]), (formulas.centred, ["fc"])):
        assert Job(name="f", layers=[*layers, Loss(loss)], **RUN).proto.neuralnet.layer[2].srclayers == sources


def test_a_function_travels_with_a_job_by_its_name():
    job = Job(
        name="f", layers=[RecordInput("data", path="dataset:digits/train", batchsize=4, shape=64), Net2()], **RUN
    )
    assert Job.from_text(job.to_text()) == job
    name = f"{formulas.__name__}:swish"
    with unpacked(pack(job.proto)):
        swish = user_code(name, "x")
    assert swish is not formulas.swish and (swish(np.ones((2, 3)), 0) == 0.5).all()


def test_a_layer_of_a_function_without_a_name_is_pickled_after_a_call():
    layer = Lambda(lambda x: x * 2)
    assert layer(np.ones((2, 3)))[0, 0] == 2
    assert pickle.loads(pickle.dumps(layer)).proto == layer.proto


class Net2(Module):
    def __init__(self, function=formulas.swish):
        self.fc, self.function = InnerProduct(num_output=10), Lambda(function)

    def forward(self, x):
        return layers.SoftmaxLoss()(self.function(self.fc(x)), x)


RUN = {"updater": SGD(lr=0.1), "train_steps": 1}
DATA = RecordInput("data", shape=[4])
FC = InnerProduct(num_output=3)


def enclosed(factor):
    def scaled(x):
        return factor * x

    return scaled


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (
            lambda: pack(
                Job(name="f", layers=[RecordInput("data", path="a", batchsize=4), Net2(lambda x: x)], **RUN).proto
            ),
            r"a lambda, which a job cannot name.*Write def name\(x\): .*layers\.Lambda\(name\)",
        ),
        (
            lambda: pack(
                Job(name="f", layers=[RecordInput("data", path="a", batchsize=4), Net2(enclosed(2))], **RUN).proto
            ),
            r"is a function inside another one.*Write def scaled\(x\)",
        ),
        (lambda: Lambda(3), "must be a function"),
        (lambda: Model([Lambda(lambda x: 3)(FC(DATA))]), "must return one tensor"),
        (lambda: Model([Lambda(lambda x: autograd.sum(x))(FC(DATA))]), "must keep the rows of its sources"),
        (
            lambda: Model([Lambda(lambda x: x[:, :1] - x[:, 0])(FC(DATA))]),
            r"an axis that grows with the rows\. Received: \(2, 2\) for 2 rows, \(1, 1\) for one.*\(B, 1\) and \(B,\)",
        ),
        (
            lambda: Model([DATA, FC, Loss(lambda x, t: x[:, :1] - autograd.reshape(t, (-1,)), labels=1)]),
            "an axis that grows with the rows",
        ),
        (
            lambda: Model([Loss(formulas.cross_entropy)(FC(DATA), DATA)]),
            r"Write labels=1 in Loss\(\.\.\.\) .* or labels=\(\)",
        ),
        (lambda: Model([autograd.sum(FC(DATA), axis=1) + FC(DATA)]), r"one number for each sample, \(B,\), with more"),
        (lambda: Model([DATA, FC, Loss(lambda x, y, z: x + y + z, labels=1)]), "takes at least 3 srclayers"),
        (lambda: Model([Loss(formulas.cross_entropy)(FC(DATA))]), "takes at least 2 srclayers"),
        (lambda: Model([Lambda(lambda x: InnerProduct(num_output=2)(x))(FC(DATA))]), "called on a tensor in a net"),
        (lambda: Model([Lambda(lambda x: x + np.ones(7))(FC(DATA))]), r"add of \(2, 3\) and \(7,\).*test_formula\.py"),
        (
            lambda: FC(DATA) * tensor.Tensor((3,), stores_grad=True),
            "is a parameter, but no attribute of the Module.*Make it in __init__",
        ),
    ],
)
def test_errors(build, words):
    with pytest.raises((ConfigError, DataError), match=words):
        build()


def squares(x, t):
    return (x - t) ** 2


def pairs(x):
    return autograd.sum((autograd.reshape(x, (-1, 1, 3)) - autograd.reshape(x, (1, -1, 3))) ** 2, axis=2)


SUMS = {
    "sum": lambda x, t: autograd.sum(squares(x, t)),
    "half the sum": lambda x, t: 0.5 * autograd.sum(autograd.mean(squares(x, t), axis=1)),
    "sum of weighted rows": lambda x, t: autograd.sum(autograd.exp(t) * squares(x, t)),
    "negative": lambda x, t: -autograd.sum(autograd.log_softmax(x) * t),
    "product": lambda x, t: autograd.einsum("ij,ij->", x - t, x - t),
    "pairs of rows": lambda x, t: autograd.sum(pairs(x - t)),
    "mean of rows divided again": lambda x, t: autograd.mean(squares(x, t)) / x.shape[0],
    "rows divided": lambda x, t: autograd.sum(squares(x, t), axis=1) / x.shape[0],
}
MEANS = {
    "mean": lambda x, t: autograd.mean(squares(x, t)),
    "rows": lambda x, t: autograd.sum(squares(x, t), axis=1),
    "root": lambda x, t: autograd.sqrt(autograd.mean(squares(x, t))),
    "weighted mean": lambda x, t: autograd.sum(autograd.exp(t) * squares(x, t)) / autograd.sum(autograd.exp(t)),
    "sum over rows by hand": lambda x, t: autograd.sum(squares(x, t)) / x.shape[0],
    "mean of pairs": lambda x, t: autograd.mean(pairs(x - t)),
    "other pairs": lambda x, t: autograd.sum(pairs(x - t)) / (x.shape[0] * (x.shape[0] - 0.5)),
    "others of each row": lambda x, t: autograd.sum(pairs(x - t), axis=1),
    "in the batch": lambda x, t: autograd.mean(autograd.logsumexp(pairs(x - t), axis=1)),
    "constant": lambda x, t: autograd.mean(squares(x, t) * 0),
}


@pytest.mark.parametrize("name", [*SUMS, *MEANS])
def test_a_loss_is_a_mean_over_rows(name):
    layer, inputs = Loss({**SUMS, **MEANS}[name]), (RNG.normal(size=(6, 3)), RNG.normal(size=(6, 3)))
    if name in MEANS:
        check_layer(layer, inputs)
        return
    with pytest.raises(
        ConfigError, match=r"depends on the number of rows.*for 2 rows.*mean\(\.\.\.\) in place of sum"
    ):
        check_layer(layer, inputs)


def test_a_model_is_saved_with_its_functions(tmp_path):
    x, model = RNG.normal(size=(5, 64)).astype(np.float32), Model([RecordInput("data", shape=64), Net2()], seed=3)
    model.save(tmp_path / "model.h5")
    np.testing.assert_array_equal(load_model(tmp_path / "model.h5").predict(x), model.predict(x))


class Steps(Module):
    """InnerProduct and Softmax of sequences (T, F), and of what is flattened."""

    def __init__(self):
        self.each, self.softmax = InnerProduct(num_output=4), layers.Softmax()
        self.scores, self.loss = InnerProduct(num_output=3), Loss(formulas.cross_entropy, labels=1)

    def forward(self, x, y):
        x = autograd.reshape(x, (-1, 6, 2))
        return self.loss(self.scores(autograd.flatten(self.softmax(autograd.tanh(self.each(x))))), y)


def test_samples_of_steps_are_sequences_in_a_module(in_float64):
    x, y = RNG.normal(size=(5, 12)), RNG.integers(0, 3, 5)
    model, net = Model([RecordInput("data", shape=12), Steps()], dtype=np.float64), Steps()
    eager, given = net(tensor.from_numpy(x), tensor.from_numpy(y)), model(x, y)
    assert eager.item() == pytest.approx(float(given), rel=1e-12)
    assert {name: value.shape for name, value in net.state_dict().items()} == {
        "each_weight": (2, 4),
        "each_bias": (4,),
        "scores_weight": (24, 3),
        "scores_bias": (3,),
    }
    model.net.backward()
    for parameter, gradient in autograd.backward(eager):
        np.testing.assert_allclose(gradient.to_numpy(), model.net.named_params[parameter.name].grad, rtol=1e-9)


@pytest.mark.parametrize("dim", [0, 1])
def test_workers_share_the_steps_of_sequences(dim):
    data = RecordInput("data", shape=12)
    net = net_of([Steps()(data, data)], partition_dim=dim)
    assert_equal_to_serial(net, BP(), batches((12,), 3), (2, 3), rtol=1e-7, atol=1e-9)
