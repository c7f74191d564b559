"""What a job may write about the partition of its net, and as names."""

import pytest

from singa_dask.job import ClusterTopology, Job, load_job
from singa_dask.job.layer_types import split_axes
from singa_dask.layers import (
    GRU,
    LSTM,
    RNN,
    Convolution,
    Embedding,
    InnerProduct,
    RBMHid,
    RBMVis,
    RecordInput,
    ReLU,
    SoftmaxLoss,
)
from singa_dask.layers.partition import LayerPartition, Sharding
from singa_dask.updaters import SGD

# What to replace in the good job, by what; key, line and column of the only problem, and its words.
BROKEN = [
    ("neuralnet {", "neuralnet { partition_dim: 2", "neuralnet.partition_dim", 11, 13, "must be 0 (over the batch)"),
    ("type: kReLU", "type: kReLU partition_dim: 2", "neuralnet.layer[relu1].partition_dim", 32, 37, "or -1 for"),
    (
        *("neuralnet {", "neuralnet { partition: auto partition_dim: 1", "neuralnet.partition", 11, 13),
        "the cost model cannot choose where the net has a partition_dim. Received: auto, and partition_dim: 1.",
    ),
    ("type: kReLU", "type: kTransition", "neuralnet.layer[relu1].type", 32, 25, "is inserted by the partitioning"),
    ("type: kReLU", "type: kFrame", "neuralnet.layer[relu1].type", 32, 25, "is inserted by the unrolling"),
    (
        *('name: "w1"', 'name: "w1" partition_dim: 1', "neuralnet.layer[conv1].param[0].partition_dim", 29, 24),
        "the weight of a kConvolution can be split along axis 3 (filters). Received: 1. Use 3.",
    ),
    (
        *('name: "b1"', 'name: "b1" partition_dim: -1', "neuralnet.layer[conv1].param[1].partition_dim", 30, 24),
        "the bias of a kConvolution can be split along axis 0 (filters). Received: -1. Use 0.",
    ),
    (
        *("num_output: 10 }", "num_output: 10 } param { partition_dim: 2 }"),
        *("neuralnet.layer[ip1].param[0].partition_dim", 37, 50),
        "can be split along axis 1 (output features) or 0 (input features). Received: 2.",
    ),
    (
        *("num_output: 10 }", "num_output: 10 transpose: true } param { partition_dim: 2 }"),
        *("neuralnet.layer[ip1].param[0].partition_dim", 37, 66),
        "can be split along axis 0 (output features) or 1 (input features). Received: 2.",
    ),
    (
        *("num_output: 10 }", "num_output: 10 } param { partition_dim: 0 } param { partition_dim: 0 }"),
        *("neuralnet.layer[ip1].param[1].partition_dim", 37, 77),
        "a layer that is split over its input features has the whole bias on every worker. Received: 0.",
    ),
    (
        *("num_output: 10 }", "num_output: 10 } partition_dim: 0 param { partition_dim: 1 }"),
        *("neuralnet.layer[ip1].param[0].partition_dim", 37, 67),
        "is split over the mini-batch. Received: 1, and partition_dim: 0 of the layer. Leave one of them out",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "key", "line", "column", "words"), BROKEN, ids=[b[1] for b in BROKEN])
def test_one_fault_gives_one_problem_in_its_place(old, new, key, line, column, words, broken, problems_of):
    (problem,) = problems_of(broken(old, new))
    assert words in str(problem)
    assert (problem.key, problem.line, problem.column) == (key, line, column)


def test_parameters_of_users_layers_have_any_axis(broken, problems_of):
    user = 'type: kUserLayer user_type: "my:Layer" param { partition_dim: %d }'
    assert problems_of(broken("type: kReLU", user % 4)) == ()
    (problem,) = problems_of(broken("type: kReLU", user % -1))
    assert "must be the axis of the array that is split. Received: -1." in str(problem)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("neuralnet {", "neuralnet { partition_dim: 1"),
        ("type: kReLU", "type: kReLU partition_dim: 1"),
        ("type: kReLU", "type: kReLU partition_dim: -1"),
        ("type: kReLU", "type: kBridgeSrc"),
        ("type: kReLU", "type: kBridgeDst partition_dim: 1"),
        ("type: kReLU", "type: kConcate concate_conf { concate_dim: 0 }"),
        ("type: kReLU", "type: kSlice slice_conf { slice_dim: 0 num_slices: 1 }"),
        ('name: "w1"', 'name: "w1" partition_dim: 3'),
        ("type: kConvolution", "type: kCudnnConv partition_dim: 1 param { partition_dim: 3 }"),
        ("num_output: 10 }", "num_output: 10 } param { partition_dim: 0 }"),
        ("num_output: 10 }", "num_output: 10 } partition_dim: 1 param { partition_dim: 0 }"),
        ("num_output: 10 }", "num_output: 10 } param { partition_dim: 1 } param { partition_dim: 0 }"),
        ("num_output: 10 }", "num_output: 10 transpose: true } param { partition_dim: 1 }"),
        # Layers that cannot be split take rows.
        ("include: kTrain", "include: kTrain partition_dim: 1"),
        ("type: kAccuracy", "type: kAccuracy partition_dim: 1"),
        ("nservers_per_group: 3", "nworkers_per_procs: 3"),
    ],
)  # fmt: skip
def test_what_a_job_may_write(old, new, broken, problems_of):
    text = broken(old, new)
    if "kCudnnConv" in new:
        text = text.replace('param { name: "w1" init { type: kUniformSqrtFanIn } }', "")
        text = text.replace('param { name: "b1" lr_scale: 2 init { type: kConstant value: 0 } }', "")
    assert problems_of(text) == ()


IMAGE, VECTOR = (4, 4, 2), (6,)
SPLIT = {
    cls.type: (cls("a", "x", **conf), source)
    for cls, conf, source in (
        (InnerProduct, {"num_output": 5}, VECTOR),
        (Convolution, {"num_filters": 5}, IMAGE),
        (Embedding, {"vocab_size": 7, "feature_dim": 5}, (1,)),
        (GRU, {"dim_hidden": 5}, VECTOR),
        (LSTM, {"dim_hidden": 5}, VECTOR),
        (RNN, {"dim_hidden": 5}, VECTOR),
        (RBMHid, {"hdim": 5}, VECTOR),
    )
    if cls.splits_features
}


@pytest.mark.parametrize("kind", SPLIT)
def test_the_axes_that_may_be_named_are_those_that_the_layer_splits(kind):
    layer, source = SPLIT[kind]
    layer.partition = LayerPartition(Sharding.REPLICATED, Sharding.FEATURES, (source,), rank=1, size=2)
    layer.setup(source)
    assert len(layer.params) > 1 or kind == "kEmbedding"
    assert [param.shard.axis for param in layer.params] == [next(iter(axes)) for axes in split_axes(layer.proto)]


def test_every_worker_has_the_visible_units():
    layer = RBMVis("vis", "hid", hdim=5)
    assert split_axes(layer.proto) == ({1: "hidden units"}, {})


def job(**settings):
    weight = settings.pop("weight", None)
    last = {"param": [{"partition_dim": weight}]} if weight is not None else {}
    layers = [
        RecordInput("data", path="shards", batchsize=8, shape=[6]),
        InnerProduct("ip1", num_output=5, partition_dim=settings.pop("ip1", None)),
        ReLU("relu1"),
        InnerProduct("ip2", num_output=5, **last),
        SoftmaxLoss("loss"),
    ]
    cluster = ClusterTopology.allreduce(2)
    return Job(name="split", train_steps=1, layers=layers, updater=SGD(lr=0.1), cluster=cluster, **settings)


@pytest.mark.parametrize(
    ("settings", "override", "text"),
    [
        ({"partition_dim": 1}, "neuralnet.partition_dim=1", "partition_dim: 1"),
        ({"ip1": 1}, "neuralnet.layer[ip1].partition_dim=1", "partition_dim: 1"),
        ({"ip1": -1}, "neuralnet.layer[ip1].partition_dim=-1", "partition_dim: -1"),
        ({"weight": 0}, "neuralnet.layer[ip2].param[0].partition_dim=0", "partition_dim: 0"),
        ({"weight": 1}, "neuralnet.layer[3].param[0].partition_dim=1", "partition_dim: 1"),
    ],
)
def test_python_overrides_and_text_say_the_same(settings, override, text):
    split = job(**settings)
    split.check()
    assert text in split.to_text()
    assert Job.from_text(split.to_text()).proto == split.proto
    assert Job.from_text(job().to_text(), [override]).proto == split.proto != job().proto


# Names: what becomes the name of a file or a key of checkpoints must suit them


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("x" * 5000, "must have at most 200 bytes"),
        ("x" * 201, "must have at most 200 bytes"),
        ("ü" * 101, "must have at most 200 bytes"),
        ("a\0b", "must not contain control characters"),
        ("a\x1b]0;x\x07", "must not contain control characters"),
        ("two\nlines", "must not contain control characters"),
    ],
)
def test_the_name_of_a_job_is_that_of_a_folder(good, problems_of, name, says):
    job = load_job(good)
    job.name = name
    (problem,) = problems_of(job)
    assert problem.key == "name" and says in problem.message
    assert problem.hint == "Rename the job." and len(str(problem)) < 300
    job.name = "x" * 200
    assert not problems_of(job)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (".", "must not have . or .. between slashes"),
        ("..", "must not have . or .. between slashes"),
        ("../../w", "must not have . or .. between slashes"),
        ("block/./w", "must not have . or .. between slashes"),
        ("/w", "must not begin or end with a slash"),
        ("block/", "must not begin or end with a slash"),
        ("block//w", "must not have two slashes in a row"),
        ("a\0b", "must not contain control characters"),
        ("a\x9bb", "must not contain control characters"),
        ("w" * 5000, "must have at most 200 bytes"),
    ],
)
@pytest.mark.parametrize("of", ["parameter", "layer"])
def test_names_of_layers_and_parameters_are_keys_of_checkpoints(good, problems_of, of, name, says):
    job = load_job(good)
    layer = job.neuralnet.layer[2]
    if of == "layer":
        layer.name = name
        job.neuralnet.layer[3].srclayers[0] = name
    else:
        layer.param[0].name = name
    (problem,) = problems_of(job)
    assert problem.key.endswith("name" if of == "layer" else "param[0].name") and says in problem.message
    assert problem.hint and len(str(problem)) < 300


def test_a_parameter_does_not_lie_in_another_one(good, problems_of):
    job = load_job(good)
    conv = job.neuralnet.layer[2]
    conv.param[0].name, conv.param[1].name = "conv/w", "conv/w/bias"
    (problem,) = problems_of(job)
    assert "'conv/w' is a parameter, and so cannot be a folder of them" in problem.message
    conv.param[1].name = "conv/b"
    assert not problems_of(job)


@pytest.mark.timeout(5, method="signal")
@pytest.mark.parametrize("length", [10**9, 2**31 - 1])
@pytest.mark.parametrize("kind", ["", "unroll_conn_type: kUnrollOneToAll"])
def test_nets_of_absurdly_many_time_steps_are_refused(good, problems_of, length, kind):
    text = good.replace('"relu1" type: kReLU', f'"relu1" unroll_len: {length} {kind} type: kReLU')
    (problem, *_) = problems_of(load_job(text))
    assert problem.key == "neuralnet.layer[relu1].unroll_len" and problem.received == str(length)
    assert "must be from 1 to " in problem.message
