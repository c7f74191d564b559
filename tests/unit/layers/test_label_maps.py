"""Labels of positions: a class for each pixel of an image."""

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score, jaccard_score, log_loss
from support.partitioned import assert_equal_to_serial, net_of

from singa_dask import Model
from singa_dask.algorithms import BP
from singa_dask.errors import ConfigError, DataError
from singa_dask.job.job_pb2 import Phase
from singa_dask.layers import (
    BCELoss,
    Convolution,
    EuclideanLoss,
    InnerProduct,
    RecordInput,
    ReLU,
    SoftmaxLoss,
    Step,
)
from singa_dask.net import Batch, Net
from singa_dask.ops import Ops

B, H, W, C, K = 6, 5, 4, 2, 3
DRAW = np.random.default_rng(0)
X, Y = DRAW.standard_normal((B, H, W, C)), DRAW.integers(0, K, (B, H, W))
MASK = DRAW.integers(0, 3, (B, H, W)).astype(float)


def data(**settings):
    return RecordInput("data", shape=[C, H, W], label_shape=[H, W], **settings)


def net(**loss):
    return [data(), *hidden(), SoftmaxLoss("loss", **loss)]


def hidden():
    return [
        Convolution("conv", "data", num_filters=8, kernel=3, pad=1),
        ReLU("relu"),
        Convolution("out", num_filters=K, kernel=1),
    ]


def masked(**loss):
    mask = RecordInput("mask", shape=[H, W], has_label=False)
    return [data(), mask, *hidden(), SoftmaxLoss("loss", ["out", "data", "mask"], **loss)]


def fed(proto, feed):
    made = Net(proto, Phase.kTrain, Ops(np.float64))
    made.initialise(0)
    step = Step(total_rows=B)
    made.forward({name: Batch(*each) for name, each in feed.items()}, step)
    return made, step


def test_loss_accuracy_and_scores_are_means_over_positions():
    factors = [1, 0.5, 3]
    made, _ = fed(net_of(net(class_weight=factors)), {"data": (X, Y)})
    p, y = made.output("loss"), Y.reshape(-1)
    assert p.shape == (B, H, W, K)
    np.testing.assert_allclose(p.sum(axis=-1), 1)
    weights = np.array(factors)[y]
    expected = log_loss(y, p.reshape(-1, K), sample_weight=weights) * weights.mean()
    means = {name: metric.mean for name, metric in made.metrics().items()}
    assert means["loss"] == pytest.approx(expected)
    assert means["accuracy"] == pytest.approx(accuracy_score(y, p.reshape(-1, K).argmax(axis=1)))


@pytest.mark.parametrize(
    "loss", [{}, {"label_smoothing": 0.1, "scale": 2}, {"ignore_label": 9, "class_weight": [1, 2, 3]}]
)
@pytest.mark.parametrize("layers", [net, masked])
def test_gradients_are_numeric_ones(layers, loss):
    labels = np.where(DRAW.random(Y.shape) < 0.3, 9, Y) if "ignore_label" in loss else Y
    feed = {"data": (X, labels), "mask": (MASK[..., None], None)}
    feed = feed if layers is masked else {"data": feed["data"]}
    made, step = fed(net_of(layers(**loss)), feed)
    made.backward()
    weight = made.named_params["out_weight"]
    gradient, value = weight.grad.copy(), weight.value
    for place in range(0, value.size, 5):
        ends = []
        for shift in (1e-5, -1e-5):
            value.reshape(-1)[place] += shift
            made.forward({name: Batch(*each) for name, each in feed.items()}, step)
            ends.append(made.metrics()["loss"].total / B)
            value.reshape(-1)[place] -= shift
        assert gradient.reshape(-1)[place] == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-5, abs=1e-9)


def test_what_is_ignored_counts_nowhere():
    labels = np.where(MASK > 0, Y, 255)
    ignored, _ = fed(net_of(net(ignore_label=255)), {"data": (X, labels)})
    by_mask, _ = fed(net_of(masked()), {"data": (X, Y), "mask": ((MASK > 0)[..., None].astype(float), None)})
    for name, metric in by_mask.metrics().items():
        assert ignored.metrics()[name].mean == pytest.approx(metric.mean)


@pytest.mark.parametrize("ignored", [-1, -100, 7])
@pytest.mark.parametrize("other", [-1, -7, -100, 3, np.float32(-7)])
@pytest.mark.parametrize("call", ["loss", "evaluate", "metrics"])
def test_only_the_label_itself_is_ignored(call, other, ignored):
    model = Model([RecordInput("data", shape=[3]), SoftmaxLoss(ignore_label=ignored)])
    x = np.eye(3, dtype=np.float32)
    calls = {
        "loss": lambda y: float(model(x, y)),
        "evaluate": lambda y: model.evaluate(x, y)["loss"],
        "metrics": lambda y: model.evaluate(x, y, metrics=["recall"])["loss"],
    }
    if other == ignored:
        assert calls[call](np.array([0, 1, other])) == pytest.approx(2 / 3 * np.log(1 + 2 / np.e))
        return
    with pytest.raises(DataError, match=rf"labels must lie in \[0, 3\).*{int(other)}"):
        calls[call](np.array([0, ignored, other]))


@pytest.mark.parametrize("dim", [0, 1])
def test_parallel_training_equals_serial(dim):
    draw = np.random.default_rng(1)
    shape = 7, H, W
    batches = [{"data": (draw.standard_normal((*shape, C)), draw.integers(0, K, shape).astype(float))} for _ in "123"]
    layers = net(class_weight=[1, 2, 0.5])
    for layer in layers[1:]:
        layer.proto.partition_dim = dim
    results = assert_equal_to_serial(net_of(layers), BP(), batches)
    assert bool(results[2]["own"]) == bool(dim)


def test_metrics_by_name_are_those_of_all_pixels():
    model = Model(net())
    x = X.astype(np.float32)
    found = model.evaluate(x, Y, metrics=["iou", "dice"], batchsize=4)
    best, y = model.predict(x).argmax(axis=-1).reshape(-1), Y.reshape(-1)
    assert found["iou"] == pytest.approx(jaccard_score(y, best, average="macro"))
    assert found["dice"] == pytest.approx(f1_score(y, best, average="macro"))


def test_labels_of_other_sizes_and_losses_of_numbers_are_refused():
    with pytest.raises(
        ConfigError, match=r"scores of each class at each position .* scores \(3,\), labels \(5, 4, 1\)"
    ):
        Model([data(), InnerProduct(num_output=K), SoftmaxLoss()])
    for loss in (EuclideanLoss, BCELoss):
        with pytest.raises(ConfigError, match=r"labels of positions, which are classes.*SoftmaxLoss"):
            Model([data(), Convolution(num_filters=1, kernel=1), loss()])
    with pytest.raises(ConfigError, match="target_shape is given, and label_shape too"):
        Model([data(target_shape=[H, W]), *hidden(), SoftmaxLoss()])
    with pytest.raises(DataError, match=r"labels must lie in \[0, 3\)"):
        Model(net())(X.astype(np.float32), Y + 1)


@pytest.mark.parametrize("given", [{"label_shape": [H, W]}, {"shape": [3], "label_shape": [H]}])
def test_scores_of_a_single_class_are_refused(given):
    read = RecordInput("data", **{"shape": [C, H, W], **given})
    last = Convolution(num_filters=1, kernel=1) if len(given) == 1 else InnerProduct(num_output=H)
    with pytest.raises(
        ConfigError, match=r"scores of at least two classes .* \(5,.* Labels of a single class teach nothing"
    ):
        Model([read, last, SoftmaxLoss()])
