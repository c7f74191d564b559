"""Functions in ONNX models, by onnxruntime."""

import numpy as np
import onnxruntime
import pytest
from support import formulas
from support.onnx_models import read_again

from singa_dask import Model, Module, autograd
from singa_dask.errors import ConfigError
from singa_dask.layers import Convolution, InnerProduct, Lambda, Loss, RecordInput
from singa_dask.tensors.tensor import Tensor

X = np.random.default_rng(4).normal(size=(5, 2, 4, 3)).astype(np.float32)


class Net(Module):
    def __init__(self, function):
        self.conv, self.function = Convolution(num_filters=4, kernel=3, pad=1), function
        self.scores, self.loss = InnerProduct(num_output=3), Loss(formulas.cross_entropy, labels=1)

    def forward(self, x, y):
        h = self.function(self.conv(x))
        return self.loss(self.scores(autograd.flatten(h)), y)


def element_by_element(h):
    a = autograd.sqrt(autograd.abs(h) + 1) / 2 - autograd.exp(-(h**2)) * autograd.cos(h) + autograd.sin(h)
    b = autograd.where(h > 0, autograd.log(a * a + 1), autograd.clip(h, -0.5, 0.5)) + autograd.softplus(h)
    return autograd.maximum(a, b) * (h <= 0.3) - autograd.minimum(autograd.sigmoid(a), autograd.tanh(b)) * (a != b)


def over_axes(h):
    mean, top = autograd.mean(h, axis=(2, 3)), autograd.max(autograd.min(h, axis=3), axis=-1)
    more = autograd.sum(h, axis=1, keepdims=True)[:, 0, 0] + autograd.logsumexp(h, axis=(1, 2))
    return autograd.cat([autograd.softmax(mean), autograd.log_softmax(top), more, autograd.var(mean, axis=1)[:, None]])


def of_shapes(h):
    rows = autograd.reshape(autograd.transpose(h, (0, 2, 3, 1)), (len(h), -1, 4))
    weights = autograd.softmax(rows @ autograd.swapaxes(rows, 1, 2))
    mixed = autograd.einsum("bij,bjk->bik", weights, rows)[:, 1:-1:2]
    mixed = autograd.pad(autograd.take(mixed, np.array([2, 0, 2]), axis=2), [(0, 0), (1, 0), (0, 0)], 3.0)
    return autograd.stack([autograd.squeeze(mixed[:, :1], 1), mixed[..., 0][:, :3]], axis=1)


@pytest.mark.parametrize(
    "function", [element_by_element, over_axes, lambda h: autograd.split(h, 1, [1, 3])[1] * 2, formulas.swapped]
)
def test_a_function_is_written_out(function, tmp_path):
    check(function, tmp_path)


def test_shapes_and_products_are_written_out(tmp_path):
    check(lambda h: of_shapes(h), tmp_path)


class OwnWeight(Net):
    """Its function reads a parameter of its own."""

    def __init__(self):
        super().__init__(lambda h: h * autograd.exp(self.weight) - self.weight)
        self.weight = Tensor(data=X[0, 0, :, :1, None], stores_grad=True)


def test_parameters_of_a_module_itself_are_written_out(tmp_path):
    check(OwnWeight(), tmp_path)


def check(function, folder):
    net = function if isinstance(function, Module) else Net(Lambda(function))
    model = Model([RecordInput("data", shape=[2, 4, 3]), net])
    model.to_onnx(folder / "net.onnx")
    session = onnxruntime.InferenceSession((folder / "net.onnx").read_bytes())
    for rows in (X, X[:2]):
        (theirs,) = session.run(None, {"data": rows})
        read_again(str(folder / "net.onnx"), rows, [theirs])
        np.testing.assert_allclose(theirs, model.predict(rows.transpose(0, 2, 3, 1)), rtol=1e-4, atol=1e-5)


def test_what_onnx_has_not_is_named(tmp_path):
    function = Lambda(lambda h: autograd.take_along_axis(h, np.zeros((1, 1, 1, 1), int), 1))
    with pytest.raises(ConfigError, match="has no counterpart in ONNX, since it calls getitem"):
        Model([RecordInput("data", shape=[2, 4, 3]), Net(function)]).to_onnx(tmp_path / "net.onnx")
