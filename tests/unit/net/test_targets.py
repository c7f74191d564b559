"""Targets: numbers to predict that an input layer carries as labels."""

import numpy as np
import pytest
from support.gradients import check_gradients, loss_of
from support.partitioned import assert_equal_to_serial
from support.wired import wired

from singa_dask.algorithms import BP
from singa_dask.errors import ConfigError, DataError
from singa_dask.job.assemble import assemble
from singa_dask.job.job_pb2 import NetProto, Phase
from singa_dask.layers import (
    GRU,
    Accuracy,
    BridgeSrc,
    Convolution,
    EuclideanLoss,
    ImagePreprocess,
    InnerProduct,
    Layer,
    RecordInput,
    SoftmaxLoss,
    Tanh,
)
from singa_dask.layers.context import Step
from singa_dask.layers.partition import Sharding
from singa_dask.net import Batch, Net, features_as_targets
from singa_dask.ops import get_ops

RNG = np.random.default_rng(0)
WIDE = {"init": {"type": "kUniform", "low": -0.5, "high": 0.5}}


def build(layers, **settings):
    proto = layers if isinstance(layers, NetProto) else NetProto(layer=assemble(layers))
    net = Net(proto, Phase.kTrain, get_ops("cpu", np.float64), **settings)
    net.initialise(3)
    return net


def loss(net, x, y):
    return loss_of(net, {"data": Batch(x, y)}, Step(total_rows=len(x)))


def vectors(*between, shape=(), outputs=2):
    return [
        RecordInput("data", shape=[4], target_shape=shape or [outputs]),
        *between,
        InnerProduct("hidden", "data", num_output=5, param=[WIDE, WIDE]),
        Tanh("tanh", "hidden"),
        InnerProduct("out", "tanh", num_output=outputs, param=[WIDE, WIDE]),
        EuclideanLoss("loss", ["out", between[0].name if between else "data"]),
    ]


@pytest.mark.parametrize("shape", [[1], [2], [3, 4], [2, 3, 4], [2, 2, 2, 3]])
def test_a_loss_is_the_distance_to_the_target(shape):
    size = int(np.prod(shape))
    net = build(vectors(shape=shape, outputs=size))
    x = RNG.normal(size=(5, 4))
    y = RNG.normal(size=(5, *net.layers["data"].target_shape))
    found = loss(net, x, y)
    assert found == pytest.approx(0.5 * ((net.output("out") - y.reshape(5, -1)) ** 2).sum() / 5)
    check_gradients(net, lambda: loss(net, x, y), 4)


def test_targets_of_fields_are_channels_first_in_jobs_and_last_in_nets():
    layers = [
        RecordInput("data", shape=[1, 4, 5], target_shape=[3, 4, 5]),
        Convolution("conv", num_filters=3, kernel=3, pad=1, stride=1),
        EuclideanLoss("loss"),
    ]
    net = build(layers)
    x, y = RNG.normal(size=(2, 4, 5, 1)), RNG.normal(size=(2, 4, 5, 3))
    found = loss(net, x, y)
    assert found == pytest.approx(0.5 * ((net.output("conv") - y) ** 2).sum() / 2)
    for other in (np.moveaxis(y, -1, 1), np.moveaxis(y, -1, 1).reshape(2, -1)):
        assert loss(net, x, other) == found


def test_scalar_targets_may_be_given_without_an_axis():
    net = build(vectors(outputs=1))
    x, y = RNG.normal(size=(5, 4)), RNG.normal(size=5)
    assert loss(net, x, y) == loss(net, x, y[:, None])


def test_a_layer_between_passes_the_target_on():
    net = build(vectors(BridgeSrc("bridge", "data")))
    x, y = RNG.normal(size=(5, 4)), RNG.normal(size=(5, 2))
    assert loss(net, x, y) == pytest.approx(0.5 * ((net.output("out") - y) ** 2).sum() / 5)


def test_without_a_target_shape_the_samples_are_the_target():
    net = build([RecordInput("data", shape=[4]), InnerProduct("out", num_output=4), EuclideanLoss("loss")])
    x = RNG.normal(size=(5, 4))
    assert loss(net, x, np.zeros(5, np.int64)) == pytest.approx(0.5 * ((net.output("out") - x) ** 2).sum() / 5)
    assert features_as_targets(net) == {"loss": "data"}
    assert features_as_targets(build(vectors())) == {}


def classes(kind):
    return [RecordInput("data", shape=[4], target_shape=[1]), InnerProduct("out", num_output=3), kind("loss")]


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        (vectors(shape=[3]), r"\(2,\) and \(3,\).*Let 'out' have 3 outputs"),
        (
            [RecordInput("data", shape=[4]), InnerProduct("out", num_output=2), EuclideanLoss("loss")],
            r"\(2,\) and \(4,\).*4 outputs.*store_conf.target_shape, if 'data'",
        ),
        (vectors(shape=[0]), r"store_conf\.target_shape"),
        (vectors(shape=[1, 2, 3, 4, 5]), r"store_conf\.target_shape"),
        (classes(SoftmaxLoss), r"'loss': reads class labels.*\(1,\).*EuclideanLoss"),
        (classes(Accuracy), "'loss': reads class labels"),
    ],
    ids=["another size", "the samples", "no element", "many axes", "SoftmaxLoss", "Accuracy"],
)
def test_targets_that_no_net_can_have_are_refused_with_the_way_out(layers, words):
    with pytest.raises(ConfigError, match=words):
        build(layers)


@pytest.mark.parametrize(
    ("targets", "words"),
    [
        (np.zeros((5, 3)), r"'data': targets of shape \(3,\) do not fit store_conf.target_shape \[2\]"),
        (None, "'loss' needs targets, but 'data'"),
        (np.zeros((4, 2)), "gives 5 rows, but 'data' gives 4 targets"),
    ],
    ids=["shape", "missing", "rows"],
)
def test_unfit_or_missing_targets_are_named(targets, words):
    with pytest.raises(DataError, match=words):
        loss(build(vectors()), np.zeros((5, 4)), targets)


class Difference(Layer):
    """y = x - t, with a target or a layer's output, of all rows together."""

    num_sources = (2, 2)
    target_sources = (1,)
    takes = (Sharding.REPLICATED,)

    def setup(self, *src):
        self.seen = src
        return src[0]

    def forward(self, ctx, *x):
        return x[0] - x[1].reshape(x[0].shape)

    def backward(self, ctx, dy):
        return dy.copy(), None


def test_a_layer_of_ones_own_can_read_targets():
    layers = [RecordInput("data", shape=[2], target_shape=[2, 1, 1]), Difference("difference", ["data", "data"])]
    net = build(layers)
    assert net.layers["difference"].seen == ((2,), (1, 1, 2))
    x, y = RNG.normal(size=(2, 5, 2))
    net.forward({"data": Batch(x, y)}, Step(total_rows=5))
    np.testing.assert_array_equal(net.output("difference"), x - y)


def sequences():
    data = RecordInput("data", shape=[2], sequence=3, target_shape=[2])
    layers = [
        wired(data, unroll_len=1),
        *(layer.proto for layer in (GRU("cell", "data", dim_hidden=4), InnerProduct("out", "cell", num_output=2))),
        EuclideanLoss("loss", ["out", "data"]).proto,
    ]
    return NetProto(layer=layers, unroll_len=3)


@pytest.mark.parametrize("fold", [True, False])
def test_every_time_step_has_its_own_target(fold):
    net = build(sequences(), fold=fold)
    x, y = RNG.normal(size=(2, 5, 3, 2))
    found = loss(net, x, y)
    if fold:
        out = np.moveaxis(net.output("out").reshape(3, 5, 2), 0, 1)
    else:
        out = np.stack([net.output(f"{step}#out") for step in range(3)], axis=1)
    assert found == pytest.approx(0.5 * ((out - y) ** 2).sum() / 5)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("shape", [[1], [2, 2, 1]])
def test_partitioned_nets_train_on_targets_as_serial_ones(dim, shape):
    size = int(np.prod(shape))
    proto = NetProto(layer=assemble(vectors(shape=shape, outputs=size)), partition_dim=dim)
    draw = np.random.default_rng(1)
    batches = [{"data": (draw.normal(size=(7, 4)), draw.normal(size=(7, size)))} for _ in range(3)]
    assert_equal_to_serial(proto, BP(), batches)


@pytest.mark.parametrize("shape", [[2], [2, 2, 3]])
def test_targets_are_gathered_for_a_layer_that_reads_all_rows(shape):
    size = int(np.prod(shape))
    layers = [
        RecordInput("data", shape=[4], target_shape=shape),
        InnerProduct("out", num_output=size, param=[WIDE, WIDE]),
        Difference("difference", ["out", "data"]),
        RecordInput("zero", shape=[size], has_label=False),
        EuclideanLoss("loss", ["difference", "zero"]),
    ]
    draw = np.random.default_rng(1)
    batches = [
        {"data": (draw.normal(size=(7, 4)), draw.normal(size=(7, size))), "zero": (np.zeros((7, size)), None)}
        for _ in range(2)
    ]
    assert_equal_to_serial(NetProto(layer=assemble(layers)), BP(), batches)


IMAGE, MAP = {"shape": [2, 4, 4]}, {"shape": [2, 4, 4], "label_shape": [4, 4]}
FIELD = {"shape": [2, 4, 4], "target_shape": [1, 4, 4]}
MIRROR, CROP = {"mirror": True}, {"pad": 1, "cropsize": 4}


def moved(data, top, conf, *others):
    """A net over images that ImagePreprocess reads."""
    return [RecordInput("data", **data), *others, ImagePreprocess("image", "data", **conf), *top]


def scores(outputs, source="image", **conf):
    return Convolution("out", source, num_filters=outputs, kernel=conf.pop("kernel", 1), **conf)


MOVED = {
    "label map": moved(MAP, [scores(3), SoftmaxLoss("loss", ["out", "data"])], MIRROR),
    "label map that is passed on": moved(MAP, [scores(3), SoftmaxLoss("loss", ["out", "image"])], CROP),
    "half the size": moved(
        {**IMAGE, "label_shape": [2, 2]}, [scores(3, kernel=2, stride=2), SoftmaxLoss("loss", ["out", "data"])], MIRROR
    ),
    "shares": moved({**IMAGE, "target_shape": [3, 4, 4]}, [scores(3), SoftmaxLoss("loss", ["out", "data"])], MIRROR),
    "field": moved(FIELD, [scores(1), EuclideanLoss("loss", ["out", "data"])], {"pad": 1}),
    "field from a vector": moved(
        FIELD, [InnerProduct("out", "image", num_output=16), EuclideanLoss("loss", ["out", "data"])], MIRROR
    ),
    "flat field": moved({**IMAGE, "target_shape": [16]}, [scores(1), EuclideanLoss("loss", ["out", "data"])], MIRROR),
    "field of another input": moved(
        IMAGE, [scores(1), EuclideanLoss("loss", ["out", "t"])], MIRROR, RecordInput("t", shape=[1, 4, 4])
    ),
    "the samples": moved(IMAGE, [scores(2), EuclideanLoss("loss", ["out", "data"])], MIRROR),
    "mask": moved(
        IMAGE, [scores(2), EuclideanLoss("loss", ["out", "image", "mask"])], CROP, RecordInput("mask", shape=[1, 4, 4])
    ),
}


@pytest.mark.parametrize("layers", MOVED.values(), ids=[*MOVED])
def test_images_do_not_move_without_what_they_are_compared_with(layers):
    with pytest.raises(
        ConfigError, match=r"'image': moves images.*(mirror: true|pad: 1).*'loss'.*train\(transform=\)"
    ):
        build(layers)
    proto = NetProto(layer=assemble(layers))
    Net(proto, Phase.kTest, get_ops("cpu", np.float64))
    for layer in proto.layer:
        layer.rgbimage_conf.Clear()
        layer.rgbimage_conf.scale = 0.5
    build(proto)


@pytest.mark.parametrize(
    "layers",
    [
        moved(IMAGE, [InnerProduct("out", "image", num_output=3), SoftmaxLoss("loss", ["out", "data"])], MIRROR),
        moved(
            {**IMAGE, "target_shape": [2]},
            [InnerProduct("out", "image", num_output=2), EuclideanLoss("loss", ["out", "data"])],
            CROP,
        ),
        moved(IMAGE, [scores(2), EuclideanLoss("loss", ["out", "image"])], MIRROR),
        moved(FIELD, [scores(1), EuclideanLoss("loss", ["out", "data"])], {"cropsize": 4}),
        moved(
            IMAGE,
            [scores(2), EuclideanLoss("loss", ["out", "image", "w"])],
            MIRROR,
            RecordInput("w", shape=[1]),
        ),
    ],
    ids=["label", "numbers", "moved samples", "whole images", "weight"],
)
def test_images_may_move_where_positions_do_not_count(layers):
    build(layers)
