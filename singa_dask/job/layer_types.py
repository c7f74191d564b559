"""Facts about layer types that need no class: settings block, required fields, parameters, role in a net."""

from __future__ import annotations

from singa_dask.job.job_pb2 import LayerProto, LayerType, PositionalEmbeddingProto

# SINGA's device-specific names of one layer; here `get_ops` chooses the device.
SPELLINGS: dict[str, str] = {
    "kCConvolution": "kConvolution",
    "kCPooling": "kPooling",
    "kCudnnActivation": "kActivation",
    "kCudnnBM": "kBM",
    "kCudnnConv": "kConvolution",
    "kCudnnLRN": "kLRN",
    "kCudnnPool": "kPooling",
    "kCudnnSoftmax": "kSoftmax",
    "kCudnnSoftmaxLoss": "kSoftmaxLoss",
}

_SHARDS = "Use kRecordInput over HDF5 shards, written by `singa-dask shard`"

# Types that SINGA deprecated -> what to write instead.
DEPRECATED: dict[str, str] = {
    "kLMDBData": f"{_SHARDS}.",
    "kShardData": f"{_SHARDS}.",
    "kMnist": f"{_SHARDS}; set std_value to norm_a and mean_value to norm_a * norm_b.",
    "kRGBImage": f"{_SHARDS}, then kImagePreprocess to crop and mirror.",
    "kLabel": f"{_SHARDS}; it also provides the labels: make it the second source of the loss.",
}

# Types that a job must not have -> what inserts them.
INSERTED: dict[str, str] = {
    "kFrame": "unrolling",
    "kLastStep": "unrolling",
    "kAllSteps": "unrolling",
    "kTransition": "partitioning",
    "kLabelTransition": "partitioning",
}

# Type -> its settings block. It is named after the type, except for these.
CONF: dict[str, str] = {
    **dict.fromkeys(("kCSVInput", "kRecordInput", "kCSVOutput", "kRecordOutput"), "store_conf"),
    **dict.fromkeys(("kCharRNN", "kCharRNNOutput"), "char_rnn_conf"),
    **dict.fromkeys(("kRBMHid", "kRBMVis"), "rbm_conf"),
    "kTransposedConvolution": "convolution_conf",
    "kAccuracy": "argsort_conf",
    "kImagePreprocess": "rgbimage_conf",
    "kRNNDummy": "rnn_dummy_conf",
}
for _type in LayerType.keys() - DEPRECATED.keys() - CONF.keys():
    _conf = f"{SPELLINGS.get(_type, _type)[1:].lower()}_conf"
    if _conf in LayerProto.DESCRIPTOR.fields_by_name:
        CONF[_type] = _conf

# Type -> required fields of its settings block, with an example each.
REQUIRED: dict[str, dict[str, str]] = {
    "kCSVInput": {"path": '"shards/train"', "batchsize": "64"},
    "kRecordInput": {"path": '"dataset:digits/train"', "batchsize": "64"},
    "kCharRNN": {"path": '"dataset:tinyshakespeare/train"'},
    "kOneHot": {"vocab_size": "100"},
    "kAttention": {"num_heads": "4"},
    "kConvolution": {"num_filters": "32"},
    "kInnerProduct": {"num_output": "10"},
    "kCharRNNOutput": {"vocab_path": '"vocab.txt"'},
    "kEmbedding": {"vocab_size": "1000"},
    "kGroupNorm": {"num_groups": "8"},
    "kCSVOutput": {"path": '"out.csv"'},
    "kRecordOutput": {"path": '"out"'},
    "kReshape": {"shape": "[1, 28, 28]"},
    "kTransposedConvolution": {"num_filters": "32"},
    **{kind: {"hdim": "500"} for kind in ("kRBMHid", "kRBMVis")},
    **{kind: {"dim_hidden": "512"} for kind in ("kGRU", "kLSTM", "kRNN")},
}
REQUIRED |= {spelling: REQUIRED[kind] for spelling, kind in SPELLINGS.items() if kind in REQUIRED}

# user_type of functions.
FORMULAS = tuple(f"singa_dask.layers.{name}" for name in ("formula:Lambda", "gradient:Gradient", "formula:Loss"))
ENERGY = frozenset({"kRBMHid", "kRBMVis"})  # trained by contrastive divergence
SOURCES = frozenset({"kCSVInput", "kRecordInput", "kCharRNN"})  # read data, not layers
# Prediction, label, maybe weights.
LOSSES = frozenset(
    {"kEuclideanLoss", "kSoftmaxLoss", "kCudnnSoftmaxLoss", "kMSELoss", "kMAELoss", "kHuberLoss", "kBCELoss"}
)
CLASSIFYING = frozenset({"kSoftmaxLoss", "kCudnnSoftmaxLoss"})  # those of them that compare classes

# Type -> the axis of its weight (or table) that `partition_dim: 1` splits, and what lies along it.
_SPLIT_WEIGHTS: dict[str, tuple[int, str]] = {
    "kBM": (0, "channels"),
    "kClassToken": (0, "features"),
    "kConvolution": (3, "filters"),
    "kEmbedding": (1, "features"),
    "kGroupNorm": (0, "channels"),
    "kPositionalEmbedding": (1, "features"),
    "kRBMHid": (1, "hidden units"),
    "kRBMVis": (1, "hidden units"),
    "kTransposedConvolution": (2, "filters"),
}

_CONVOLUTIONS = frozenset({"kConvolution", "kCConvolution", "kCudnnConv", "kTransposedConvolution"})
_AFFINE = frozenset({"kInnerProduct", "kRBMHid", "kRBMVis"}) | _CONVOLUTIONS
_NORMS = frozenset({"kBM", "kCudnnBM"})
_SAMPLE_NORMS = frozenset({"kLayerNorm", "kGroupNorm"})
_WHOLE = frozenset({"kLayerNorm"})  # every worker has their parameters
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
    if name in _SAMPLE_NORMS:
        return ("scale", "bias")
    if name == "kEmbedding":
        return ("table",)
    if name == "kPositionalEmbedding":
        learned = layer.positionalembedding_conf.kind == PositionalEmbeddingProto.LEARNED
        return ("table",) * learned
    if name == "kClassToken":
        return ("token",)
    if name == "kAttention":
        biased = layer.attention_conf.bias_term
        return ("weight", "bias", "output_weight", "output_bias") if biased else ("weight", "output_weight")
    if name in _GATES:
        gates = _GATES[name]
        weights = tuple(f"{gate}{what}" for what in ("hx", "hh") for gate in gates)
        # SINGA's rule: param blocks for the weights alone mean no biases.
        biased = getattr(layer, CONF[name]).bias_term and len(layer.param) != len(weights)
        return weights + tuple(f"{gate}b" for gate in gates) * biased
    if name not in _AFFINE:
        return ()
    return ("weight", "bias") if getattr(layer, CONF[name]).bias_term else ("weight",)


def split_axes(layer: LayerProto) -> tuple[dict[int, str], ...] | None:
    """For each parameter, the axes that can be split over workers, and what lies along each.

    None if only the layer's class knows them. The first axis is the one that the layer's `partition_dim: 1` splits.
    """
    roles, kind = parameter_roles(layer), SPELLINGS.get(type_name(layer), type_name(layer))
    if roles is None:
        return None
    if kind == "kInnerProduct":
        weight = {1: "output features", 0: "input features"}
        if layer.innerproduct_conf.transpose:
            weight = {0: "output features", 1: "input features"}
        return (weight, {0: "output features"})[: len(roles)]
    if kind == "kAttention" and layer.attention_conf.num_kv_heads in (0, layer.attention_conf.num_heads):
        axes = {"weight": {2: "heads"}, "bias": {1: "heads"}, "output_weight": {0: "heads"}}
        return tuple(axes.get(role, {}) for role in roles)
    if kind in _WHOLE or kind == "kAttention" or (kind in _CONVOLUTIONS and layer.convolution_conf.groups > 1):
        return ({},) * len(roles)
    axis, name = _SPLIT_WEIGHTS.get(kind, (0, "units"))
    if kind == "kRBMVis":
        return ({axis: name}, {})[: len(roles)]  # every worker has the visible units
    return tuple({axis if role in ("weight", "table") else 0: name} for role in roles)
