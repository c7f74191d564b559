"""Layers as descriptions: types, settings, and the errors of both."""

from __future__ import annotations

import numpy as np
import pytest
from support.layer_cases import CASES

from singa_dask import layers
from singa_dask.errors import ConfigError, DataError
from singa_dask.job.job_pb2 import LayerProto, LayerType, ParamProto, Phase
from singa_dask.layers import Context, Convolution, InnerProduct, Layer, Pooling, SoftmaxLoss, layer_class
from singa_dask.ops import get_ops

LAYER_TYPES = LayerType.keys()


class Twice(Layer):
    """y = factor x."""

    def setup(self, *src):
        return src[0]


def proto(type_name: str) -> LayerProto:
    return LayerProto(name="a", type=LayerType.Value(type_name))


def test_every_layer_type_has_a_class_or_a_way_out():
    for name in LAYER_TYPES:
        if name == "kUserLayer":
            continue
        try:
            assert issubclass(layer_class(proto(name)), Layer)
        except ConfigError as error:
            (problem,) = error.problems
            assert problem.key == "layer 'a'"
            assert name in problem.message
            assert problem.hint


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("kCConvolution", "Convolution"),
        ("kCudnnConv", "Convolution"),
        ("kCPooling", "Pooling"),
        ("kCudnnPool", "Pooling"),
        ("kCudnnLRN", "LRN"),
        ("kCudnnSoftmax", "Softmax"),
        ("kCudnnActivation", "Activation"),
        ("kCudnnSoftmaxLoss", "SoftmaxLoss"),
    ],
)
def test_spellings_for_other_devices_are_the_same_layer(spelling, name):
    assert layer_class(proto(spelling)) is getattr(layers, name)


def test_deprecated_inputs_point_to_their_successor():
    for name, successor in (
        ("kLMDBData", "kRecordInput"),
        ("kRGBImage", "kImagePreprocess"),
        ("kLabel", "second source"),
    ):
        with pytest.raises(ConfigError, match=successor):
            layer_class(proto(name))


def test_user_layers_are_imported():
    layer = Twice("t", "x", factor=2)
    assert layer.proto.user_type == f"{__name__}:Twice"
    assert layer.conf == {"factor": 2}
    assert layer_class(layer.proto) is Twice
    assert Twice.from_proto(layer.proto).conf == {"factor": 2}


def test_a_class_that_a_job_would_take_for_the_built_in_one_is_refused():
    class Mine(layers.ReLU):
        pass

    class Own(layers.ReLU):
        type, conf_field = "kUserLayer", None

    with pytest.raises(ConfigError, match=r"type of its base class, kReLU.*kUserLayer"):
        Mine("m", "x")
    assert Own("o", "x", size=3).conf == {"size": 3}


def test_settings_of_another_kind(tmp_path):
    assert layers.RecordInput("r", path=tmp_path).proto.store_conf.path == str(tmp_path)
    assert layers.InnerProduct("i", "r", num_output=2, param={"name": "w"}).proto.param[0].name == "w"
    with pytest.raises(
        ConfigError, match=r"Dropout: the first argument must be the name. Received: 0.5. Write dropout_ratio=0.5"
    ):
        layers.Dropout(0.5)
    with pytest.raises(ConfigError, match=r"i.num_output: expected a whole number.*Received: True"):
        layers.InnerProduct("i", "r", num_output=True)


@pytest.mark.parametrize(
    ("user_type", "message"),
    [
        ("", "type: kUserLayer needs user_type.*no type"),
        ("nonsense", 'named "module:Class"'),
        ("no_such_module.part:Thing", "no module named 'no_such_module'.*PYTHONPATH"),
        ("singa_dask.layers:InerProduct", "Did you mean InnerProduct"),
        ("singa_dask.layers:Step", "user_type: must name a subclass of Layer"),
        ("singa_dask.layers:layer_class", "must name a class of singa_dask, or code of your own"),
    ],
)
def test_user_types_that_cannot_be_used_say_why(user_type, message):
    with pytest.raises(ConfigError, match=f"layer 'mine'.*{message}"):
        layer_class(LayerProto(name="mine", user_type=user_type))


def test_an_import_error_inside_a_user_module_passes_through(tmp_path, monkeypatch):
    (tmp_path / "broken_user_module.py").write_text("import no_such_dependency\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency"):
        layer_class(LayerProto(name="mine", user_type="broken_user_module:Thing"))


def test_settings_that_do_not_exist_or_do_not_fit_are_named():
    for conf, message in (
        ({"num_outputs": 3}, "ip.num_outputs.*Did you mean num_output"),
        ({"num_output": "three"}, "ip.num_output.*'three'"),
    ):
        with pytest.raises(ConfigError, match=message):
            InnerProduct("ip", "x", **conf)
    with pytest.raises(ConfigError, match=r"p\.pool.*unknown value.*MAX"):
        Pooling("p", "x", pool="MAXIMUM")
    with pytest.raises(ConfigError, match=r"s\.slope: Sigmoid has no such setting"):
        layers.Sigmoid("s", "x", slope=1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"unroll_len": "three"}, r"ip\.unroll_len.*'three'"),
        ({"unroll_conn_type": "kUnrollOneToAl"}, r"ip\.unroll_conn_type.*Did you mean kUnrollOneToAll"),
        ({"include": ["kTran"]}, r"ip\.include.*Did you mean kTrain"),
        ({"partition_dim": "batch"}, r"ip\.partition_dim.*'batch'"),
        ({"param": [{}, {"lr_scal": 2}]}, r"ip\.param\[1\]\.lr_scal.*lr_scal=2\. Did you mean lr_scale"),
        ({"param": [{"init": {"type": "kGausian"}}]}, r"ip\.param\[0\].*kGausian"),
    ],
)
def test_what_belongs_to_every_layer_is_named_where_it_does_not_fit(settings, message):
    with pytest.raises(ConfigError, match=message):
        InnerProduct("ip", "x", num_output=3, **settings)
    assert InnerProduct("ip", "x", num_output=3, include="kTrain").proto.include == [Phase.kTrain]


def test_param_blocks_may_be_mappings():
    block = {"name": "w", "init": {"type": "kUniform", "low": -0.5, "high": 0.5}, "wd_scale": 0}
    layer = InnerProduct("ip", "x", num_output=2, param=[block])
    assert layer.proto.param[0] == ParamProto(**block)
    layer.setup((3,))
    assert [(p.name, p.shape, p.fan_in, p.fan_out) for p in layer.params] == [
        ("w", (3, 2), 3, 2),
        ("ip_bias", (2,), 3, 2),
    ]


def test_fans_of_a_convolution_count_the_window():
    layer = Convolution("c", "x", num_filters=4, kernel=3)
    layer.setup((8, 8, 2))
    assert (layer.params[0].fan_in, layer.params[0].fan_out) == (18, 36)


@pytest.mark.parametrize("name", CASES)
def test_setup_refuses_another_number_of_sources(name):
    case = CASES[name]
    most = case.layer.num_sources[1]
    with pytest.raises(ConfigError, match=f"layer '{case.layer.name}'"):
        case.layer.setup(*[(3,)] * (0 if most is None else most + 1))


@pytest.mark.parametrize(
    ("layer", "sources", "message"),
    [
        (Convolution("c", "x", num_filters=1), [(9,)], "needs images.*channels, height, width"),
        (
            Convolution("c", "x", num_filters=1, kernel=5),
            [(4, 9, 1)],
            r"kernel of \(5, 5\) is larger than the image, \(4, 9\)",
        ),
        (Convolution("c", "x"), [(4, 4, 1)], "num_filters"),
        (Convolution("c", "x", num_filters=1, stride=0), [(4, 4, 1)], "at least 1"),
        (Pooling("c", "x", pad=3), [(4, 4, 1)], "pad must lie"),
        (InnerProduct("c", "x"), [(4,)], "num_output"),
        (layers.LRN("c", "x"), [(4,)], "needs images"),
        (layers.LRN("c", "x", local_size=4), [(4, 4, 1)], "odd.*4"),
        (layers.LRN("c", "x", knorm=0), [(4, 4, 1)], "knorm"),
        (layers.Dropout("c", "x", dropout_ratio=1), [(4,)], "dropout_ratio"),
        (layers.ReLU("c", "x", negative_slope=-1), [(4,)], "negative_slope"),
        (layers.Softmax("c", "x", num_softmax_per_instance=3), [(4,)], "4 elements.*3"),
        (SoftmaxLoss("c", ["x", "y"], topk=5), [(4,), (4,)], "topk.*1 and 4.*5"),
        (layers.ArgSort("c", "x", topk=0), [(4,)], "topk"),
        (layers.EuclideanLoss("c", ["x", "y"]), [(4,), (5,)], r"\(4,\) and \(5,\)"),
        (layers.Slice("c", "x", slice_dim=1, num_slices=5), [(4,)], "num_slices.*4.*5"),
        (layers.Slice("c", "x", slice_dim=2, num_slices=2), [(4,)], "dimension must be one of"),
        (layers.Slice("c", "x", num_slices=0), [(4,)], "num_slices"),
        (layers.Slice("c", "x", slice_dim=1, sizes=[1, 2]), [(4,)], r"sizes must be positive .* 4.*\[1, 2\]"),
        (layers.Split("c", "x", num_splits=0), [(4,)], "num_splits"),
        (layers.Concate("c", ["x", "y"], concate_dim=1), [(4, 4, 1), (4, 5, 1)], r"x: \(4, 4, 1\), y: \(4, 5, 1\)"),
        (layers.Concate("c", ["x", "y"]), [(4,), (5,)], "match"),
    ],
)
def test_shapes_and_settings_that_do_not_fit_are_refused(layer, sources, message):
    with pytest.raises(ConfigError, match=f"layer 'c'.*{message}"):
        layer.setup(*sources)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (None, "needs labels, but 'data' has none"),
        ([0, 4], "from 0 to 4"),
        ([-1, 0], "from -1 to 0"),
        ([0.5, 1], "must be whole numbers"),
        ([1], "2 rows, but 'data' gives 1 labels"),
    ],
)
def test_labels_that_cannot_be_used_are_refused(labels, message):
    layer = SoftmaxLoss("loss", ["x", "data"])
    layer.setup((4,), (1,))
    with pytest.raises(DataError, match=f"layer 'loss'.*{message}"):
        layer.forward(Context(get_ops()), np.zeros((2, 4), np.float32), None if labels is None else np.array(labels))


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.float32])
def test_labels_may_have_any_dtype_and_a_second_axis(dtype):
    layer = SoftmaxLoss("loss", ["x", "data"])
    layer.setup((4,), (1,))
    ctx = Context(get_ops())
    layer.forward(ctx, 10 * np.eye(4, dtype=np.float32), np.arange(4, dtype=dtype)[:, None])
    assert layer.metrics(ctx)["accuracy"].mean == 1


def test_backward_before_forward_says_so():
    layer = InnerProduct("ip", "x", num_output=2)
    layer.setup((3,))
    with pytest.raises(AttributeError, match="backward was called before forward"):
        layer.backward(Context(get_ops()), np.zeros((1, 2), np.float32))


def test_buffers_are_reused_until_the_shape_changes():
    ctx = Context(get_ops())
    first = ctx.buffer("y", (2, 3))
    assert ctx.buffer("y", (2, 3)) is first
    assert ctx.buffer("y", (3, 3)) is not first
    assert ctx.buffer("y", (3, 3), np.uint8).dtype == np.uint8


class Louder(InnerProduct):
    """A user's own, that is a built-in one and one setting more."""

    type = "kUserLayer"

    def forward(self, ctx, x):
        return super().forward(ctx, x) * self.user_conf.get("volume", 1)


def test_a_layer_that_derives_from_a_built_in_one():
    layer = Louder("ip", "x", num_output=3, volume=2, bias_term=False)
    assert layer.conf.num_output == 3 and not layer.conf.bias_term
    again = layer_class(layer.proto).from_proto(layer.proto)
    assert type(again) is Louder and again.setup((4,)) == (3,) and len(again.params) == 1
    assert again.user_conf == {"num_output": 3, "volume": 2, "bias_term": False}
    with pytest.raises(ConfigError, match=r"ip\.num_output: expected a whole number"):
        Louder("ip", "x", num_output="three")


class Negative(layers.ReLU):
    type = "kUserLayer"

    def forward(self, ctx, x):
        return -super().forward(ctx, x)


class Same(layers.ReLU):
    type = "kUserLayer"


class Reader(layers.RecordInput):
    type = "kUserLayer"


def test_what_is_promised_of_a_layer_is_not_inherited_by_another_forward():
    assert layers.ReLU.keeps_order and Same.keeps_order and Same.rowwise
    assert not Negative.keeps_order and not Negative.rowwise


def test_layers_that_are_known_by_their_type_are_not_derived_from():
    with pytest.raises(ConfigError, match="cannot derive from a layer that the loader recognises by type"):
        Reader("data", path="x", batchsize=3)
    with pytest.raises(ConfigError, match="recognises by type"):
        layer_class(LayerProto(name="d", user_type=f"{__name__}:Reader")).from_proto(
            LayerProto(name="d", user_type=f"{__name__}:Reader")
        )
