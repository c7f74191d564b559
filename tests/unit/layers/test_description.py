"""Layers as descriptions: types, settings, and the errors of both."""

from __future__ import annotations

import numpy as np
import pytest

from singa_dask import layers
from singa_dask.errors import ConfigError
from singa_dask.job.job_pb2 import LayerProto, LayerType, ParamProto, Phase
from singa_dask.layers import Context, Convolution, InnerProduct, Layer, Pooling, SoftmaxLoss, layer_class
from singa_dask.ops import get_ops


class Twice(Layer):
    """y = factor x."""

    def setup(self, *src):
        return src[0]


def proto(type_name: str) -> LayerProto:
    return LayerProto(name="a", type=LayerType.Value(type_name))


DEPRECATED = {"kLMDBData": "kRecordInput", "kRGBImage": "kImagePreprocess", "kLabel": "second source"}


@pytest.mark.parametrize("name", [name for name in LayerType.keys() if name != "kUserLayer"])  # noqa: SIM118
def test_every_layer_type_has_a_class_or_a_way_out(name):
    try:
        assert issubclass(layer_class(proto(name)), Layer)
        assert name not in DEPRECATED
    except ConfigError as error:
        (problem,) = error.problems
        assert problem.key == "layer 'a'"
        assert name in problem.message
        assert problem.hint and DEPRECATED.get(name, "") in problem.hint


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


def test_user_layers_are_imported():
    layer = Twice("t", "x", factor=2)
    assert layer.proto.user_type == f"{__name__}:Twice"
    assert layer.conf == {"factor": 2}
    assert layer_class(layer.proto) is Twice
    assert Twice.from_proto(layer.proto).conf == {"factor": 2}


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


class Mine(layers.ReLU):
    """Has the type of its base class."""


class Own(layers.ReLU):
    """Has settings of its own only."""

    type, conf_field = "kUserLayer", None


class Reader(layers.RecordInput):
    type = "kUserLayer"


def test_settings_of_another_kind(tmp_path):
    assert layers.RecordInput("r", path=tmp_path).proto.store_conf.path == str(tmp_path)
    assert InnerProduct("i", "r", num_output=2, param={"name": "w"}).proto.param[0].name == "w"
    assert InnerProduct("i", "r", num_output=3, include="kTrain").proto.include == [Phase.kTrain]
    assert Own("o", "x", size=3).conf == {"size": 3}


def ip(**conf):
    return InnerProduct("ip", "x", **{"num_output": 3} | conf)


READER = LayerProto(name="d", user_type=f"{__name__}:Reader")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ip(num_outputs=3), r"ip\.num_outputs.*Did you mean num_output"),
        (lambda: ip(num_output="three"), r"ip\.num_output.*'three'"),
        (lambda: ip(num_output=True), r"ip\.num_output: expected an integer.*Received: True"),
        (lambda: Louder("ip", "x", num_output="three"), r"ip\.num_output: expected an integer"),
        (lambda: Pooling("p", "x", pool="MAXIMUM"), r"p\.pool.*unknown value.*MAX"),
        (lambda: layers.Sigmoid("s", "x", slope=1), r"s\.slope: Sigmoid has no such setting"),
        (lambda: layers.Dropout(0.5), "Dropout: the first argument must be the name.*Write dropout_ratio=0.5"),
        (lambda: ip(unroll_len="three"), r"ip\.unroll_len.*'three'"),
        (lambda: ip(unroll_conn_type="kUnrollOneToAl"), r"ip\.unroll_conn_type.*Did you mean kUnrollOneToAll"),
        (lambda: ip(include=["kTran"]), r"ip\.include.*Did you mean kTrain"),
        (lambda: ip(partition_dim="batch"), r"ip\.partition_dim.*'batch'"),
        (lambda: ip(param=[{}, {"lr_scal": 2}]), r"ip\.param\[1\]\.lr_scal.*lr_scal=2\. Did you mean lr_scale"),
        (lambda: ip(param=[{"init": {"type": "kGausian"}}]), r"ip\.param\[0\].*kGausian"),
        (lambda: Mine("m", "x"), "type of its base class, kReLU.*kUserLayer"),
        (
            lambda: Reader("data", path="x", batchsize=3),
            "cannot derive from a layer that the loader recognises by type",
        ),
        (lambda: layer_class(READER).from_proto(READER), "recognises by type"),
    ],
)
def test_descriptions_that_do_not_fit_name_what_is_wrong(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


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


class Negative(layers.ReLU):
    type = "kUserLayer"

    def forward(self, ctx, x):
        return -super().forward(ctx, x)


class Same(layers.ReLU):
    type = "kUserLayer"


def test_what_is_promised_of_a_layer_is_not_inherited_by_another_forward():
    assert layers.ReLU.keeps_order and Same.keeps_order and Same.rowwise
    assert not Negative.keeps_order and not Negative.rowwise
