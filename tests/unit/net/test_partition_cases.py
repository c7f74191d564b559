"""What a net may hold besides plain chains of layers, partitioned: equal to the serial net, or refused."""

import pytest
from support.partitioned import Member, assert_equal_to_serial, batches, net_of
from support.user_layers import (
    Centred,
    Damped,
    Everything,
    FromFirst,
    Halves,
    Labelled,
    Root,
    Running,
    Scaled,
    Shifted,
    SquaredError,
    Squashed,
    Total,
    Unlike,
)

from singa_dask.algorithms import BP
from singa_dask.comm.threads import run_threads
from singa_dask.errors import ConfigError
from singa_dask.job.job_pb2 import Phase
from singa_dask.layers import (
    LRN,
    BatchNorm,
    Concate,
    Convolution,
    Dropout,
    EuclideanLoss,
    InnerProduct,
    Pooling,
    RecordInput,
    ReLU,
    Sigmoid,
    Slice,
    Softmax,
    SoftmaxLoss,
    Split,
    Tanh,
)
from singa_dask.net import Net
from singa_dask.ops import Ops

ROWS = 7
CASES = {}


def case(build):
    """The layers of a net whose data have 12 features, or are images if its name says so."""
    CASES[build.__name__.replace("_", " ")] = build
    return build


def data(build):
    if "images" in build.__name__:
        return RecordInput("data", shape=[3, 6, 6]), batches((6, 6, 3), 5, ROWS, count=2)
    return RecordInput("data", shape=[12]), batches((12,), 5, ROWS, count=2)


def classified(data, *tops, **dims):
    return [data, *(SoftmaxLoss(f"loss{i}", [ip(f"out{i}", x, 5, **dims), data]) for i, x in enumerate(tops))]


def ip(name, source, units, *names, share=(), **conf):
    shared = [{"name": f"{name}_{role}", "share_from": role} for role in share]
    return InnerProduct(name, source, num_output=units, param=[*({"name": n} for n in names), *shared], **conf)


@case
def user_losses_and_labels(data):
    labels = Labelled("labels", data)
    out = ip("ip", data, 5)
    return [data, SquaredError("mine", [out, labels]), SoftmaxLoss("loss", [ip("out", out, 6), labels])]


@case
def weights_of_samples(data):
    weights = Sigmoid("weights", ip("ip1", data, 1))
    top = ip("out", ip("ip2", data, 9), 5)
    plain, classes = (
        SoftmaxLoss("a", [top, data, weights]),
        SoftmaxLoss("b", [top, data], class_weight=[1, 2, 0, 3, 1]),
    )
    return [data, plain, classes, EuclideanLoss("c", [ip("ip3", top, 12), data, weights])]


@case
def user_layers_with_several_outputs(data):
    halves = Halves("halves", ip("ip1", data, 9))
    return classified(data, ReLU("relu", halves), Scaled("scaled", halves))


@case
def user_layers_that_derive_from_built_in_ones(data):
    wide = Damped("wide", Tanh("tanh", ip("ip1", data, 8)), num_output=9)
    narrow = Squashed("narrow", ReLU("relu", ip("ip2", wide, 9)), num_output=6)
    return classified(data, Shifted("shifted", ip("ip3", narrow, 7)))


@case
def user_layers_whose_rows_depend_on_each_other(data):
    tops = (kind(f"mixed{i}", ip(f"ip{i}", data, 9)) for i, kind in enumerate((Centred, Running, FromFirst)))
    return classified(data, *tops)


@case
def partial_sums_with_many_readers(data):
    partial = ip("ip2", Tanh("tanh", ip("ip1", data, 9)), 6)
    readers = [Root("root", partial), Scaled("scaled", partial), ip("ip3", partial, 6)]
    return [*classified(data, Total("a", [*readers, partial, partial])), SquaredError("b", [readers[1], data])]


@case
def branches_of_different_forms(data):
    columns, rows = Tanh("tanh", ip("ip1", data, 9)), ip("ip2", data, 9, partition_dim=0)
    both = Total("total", [columns, rows, columns])
    return classified(data, Concate("joined", [columns, rows, data, both], concate_dim=1), both)


@case
def slices_and_copies_by_hand(data):
    copies = Split("copies", ip("ip1", data, 8), num_splits=3)
    pieces = Slice("pieces", Tanh("tanh", copies), slice_dim=1, num_slices=3)
    joined = Concate("joined", [pieces, ip("ip2", pieces, 4), pieces, Root("root", copies), copies], concate_dim=1)
    return classified(data, joined)


@case
def slices_of_the_mini_batch_of_images(data):
    """Of 4 workers, two have no row of the first pieces."""
    pieces = Slice("pieces", Convolution("conv1", data, num_filters=4, kernel=3), slice_dim=0, num_slices=3)
    first = ip("ip1", Pooling("pool", ReLU("relu", pieces), kernel=2, stride=2), 8)
    second = ip("ip2", LRN("norm", Convolution("conv2", pieces, num_filters=5, kernel=3, pad=1)), 8)
    third = Softmax("soft", Dropout("drop", BatchNorm("bn", ip("ip3", pieces, 8)), dropout_ratio=0.5))
    return classified(data, Concate("joined", [first, second, third], concate_dim=0))


@case
def slices_of_slices_of_the_mini_batch(data):
    pieces = Slice("pieces", ip("ip1", data, 8), slice_dim=0, num_slices=2)
    smaller = Slice("smaller", pieces, slice_dim=0, num_slices=2)
    joined = Concate("joined", [Tanh("tanh", smaller), BatchNorm("bn", smaller)], concate_dim=0)
    return classified(data, Concate("all", [joined, Root("root", ip("ip2", pieces, 8))], concate_dim=0))


@case
def a_longer_mini_batch(data):
    joined = Concate("joined", [ip("ip1", data, 9), ip("ip2", Tanh("tanh", data), 9)], concate_dim=0)
    pieces = Slice("pieces", Dropout("drop", joined, dropout_ratio=0.4), slice_dim=0, num_slices=2)
    return classified(data, Tanh("a", pieces), ReLU("b", pieces))


@case
def shared_weights(data):
    """The owner comes after a layer that shares with it; one of them is transposed."""
    first = ip("ip1", data, 7, share=["w", "b"])
    back = ip("back", Tanh("tanh1", first), 12, share=["w"], transpose=True)
    owner = ip("ip2", Tanh("tanh2", back), 7, "w", "b")
    return [*classified(data, owner), EuclideanLoss("error", [back, data])]


@case
def shared_scales(data):
    first = BatchNorm("bn1", ip("ip1", data, 9), param=[{"name": "scale"}])
    second = BatchNorm("bn2", ip("ip2", first, 9, partition_dim=0), param=[{"share_from": "scale"}])
    return classified(data, second)


@case
def shared_filters_of_images(data):
    conv1 = Convolution("conv1", data, num_filters=3, kernel=3, pad=1, param=[{"name": "w"}, {"name": "b"}])
    shared = [{"name": "w2", "share_from": "w"}, {"name": "b2", "share_from": "b"}]
    return classified(data, Convolution("conv2", Tanh("tanh", conv1), num_filters=3, kernel=3, pad=1, param=shared))


@case
def layers_that_nothing_reads(data):
    first = ip("ip1", data, 8)
    return [*classified(data, first), ip("dead", Tanh("tanh", first), 7)]


@case
def targets_with_parameters(data):
    first, second = ip("ip1", data, 9), ip("ip2", data, 9)
    return [*classified(data, first), EuclideanLoss("error", [first, second])]


@case
def normalised_channels_of_images(data):
    relu = ReLU("relu", Convolution("conv", data, num_filters=5, kernel=3, partition_dim=0), partition_dim=1)
    pool = Pooling("pool", LRN("norm", BatchNorm("bn", relu, partition_dim=1), local_size=7), kernel=2, stride=2)
    weight = InnerProduct("ip", pool, num_output=6, param=[{"partition_dim": 0}])
    return classified(data, Softmax("soft", weight), partition_dim=1)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("name", CASES)
def test_equals_the_serial_net(name, dim):
    source, batch = data(CASES[name])
    net = net_of(CASES[name](source), partition_dim=dim)
    assert_equal_to_serial(net, BP(), batch, (2, 4), rtol=1e-8)


INPUTS = {"partition_dim": 0}  # of the weight: its input features
REFUSED = {
    "few outputs": (
        lambda data: classified(data, ip("ip1", data, 3, partition_dim=1)),
        ["layer 'ip1'", "cannot be split over 4 workers: it has 3 features", "partition_dim: 1", "partition_dim: 0"],
    ),
    "few inputs": (
        lambda data: [data, ip("ip1", data, 3), InnerProduct("ip2", "ip1", num_output=9, param=[INPUTS])],
        ["layer 'ip2'", "over 4 workers: its source has 3 features", "param.partition_dim"],
    ),
    "a shared weight, split only here": (
        lambda data: [data, ip("a", data, 12, "w", partition_dim=0), ip("b", "a", 12, share=["w"], partition_dim=1)],
        ["layer 'b'", "shares a parameter with a layer that has partition_dim 0", "partition_dim: 1"],
    ),
    "a shared bias, split only there": (
        lambda data: classified(
            data, ip("b", ip("a", data, 9, "w", "v", partition_dim=1), 9, "u", share=["v"], partition_dim=0)
        ),
        ["layer 'b'", "shares a parameter with a layer that has partition_dim 1", "Received: partition_dim: 0"],
    ),
    "a shared bias of a layer that splits its inputs": (
        lambda data: classified(
            data, ip("c", Tanh("t", ip("b", ip("a", data, 5, "w", "v"), 9)), 5, "u", share=["v"]), partition_dim=1
        ),
        ["layer 'c'", "splits it along axis 0. Received: c_v along no axis", "partition_dim for both layers, or 0"],
    ),
    "a loss of rows that depend on each other": (
        lambda data: [data, Unlike("mine", [ip("ip", data, 12), data])],
        ["layer 'mine'", "the gradient of a row depends on other rows", "4 workers", "Loss(...)", "Sharding.BATCH"],
    ),
    "labels that are passed on of all rows": (
        lambda data: [data, Everything("all", data), SoftmaxLoss("loss", [ip("ip", "all", 5), "all"])],
        ["layer 'all'", "passes on labels, so it must take rows. Received: replicated", "Add Sharding.BATCH"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_net_that_cannot_be_partitioned_is_refused(name):
    build, words = REFUSED[name]
    with pytest.raises(ConfigError) as caught:
        Net(net_of(build(RecordInput("data", shape=[12])), partition_dim=1), Phase.kTrain, Ops(), rank=3, size=4)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_layers_with_few_features_stay_whole():
    source, batch = data(shared_weights)
    few = Tanh("few", ip("ip1", source, 3))
    layers = classified(source, ip("ip2", few, 2), ip("ip3", few, 8))
    results = assert_equal_to_serial(net_of(layers, partition_dim=1), BP(), batch, (2, 3, 4))
    assert {size: {name[:3] for name in result["own"]} for size, result in results.items()} == {
        2: {"ip1", "ip2", "ip3", "out"},
        3: {"ip1", "ip2", "ip3", "out"},  # ip2 over its inputs
        4: {"ip3", "out"},
    }


def evaluated(comm, proto):
    """Metrics of a test net between two steps, of mini-batches of another size."""
    member, found = Member(comm, proto, phases=(Phase.kTrain, Phase.kTest)), []
    for number, batch in enumerate(batches((12,), 5, ROWS, count=3)):
        member.gradients(BP(), batch, number)
        for flat in (member.net.flat, member.net.own):
            flat.values -= 0.1 * flat.grads
        for other in batches((12,), 5, 9, count=2, seed=1):
            feed, step = member.feed(other, number, Phase.kTest)
            found.append(member.means(BP().test_one_batch(member.nets[Phase.kTest], feed, step)))
    return found


@pytest.mark.parametrize("dims", [(0, 0), (1, 1), (1, 0), (0, 1)])
def test_a_test_net_has_the_shards_of_the_training_net(dims):
    """Its layers read other ones than those of the training net, or in another sharding."""
    source = RecordInput("data", shape=[12])
    first = Dropout("drop", BatchNorm("bn", ip("ip1", source, 9, partition_dim=dims[0])), dropout_ratio=0.5)
    plain = Tanh("tanh", first, exclude=["kTest"])
    test = Softmax("tanh", first, num_softmax_per_instance=3, include=["kTest"])
    top = ip("ip2", "tanh", 5, partition_dim=dims[1])
    net = net_of([source, first.inputs[0].inputs[0], first.inputs[0], first, plain, test, top, SoftmaxLoss("loss")])
    (serial,) = run_threads(1, evaluated, net)
    assert len(serial) == 6 and serial[0]["loss"] != serial[2]["loss"]
    for size in (2, 3, 4):
        for found in run_threads(size, evaluated, net):
            for ours, theirs in zip(found, serial, strict=True):
                assert ours == pytest.approx(theirs, rel=1e-10)
