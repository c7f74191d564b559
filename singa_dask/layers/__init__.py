"""The built-in layers, and `layer_class`, which finds the class of a job's layer."""

from __future__ import annotations

from singa_dask.layers.activation import ELU, GELU, Activation, LeakyReLU, ReLU, Sigmoid, SiLU, STanh, Tanh
from singa_dask.layers.attention import Attention, PositionalEmbedding
from singa_dask.layers.base import Layer, LossLayer, OutputLayer
from singa_dask.layers.batch_norm import BatchNorm
from singa_dask.layers.connection import BridgeDst, BridgeSrc, Concate, Reshape, Slice, Split
from singa_dask.layers.context import Context, Metric, Step
from singa_dask.layers.convolution import Convolution, TransposedConvolution
from singa_dask.layers.dropout import Dropout
from singa_dask.layers.dummy import Dummy
from singa_dask.layers.elementwise import Add, Div, Max, Mul, Sub
from singa_dask.layers.formula import Lambda, Loss
from singa_dask.layers.generated import GeneratedInput
from singa_dask.layers.gradient import Gradient as Gradient
from singa_dask.layers.group_norm import GroupNorm, LayerNorm
from singa_dask.layers.inner_product import InnerProduct
from singa_dask.layers.input import CharRNN, CSVInput, InputLayer, RecordInput
from singa_dask.layers.loss import SoftmaxLoss
from singa_dask.layers.lrn import LRN
from singa_dask.layers.output import CSVOutput, RecordOutput
from singa_dask.layers.param import Param
from singa_dask.layers.partition import Sharding
from singa_dask.layers.pooling import GlobalPooling, Pooling
from singa_dask.layers.positions import ClassToken, Select
from singa_dask.layers.preprocess import ImagePreprocess
from singa_dask.layers.ranking import Accuracy, ArgSort
from singa_dask.layers.rbm import RBMHid, RBMVis
from singa_dask.layers.recurrent import GRU, LSTM, RNN
from singa_dask.layers.recurrent_layer import RecurrentLayer
from singa_dask.layers.registry import layer_class
from singa_dask.layers.sampling import CharRNNOutput, RNNDummy
from singa_dask.layers.sequence import AllSteps, Embedding, Frame, LastStep, OneHot, Reverse, RNNLabel, bidirectional
from singa_dask.layers.softmax import Softmax
from singa_dask.layers.transition import LabelTransition, Transition
from singa_dask.layers.upsampling import Upsampling
from singa_dask.layers.value_loss import BCELoss, EuclideanLoss, HuberLoss, MAELoss, MSELoss

__all__ = [
    "ELU",
    "GELU",
    "GRU",
    "LRN",
    "LSTM",
    "RNN",
    "Accuracy",
    "Activation",
    "Add",
    "AllSteps",
    "ArgSort",
    "Attention",
    "BCELoss",
    "BatchNorm",
    "BridgeDst",
    "BridgeSrc",
    "CSVInput",
    "CSVOutput",
    "CharRNN",
    "CharRNNOutput",
    "ClassToken",
    "Concate",
    "Context",
    "Convolution",
    "Div",
    "Dropout",
    "Dummy",
    "Embedding",
    "EuclideanLoss",
    "Frame",
    "GeneratedInput",
    "GlobalPooling",
    "GroupNorm",
    "HuberLoss",
    "ImagePreprocess",
    "InnerProduct",
    "InputLayer",
    "LabelTransition",
    "Lambda",
    "LastStep",
    "Layer",
    "LayerNorm",
    "LeakyReLU",
    "Loss",
    "LossLayer",
    "MAELoss",
    "MSELoss",
    "Max",
    "Metric",
    "Mul",
    "OneHot",
    "OutputLayer",
    "Param",
    "Pooling",
    "PositionalEmbedding",
    "RBMHid",
    "RBMVis",
    "RNNDummy",
    "RNNLabel",
    "ReLU",
    "RecordInput",
    "RecordOutput",
    "RecurrentLayer",
    "Reshape",
    "Reverse",
    "STanh",
    "Select",
    "Sharding",
    "SiLU",
    "Sigmoid",
    "Slice",
    "Softmax",
    "SoftmaxLoss",
    "Split",
    "Step",
    "Sub",
    "Tanh",
    "Transition",
    "TransposedConvolution",
    "Upsampling",
    "bidirectional",
    "layer_class",
]
