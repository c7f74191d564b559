"""ONNX models of recurrent nets give what our nets give, mini-batch after mini-batch, for any batch and any T."""

import numpy as np
import onnxruntime
import pytest
from google.protobuf import text_format
from support.onnx_models import read_again
from support.shards import write_shards
from support.user_layers import Same

from singa_dask.algorithms import BPTT
from singa_dask.data import Manifest
from singa_dask.data.normalise import make_normaliser, resolve_normalisation
from singa_dask.errors import ConfigError
from singa_dask.export.onnx import export
from singa_dask.job.job_pb2 import NetProto, Phase
from singa_dask.layers import Step
from singa_dask.net import Batch, Net
from singa_dask.ops import get_ops

STEPS, ROWS, SYMBOLS = 4, 3, 7
TEXT = """
  unroll_len: 4
  layer { name: "data" type: kRecordInput store_conf {
            path: "%(folder)s" batchsize: 3 shape: 1 sequence: 4 lookahead: 1 has_label: false } }
  layer { name: "label" type: kRNNLabel srclayers: "data" }
"""
ONE_HOT = 'layer { name: "in" type: kOneHot srclayers: "data" onehot_conf { vocab_size: 7 } }'
EMBEDDING = 'layer { name: "in" type: kEmbedding srclayers: "data" embedding_conf { vocab_size: 7 feature_dim: 3 } }'
OUT = """
  layer { name: "out" type: kInnerProduct srclayers: "%s" innerproduct_conf { num_output: 7 } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "out" srclayers: "label" }
"""


def recurrent(kind, name="cell", source="in", more="", units=5):
    conf = f"{kind[1:].lower()}_conf {{ dim_hidden: {units} {more} }}"
    return f'layer {{ name: "{name}" type: {kind} srclayers: "{source}" {conf} }}'


TWO = recurrent("kLSTM") + (
    'layer { name: "drop" type: kDropout srclayers: "cell" } layer { name: "act" type: kTanh srclayers: "drop" }'
    'layer { name: "copies" type: kSplit srclayers: "act" split_conf { num_splits: 2 } }'
    'layer { name: "ip" type: kInnerProduct srclayers: "copies" innerproduct_conf { num_output: 4 transpose: true } }'
    'layer { name: "soft" type: kSoftmax srclayers: "copies" softmax_conf { num_softmax_per_instance: 5 } }'
)
MANY_TO_ONE = """layer { name: "out" type: kInnerProduct srclayers: "cell" unroll_len: 1
    unroll_conn_type: kUnrollFirstToLast innerproduct_conf { num_output: 2 } }"""
DECODER = """layer { name: "decoder" type: %s srclayers: "in" srclayers: "cell" %s_conf { dim_hidden: 5 }
    unroll_conn_type: kUnrollOneToOne unroll_conn_type: kUnrollFirstToLast }"""
NETS = {
    **{kind: ONE_HOT + recurrent(kind) + OUT % "cell" for kind in ("kRNN", "kGRU", "kLSTM")},
    "a layer of one's own": ONE_HOT
    + recurrent("kRNN")
    + f'layer {{ name: "own" srclayers: "cell" user_type: "{__name__}:Halved" }}'
    + OUT % "own",
    **{
        f"{kind} without bias": ONE_HOT + recurrent(kind, more="bias_term: false") + OUT % "cell"
        for kind in ("kRNN", "kGRU", "kLSTM")
    },
    "embedding": EMBEDDING + recurrent("kGRU") + OUT % "cell",
    "two layers": EMBEDDING + TWO + recurrent("kGRU", "second", "ip", units=6) + OUT % "second",
    "both ways": ONE_HOT
    + 'layer { name: "back" type: kReverse srclayers: "in" }'
    + recurrent("kRNN", "r", "back")
    + """layer { name: "turned" type: kReverse srclayers: "r" }
    layer { name: "both" type: kConcate srclayers: "in" srclayers: "turned" concate_conf { concate_dim: 1 } }"""
    + OUT % "both",
    "an encoder and a GRU": ONE_HOT + recurrent("kGRU") + DECODER % ("kGRU", "gru") + OUT % "decoder",
    "an encoder and an LSTM": ONE_HOT + recurrent("kRNN") + DECODER % ("kLSTM", "lstm") + OUT % "decoder",
}


def transformer(kind, causal):
    return (
        EMBEDDING
        + f"""
      layer {{ name: "pos" type: kPositionalEmbedding srclayers: "in" positionalembedding_conf {{ kind: {kind} }} }}
      layer {{ name: "norm" type: kLayerNorm srclayers: "pos" }}
      layer {{ name: "attention" type: kAttention srclayers: "norm"
              attention_conf {{ num_heads: 3 causal: {causal} bias_term: {causal} }} }}
      layer {{ name: "sum" type: kAdd srclayers: "attention" srclayers: "pos" }}"""
        + OUT % "sum"
    )


@pytest.fixture(scope="module")
def symbols(tmp_path_factory):
    folder = tmp_path_factory.mktemp("symbols") / "shards"
    draw = np.random.default_rng(0)
    write_shards(folder, draw.integers(0, SYMBOLS, (90, 1)).astype(np.uint8), None)
    return folder


@pytest.fixture(scope="module")
def series(tmp_path_factory):
    folder = tmp_path_factory.mktemp("series") / "shards"
    draw = np.random.default_rng(0)
    write_shards(folder, draw.integers(0, 9, (90, 6, 5, 2)).astype(np.uint8), None)
    return folder


def made(text, folder, fold=True):
    """The evaluation net of a text, with random parameters."""
    proto = text_format.Parse(text % {"folder": folder}, NetProto())
    if proto.layer[0].HasField("store_conf"):
        column = Manifest.load(folder).features
        resolve_normalisation(proto.layer[0].store_conf, column, column, None)
    ops = get_ops("cpu")
    train = Net(proto, Phase.kTrain, ops, fold=fold)
    train.initialise(3)
    train.flat.values[...] += np.random.default_rng(1).normal(0, 0.3, train.flat.size)
    return Net(proto, Phase.kTest, ops, share=train, fold=fold)


def session(net, *outputs):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(export(net, outputs).SerializeToString(), options)


def carried(running, results):
    """What to feed next: the state after the last step."""
    named = zip((given.name for given in running.get_outputs()), results, strict=True)
    return {name.removesuffix("_out"): array for name, array in named if name.endswith("_out")}


def by_step(array, rows):
    """(T B, ...) -> (B, T, ...)."""
    return array.reshape(-1, rows, *array.shape[1:]).swapaxes(0, 1)


def rows_of(seed=2, rows=ROWS, steps=STEPS):
    return np.random.default_rng(seed).integers(0, SYMBOLS, (rows, steps + 1))


@pytest.mark.parametrize("name", NETS)
def test_two_mini_batches_with_carried_state(name, symbols):
    net = made(TEXT + NETS[name], symbols)
    running, state = session(net, "loss"), {}
    for number in range(2):
        rows = rows_of(number)
        feed = {"data": Batch(rows.astype(np.float32))}
        BPTT().test_one_batch(net, feed, Step(Phase.kTest, number, total_rows=ROWS))
        results = running.run(None, {"data": rows[:, :STEPS], **state})
        if not state:
            read_again(export(net, ["loss"]), rows[:, :STEPS], results)
        np.testing.assert_allclose(results[0], by_step(net.output("loss"), ROWS), rtol=1e-5, atol=1e-5)
        state = carried(running, results)
        expected = {
            f"{layer}.{key}": array
            for layer, arrays in net.state.items()
            for key, array in zip(net.layers[layer].carried, arrays, strict=True)
            if layer != "decoder"  # another layer gives its state
        }
        assert state.keys() == expected.keys()
        for key, array in expected.items():
            np.testing.assert_allclose(state[key], array, rtol=1e-5, atol=1e-5, err_msg=key)


def test_the_interface_is_as_described(symbols):
    running = session(made(TEXT + NETS["two layers"], symbols), "loss", "soft")
    assert [(x.name, x.type, x.shape) for x in running.get_inputs()] == [
        ("data", "tensor(int64)", ["batch", "time"]),
    ]
    assert [(x.name, x.shape) for x in running.get_overridable_initializers()] == [
        ("cell.h", ["batch_or_1", 5]),
        ("cell.cell", ["batch_or_1", 5]),
        ("second.h", ["batch_or_1", 6]),
    ]
    assert [(x.name, x.shape) for x in running.get_outputs()] == [
        ("loss", ["batch", "time", SYMBOLS]),
        ("soft", ["batch", "time", 5]),
        ("cell.h_out", ["batch", 5]),
        ("cell.cell_out", ["batch", 5]),
        ("second.h_out", ["batch", 6]),
    ]


def test_any_batch_and_any_number_of_steps(symbols):
    """Symbol by symbol, as one samples, or all at once: the same; and our net's, built for that T."""
    text = TEXT + NETS["two layers"]
    running = session(made(text, symbols), "loss")
    rows = rows_of(4, 2, 9)
    longer = made(text.replace("unroll_len: 4", "unroll_len: 9").replace("sequence: 4", "sequence: 9"), symbols)
    longer.forward({"data": Batch(rows.astype(np.float32))}, Step(Phase.kTest, total_rows=2))
    whole = running.run(["loss"], {"data": rows[:, :9]})[0]
    np.testing.assert_allclose(whole, by_step(longer.output("loss"), 2), rtol=1e-5, atol=1e-5)
    state = {}
    for t in range(9):
        results = running.run(None, {"data": rows[:, t : t + 1], **state})
        np.testing.assert_allclose(results[0][:, 0], whole[:, t], rtol=1e-5, atol=1e-5)
        state = carried(running, results)


def test_attention_to_the_steps_before_the_end(symbols):
    """Marked by a column beside the symbols; it is an input of the model."""
    marks = (
        'layer { name: "marks" type: kRecordInput store_conf { path: "%(folder)s" batchsize: 3 shape: 1 sequence: 4 '
    )
    text = TEXT + marks + "lookahead: 1 has_label: false } }" + transformer("LEARNED", "false")
    net = made(text.replace('srclayers: "norm"', 'srclayers: "norm" srclayers: "marks"'), symbols)
    rows, seen = rows_of(), np.arange(STEPS) < [[2], [4], [1]]
    whole = np.concatenate([seen, seen[:, :1]], axis=1).astype(np.float32)
    net.forward({"data": Batch(rows.astype(np.float32)), "marks": Batch(whole)}, Step(Phase.kTest, total_rows=ROWS))
    fed = {"data": rows[:, :STEPS], "marks": whole[:, :STEPS]}
    (found,) = session(net, "loss").run(None, fed)
    np.testing.assert_allclose(found, by_step(net.output("loss"), ROWS), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["LEARNED", "SINUSOIDAL"])
@pytest.mark.parametrize("causal", ["true", "false"])
def test_attention_over_any_number_of_steps(symbols, kind, causal):
    net = made(TEXT + transformer(kind, causal), symbols)
    running = session(net, "loss")
    rows = rows_of()
    net.forward({"data": Batch(rows.astype(np.float32))}, Step(Phase.kTest, total_rows=ROWS))
    (whole,) = running.run(None, {"data": rows[:, :STEPS]})
    read_again(export(net, ["loss"]), rows[:, :STEPS], [whole])
    np.testing.assert_allclose(whole, by_step(net.output("loss"), ROWS), rtol=1e-5, atol=1e-5)
    (fewer,) = running.run(None, {"data": rows[:2, :2]})
    assert fewer.shape == (2, 2, SYMBOLS)
    if causal == "true":
        np.testing.assert_allclose(fewer, whole[:2, :2], rtol=1e-5, atol=1e-5)


def test_a_classifier_of_sequences(symbols):
    net = made(TEXT + ONE_HOT + recurrent("kGRU") + MANY_TO_ONE, symbols)
    running, rows = session(net, "out", "cell"), rows_of()
    assert running.get_outputs()[0].shape == ["batch", 2]
    net.forward({"data": Batch(rows.astype(np.float32))}, Step(Phase.kTest, total_rows=ROWS))
    classes, hidden, _ = running.run(None, {"data": rows[:, :STEPS]})
    np.testing.assert_allclose(classes, net.output("out"), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(hidden, by_step(net.output("cell"), ROWS), rtol=1e-5, atol=1e-5)


SERIES = """
  unroll_len: 4
  layer { name: "data" type: kRecordInput store_conf { path: "%(folder)s" batchsize: 3
            shape: 2 shape: 6 shape: 5 sequence: 4 mean_file: "%(folder)s" std_value: 2 has_label: false } }
"""
CONVOLUTION = """
  layer { name: "in" type: kConvolution srclayers: "data" convolution_conf { num_filters: 3 kernel: 3 pad: 1 } }"""


def images(net, folder):
    """Sequences of raw images, channels first, and what the loader makes of them."""
    raw = np.random.default_rng(2).integers(0, 9, (ROWS, STEPS, 6, 5, 2)).astype(np.float32)
    rule = make_normaliser(net.layers["data"].proto.store_conf, Manifest.load(folder).features)
    normal = rule.reference(raw.reshape(ROWS * STEPS, -1), np.arange(ROWS * STEPS)).reshape(raw.shape)
    return raw.transpose(0, 1, 4, 2, 3), {"data": Batch(normal)}


def test_a_series_of_images(series):
    net = made(SERIES + CONVOLUTION + recurrent("kLSTM"), series)
    running = session(net, "in", "cell")
    assert running.get_inputs()[0].shape == ["batch", "time", 2, 6, 5]
    raw, feed = images(net, series)
    net.forward(feed, Step(Phase.kTest, total_rows=ROWS))
    filtered, hidden, *_ = running.run(None, {"data": raw})
    with pytest.raises(ConfigError, match=r"alone in it. Received: axis 0 of a tensor \(rows x 4, 2, 6, 5\)"):
        read_again(export(net, ["in", "cell"]), raw, [])
    ours = by_step(net.output("in"), ROWS).transpose(0, 1, 4, 2, 3)
    np.testing.assert_allclose(filtered, ours, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(hidden, by_step(net.output("cell"), ROWS), rtol=1e-5, atol=1e-5)


def test_windows_that_are_read_whole(series):
    whole = 'layer { name: "ip" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 3 } }'
    net = made(SERIES.replace("unroll_len: 4", "") + whole, series)
    raw, feed = images(net, series)
    net.forward(feed, Step(Phase.kTest, total_rows=ROWS))
    (theirs,) = session(net, "ip").run(None, {"data": raw})
    np.testing.assert_allclose(theirs, net.output("ip"), rtol=1e-5, atol=1e-4)


class Halved(Same):
    """x / 2, row by row."""

    rowwise = True

    def forward(self, ctx, *x):
        return x[0] * 0.5

    def to_onnx(self, graph, *inputs):
        return graph.add("Mul", [*inputs, graph.constant("half", np.float32(0.5))])


UNFOLDED = ONE_HOT + recurrent("kGRU") + 'layer { name: "norm" type: kBM srclayers: "cell" }' + OUT % "norm"
BOTH_WAYS = """layer { name: "window" type: kInnerProduct srclayers: "data" unroll_len: 1
    innerproduct_conf { num_output: 3 } }
    layer { name: "both" type: kConcate srclayers: "window" srclayers: "last" unroll_len: 1
      unroll_conn_type: kUnrollOneToOne unroll_conn_type: kUnrollFirstToLast concate_conf { concate_dim: 1 } }"""
READS_LABELS = 'layer { name: "ip" type: kInnerProduct srclayers: "label" innerproduct_conf { num_output: 2 } }'


@pytest.mark.parametrize(
    ("text", "output", "words"),
    [
        (UNFOLDED, "loss", r"layer 'loss'.*is unrolled.*0#loss, 1#loss.*are rowwise"),
        (UNFOLDED, "3#out", r"layer 'out'.*is unrolled.*3#out"),
        (READS_LABELS, "ip", r"layer 'label'.*reads the next symbols.*RNNLabel"),
        (
            ONE_HOT + recurrent("kGRU", "last") + BOTH_WAYS,
            "both",
            r"layer 'data'.*whole rows and step by step.*data@in, window",
        ),
        (
            """layer { name: "d" type: kRNNDummy unroll_len: 1
                 rnn_dummy_conf { shape: 1 shape: 1 low: 0 high: 7 integer: true } }""",
            "d",
            r"layer 'd'.*no counterpart in ONNX.*RNNDummy",
        ),
    ],
)
def test_what_cannot_be_exported_is_named(text, output, words, symbols):
    with pytest.raises(ConfigError, match=f"(?s){words}"):
        export(made(TEXT + text, symbols), [output])
