"""Nets put together from layers as objects: chained in a list, or called on each other."""

import pytest

from singa_dask.errors import ConfigError
from singa_dask.job import Job
from singa_dask.job.assemble import assemble
from singa_dask.job.job_pb2 import LayerProto
from singa_dask.layers import (
    GRU,
    LRN,
    Accuracy,
    CharRNN,
    Concate,
    CSVOutput,
    Dummy,
    EuclideanLoss,
    InnerProduct,
    Layer,
    OneHot,
    RBMHid,
    RBMVis,
    RecordInput,
    ReLU,
    RNNLabel,
    SoftmaxLoss,
)
from singa_dask.updaters import SGD


def data(name=None, **more):
    return RecordInput(name, path="dataset:digits/train", batchsize=6, shape=64, **more)


def ip(name=None, *sources, n=10):
    return InnerProduct(name, *sources, num_output=n)


def graph(layers):
    """Name -> names of what it reads, in order."""
    return {message.name: list(message.srclayers) for message in assemble(layers)}


def job(layers, **more):
    return Job(name="j", layers=layers, updater=SGD(lr=0.1), train_steps=1, **more)


def machine():
    x, vis, hid = data("x"), RBMVis("vis", hdim=4), RBMHid("hid", hdim=4)
    vis(x, hid)
    return hid(vis)


def before_names():
    x = data()
    return SoftmaxLoss(None, [ip(None, x), x])


DRAWS = Dummy("z", input=True, shape=[6, 4])


@pytest.mark.parametrize(
    ("layers", "sources"),
    [
        pytest.param(
            [data(), ip(n=20), ReLU(), ip(), SoftmaxLoss()],
            {
                "recordinput1": [],
                "innerproduct1": ["recordinput1"],
                "relu1": ["innerproduct1"],
                "innerproduct2": ["relu1"],
                "softmaxloss1": ["innerproduct2", "recordinput1"],
            },
            id="a list is a chain",
        ),
        pytest.param(
            [data("d"), ip("a"), ReLU("innerproduct1"), ip(), ip("b", "a"), Concate("c", ["b", "a"]), ip()],
            {
                "d": [],
                "a": ["d"],
                "innerproduct1": ["a"],
                "innerproduct2": ["innerproduct1"],
                "b": ["a"],
                "c": ["b", "a"],
                "innerproduct3": ["c"],
            },
            id="names and sources that are given stay and mix",
        ),
        pytest.param(
            [data("old"), data("new"), ip("x"), EuclideanLoss("e", ["x", "old"]), ip("y", "x"), EuclideanLoss("l")],
            {"old": [], "new": [], "x": ["new"], "e": ["x", "old"], "y": ["x"], "l": ["y", "new"]},
            id="targets come from the last input",
        ),
        pytest.param(
            [data("d"), ip("x"), Accuracy("a"), CSVOutput("c", path="out.csv"), SoftmaxLoss("l")],
            {"d": [], "x": ["d"], "a": ["x", "d"], "c": ["x"], "l": ["x", "d"]},
            id="no data flow through outputs",
        ),
        pytest.param(
            [ip()(data()), ReLU(), SoftmaxLoss("l")],
            {
                "recordinput1": [],
                "innerproduct1": ["recordinput1"],
                "relu1": ["innerproduct1"],
                "l": ["relu1", "recordinput1"],
            },
            id="a list goes on behind called layers",
        ),
        pytest.param(
            [
                CharRNN(path="text", unroll_len=5, batchsize=2),
                RNNLabel(),
                OneHot(vocab_size=65),
                GRU(dim_hidden=4),
                ip(n=65),
                SoftmaxLoss("l"),
            ],
            {
                "charrnn1": [],
                "rnnlabel1": ["charrnn1"],
                "onehot1": ["charrnn1"],
                "gru1": ["onehot1"],
                "innerproduct1": ["gru1"],
                "l": ["innerproduct1", "rnnlabel1"],
            },
            id="a recurrent net is a chain too",
        ),
        pytest.param(
            [before_names()],
            {"recordinput1": [], "innerproduct1": ["recordinput1"], "softmaxloss1": ["innerproduct1", "recordinput1"]},
            id="layers as srclayers before they have a name",
        ),
        pytest.param(
            [machine()],
            {"x": [], "vis": ["x", "hid"], "hid": ["vis"]},
            id="the two layers of a machine read each other",
        ),
        pytest.param(
            [DRAWS, Dummy("d"), ip("a"), Dummy("y", input=True, shape=[6, 4])],
            {"z": [], "d": ["z"], "a": ["d"], "y": []},
            id="a dummy that draws reads nothing and another passes on",
        ),
    ],
)
def test_layers_are_put_together_and_left_alone(layers, sources):
    names = [getattr(layer, "name", None) for layer in layers]
    for _ in range(2):
        assert graph(layers) == sources
    assert [getattr(layer, "name", None) for layer in layers] == names


def test_inputs_of_different_phases_share_a_name():
    net = [data(include=["kTrain"]), data(include=["kTest"]), data(include=["kVal"]), ip(), SoftmaxLoss()]
    assert [m.name for m in assemble(net)][:4] == [*["recordinput1"] * 3, "innerproduct1"]
    assert assemble(net)[3].srclayers == ["recordinput1"]
    named = [data("d", exclude=["kTest"]), data(include=["kTest"]), ip()]
    assert [m.name for m in assemble(named)] == ["d", "d", "innerproduct1"]
    assert [m.name for m in assemble([data(), data(include=["kTest"])])] == ["recordinput1", "recordinput2"]


def test_called_layers_are_found_from_the_last_ones():
    x = data()
    h = ReLU()(ip(n=20)(x))
    scores = ip("scores")(h)
    loss, accuracy = SoftmaxLoss()(scores, x), Accuracy()(scores, x)
    assert graph([loss, accuracy]) == {
        "recordinput1": [],
        "innerproduct1": ["recordinput1"],
        "relu1": ["innerproduct1"],
        "scores": ["relu1"],
        "softmaxloss1": ["scores", "recordinput1"],
        "accuracy1": ["scores", "recordinput1"],
    }
    assert list(graph([accuracy, loss]))[4:] == ["accuracy1", "softmaxloss1"]
    assert graph([x, h, scores, loss, accuracy]) == graph([loss, accuracy])


def test_the_last_layer_is_a_net():
    x = data("x")
    last = SoftmaxLoss("loss")(ip("ip")(x), x)
    assert assemble(last) == assemble([last])


def test_a_deep_net_is_no_deep_recursion():
    x = data()
    for _ in range(3000):
        x = ReLU()(x)
    net = graph([x])
    assert len(net) == 3001 and net["relu3000"] == ["relu2999"]


def called():
    x = data()
    return SoftmaxLoss()(ip()(x), x)


RECURRENT = [
    CharRNN(path="dataset:tinyshakespeare/train", unroll_len=5, batchsize=2),
    RNNLabel(),
    OneHot(vocab_size=65),
    GRU(dim_hidden=4),
    ip(n=65),
    SoftmaxLoss(),
]


@pytest.mark.parametrize(
    ("layers", "more"),
    [
        (called(), {}),
        ([called()], {}),
        ([data(), ip(), SoftmaxLoss()], {}),
        (RECURRENT, {"alg": "kBPTT", "unroll_len": 5}),
    ],
)
def test_the_result_is_an_ordinary_job(layers, more):
    made = job(layers, **more)
    made.check()
    assert Job.from_text(made.to_text()) == made
    assert made.proto.neuralnet.unroll_len == more.get("unroll_len", 1)


def test_the_result_is_that_of_the_text():
    text = """layer { name: "recordinput1" type: kRecordInput
                      store_conf { path: "dataset:digits/train" batchsize: 6 shape: 64 } }
              layer { name: "innerproduct1" type: kInnerProduct srclayers: "recordinput1"
                      innerproduct_conf { num_output: 10 } }
              layer { name: "softmaxloss1" type: kSoftmaxLoss srclayers: "innerproduct1" srclayers: "recordinput1" }"""
    assert job(called()).proto.neuralnet == Job.from_text(f"neuralnet {{ {text} }}").proto.neuralnet


def test_an_initialiser_may_be_a_function():
    def ones(param, rng):
        return [1.0]

    (block,) = InnerProduct(num_output=1, param=[{"name": "w", "init": ones}]).proto.param
    assert (block.name, block.init.type) == ("w", block.init.kUserInit)
    assert "<locals>.ones" in block.init.user_type


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (lambda: [ip(), SoftmaxLoss()], "layer 'InnerProduct'.*Start the list with an input layer"),
        (lambda: [LayerProto(name="x"), ReLU("r")], "layer 'r'.*no layer precedes it"),
        (lambda: [Dummy("z", input=True), SoftmaxLoss("l")], "layer 'l'.*takes 2 srclayers"),
        (lambda: [data(), RBMVis("v"), RBMHid("h")], "layer 'v'.*read each other"),
        (lambda: SoftmaxLoss()(ReLU(), "x"), "layer 'ReLU'.*call the layer on its sources"),
        (lambda: [data(), r := ReLU(), ip(), r], r"layers\[3\].*listed twice.*share_params"),
        (lambda: ReLU("r", "x")(data("b")), "layer 'r'.*has srclayers and cannot be called. Received: x"),
        (lambda: data("d")(data("e")), "layer 'd'.*An input layer has no sources"),
        (lambda: ReLU("r")(), "layer 'r'.*Call it on its source layers"),
        (lambda: ReLU("r")(3), "layer 'r'.*names of layers, tensors or arrays of rows. Received: 3"),
        (lambda: LRN(size=3), "LRN.size: LRN has no such setting"),
    ],
)
def test_what_cannot_be_put_together_says_why(layers, message):
    with pytest.raises(ConfigError, match=message):
        job(layers())


def test_a_layer_of_ones_own_takes_part():
    class Mine(Layer):
        def setup(self, *src):
            return src[0]

    made = job([data(), Mine(size=3), ip(), SoftmaxLoss()])
    assert [layer.name for layer in made.proto.neuralnet.layer][1] == "mine1"
    made.check()
