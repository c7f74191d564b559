"""The class of each layer type."""

from __future__ import annotations

from singa_dask.errors import ConfigError, Problem
from singa_dask.job.description import class_of
from singa_dask.job.job_pb2 import LayerProto, LayerType
from singa_dask.job.layer_types import DEPRECATED
from singa_dask.layers.activation import Activation, ReLU, Sigmoid, STanh, Tanh
from singa_dask.layers.base import Layer
from singa_dask.layers.batch_norm import BatchNorm
from singa_dask.layers.connection import Concate, Slice, Split
from singa_dask.layers.convolution import Convolution
from singa_dask.layers.dropout import Dropout
from singa_dask.layers.dummy import Dummy
from singa_dask.layers.inner_product import InnerProduct
from singa_dask.layers.input import CharRNN, CSVInput, RecordInput
from singa_dask.layers.loss import EuclideanLoss, SoftmaxLoss
from singa_dask.layers.lrn import LRN
from singa_dask.layers.output import CSVOutput, RecordOutput
from singa_dask.layers.pooling import Pooling
from singa_dask.layers.preprocess import ImagePreprocess
from singa_dask.layers.ranking import Accuracy, ArgSort
from singa_dask.layers.rbm import RBMHid, RBMVis
from singa_dask.layers.recurrent import GRU, LSTM, RNN
from singa_dask.layers.sampling import CharRNNOutput, RNNDummy
from singa_dask.layers.sequence import Embedding, Frame, LastStep, OneHot, RNNLabel
from singa_dask.layers.softmax import Softmax

LAYERS: tuple[type[Layer], ...] = (
    Accuracy,
    Activation,
    ArgSort,
    BatchNorm,
    CSVInput,
    CSVOutput,
    CharRNN,
    CharRNNOutput,
    Concate,
    Convolution,
    Dropout,
    Dummy,
    Embedding,
    EuclideanLoss,
    Frame,
    GRU,
    ImagePreprocess,
    InnerProduct,
    LRN,
    LSTM,
    LastStep,
    OneHot,
    Pooling,
    RBMHid,
    RBMVis,
    RNN,
    RNNDummy,
    RNNLabel,
    ReLU,
    RecordInput,
    RecordOutput,
    STanh,
    Sigmoid,
    Slice,
    Softmax,
    SoftmaxLoss,
    Split,
    Tanh,
)

# SINGA's device-specific names of one layer; here `get_ops` chooses the device.
_SPELLINGS = {
    "kCConvolution": Convolution,
    "kCPooling": Pooling,
    "kCudnnActivation": Activation,
    "kCudnnBM": BatchNorm,
    "kCudnnConv": Convolution,
    "kCudnnLRN": LRN,
    "kCudnnPool": Pooling,
    "kCudnnSoftmax": Softmax,
    "kCudnnSoftmaxLoss": SoftmaxLoss,
}

CLASSES: dict[str, type[Layer]] = {cls.type: cls for cls in LAYERS} | _SPELLINGS

_BRIDGE = "Remove it: layers split over workers are not yet supported."
_UNAVAILABLE = DEPRECATED | {"kBridgeSrc": _BRIDGE, "kBridgeDst": _BRIDGE}


def layer_class(proto: LayerProto) -> type[Layer]:
    """The class of a layer's `type`, or of its `user_type` ("module:Class").

    Raises ConfigError for unavailable types, and for user layers that cannot be imported or do not derive from Layer.
    """
    name, key = LayerType.Name(proto.type), f"layer {proto.name!r}"
    if name in _UNAVAILABLE:
        raise ConfigError(Problem(key, f"layer type {name} is not available", hint=_UNAVAILABLE[name]))
    return class_of(proto, CLASSES, Layer, key, example="kInnerProduct")
