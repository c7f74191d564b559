"""Sampling from a net that was trained on text: each symbol that is drawn is its next input."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from singa_dask.data import vocabulary
from singa_dask.errors import ConfigError, Problem, nearest
from singa_dask.job import Job, runs_in
from singa_dask.job.code_bundle import pack
from singa_dask.job.job_pb2 import LayerProto, LayerType, NetProto, Phase, UnrollConnType
from singa_dask.job.layer_types import type_name
from singa_dask.job.stores import store_of
from singa_dask.job.unroll import Times, connections, is_sequence, plain
from singa_dask.layers import layer_class
from singa_dask.layers.context import Step
from singa_dask.net import Batch, Net
from singa_dask.ops import get_ops
from singa_dask.training.initial_parameters import fitting, load_parameters
from singa_dask.training.prepare import VOCABULARY_CONFS, prepare

_PROBABILITIES = frozenset({LayerType.kSoftmaxLoss, LayerType.kCudnnSoftmaxLoss, LayerType.kSoftmax})


class Sampler:
    """A net that reads one symbol at a time and gives the probabilities of the next one. With attention, it reads the
    last symbols again each time, as many as in training.

    Built from the job that trained it, whose kCharRNN is then fed by hand, or from a job like SINGA's sample.conf,
    whose kRNNDummy reads the output of another layer. symbols: the vocabulary, by number.

    Raises ConfigError where the job has neither, or no softmax; CheckpointError where the parameters do not fit.
    """

    def __init__(self, job: Job, checkpoints: Iterable[str | Path] = ()):
        read = [layer for layer in job.net.layer if runs_in(layer, Phase.kTest)]
        dummies = [layer.name for layer in read if layer.type == LayerType.kRNNDummy]
        phase: int = Phase.kTest
        self._steps, self._read = 1, list[int]()
        if dummies:
            job = _with_sizes(job)
            job.check(training=False)
            pack(job.proto, job.folder)  # imports the user's own layers
            if attending := _attending(job.net, phase):
                why = f"{attending[0].name!r} reads several symbols at once, and a kRNNDummy has one"
                raise ConfigError(Problem("neuralnet", why, hint="Sample from the job that trained the net."))
            net, self.symbols = _with_vocabulary(_one_step(job.net, phase))
            self._source = dummies[0]
        else:
            phase, self._source = _text(job.net)
            prepared = prepare(job, phases=[phase]).job.neuralnet
            self.symbols = next(
                vocabulary(store_of(layer).path)
                for layer in prepared.layer
                if layer.name == self._source and runs_in(layer, phase)
            )
            self._steps = _attended(prepared, phase)
            net = prepared if self._steps > 1 else _one_step(prepared, phase)
        self._dummy = bool(dummies)
        self._net = Net(net, phase, get_ops("cpu"))
        self._net.carries = self._steps == 1
        self._scores = _probabilities(self._net)
        self._load([str(path) for path in checkpoints] or list(job.proto.checkpoint_path))
        self._number = 0

    def __call__(self, symbol: int) -> np.ndarray:
        """Read a symbol; the probabilities of the next one: (V,)."""
        feed = {}
        self._read = [*self._read, symbol][-self._steps :]
        if self._dummy:
            self._net.contexts[self._source].given = np.array([symbol])
        else:
            row = [*self._read, *[0] * (self._steps + 1 - len(self._read))]  # a causal net ignores what follows
            feed[self._source] = Batch(np.array([row], np.float32))
        self._net.forward(feed, Step(self._net.phase & ~Phase.kTrain, self._number))  # nothing is dropped
        self._number += 1
        probabilities = self._net.ops.to_host(self._net.output(self._scores)).reshape(self._steps, -1)
        return probabilities[len(self._read) - 1].astype(np.float64)

    def write(self, length: int, *, temperature: float = 1.0, primer: str = "", seed: int = 0) -> Iterator[str]:
        """`length` symbols drawn from p^(1/temperature); the most likely ones at temperature 0.

        primer: text that the net reads first; without one it starts from a random symbol. seed: of all draws.
        Raises ConfigError for symbols that are not in the vocabulary, and a negative length or temperature.
        """
        for key, value in (("length", length), ("temperature", temperature)):
            if value < 0:
                raise ConfigError(Problem(key, "must not be negative", str(value)))
        self._net.forget()
        self._read = []
        draw = np.random.default_rng(seed)
        given = self._numbers(primer) or [int(draw.integers(len(self.symbols)))]
        return self._written(given, length, temperature, draw)

    def _written(self, given: list[int], length: int, temperature: float, draw: np.random.Generator) -> Iterator[str]:
        for symbol in given[:-1]:
            self(symbol)
        symbol = given[-1]
        for _ in range(length):
            symbol = _next(self(symbol), temperature, draw)
            yield self.symbols[symbol]

    @property
    def separator(self) -> str:
        """The text between two symbols: a space if symbols are words."""
        return " " if any(len(symbol) > 1 for symbol in self.symbols) else ""

    def _numbers(self, text: str) -> list[int]:
        known = {symbol: number for number, symbol in enumerate(self.symbols)}
        numbers = []
        for symbol in text.split() if self.separator else text:
            if symbol not in known:
                hint = nearest(symbol, known) if self.separator else f"It has {''.join(sorted(known))!r}."
                raise ConfigError(
                    Problem("primer", "holds a symbol that is not in the vocabulary", repr(symbol), hint)
                )
            numbers.append(known[symbol])
        return numbers

    def _load(self, paths: list[str]) -> None:
        if not paths:
            hint = "Give --checkpoint, or checkpoint_path in the job."
            raise ConfigError(Problem("checkpoint_path", "must name the parameters", "nothing", hint))
        flat = self._net.flat
        shapes = {entry.name: tuple(entry.shape) for entry in flat.entries}
        flat.values[...] = flat.flattened(fitting(load_parameters(paths, self._net), shapes, frozenset()))


def _next(probabilities: np.ndarray, temperature: float, draw: np.random.Generator) -> int:
    if temperature == 0:
        return int(probabilities.argmax())
    with np.errstate(divide="ignore"):
        scores = np.log(probabilities) / temperature
    weights = np.exp(scores - scores.max())
    return int(draw.choice(len(weights), p=weights / weights.sum()))


def _text(net: NetProto) -> tuple[int, str]:
    """A phase in which the net reads one text, and the layer that reads it."""
    found = {}
    for phase in (Phase.kTest, Phase.kVal, Phase.kTrain):
        found[phase] = [layer.name for layer in net.layer if is_sequence(layer) and runs_in(layer, phase)]
        if len(found[phase]) == 1:
            return phase, found[phase][0]
    received = ", ".join(found[Phase.kTrain]) or "none"
    hint = "Sample from the job of a kCharRNN, or write one with a kRNNDummy."
    raise ConfigError(Problem("neuralnet", "needs one layer that reads a text", received, hint))


def _with_sizes(job: Job) -> Job:
    """The job in which each kOneHot and kEmbedding of a kRNNDummy's symbols has a vocab_size: their number, if the job
    gives none."""
    sized = Job.from_proto(job.proto, job.positions)
    sized.folder = job.folder
    layers = sized.proto.neuralnet.layer
    symbols = {each.name: int(each.rnn_dummy_conf.high) for each in layers if each.rnn_dummy_conf.integer}
    for layer in layers:
        conf = VOCABULARY_CONFS.get(layer.type)
        if (
            conf is not None
            and set(layer.srclayers) & symbols.keys()
            and not getattr(layer, conf).HasField("vocab_size")
        ):
            getattr(layer, conf).vocab_size = symbols[layer.srclayers[0]]
    return sized


def _attending(net: NetProto, phase: int) -> list[LayerProto]:
    """The layers that compute all time steps in one call."""
    return [layer for layer in plain(net).layer if runs_in(layer, phase) and layer_class(layer).across_steps]


def _attended(net: NetProto, phase: int) -> int:
    """The time steps that layers with attention compute in one call; 1 without such a layer.

    Raises ConfigError if a layer reads later symbols too.
    """
    found = _attending(net, phase)
    for layer in found:
        if not layer.attention_conf.causal:
            why = f"{layer.name!r} reads later symbols, which sampling does not know"
            hint = "Sampling needs a net without kReverse, with attention_conf { causal: true }."
            raise ConfigError(Problem("neuralnet", why, type_name(layer), hint))
    return max((layer.unroll_len for layer in found), default=1)


def _one_step(net: NetProto, phase: int) -> NetProto:
    """The net for one time step: only recurrent layers know earlier steps.

    Raises ConfigError where another layer reads other time steps.
    """
    times = Times.of(layer for layer in net.layer if runs_in(layer, phase))
    step = NetProto()
    step.CopyFrom(net)
    step.ClearField("unroll_len")
    for layer in step.layer:
        if not runs_in(layer, phase):
            continue
        kinds = []
        for connection in connections(layer, times):
            loop = connection.is_loop(layer) and layer_class(layer).recurrent
            first_to_last = connection.kind == UnrollConnType.kUnrollFirstToLast
            if first_to_last or (connection.delayed and not loop):
                why = f"{layer.name!r} reads other time steps of {connection.source!r}, but sampling has only one"
                hint = "Sampling needs a net whose only recurrence is in recurrent layers."
                raise ConfigError(Problem("neuralnet", why, UnrollConnType.Name(connection.kind), hint))
            kinds.append(UnrollConnType.kUnrollOneToAll if connection.frames else connection.kind)
        layer.unroll_len = 1
        layer.unroll_conn_type[:] = kinds
        if layer.type == LayerType.kCharRNN:
            layer.char_rnn_conf.unroll_len = 1
        elif is_sequence(layer):
            layer.store_conf.sequence = 1
    return step


def _with_vocabulary(net: NetProto) -> tuple[NetProto, tuple[str, ...]]:
    """The net, with a layer that passes its input on in place of its kCharRNNOutput, and the vocabulary of that."""
    outputs = [layer for layer in net.layer if layer.type == LayerType.kCharRNNOutput]
    if not outputs:
        hint = 'For example layer { name: "text" type: kCharRNNOutput srclayers: "argsort" char_rnn_conf { ... } }.'
        raise ConfigError(Problem("neuralnet", "needs a kCharRNNOutput: it names the vocabulary", hint=hint))
    symbols = vocabulary(outputs[0].char_rnn_conf.vocab_path)
    for layer in outputs:
        layer.type = LayerType.kDummy
        layer.ClearField("char_rnn_conf")
    return net, symbols


def _probabilities(net: Net) -> str:
    """The last layer whose output are probabilities."""
    names = [name for name, layer in net.layers.items() if layer.proto.type in _PROBABILITIES]
    if not names:
        hint = "Add a kSoftmax: a loss layer of your own has no probabilities."
        raise ConfigError(Problem("neuralnet", "has no kSoftmaxLoss or kSoftmax to draw symbols from", hint=hint))
    return names[-1]
