"""Facts about layer types that need no class: settings block, required fields, parameters, role in a net."""

from __future__ import annotations

from singa_dask.job.job_pb2 import LayerProto, LayerType

# Type -> its settings block.
CONF: dict[str, str] = {
    "kCSVInput": "store_conf",
    "kRecordInput": "store_conf",
    "kImagePreprocess": "rgbimage_conf",
    "kCharRNN": "char_rnn_conf",
    "kOneHot": "onehot_conf",
    "kConvolution": "convolution_conf",
    "kCConvolution": "convolution_conf",
    "kCudnnConv": "convolution_conf",
    "kDropout": "dropout_conf",
    "kDummy": "dummy_conf",
    "kInnerProduct": "innerproduct_conf",
    "kLRN": "lrn_conf",
    "kCudnnLRN": "lrn_conf",
    "kPooling": "pooling_conf",
    "kCPooling": "pooling_conf",
    "kCudnnPool": "pooling_conf",
    "kRBMHid": "rbm_conf",
    "kRBMVis": "rbm_conf",
    "kReLU": "relu_conf",
    "kSoftmax": "softmax_conf",
    "kCudnnSoftmax": "softmax_conf",
    "kGRU": "gru_conf",
    "kLSTM": "lstm_conf",
    "kRNN": "rnn_conf",
    "kEmbedding": "embedding_conf",
    "kActivation": "activation_conf",
    "kCudnnActivation": "activation_conf",
    "kBM": "bm_conf",
    "kCudnnBM": "bm_conf",
    "kSoftmaxLoss": "softmaxloss_conf",
    "kCudnnSoftmaxLoss": "softmaxloss_conf",
    "kAccuracy": "argsort_conf",
    "kArgSort": "argsort_conf",
    "kCSVOutput": "store_conf",
    "kRecordOutput": "store_conf",
    "kConcate": "concate_conf",
    "kSlice": "slice_conf",
    "kSplit": "split_conf",
    "kRNNDummy": "rnn_dummy_conf",
    "kCharRNNOutput": "char_rnn_conf",
}

# Type -> required fields, with an example each.
REQUIRED: dict[str, tuple[tuple[str, str, str], ...]] = {
    "kCSVInput": (("store_conf", "path", '"shards/train"'), ("store_conf", "batchsize", "64")),
    "kRecordInput": (("store_conf", "path", '"dataset:digits/train"'), ("store_conf", "batchsize", "64")),
    "kCharRNN": (("char_rnn_conf", "path", '"dataset:tinyshakespeare/train"'),),
    "kOneHot": (("onehot_conf", "vocab_size", "100"),),
    "kConvolution": (("convolution_conf", "num_filters", "32"),),
    "kInnerProduct": (("innerproduct_conf", "num_output", "10"),),
    "kRBMHid": (("rbm_conf", "hdim", "500"),),
    "kRBMVis": (("rbm_conf", "hdim", "500"),),
    "kGRU": (("gru_conf", "dim_hidden", "512"),),
    "kLSTM": (("lstm_conf", "dim_hidden", "512"),),
    "kRNN": (("rnn_conf", "dim_hidden", "512"),),
    "kCharRNNOutput": (("char_rnn_conf", "vocab_path", '"vocab.txt"'),),
    "kEmbedding": (("embedding_conf", "vocab_size", "1000"),),
    "kCSVOutput": (("store_conf", "path", '"out.csv"'),),
    "kRecordOutput": (("store_conf", "path", '"out"'),),
}
for _spelling in ("kCConvolution", "kCudnnConv"):
    REQUIRED[_spelling] = REQUIRED["kConvolution"]

_SHARDS = "Use kRecordInput over HDF5 shards, written by `singa-dask shard`"

# Types that SINGA deprecated -> what to write instead.
DEPRECATED: dict[str, str] = {
    "kLMDBData": f"{_SHARDS}.",
    "kShardData": f"{_SHARDS}.",
    "kMnist": f"{_SHARDS}; set std_value to norm_a and mean_value to norm_a * norm_b.",
    "kRGBImage": f"{_SHARDS}, then kImagePreprocess to crop and mirror.",
    "kLabel": f"{_SHARDS}; it also provides the labels: make it the second source of the loss.",
}

ENERGY = frozenset({"kRBMHid", "kRBMVis"})  # trained by contrastive divergence
SOURCES = frozenset({"kCSVInput", "kRecordInput", "kCharRNN"})  # read data, not layers
LOSSES = frozenset({"kEuclideanLoss", "kSoftmaxLoss", "kCudnnSoftmaxLoss"})  # read a prediction and a label

_AFFINE = frozenset({"kInnerProduct", "kConvolution", "kCConvolution", "kCudnnConv", "kRBMHid", "kRBMVis"})
_NORMS = frozenset({"kBM", "kCudnnBM"})
_GATES: dict[str, tuple[str, ...]] = {"kGRU": ("z_", "r_", "c_"), "kLSTM": ("i_", "f_", "o_", "g_"), "kRNN": ("",)}


def type_name(layer: LayerProto) -> str:
    """The name of the layer's type, kUserLayer without one."""
    return LayerType.Name(layer.type)


def parameter_roles(layer: LayerProto) -> tuple[str, ...] | None:
    """The roles of the layer's parameters, in order; None if only its class knows them."""
    name = type_name(layer)
    if name == "kUserLayer" or name in DEPRECATED:
        return None
    if name in _NORMS:
        return ("scale", "bias", "mean", "var")
    if name == "kEmbedding":
        return ("table",)
    if name in _GATES:
        gates = _GATES[name]
        weights = tuple(f"{gate}{what}" for what in ("hx", "hh") for gate in gates)
        # SINGA's rule: param blocks for the weights alone mean no biases.
        biased = getattr(layer, CONF[name]).bias_term and len(layer.param) != len(weights)
        return weights + tuple(f"{gate}b" for gate in gates) * biased
    if name not in _AFFINE:
        return ()
    return ("weight", "bias") if getattr(layer, CONF[name]).bias_term else ("weight",)
