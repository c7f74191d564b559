"""Operators, pieces, shapes and time steps of arrays; dropout on several ranks."""

import numpy as np
import pytest
from unit.loops.autograd.differences import gradients_of, in_float64

from singa_dask import Module, autograd, layers, opt, tensor
from singa_dask.comm import run_threads
from singa_dask.errors import ConfigError, DataError

RNG = np.random.default_rng(7)


def drawn(*shape, above=0.0):
    return (np.abs(RNG.normal(size=shape)) + above if above else RNG.normal(size=shape)).astype(np.float32)


def of(array):
    return tensor.from_numpy(array)


@pytest.mark.parametrize("shape", [(5,), (5, 3), (5, 3, 2, 4)])
def test_operators_have_the_values_of_numpy(shape):
    a, b = drawn(*shape, above=1), drawn(*shape, above=1)
    for made, expected in (
        (of(a) - of(b), a - b),
        (of(a) / of(b), a / b),
        (-of(a), -a),
        (of(a) + 2, a + 2),
        (1.5 - of(a), 1.5 - a),
        (np.float32(3) * of(a), 3 * a),
        (np.float64(2) / of(a), 2 / a),
        (sum([of(a), of(b)]), a + b),
        (autograd.negative(of(a)), -a),
    ):
        assert made.shape == shape
        np.testing.assert_allclose(tensor.to_numpy(made), expected, rtol=1e-6)
    with pytest.raises(TypeError, match="unsupported operand"):
        of(a) - "b"


def test_what_was_computed_is_not_changed_in_place():
    x = of(drawn(3, 2))
    x.requires_grad = True
    before = y = autograd.tanh(x)
    y *= 3
    y /= 2
    assert y is not before and y.call is not None
    np.testing.assert_allclose(tensor.to_numpy(y), 1.5 * tensor.to_numpy(before), rtol=1e-6)
    given = x
    given *= 3
    assert given is x


def test_pieces_and_shapes_are_those_of_the_tensor_s_own_axes():
    image, a, b = drawn(4, 6, 2, 3), drawn(3, 4), drawn(4, 2)
    rows = autograd.split(of(image), 0, 2)
    made = [*autograd.split(of(image), 1, 4), *autograd.split(of(image), 1, [4, 2]), *rows]
    expected = [image[:, :1], image[:, 1:2], image[:, 2:3], image[:, 3:], image[:, :4], image[:, 4:]]
    expected += [image[:2], image[2:], np.concatenate([image] * 2), np.concatenate([image[:2], image[2:]], 3)]
    made += [autograd.cat((*rows, of(image)), axis=0), autograd.cat(rows, axis=3)]
    for shape in ((4, 36), (-1, 3, 12), (4, 2, -1, 3)):
        made.append(autograd.reshape(of(image), shape))
        expected.append(image.reshape(shape))
    for one, other in zip(made, expected, strict=True):
        np.testing.assert_array_equal(tensor.to_numpy(one), other)
    for product in (tensor.to_numpy(of(a) @ of(b)), autograd.matmul(a, b)):
        np.testing.assert_allclose(product, a @ b, rtol=1e-5, atol=1e-6)


CELLS = {"rnn": autograd.RNN, "gru": autograd.GRU}


@pytest.mark.parametrize("name", CELLS)
def test_time_steps_at_once_are_those_one_by_one(name):
    cell, x, h = CELLS[name](3, 4), drawn(5, 2, 3), drawn(2, 4)
    at_once = cell([*x], h)
    assert [each.shape for each in at_once] == [(2, 4)] * 5
    for x_t, expected in zip(x, at_once, strict=True):
        h = cell(x_t, h)
        np.testing.assert_allclose(h, expected, rtol=1e-5, atol=1e-6)
    (alone,) = cell([x[0]])
    np.testing.assert_allclose(cell(x[0]), alone, rtol=1e-6)


@pytest.mark.parametrize("name", [*CELLS, "lstm"])
def test_sequences_are_read_as_lists_of_their_steps(name):
    cell, x = {**CELLS, "lstm": autograd.LSTM}[name](3, 4), drawn(2, 5, 3)
    at_once = cell(of(x))
    assert at_once.shape == (2, 5, 4)
    np.testing.assert_allclose(at_once.to_numpy(), np.stack(cell([*x.swapaxes(0, 1)]), axis=1), rtol=1e-5, atol=1e-6)


def test_layers_of_steps_compute_each_step_of_a_sequence():
    x, fc, table = drawn(2, 5, 3), layers.InnerProduct(num_output=4), layers.Embedding(vocab_size=7, feature_dim=3)
    for layer in (fc, layers.Softmax(), layers.LayerNorm()):
        expected = [layer(of(step)).to_numpy() for step in x.swapaxes(0, 1)]
        np.testing.assert_allclose(layer(of(x)).to_numpy(), np.stack(expected, axis=1), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(layers.Reverse()(of(x)).to_numpy(), x[:, ::-1])
    symbols = RNG.integers(0, 7, (2, 5))
    np.testing.assert_array_equal(table(symbols)[:, 2], table(symbols[:, 2:3]))
    scores, labels = fc(of(x)), RNG.integers(0, 4, (2, 5))
    losses = [autograd.softmax_cross_entropy(scores[:, t], of(labels[:, t])).item() for t in range(5)]
    assert autograd.softmax_cross_entropy(scores, of(labels)).item() == pytest.approx(np.mean(losses), rel=1e-5)


class Everything(Module):
    """Every operation, on given values and on computed ones."""

    def __init__(self):
        self.cell, self.memory = autograd.GRU(3, 4), autograd.LSTM(4, 2)
        self.inner, self.last = autograd.Linear(3, 4), autograd.Linear(2, 4)

    def forward(self, x, image):
        first, second, _ = autograd.split(autograd.reshape(image, (-1, 9)), 1, 3)
        h = self.inner(first - x)
        states = self.cell([x, first, x / (2 + second * second)], h)
        states.append(self.cell(second, states[-1]))
        y = self.last(autograd.cat(self.memory(states)[1:], axis=0))
        weights = autograd.reshape(autograd.cat((self.inner(x), h), axis=1), (2, 2, 4))
        product = autograd.matmul(autograd.reshape(weights, (2, 8)), autograd.cat(states, axis=0))
        return autograd.cat((1 - y, -product / 3), axis=0)


def test_gradients_equal_differences_in_float64():
    pairs = gradients_of(Everything(), [in_float64(2, 3), in_float64(2, 3, 1, 3)], in_float64(8, 4))
    assert {"0", "1", "last_weight", "inner_weight", "cell_z_hx", "cell_c_hh", "memory_f_hh"} < pairs.keys()


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            lambda x: autograd.LSTM(3, 2)(x, drawn(2, 2)),
            ConfigError,
            r"LSTM forgets its cell .*all time steps",
        ),
        (lambda x: layers.BatchNorm()([x, x]), ConfigError, "BatchNorm reads no lists of time steps"),
        (lambda x: autograd.GRU(3, 2)([x, x], [x]), ConfigError, "the initial state an array"),
        (lambda x: autograd.GRU(3, 2)([]), ConfigError, "the time steps must be a list of some"),
        (lambda x: autograd.GRU(3, 2)([x, x], drawn(4, 2)), DataError, "equally many rows. Received: 2, 4"),
        (lambda x: autograd.matmul(x, x), DataError, r"matmul of \(2, 3\) and \(2, 3\): .*test_operations.py:"),
        (lambda x: of(x) + of(drawn(2, 2)), DataError, r"add of \(2, 3\) and \(2, 2\): .*test_operations.py:"),
        (lambda x: autograd.reshape(x, (2, 4)), DataError, r"reshape of \(2, 3\), shape=\(2, 4\)"),
        (lambda x: autograd.split(x, 0, [1, 2]), DataError, r"sizes \[1, 2\] do not make up axis 0 of size 2"),
        (lambda x: autograd.split(x, 1, 4), DataError, "do not make up axis 1 of size 3"),
        (lambda x: autograd.cat((x, drawn(2, 2)), axis=0), DataError, r"concatenate of \(2, 3\) and \(2, 2\)"),
        (lambda x: bool(of(x) > 0), DataError, r"shape \(2, 3\) is neither true nor false"),
    ],
)
def test_errors(call, error, words):
    with pytest.raises(error, match=words):
        call(drawn(2, 3))


class Dropping(Module):
    def __init__(self):
        self.hidden, self.drop, self.scores = autograd.Linear(4, 16), autograd.Dropout(0.4), autograd.Linear(16, 3)

    def forward(self, x):
        return self.scores(self.drop(autograd.tanh(self.hidden(x))))


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_draw_the_masks_of_their_rows(size):
    """So that they train as one process does."""
    x, y = drawn(4, 6, 4), RNG.integers(0, 3, (4, 6))

    def member(comm):
        net, sgd = Dropping(), opt.DistOpt(opt.SGD(0.5), comm=comm)
        rows = slice(6 // comm.size * comm.rank, 6 // comm.size * (comm.rank + 1))
        for x_BF, y_B in zip(x, y, strict=True):
            sgd.backward_and_update(autograd.softmax_cross_entropy(net(of(x_BF[rows])), of(y_B[rows])))
        return net.state_dict()

    autograd.set_seed(3)
    (expected,) = run_threads(1, member)
    for state in run_threads(size, member):
        for name, value in expected.items():
            np.testing.assert_allclose(state[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    ("make", "shape", "message"),
    [
        (lambda: autograd.Linear(4, 8), (6, 3), r"was made for 4 features\. Received: 3"),
        (
            lambda: autograd.Conv2d(3, 4, 3),
            (2, 8, 8, 3),
            r"made for 3 channels\. Received: 8\. Tensors of images",
        ),
        (lambda: autograd.BatchNorm2d(4), (2, 3, 5, 5), r"was made for 4 channels"),
        (lambda: autograd.LSTM(4, 3), (6, 5), r"was made for 4 features"),
    ],
)
def test_arrays_have_the_channels_and_features_that_a_layer_was_made_for(make, shape, message):
    with pytest.raises(ConfigError, match=message):
        make()(of(drawn(*shape)))


def test_linear_flattens_images():
    assert autograd.Linear(3 * 4 * 5, 2)(of(drawn(6, 3, 4, 5))).shape == (6, 2)


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        ("int32", np.array([1, 2**40])),
        ("int32", np.array([1, 0.5])),
        ("int32", np.array([1, np.nan])),
        ("float32", np.array([1, 1e300])),
        ("float32", np.array([1, 2j])),
        ("float32", np.array(["1", "2"])),
    ],
)
def test_a_tensor_refuses_values_that_its_type_cannot_hold(dtype, values):
    with pytest.raises(DataError, match=r"Received"):
        tensor.Tensor((2,), dtype=np.dtype(dtype)).copy_from_numpy(values)


def test_a_tensor_takes_values_of_another_type_that_it_can_hold():
    labels = tensor.Tensor((2,), dtype=tensor.int32)
    labels.copy_from_numpy(np.array([3.0, 2.0]))
    assert labels.to_numpy().tolist() == [3, 2]
    rounded = of(np.array([0.1, np.nan, np.inf]))
    np.testing.assert_array_equal(rounded.to_numpy(), np.array([0.1, np.nan, np.inf], np.float32))


def test_whole_numbers_do_not_overflow_in_operators():
    small = of(np.array([[1]], np.uint8)) - of(np.array([[2]], np.uint8))
    large = of(np.array([[2**31 - 1]], np.int32)) + of(np.array([[1]], np.int32))
    assert (small.item(), large.item()) == (-1, 2**31)


@pytest.mark.parametrize("row", [[0.5, 0.6, 0], [1, 1, 0], [0, 2, 0]])
def test_rows_of_labels_that_are_no_shares_of_classes_are_refused(row):
    with pytest.raises(DataError, match=r"shares of classes must add up to 1.*use BCELoss"):
        autograd.softmax_cross_entropy(of(drawn(2, 3)), of(np.array([[0, 0, 1], row], np.float32)))
    with pytest.raises(ConfigError, match=r"labels must be class numbers, one-hot or shares of the classes"):
        autograd.softmax_cross_entropy(of(drawn(2, 3)), of(np.array([[0, 1], row[:2]], np.float32)))


def test_labels_may_be_shares_of_classes():
    scores, shares = drawn(2, 3), np.array([[0.2, 0.3, 0.5], [0, 0.9, 0.1]], np.float32)
    logs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    loss = autograd.softmax_cross_entropy(of(scores), of(shares))
    assert float(loss) == pytest.approx(-(shares * logs).sum() / 2, rel=1e-5)


def test_an_lstm_that_returns_its_cell_goes_step_by_step():
    layer, x = layers.LSTM(dim_hidden=3, return_cell=True), drawn(2, 4, 5)
    whole, state = layer(of(x)), None
    for step in range(4):
        state = layer(of(x[:, step]), *([] if state is None else [state]))
        np.testing.assert_allclose(state.to_numpy(), whole.to_numpy()[:, step], rtol=1e-5, atol=1e-6)
