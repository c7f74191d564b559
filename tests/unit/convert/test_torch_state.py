"""PyTorch's state_dicts: which number becomes which, what is refused, and the way back."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from support.topologies import run_topology
from support.trained import saved_at, write_points

import singa_dask
from singa_dask import Model, Module, autograd, convert
from singa_dask.cli import run
from singa_dask.cli.scheduler import Scheduler
from singa_dask.convert.onnx_ops import CONVERTERS
from singa_dask.convert.table import TABLE, lines
from singa_dask.errors import CheckpointError, ConfigError
from singa_dask.job import Job
from singa_dask.job.job_pb2 import LayerType, NetProto
from singa_dask.layers import (
    GRU,
    LSTM,
    RNN,
    Add,
    Attention,
    BatchNorm,
    ClassToken,
    Convolution,
    Embedding,
    GroupNorm,
    InnerProduct,
    Layer,
    LayerNorm,
    PositionalEmbedding,
    RecordInput,
    ReLU,
    Reshape,
    TransposedConvolution,
)
from singa_dask.tensors.tensor import Tensor
from singa_dask.training.prepare import check_given, prepare


class Scale(Layer):
    """y = x W, in a user's words."""

    def setup(self, *src):
        self.weight = self.declare("weight", (src[0][0], 2), 2, 2)
        return (2,)

    def forward(self, ctx, *x):
        return x[0] @ self.weight.value


class KnownScale(Scale):
    torch_axes = {"weight": "O I -> I O"}  # noqa: RUF012


def over_time(*layers, steps=3, features=4, **input_conf):
    """A model whose layers read sequences, one after the other."""
    proto = NetProto(unroll_len=steps)
    before = RecordInput("data", shape=[features], sequence=steps, unroll_len=1, **input_conf)
    proto.layer.add().CopyFrom(before.proto)
    for layer in layers:
        proto.layer.add().CopyFrom(layer.proto)
        proto.layer[-1].srclayers[:] = [before.name]
        before = layer
    return Model(proto)


def image_net(seed=0, dtype=np.float32):
    layers = [
        Convolution("conv", num_filters=6, kernel_y=3, kernel_x=2, groups=2),
        BatchNorm("norm"),
        TransposedConvolution("up", num_filters=4, kernel=2, groups=2),
        GroupNorm("group", num_groups=2),
        ClassToken("token"),
        Attention("mix", num_heads=2),
        Attention("shared", num_heads=4, num_kv_heads=2),
        InnerProduct("hidden", num_output=7),
        LayerNorm("layer"),
        InnerProduct("out", num_output=3, transpose=True, bias_term=False),
    ]
    return Model([RecordInput("data", shape=[4, 5, 4]), *layers], seed=seed, dtype=dtype)


def recurrent_net():
    cells = [kind(kind.__name__.lower(), dim_hidden=5) for kind in (RNN, GRU, LSTM)]
    return over_time(PositionalEmbedding("positions"), *cells, Attention("mix", num_heads=5, bias_term=False))


def symbol_net():
    return over_time(Embedding("symbols", vocab_size=6, feature_dim=5), InnerProduct("out", num_output=2), features=1)


def drawn(model):
    """Give all parameters other values."""
    draw = np.random.default_rng(1)
    model.load_state_dict({k: draw.normal(size=v.shape).astype(v.dtype) for k, v in model.state_dict().items()})
    return model


def same(first, second):
    return first.keys() == second.keys() and all(np.array_equal(first[key], second[key]) for key in first)


# Number of ours -> number of theirs, as PyTorch's documentation has them.
PLACES = {
    "conv_weight": lambda s, i, j, c, o: s["conv.weight"][o, c, i, j],
    "up_weight": lambda s, i, j, o, c: s["up.weight"][c, o, i, j],
    "norm_var": lambda s, c: s["norm.running_var"][c],
    "norm_scale": lambda s, c: s["norm.weight"][c],
    "group_bias": lambda s, c: s["group.bias"][c],
    "mix_weight": lambda s, c, i, n, d: s["mix.in_proj_weight"][i * 4 + n * 2 + d, c],
    "mix_bias": lambda s, i, n, d: s["mix.in_proj_bias"][i * 4 + n * 2 + d],
    "mix_output_weight": lambda s, n, d, c: s["mix.out_proj.weight"][c, n * 2 + d],
    "shared_weight": lambda s, c, h, d: s["shared.in_proj_weight"][h + d, c],
    "token_token": lambda s, c: s["token"][0, 0, c],
    "hidden_weight": lambda s, i, o: s["hidden.weight"][o, i],  # of positions, then features
    "out_weight": lambda s, o, i: s["out.weight"][o, i],
}
# Flattened images of 4 x 5 positions, and sequences: what is (h, w, c) is (c, h, w) there.
FLATTENED = {
    "out_weight": lambda s, i, o: s["out.weight"][o, i % 3 * 20 + i // 3],
    "last_weight": lambda s, i, o: s["last.weight"][o, i % 3 * 4 + i // 3],
}
TIMED = {
    "positions_table": lambda s, t, c: s["positions.weight"][t, c],
    "rnn_hx": lambda s, h, i: s["rnn.weight_ih_l0"][h, i],
    "gru_r_hx": lambda s, h, i: s["gru.weight_ih_l0"][h, i],
    "gru_z_hh": lambda s, h, i: s["gru.weight_hh_l0"][5 + h, i],
    "gru_c_b": lambda s, h: s["gru.bias_ih_l0"][10 + h],
    "lstm_i_hh": lambda s, h, i: s["lstm.weight_hh_l0"][h, i],
    "lstm_f_hx": lambda s, h, i: s["lstm.weight_ih_l0"][5 + h, i],
    "lstm_g_hx": lambda s, h, i: s["lstm.weight_ih_l0"][10 + h, i],
    "lstm_o_b": lambda s, h: s["lstm.bias_ih_l0"][15 + h] + s["lstm.bias_hh_l0"][15 + h],
}


def flattening_net(seed=0):
    source = RecordInput("data", shape=[2, 5, 6])
    image = Convolution("image", num_filters=3, kernel=2)(source)
    sequence = Convolution("sequence", num_filters=3, kernel=2)(Reshape(shape=[12, 5])(source))
    outputs = [InnerProduct("out", num_output=2)(image), InnerProduct("last", num_output=2)(ReLU()(sequence))]
    return Model([*outputs, Add("sum")(*outputs)], seed=seed)


CASES = [(image_net, PLACES), (recurrent_net, TIMED), (flattening_net, FLATTENED)]


@pytest.mark.parametrize(("make", "places"), CASES)
def test_every_number_has_its_place(make, places):
    model = drawn(make())
    state, ours = convert.to_torch(model), model.state_dict()
    for name, place in places.items():
        wanted = np.empty_like(ours[name])
        for at in np.ndindex(wanted.shape):
            wanted[at] = place(state, *at)
        np.testing.assert_array_equal(ours[name], wanted, err_msg=name)


@pytest.mark.parametrize("make", [image_net, recurrent_net, symbol_net])
def test_what_is_written_is_read_again(make, tmp_path):
    model, other = drawn(make()), make()
    state = convert.to_torch(model, tmp_path / "w.safetensors")
    assert convert.from_torch(other, tmp_path / "w.safetensors") == ((), ())
    assert same(model.state_dict(), other.state_dict())
    again = convert.to_torch(other)
    assert same(state, again) and all(array.flags.c_contiguous for array in state.values())


def test_every_kind_of_layer_with_parameters_is_in_the_table_or_has_no_counterpart():
    kinds = {kind for kind in LayerType.keys() if kind in TABLE}  # noqa: SIM118
    nets = [image_net(), recurrent_net(), symbol_net()]
    seen = {type(layer).type for model in nets for layer in model.net.layers.values() if layer.params}
    assert seen == kinds == TABLE.keys()


def test_biases_of_two_tensors_are_added_and_the_one_that_a_gru_lacks_is_refused():
    model = recurrent_net()
    state = convert.to_torch(drawn(recurrent_net()))
    state["lstm.bias_hh_l0"] = np.full(20, 2, np.float32)
    state["gru.bias_hh_l0"][:10] = 3
    convert.from_torch(model, state)
    np.testing.assert_array_equal(model.state_dict()["lstm_o_b"], state["lstm.bias_ih_l0"][15:] + 2)
    np.testing.assert_array_equal(model.state_dict()["gru_r_b"], state["gru.bias_ih_l0"][:5] + 3)
    before = model.state_dict()
    state["gru.bias_hh_l0"][12] = 1e-3
    with pytest.raises(ConfigError, match=r"layer 'gru': .*before the reset gate.*'gru.bias_hh_l0'"):
        convert.from_torch(model, state)
    assert same(model.state_dict(), before)


def test_numbers_of_other_types_are_held_exactly_or_refused(tmp_path):
    state = convert.to_torch(drawn(image_net(dtype=np.float64)))
    for given, dtype, holds in (
        (np.float16, np.float32, True),
        (np.float64, np.float64, True),
        (np.float64, np.float32, False),
        (np.int64, np.float32, False),
    ):
        model, cast = image_net(dtype=dtype), {key: array.astype(given) for key, array in state.items()}
        if holds:
            convert.from_torch(model, cast)
            assert same(convert.to_torch(model), {key: array.astype(dtype) for key, array in cast.items()})
        else:
            with pytest.raises(ConfigError, match="has values that float32 does not hold"):
                convert.from_torch(model, cast)


def test_bfloat16_files_are_read_exactly_and_others_refused(tmp_path):
    def written(kind, data, shape=(2, 2)):
        header = json.dumps({"f.weight": {"dtype": kind, "shape": shape, "data_offsets": [0, len(data)]}}).encode()
        path = tmp_path / f"{kind}.safetensors"
        path.write_bytes(struct.pack("<Q", len(header)) + header + data)
        return path

    model = Model([RecordInput("data", shape=[2]), InnerProduct("f", num_output=2, bias_term=False)])
    values = np.array([[1.5, -2.0], [3.140625, 2.0**-126]], np.float32)
    convert.from_torch(model, written("BF16", (values.view(np.uint32) >> 16).astype("<u2").tobytes()))
    np.testing.assert_array_equal(model.state_dict()["f_weight"], values.T)
    for path, said in (
        (written("F8_E4M3", b"abcd"), r"'f.weight': has a type that is not read. Received: F8_E4M3"),
        (written("F32", b"abcd"), "is not a readable .safetensors file"),
        (tmp_path / "none.safetensors", "No such file"),
        (tmp_path, "is a folder"),
    ):
        with pytest.raises(ConfigError, match=said):
            convert.from_torch(model, path)


def twins(*names, **more):
    layers = [part for name in names for part in (InnerProduct(name, num_output=4, **more), ReLU())]
    return Model([RecordInput("data", shape=[4]), *layers, InnerProduct("last", num_output=2)])


def renamed(state, **names):
    """A state with other names of modules."""
    return {f"{names.get(key.split('.')[0], key.split('.')[0])}.{key.split('.')[1]}": v for key, v in state.items()}


def test_names_that_differ_are_given_found_by_shape_or_asked_for():
    model = drawn(twins("a", "b"))
    wanted, state = model.state_dict(), convert.to_torch(model)
    theirs = renamed(state, a="0", b="2", last="4") | {"4.num_batches_tracked": np.array(7)}
    for names in ({"a": "0", "b": "2", "last": "4"}, {"a": "0", "b": "2"}, {"b": "2", "a": "0"}, "order"):
        fresh = twins("a", "b")
        convert.from_torch(fresh, theirs, names=names)
        assert same(fresh.state_dict(), wanted), names
    inside = {f"body.{key}": array for key, array in state.items()}
    fresh = twins("a", "b")
    convert.from_torch(fresh, inside, names={"": "body"})
    assert same(fresh.state_dict(), wanted)
    assert same(convert.to_torch(fresh, names={"": "body"}), inside)


def test_what_is_not_certain_is_refused_and_changes_nothing(tmp_path):
    model = drawn(twins("a", "b"))
    before, state = model.state_dict(), convert.to_torch(drawn(twins("a", "b")))
    theirs = renamed(state, a="0", b="2", last="4")
    wrong = {**state, "last.weight": np.zeros((3, 4), np.float32)}
    less = {key: array for key, array in state.items() if key != "b.bias"}
    three = theirs | {key.replace("0.", "3."): array for key, array in theirs.items() if key.startswith("0.")}
    for given, names, said in (
        (theirs, None, r"layers a, b and modules 0, 2 of PyTorch have the same shapes.*names="),
        (three, "order", r"layers a, b and modules 0, 2, 3 of PyTorch have the same shapes"),
        (wrong, None, r"state\['last.weight'\]: must have shape \(2, 4\) for 'last'. Received: \(3, 4\)"),
        (less, None, r"lacks tensors that the net needs. Received: b.bias \(4,\)"),
        ({**state, "more.weight": np.zeros(3)}, None, r"no place. Received: more.weight \(3,\)"),
        (state, {"c": "0"}, r"names: must have names of layers.*Received: c. .*a, b, last"),
        (state, {"a": "zero"}, r"lacks tensors.*zero.weight \(4, 4\)"),
    ):
        with pytest.raises(ConfigError, match=said):
            convert.from_torch(model, given, names=names)
        assert same(model.state_dict(), before), said
    convert.to_torch(model, tmp_path / "w.safetensors")
    with pytest.raises(ConfigError, match="names: the tensors of a file are in no order"):
        convert.from_torch(model, tmp_path / "w.safetensors", names="order")


def test_not_strict_takes_what_has_the_same_name_and_tells_the_rest():
    model = twins("a", "b")
    before, state = model.state_dict(), convert.to_torch(drawn(twins("a", "c")))
    left = convert.from_torch(model, state, strict=False)
    assert left == (("b.weight", "b.bias"), ("c.weight", "c.bias"))
    after = model.state_dict()
    np.testing.assert_array_equal(after["a_weight"], state["a.weight"].T)
    np.testing.assert_array_equal(after["b_weight"], before["b_weight"])
    assert convert.from_torch(model, state, strict=False, names={"a": None, "last": None}).unused == tuple(state)


def test_shared_parameters_are_there_once_or_twice_and_equal():
    def tied():
        head = InnerProduct("head", num_output=6, transpose=True, bias_term=False, param=[{"share_from": "table"}])
        return over_time(Embedding("words", vocab_size=6, feature_dim=5, param=[{"name": "table"}]), head, features=1)

    model = drawn(tied())
    state = convert.to_torch(model)
    assert state.keys() == {"words.weight", "head.weight"}
    for key in state:
        fresh = tied()
        convert.from_torch(fresh, {key: state[key]})
        assert same(fresh.state_dict(), model.state_dict())
    with pytest.raises(ConfigError, match=r"layer 'head': shares a parameter .*names={'head': None}"):
        convert.from_torch(tied(), {**state, "head.weight": state["head.weight"] + 1})


def test_own_layers_say_how_their_axes_lie():
    wanted = np.arange(6, dtype=np.float32).reshape(2, 3)
    model = Model([RecordInput("data", shape=[3]), KnownScale("s")])
    convert.from_torch(model, {"s.weight": wanted})
    np.testing.assert_array_equal(model.state_dict()["s_weight"], wanted.T)
    unknown = Model([RecordInput("data", shape=[3]), Scale("s")])
    with pytest.raises(
        ConfigError, match=r"Scale has no counterpart in PyTorch. Received: weight. Leave it out .*torch_axes"
    ):
        convert.from_torch(unknown, {"s.weight": wanted})


class Flat(Module):
    """before: what makes features of images."""

    def __init__(self, before):
        self.before = before
        self.conv, self.fc = Convolution(num_filters=3, kernel=2), InnerProduct(num_output=2)

    def forward(self, x):
        return self.fc(self.before(autograd.tanh(self.conv(x))))


FLAT = {
    "flatten": lambda y: autograd.dropout(autograd.flatten(y), 0.0),
    "flatten behind a function": lambda y: autograd.flatten(autograd.exp(y)),
    "reshape": lambda y: autograd.reshape(y, (-1, 3 * 4 * 2)),
    "the layer": lambda y: y,
}


@pytest.mark.parametrize("how", FLAT)
def test_a_module_takes_the_weights_that_its_net_takes(how):
    images = np.random.default_rng(0).normal(size=(2, 2, 5, 3)).astype(np.float32)
    module, x = Flat(FLAT[how]), Tensor.of(images)
    module(x)
    model = drawn(Model([RecordInput("data", shape=[2, 5, 3]), Flat(FLAT[how])]))
    state = convert.to_torch(model)
    assert convert.from_torch(module, state) == ((), ()) and same(convert.to_torch(module), state)
    np.testing.assert_allclose(module(x).to_numpy(), model.predict(np.moveaxis(images, 1, -1)), atol=1e-6)


class Scaled(Module):
    def __init__(self):
        self.fc, self.gain = InnerProduct(num_output=2), Tensor(data=np.ones(2), stores_grad=True)

    def forward(self, x):
        return self.fc(x) * self.gain


def test_tensors_that_are_parameters_are_so_in_pytorch():
    module, x = Scaled(), Tensor.of(np.ones((1, 3), np.float32))
    module(x)
    state = {"fc.weight": np.ones((2, 3)), "fc.bias": np.zeros(2), "scale": np.arange(2.0)}
    convert.from_torch(module, state, names={"gain": "scale"})
    np.testing.assert_array_equal(module(x).to_numpy(), [[0, 3]])
    assert convert.to_torch(module, names={"gain": "scale"}).keys() == state.keys()
    for wrong, said in (
        ({**state, "scale": np.zeros(3)}, r"state\['scale'\]: must have shape \(2,\) for 'gain'"),
        ({key: state[key] for key in ("fc.weight", "fc.bias")}, r"lacks tensors .*Received: scale \(2,\)"),
    ):
        with pytest.raises(ConfigError, match=said):
            convert.from_torch(module, wrong, names={"gain": "scale"})


def test_sequences_whose_channels_may_be_first_are_refused():
    layers = [RecordInput("data", shape=[12]), Reshape(shape=[3, 4]), InnerProduct("fc", num_output=2)]
    with pytest.raises(ConfigError, match=r"layer 'fc': flattens sequences, and PyTorch may have.*'fc': None"):
        convert.to_torch(Model(layers))
    assert convert.to_torch(Model(layers), names={"fc": None}) == {}


def test_features_whose_order_cannot_be_seen_are_refused():
    module = Flat(lambda y: autograd.flatten(autograd.swapaxes(y, 2, 3)))
    module(Tensor.of(np.ones((2, 2, 5, 3), np.float32)))
    state = convert.to_torch(Model([RecordInput("data", shape=[2, 5, 3]), Flat(FLAT["flatten"])]))
    with pytest.raises(ConfigError, match=r"layer 'fc': .* order cannot be seen.*names={'fc': None}"):
        convert.from_torch(module, state)


JOB = """
name: "points" train_steps: 1 seed: 5 train_one_batch { alg: kBP }
updater { type: kSGD learning_rate { type: kFixed base_lr: 1e-30 } }
cluster { %(cluster)s }
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { path: "%(folder)s/train" batchsize: 20 } }
  layer { name: "h" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 6 } %(partition)s }
  layer { name: "scores" type: kInnerProduct srclayers: "h" innerproduct_conf { num_output: 2 }
    param { init { type: kUniform value: 0.1 } } param { init { type: kConstant } } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "scores" srclayers: "data" }
}
"""


@pytest.mark.parametrize(
    "cluster", ["nworkers_per_group: 2", "nworkers_per_group: 2 nservers_per_group: 2 server_worker_separate: true"]
)
@pytest.mark.parametrize("partition", ["", "partition_dim: 1"])
def test_a_job_begins_with_weights_of_pytorch(tmp_path, cluster, partition, caplog):
    write_points(tmp_path, train=60)
    path = tmp_path / "w.safetensors"
    source = Model(
        [RecordInput("data", shape=[3]), InnerProduct("h", num_output=6), InnerProduct("old", num_output=9)]
    )
    state = convert.to_torch(drawn(source), path)
    text = JOB % {"folder": tmp_path, "cluster": cluster, "partition": partition}
    prepared = prepare(Job.from_text(text, [f"checkpoint_path={path}"]))
    assert check_given(prepared) == (f"2 of 4 initial parameters are from {path}; drawn: scores_weight, scores_bias",)
    assert "does not use: old.bias, old.weight" in caplog.text
    run_topology(prepared, tmp_path / "run")
    parameters = saved_at(tmp_path / "run", 1).parameters
    np.testing.assert_array_equal(parameters["h_weight"], state["h.weight"].T)
    np.testing.assert_array_equal(parameters["h_bias"], state["h.bias"])


def test_weights_that_a_job_lacks_are_named(tmp_path):
    write_points(tmp_path, train=60)
    source = Model([RecordInput("data", shape=[3]), InnerProduct("scores", num_output=2)])
    convert.to_torch(source, tmp_path / "w.safetensors")
    text = JOB % {"folder": tmp_path, "cluster": "", "partition": ""}
    prepared = prepare(Job.from_text(text, [f"checkpoint_path={tmp_path / 'w.safetensors'}"]))
    with pytest.raises(ConfigError, match=r"must have shape \(2, 6\) for 'scores'. Received: \(2, 3\).*In a job"):
        check_given(prepared)
    other = Model([RecordInput("data", shape=[3]), InnerProduct("other", num_output=2)])
    convert.to_torch(other, tmp_path / "w.safetensors")
    with pytest.raises(CheckpointError, match="neither given nor initialised by an init block: h_weight, h_bias"):
        check_given(prepared)


def test_init_is_the_checkpoint_path_of_the_job(tmp_path, monkeypatch):
    path, driven = tmp_path / "job.conf", []
    path.write_text(JOB % {"folder": tmp_path, "cluster": "", "partition": ""} + 'checkpoint_path: "old"')
    monkeypatch.setattr(Scheduler, "fork_workers", lambda *_: None)
    monkeypatch.setattr(run, "_conclude", lambda *_, **__: None)
    monkeypatch.setattr(run, "_drive", lambda signals, job, *_, **__: driven.append(list(job.proto.checkpoint_path)))
    result = CliRunner().invoke(run.train, [str(path), "--init", "w, 1.safetensors"], catch_exceptions=False)
    assert result.exit_code == 0 and driven == [["w, 1.safetensors"]]


def test_the_pages_have_the_tables_and_their_blocks_run(tmp_path, monkeypatch):
    docs = Path(singa_dask.__file__).parents[1] / "docs"
    table, page, onnx = (
        (docs / f"{name}.md").read_text() for name in ("reference/pytorch-weights", "weights", "onnx")
    )
    assert re.search(r"<!-- table -->\n(.*)<!-- end -->", table, re.DOTALL)[1].splitlines() == [*lines()]
    monkeypatch.chdir(tmp_path)
    operators = re.search(r"<!-- operators -->\n(.*)\.\n<!-- end", onnx, re.DOTALL)[1]
    assert operators.replace("\n", " ").split(", ") == sorted(CONVERTERS)
    blocks = re.findall(r"```python\n(.*?)```", page + onnx, re.DOTALL)
    exec("".join(block for block in blocks if "char-rnn" not in block), {})
    assert (tmp_path / "net.safetensors").stat().st_size > 4 * (10 * 4 * 36)
