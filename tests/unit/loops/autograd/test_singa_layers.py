"""The layers and the Model of SINGA 3.1 and later."""

import copy

import numpy as np
import pytest

from singa_dask import Model, Module, autograd, device, layer, layers, model, opt, sonnx, tensor
from singa_dask.errors import ConfigError, DataError
from singa_dask.layers import RecordInput
from singa_dask.tensors.tensor import Tensor

RNG = np.random.default_rng(5)
IMAGES = RNG.normal(size=(2, 4, 6, 6)).astype(np.float32)  # (B, C, H, W)
WORDS = RNG.normal(size=(3, 5, 4)).astype(np.float32)
ROWS = RNG.normal(size=(6, 4)).astype(np.float32)
CLASSES = RNG.integers(0, 3, 6)


def of(array):
    return tensor.from_numpy(array)


def called(made, *arrays):
    """With the parameters of seed 0."""
    autograd.set_seed(0)
    return made()(*map(of, arrays)).to_numpy()


# As SINGA's users write it, and what it is. Sizes of the source may be left out.
SAME = {
    "filters": (lambda: layer.Conv2d(3, 5), lambda: autograd.Conv2d(4, 3, 5), IMAGES),
    "channels and filters": (lambda: layer.Conv2d(4, 3, 5), lambda: autograd.Conv2d(4, 3, 5), IMAGES),
    "stride by place": (lambda: layer.Conv2d(4, 3, 3, 2, 1), lambda: autograd.Conv2d(4, 3, 3, 2, 1), IMAGES),
    "padding by name": (
        lambda: layer.Conv2d(4, 3, 3, 2, padding=1, bias=False),
        lambda: autograd.Conv2d(4, 3, 3, 2, 1, bias=False),
        IMAGES,
    ),
    "groups": (lambda: layer.Conv2d(4, 8, 3, group=2), lambda: autograd.Conv2d(4, 8, 3, group=2), IMAGES),
    "features": (lambda: layer.Linear(3), lambda: autograd.Linear(4, 3), ROWS),
    "both": (lambda: layer.Linear(4, 3), lambda: autograd.Linear(4, 3), ROWS),
    "no bias": (lambda: layer.Linear(4, 3, False), lambda: autograd.Linear(4, 3, bias=False), ROWS),
    "norm": (lambda: layer.BatchNorm2d(), lambda: autograd.BatchNorm2d(4), IMAGES),
    "by channel": (
        lambda: layer.SeparableConv2d(4, 3, 3, 1, padding=1),
        lambda: autograd.SeparableConv2d(4, 3, 3, 1, 1),
        IMAGES,
    ),
    "table": (lambda: layer.Embedding(3, 2), lambda: layers.Embedding(vocab_size=3, feature_dim=2), CLASSES),
}


@pytest.mark.parametrize("name", SAME)
def test_sizes_of_sources_may_be_left_out(name):
    given, wanted, array = SAME[name]
    np.testing.assert_array_equal(called(given, array), called(wanted, array))


def test_a_relu_may_follow_a_convolution():
    both = layer.Conv2d(3, 5, activation="RELU")
    y = both(of(IMAGES)).to_numpy()
    np.testing.assert_array_equal(y, np.maximum(0, both.conv(of(IMAGES)).to_numpy()))
    assert y.any()


def test_layers_without_parameters_are_functions():
    a, b = of(ROWS), of(2 * ROWS)
    np.testing.assert_array_equal(layer.Add()(a, b).to_numpy(), 3 * ROWS)
    np.testing.assert_array_equal(layer.Cat()([a, b]).to_numpy(), np.concatenate([ROWS, 2 * ROWS]))
    np.testing.assert_array_equal(layer.Cat(1)([a, b]).to_numpy(), np.concatenate([ROWS, 2 * ROWS], axis=1))
    np.testing.assert_array_equal(layer.Reshape()(a, (3, -1)).to_numpy(), ROWS.reshape(3, -1))
    assert layer.Flatten()(of(IMAGES)).shape == (2, 144)
    np.testing.assert_allclose(layer.SoftMax()(a).to_numpy().sum(axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(layer.MeanSquareError()(a, b).to_numpy(), [np.mean(ROWS**2)], rtol=1e-6)
    scores = np.log(np.exp(ROWS) / np.exp(ROWS).sum(axis=1, keepdims=True))
    loss = layer.SoftMaxCrossEntropy()(a, of(CLASSES)).to_numpy()
    np.testing.assert_allclose(loss, [-scores[np.arange(6), CLASSES].mean()], rtol=1e-5)


@pytest.mark.parametrize("mode", ["lstm", "gru", "tanh"])
def test_recurrent_layers_stack_and_read_both_ways(mode):
    kinds = {"lstm": layers.LSTM, "gru": layers.GRU, "tanh": layers.RNN}

    class Both(Module):
        """The states of a second layer."""

        def __init__(self):
            self.onwards = [kinds[mode](dim_hidden=3) for _ in range(2)]
            self.back = [kinds[mode](dim_hidden=3) for _ in range(2)]

        def forward(self, x):
            for there, back in zip(self.onwards, self.back, strict=True):
                turned = autograd.stack([x[:, t] for t in reversed(range(5))], axis=1)
                y = back(turned)
                x = autograd.cat([there(x), autograd.stack([y[:, t] for t in reversed(range(5))], axis=1)], axis=2)
            return x

    wanted = called(Both, WORDS)
    settings = {"num_layers": 2, "bidirectional": True, "rnn_mode": mode}
    np.testing.assert_allclose(called(lambda: layer.CudnnRNN(3, **settings), WORDS), wanted, rtol=1e-5, atol=1e-6)
    last = called(lambda: layer.CudnnRNN(3, return_sequences=False, **settings), WORDS)
    np.testing.assert_allclose(last, wanted[:, -1], rtol=1e-5, atol=1e-6)


def test_states_of_an_lstm_go_on():
    """Two halves of a sequence are the whole one."""
    lstm, zero = layer.LSTM(4, 3), of(np.zeros((3, 3), np.float32))
    steps = [of(WORDS[:, t]) for t in range(5)]
    every, h, c = lstm(steps, (zero, zero))
    first, *state = lstm(steps[:2], (zero, zero))
    second, *end = lstm(steps[2:], state)
    for found, wanted in zip([*first, *second, *end], [*every, h, c], strict=True):
        np.testing.assert_allclose(found.to_numpy(), wanted.to_numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(h.to_numpy(), every[-1].to_numpy())
    states, last = layer.RNN(4, 3)(steps, zero)
    assert len(states) == 5
    assert states[-1] is last


class Scale(layer.Layer):
    made = 0

    def initialize(self, x):
        self.made += 1
        self.factor = Tensor(x.shape[-1:], stores_grad=True)
        self.factor.set_value(2)

    def forward(self, x):
        return x * self.factor


class Net(model.Model):
    """Its layers are a list in the closure of a function."""

    def __init__(self):
        super().__init__()
        parts = [layer.Linear(5), layer.Linear(3)]

        def run(x):
            for part in parts:
                x = part(x)
            return x

        self.scale, self.run = Scale(), run
        self.register_layers(*parts)

    def forward(self, x):
        return self.run(self.scale(x))

    def train_one_batch(self, x, y, how, spars=None):
        out = self.forward(x)
        loss = autograd.softmax_cross_entropy(out, y)
        if how == "plain":
            self.optimizer(loss)
        return out, loss


def test_a_model_trains_a_batch_or_computes():
    net, x, y = Net(), of(ROWS), of(CLASSES)
    net.optimizer = opt.SGD(0.1, 0.9)
    net.compile([x], is_train=True, use_graph=True, sequential=False)
    assert autograd.training
    before = net.state_dict()
    assert list(before) == [
        "run.parts.0_weight",
        "run.parts.0_bias",
        "run.parts.1_weight",
        "run.parts.1_bias",
        "scale.factor",
    ]
    losses = [net(x, y, "plain", spars=0.1)[1].item() for _ in range(5)]
    assert losses[-1] < losses[0]
    assert all(np.abs(array - before[name]).max() > 0 for name, array in net.state_dict().items())
    assert net.scale.made == 1
    trained = net.state_dict()
    net(x, y, "none")
    net.eval()
    np.testing.assert_array_equal(net(x).to_numpy(), net.forward(x).to_numpy())
    assert all((array == trained[name]).all() for name, array in net.state_dict().items())


def test_a_layer_that_makes_parameters_in_its_first_training_step_names_them_at_once():
    """Their names are those of the state of the optimiser from the first step on."""
    net, x, y = Net(), of(ROWS), of(CLASSES)
    net.optimizer = opt.SGD(0.1, 0.9)
    net.train()
    net(x, y, "plain")
    assert "scale.factor" in net.optimizer.state_dict()["updater"]["velocity"]
    net(x, y, "plain")
    assert "scale.factor" in net.state_dict()


def test_a_net_takes_a_layer_that_has_made_its_parameters():
    net, data = Net(), RecordInput("data", shape=[4])
    with pytest.raises(ConfigError, match=r"initialize.*which needs arrays.*Call it on an array once before"):
        net(data)
    net.compile([of(ROWS)], is_train=False)
    same = Model([net(data), layers.SoftmaxLoss()])
    same.load_state_dict(net.state_dict())
    loss = autograd.softmax_cross_entropy(net(of(ROWS)), of(CLASSES)).item()
    np.testing.assert_allclose(float(same(ROWS, CLASSES)), loss, rtol=1e-6)


def test_layers_in_closures_are_not_copied_by_halves():
    net = Net()
    with pytest.raises(ConfigError, match=r"cannot be copied.*run.parts.*Hold them in a list"):
        copy.deepcopy(net)
    net.run = lambda x: x
    assert copy.deepcopy(net).registered[0] is not net.registered[0]


def test_a_variable_without_a_value_is_no_part_of_a_net():
    net = Net()
    net.later = lambda: later
    assert len(net.named_layers()) == 2
    later = layer.Linear(2)
    assert len(net.named_layers()) == 3


def test_a_model_needs_a_batch_to_train():
    class Untrained(model.Model):
        def forward(self, x):
            return x

    autograd.training = True
    with pytest.raises(NotImplementedError, match="train_one_batch"):
        Untrained()(of(ROWS))


@pytest.mark.parametrize(
    ("what", "error", "words"),
    [
        (lambda: layer.Conv2d(3, 5, activation="TANH"), ConfigError, r"NOTSET or RELU.*TANH.*autograd.tanh"),
        (
            lambda: layer.SeparableConv2d(3, 5),
            ConfigError,
            r"channels of its source.*SeparableConv2d\(in_channels, 3, 5\)",
        ),
        (lambda: layer.CudnnRNN(3, rnn_mode="relu"), ConfigError, "lstm, gru, tanh.*relu"),
        (lambda: layer.CudnnRNN(3, batch_first=False), ConfigError, "batch_first.*swapaxes"),
        (lambda: layer.Linear(9, 3)(of(ROWS)), ConfigError, "made for 9 features"),
        (lambda: device.create_cpu_device().SetVerbosity(1), ConfigError, "times of operations.*Set it to 0"),
        (lambda: opt.SGD(0.1, dtype=tensor.float16), ConfigError, "16-bit"),
        (lambda: Tensor((2,), dtype=tensor.float16), ConfigError, "16-bit"),
        (lambda: of(ROWS).as_type(tensor.int32), DataError, "cannot hold"),
    ],
)
def test_what_means_nothing_here_is_refused_with_the_way_out(what, error, words):
    with pytest.raises(error, match=words):
        what()


def test_names_of_singa():
    cpu = device.create_cpu_device()
    assert device.create_cuda_gpus(2) == device.create_cuda_gpus_on([0, 1])
    cpu.SetVerbosity(0)
    cpu.SetSkipIteration(5)
    cpu.PrintTimeProfiling()
    a = of(ROWS)
    np.testing.assert_array_equal(tensor.gt(a, 0).to_numpy(), ROWS > 0)
    np.testing.assert_array_equal(tensor.le(a, 0).to_numpy(), ROWS <= 0)
    np.testing.assert_array_equal(autograd.embedding(of(CLASSES), a).to_numpy(), ROWS[CLASSES])
    assert autograd.unsqueeze(a, axis=[0, 3]).shape == (1, 6, 4, 1)
    assert autograd.unsqueeze(a).shape == (6, 4, 1)
    assert autograd.unsqueeze(a, [-1, -2]).shape == (6, 4, 1, 1)
    assert of(CLASSES).as_type(tensor.float32).dtype == np.float32


def test_a_cut_model_leaves_out_the_last_nodes():
    from support.onnx_models import resnet

    whole, x = resnet((1,), width=4, classes=3, size=8), of(RNG.normal(size=(2, 3, 8, 8)).astype(np.float32))
    weight, bias = (
        np.frombuffer(each.raw_data, np.float32).reshape(each.dims)
        for name in ("fc.weight", "fc.bias")
        for each in whole.graph.initializer
        if each.name == name
    )
    autograd.training = False
    (features,), (scores,) = sonnx.SONNXModel(whole, -3)(x), sonnx.SONNXModel(whole)(x)
    assert features.shape == (2, 4)
    np.testing.assert_allclose(scores.to_numpy(), features.to_numpy() @ weight.T + bias, rtol=1e-5, atol=1e-6)
    assert len(whole.graph.node) == len(resnet((1,), width=4, classes=3, size=8).graph.node)
