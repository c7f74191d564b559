"""Values of losses, weights in them, and what is refused."""

import numpy as np
import pytest
from sklearn.metrics import log_loss
from support.gradients import loss_of

from singa_dask.errors import ConfigError, DataError
from singa_dask.job.assemble import assemble
from singa_dask.job.job_pb2 import NetProto, Phase
from singa_dask.layers import (
    BCELoss,
    Context,
    EuclideanLoss,
    HuberLoss,
    InnerProduct,
    MAELoss,
    MSELoss,
    RecordInput,
    SoftmaxLoss,
    Step,
)
from singa_dask.net import Batch, Net
from singa_dask.ops import Ops, get_ops

B, N = 6, 4
DRAW = np.random.default_rng(0)
LOGITS, LABELS = DRAW.standard_normal((B, N)), np.array([0, 1, 2, 3, 1, 0])
WEIGHTS = np.array([1.0, 0.5, 0, 2, 3, 1])


def run(layer, *x, ops=None, shares=False):
    ops = ops or Ops(np.float64)
    ctx = Context(ops, Step(total_rows=len(x[0])))
    layer.targets = {1: x[1].shape[1:]} if shares else {}
    layer.setup(*[each.shape[1:] for each in x])
    layer.forward(ctx, *x)
    dx, *others = layer.backward(ctx, None)
    assert others == [None] * (len(x) - 1), "only predictions get a gradient"
    return {name: metric.mean for name, metric in layer.metrics(ctx).items()}, dx


def test_the_loss_is_the_weighted_sum_over_the_number_of_rows():
    factors = np.array([1, 4, 0.5, 2])
    layer = SoftmaxLoss("loss", ["x", "data", "w"], class_weight=factors.tolist(), scale=2)
    metrics, _ = run(layer, LOGITS, LABELS, WEIGHTS)
    probabilities = np.exp(LOGITS) / np.exp(LOGITS).sum(axis=1, keepdims=True)
    each = WEIGHTS * factors[LABELS]
    mean = log_loss(LABELS, probabilities, sample_weight=each)  # divides by the sum of the weights
    assert metrics["loss"] == pytest.approx(2 * mean * each.sum() / B)
    assert metrics["accuracy"] == (probabilities.argmax(axis=1) == LABELS).mean()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_weights_of_one_change_nothing_even_for_extreme_outputs(dtype):
    logits = np.array([[3e4, -3e4, 0, 1], [-1e5, 0, 0, 0], [0, 0, 200, 0]], dtype)
    labels, ops = np.array([0, 0, 3]), get_ops("cpu", dtype)
    plain, dx = run(SoftmaxLoss("loss", ["x", "data"]), logits, labels, ops=ops)
    weighted, dx1 = run(SoftmaxLoss("loss", ["x", "data", "w"]), logits, labels, np.ones((3, 1), dtype), ops=ops)
    assert weighted == pytest.approx(plain, rel=1e-6)
    np.testing.assert_array_equal(dx1, dx)


@pytest.mark.parametrize("shape", [(), (2, 3)])
@pytest.mark.parametrize("smoothing", [0.0, 0.25])
def test_shares_of_classes(shape, smoothing):
    """Of samples and of positions. Of one class they are labels; of others, the gradient is the numeric one."""
    x, layer = DRAW.standard_normal((B, *shape, N)), SoftmaxLoss("loss", ["x", "q", "w"], label_smoothing=smoothing)
    labels, weights = DRAW.integers(0, N, (B, *shape)), DRAW.random((B, 1))
    maps = SoftmaxLoss("loss", ["x", "data", "w"], label_smoothing=smoothing)
    given = run(layer, x, np.eye(N)[labels], weights, shares=True)
    expected = run(maps, x, labels, weights, shares=bool(shape))
    assert given[0] == pytest.approx(expected[0])
    np.testing.assert_allclose(given[1], expected[1], atol=1e-14)
    q = DRAW.dirichlet(np.ones(N), (B, *shape))
    dx, direction = run(layer, x, q, weights, shares=True)[1], DRAW.standard_normal(x.shape)
    up, down = (run(layer, x + step * direction, q, weights, shares=True)[0]["loss"] for step in (1e-5, -1e-5))
    assert (up - down) / 2e-5 == pytest.approx(float((dx * direction).sum()), rel=1e-6)
    mixed = 0.7 * np.eye(N)[labels] + 0.3 * np.eye(N)[labels[::-1]]
    parts = [run(maps, x, each, weights, shares=bool(shape)) for each in (labels, labels[::-1])]
    np.testing.assert_allclose(
        run(layer, x, mixed, weights, shares=True)[1], 0.7 * parts[0][1] + 0.3 * parts[1][1], atol=1e-14
    )
    for wrong in (2 * q, q + np.array([-2, 2, 0, 0]), q * np.nan):
        with pytest.raises(DataError, match=r"shares of classes must add up to 1, and none be negative\. Received: "):
            run(layer, x, wrong, weights, shares=True)


def test_a_net_takes_shares_of_classes_as_a_target():
    data = RecordInput("data", shape=[3], target_shape=[N])
    net = Net(
        NetProto(layer=assemble([data, InnerProduct("x", num_output=N), SoftmaxLoss("loss", ["x", "data"])])),
        Phase.kTrain,
        Ops(np.float64),
    )
    assert net.shapes["loss"] == (N,)
    data = RecordInput("data", shape=[3], label_shape=[N])
    with pytest.raises(ConfigError, match="scores of at least two classes at each position of the labels"):
        Net(
            NetProto(layer=assemble([data, InnerProduct("x", num_output=N), SoftmaxLoss("loss", ["x", "data"])])),
            Phase.kTrain,
            Ops(np.float64),
        )


def test_masked_targets_are_not_read():
    x, t = DRAW.standard_normal((B, 2, 3, 2)), DRAW.standard_normal((B, 2, 3, 2))
    mask = DRAW.integers(0, 2, (B, 2, 3, 1)).astype(float)
    assert 0 < mask.sum() < mask.size
    expected = 0.5 * (mask * (x - t) ** 2).sum() / B
    t[np.broadcast_to(mask == 0, t.shape)] = np.nan
    whole = np.broadcast_to(mask, t.shape).reshape(B, -1)
    for each in (mask, whole):
        metrics, dx = run(EuclideanLoss("loss", ["x", "t", "mask"]), x, t, each)
        assert metrics["loss"] == pytest.approx(expected)
        np.testing.assert_allclose(dx, np.where(mask, (x - t) / B, 0))


STEPS = 3


def over_time(*, whole):
    """A label and a weight per record, or (whole) a weight per sequence."""
    loss = SoftmaxLoss("loss", ["out", "data", "w"])
    loss.proto.unroll_conn_type[:] = [0, 1, 1]
    inputs = [RecordInput("data", shape=5, sequence=STEPS), RecordInput("w", shape=1, sequence=0 if whole else STEPS)]
    out = InnerProduct("out", "data", num_output=N)
    out.proto.unroll_conn_type.append(1)
    return NetProto(layer=[layer.proto for layer in [*inputs, out, loss]], unroll_len=STEPS)


@pytest.mark.parametrize("whole", [True, False])
def test_weights_of_sequences(whole):
    rows = 3
    x, y = DRAW.standard_normal((rows, STEPS, 5)), DRAW.integers(0, N, (rows, STEPS))
    w = DRAW.random((rows, 1) if whole else (rows, STEPS))
    losses, gradients = [], []
    for fold in (True, False):
        net = Net(over_time(whole=whole), Phase.kTrain, Ops(np.float64), fold=fold)
        net.initialise(1)
        assert ("loss" in net.layers) == (fold and not whole)
        losses.append(loss_of(net, {"data": Batch(x, y), "w": Batch(w)}, Step(total_rows=rows)) / STEPS)
        net.backward()
        gradients.append(net.flat.grads.copy())
    weight, bias = (net.named_params[f"out_{role}"].value for role in ("weight", "bias"))
    logits = x @ weight + bias
    picked = np.take_along_axis(logits, y[..., None], 2)[..., 0]
    expected = (w * (np.log(np.exp(logits).sum(axis=2)) - picked)).mean()
    assert losses == pytest.approx([expected] * 2)
    np.testing.assert_allclose(gradients[0], gradients[1], rtol=1e-12)


def huber(delta):
    return lambda e: np.where(abs(e) <= delta, e**2 / 2, delta * (abs(e) - delta / 2))


ERRORS = {
    "euclidean": (EuclideanLoss("n", ["x", "t", "w"]), lambda e: e**2 / 2, 1),
    "mse": (MSELoss("n", ["x", "t", "w"]), np.square, 6),
    "sums of squares": (MSELoss("n", ["x", "t", "w"], reduction="SUM"), np.square, 1),
    "mae": (MAELoss("n", ["x", "t", "w"]), abs, 6),
    "sums of errors": (MAELoss("n", ["x", "t", "w"], reduction="SUM"), abs, 1),
    "huber": (HuberLoss("n", ["x", "t", "w"], delta=0.5), huber(0.5), 6),
    "sums of hubers": (HuberLoss("n", ["x", "t", "w"], reduction="SUM"), huber(1), 1),
    "half a huber": (HuberLoss("n", ["x", "t", "w"], scale=0.5), huber(1), 12),
    "sum over the mini-batch": (MSELoss("n", ["x", "t", "w"], reduction="SUM", scale=B), np.square, 1 / B),
}


@pytest.mark.parametrize("name", ERRORS)
def test_a_loss_of_errors_is_the_mean_over_samples_of_a_mean_or_sum_of_values(name):
    layer, each, values = ERRORS[name]
    x, t = DRAW.standard_normal((B, 2, 3)) * 2, DRAW.standard_normal((B, 2, 3))
    for weights in (WEIGHTS, DRAW.random((B, 2, 3))):
        metrics, _ = run(layer, x, t, weights)
        spread = weights.reshape(B, *weights.shape[1:] or (1, 1))
        assert metrics["loss"] == pytest.approx((spread * each(x - t)).sum() / values / B)


@pytest.mark.parametrize("topk", [1, 2])
def test_accuracy_counts_rows_by_their_weights(topk):
    x, labels = np.round(DRAW.standard_normal((40, 4))), DRAW.integers(0, 4, 40)  # with outputs that are equal
    weights = DRAW.integers(0, 4, 40).astype(float)
    counts = weights.astype(int)
    weighted, _ = run(SoftmaxLoss("loss", ["x", "y", "w"], topk=topk), x, labels, weights)
    repeated, _ = run(
        SoftmaxLoss("loss", ["x", "y"], topk=topk), np.repeat(x, counts, axis=0), np.repeat(labels, counts)
    )
    assert weighted["accuracy"] == pytest.approx(repeated["accuracy"])


def test_binary_cross_entropy_counts_what_is_on_the_right_side():
    x = np.array([[4.0, -1, 0.5], [-2, 3, 0], [1, 1, 1]])
    t = np.array([[1, 0, 0.2], [0, 0, 0], [1, np.nan, 1]])
    mask = np.array([[1.0, 2, 1], [1, 1, 1], [1, 0, 3]])
    metrics, dx = run(BCELoss("loss", ["x", "t", "mask"]), x, t, mask)
    y, known = 1 / (1 + np.exp(-x)), np.nan_to_num(t)
    losses = -mask * (known * np.log(y) + (1 - known) * np.log(1 - y))
    assert metrics == pytest.approx({"loss": losses.sum() / 9, "accuracy": 6 / 8})
    np.testing.assert_allclose(dx, mask * (y - known) / 9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_binary_cross_entropy_of_extreme_logits(dtype):
    x, t = np.array([[1e5, -1e5, 60, -60]], dtype), np.array([[1, 1, 0, 0]], dtype)
    metrics, dx = run(BCELoss("loss", ["x", "t"], reduction="SUM"), x, t, ops=get_ops("cpu", dtype))
    assert metrics["loss"] == pytest.approx(1e5 + 60, rel=1e-6)
    np.testing.assert_allclose(dx, [[0, -1, 1, 0]], atol=1e-6)
    tiny, _ = run(
        BCELoss("loss", ["x", "t"]), np.array([[30.0]], dtype), np.ones((1, 1), dtype), ops=get_ops("cpu", dtype)
    )
    assert tiny["loss"] == pytest.approx(np.exp(-30), rel=1e-4), "nothing cancels"


@pytest.mark.parametrize("kind", [BCELoss, HuberLoss, MAELoss, MSELoss, EuclideanLoss])
@pytest.mark.parametrize("ops", [Ops(), get_ops("cpu")], ids=["base", "cpu"])
def test_a_worker_without_rows_has_a_loss_of_none(kind, ops):
    layer, ctx = kind("loss", ["x", "t", "w"]), Context(ops, Step(total_rows=4))
    layer.setup((2, 3), (6,), ())
    nothing = np.empty((0, 2, 3), np.float32)
    layer.forward(ctx, nothing, nothing.reshape(0, 6), np.empty(0, np.float32))
    assert {(metric.total, metric.count) for metric in layer.metrics(ctx).values()} == {(0, 0)}
    assert layer.backward(ctx, None)[0].shape == (0, 2, 3)


@pytest.mark.parametrize(
    ("prediction", "target"),
    [
        ((8, 6, 1), (8, 6, 1)),
        ((8, 6, 2), (96,)),
        ((96,), (8, 6, 2)),
        ((8, 6, 2), (8, 12, 1)),
        ((8, 6, 24), (8, 6, 24, 1)),
        ((1, 1, 48), (6, 8, 1)),
        ((6, 8), (12, 4, 1)),
        ((8, 6, 2), (48, 2, 1)),
    ],
)
def test_targets_may_have_other_axes_in_the_same_order(prediction, target):
    x, t = DRAW.standard_normal((B, *prediction)), DRAW.standard_normal((B, *target))
    measured, dx = run(MSELoss("c", ["x", "t"]), x, t)
    assert measured["loss"] == pytest.approx(((x.reshape(B, -1) - t.reshape(B, -1)) ** 2).mean())
    assert dx.shape == x.shape
