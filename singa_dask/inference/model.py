"""A net of layer objects that is called on arrays."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from singa_dask.errors import ConfigError, Problem, nearest
from singa_dask.exchange.ranks import Ranks, own_arrays
from singa_dask.inference.described import KnownData
from singa_dask.inference.feeding import (
    check_normalisation,
    feed_of,
    normalised,
    read_files,
    rows_of_a_pass,
    step_of,
)
from singa_dask.inference.first_call import fed_in_training
from singa_dask.inference.loss import TrainingLoss
from singa_dask.inference.passes import ON_CPU, Passes, Where
from singa_dask.inference.predicting import arrays_of, is_empty, predict
from singa_dask.inference.stitching import predict_field
from singa_dask.job.assemble import assemble
from singa_dask.job.check_fields import check_numbers
from singa_dask.job.code_bundle import CodeBundle, pack, unpacked
from singa_dask.job.fields import assign
from singa_dask.job.job_pb2 import JobProto, NetProto, Phase
from singa_dask.job.spec import Job
from singa_dask.job.unroll import origin
from singa_dask.layers.base import Layer
from singa_dask.layers.group import LayerGroup
from singa_dask.layers.kept import belong, bind
from singa_dask.net import Net
from singa_dask.ops import get_ops
from singa_dask.ops.gpu.turns import own_gpu
from singa_dask.tensors.device import float_type
from singa_dask.training import checkpoint as checkpoints
from singa_dask.training.checkpoint import Checkpoint


class Model:
    """A net built from layers as objects, in a list or a graph as `Job` takes them, with its initial parameters.

        model = Model([RecordInput(shape=[1, 28, 28]), InnerProduct(num_output=10), SoftmaxLoss()], seed=0)
        loss = model(x, y)                     x: (B, ...), images (B, H, W, C), or flat as (C H W); y: classes (B,)
        scores = model.predict(x)

    x: one array, or arrays by the names of the input layers; to predict, only those on which the output depends. y:
    class labels, or targets where the input layer has a target_shape; one array, or arrays by input layer. Both are in
    the units of the data: the model normalises them by mean, std, target_mean and target_std of its input layers, and
    predictions are in the units of the data again. The first training call sets the names of columns and dimensions.
    Several threads may predict and evaluate at the same time. A model can be pickled unless it is partitioned.

    A layer or a Module that is called outside of its model computes with the parameters of the model, and one that was
    called before brings its own. Of several models it is the last one.

    layers: may be a NetProto too. seed: determines the initial parameters and random layers. partition_dim: for layers
    without one of their own: a DistOpt divides the rows of mini-batches (0) or the features (1) among its ranks.
    device, dtype, device_id: "cpu" or "gpu", the type in which the model computes, the number of the GPU. compute: to
    what a GPU rounds the operands of matrix products, see JobProto.compute. ranks: those of DistOpt; training calls
    are then collective.

    With features to divide, a DistOpt of several ranks partitions the model. Then evaluate, predict and state_dict are
    collective too, and a rank holds only its shards of split parameters. Parameters get memory when they are first
    used, so no rank ever holds the whole net, unless it uses the model before.

    Raises ConfigError where the layers do not fit together.
    """

    def __init__(
        self,
        layers: Iterable[Any] | NetProto,
        *,
        partition_dim: int | None = None,
        seed: int = 0,
        device: str = "cpu",
        dtype: Any = np.float32,
        device_id: int = 0,
        compute: str = "kFloat32",
    ) -> None:
        self._proto = NetProto()
        self._objects: list[tuple[Layer, str]] = []  # layers that compute with the model's parameters
        if isinstance(layers, NetProto):
            self._proto.CopyFrom(layers)
        else:
            named: dict[Any, str] = {}
            self._proto.layer.extend(assemble(layers, named))
            self._objects = [(layer, name) for layer, name in named.items() if isinstance(layer, Layer)]
        if partition_dim is not None:
            assign(self._proto, "partition_dim", partition_dim, "partition_dim")
            check_numbers(NetProto(partition_dim=self._proto.partition_dim), "Model")
        read_files(self._proto)
        self.ops = get_ops(device, float_type(dtype), device_id=device_id, compute=compute)
        self.where = ON_CPU if device == "cpu" else Where((), compute)  # of its copies in other processes
        if device == "gpu":
            own_gpu((device_id,))
        self.seed = seed
        self.number = 0
        self.last: TrainingLoss | None = None
        self.ranks = Ranks()
        self.code: CodeBundle | None = None  # of the user's own layers
        self.described: Mapping[str, str] = {}  # the data of the input layers, as `Checkpoint` has it
        self._known: KnownData | None = None
        self._used = False  # whether the parameters have memory
        self.called = False  # in training, by these ranks
        self._allocating = threading.Lock()
        self._adopt(self._training_net(self.ranks))
        self._net.check_initial_values(seed)
        for layer, _ in self._objects:
            belong(layer, self)
        check_normalisation(self._net)

    @property
    def net(self) -> Net:
        """The training net of this rank."""
        with self._allocating:
            if not self._used:
                self._net.allocate()
                self._net.initialise(self.seed)
                self._used = True
                first = {origin(made.proto): made for made in reversed(self._net.layers.values())}  # of its instances
                for layer, name in () if self._net.partitioned else self._objects:
                    bind(layer, first[name].params, self.ops)
        return self._net

    @property
    def partitioned(self) -> bool:
        """Whether ranks have only their shards of the net."""
        return self._net.partitioned

    def __call__(self, x: Any, y: Any = None) -> TrainingLoss:
        """Run forward in training. x, y: as in `Model`; None for y if no layer reads it.

        Raises DataError where x and y do not fit the net or each other.
        """
        known, feed, rows, counts = fed_in_training(self, x, y)
        self.net.forward(normalised(known, feed), step_of(self.ranks, Phase.kTrain, self.number, self.seed, counts))
        self.last = TrainingLoss(self, self.net.metrics(), rows, sum(counts))
        return self.last

    def evaluate(self, x: Any, y: Any = None, *, batchsize: int = 500, metrics: Sequence[str] = ()) -> dict[str, Any]:
        """The metrics of test data, `batchsize` rows at a time, on this rank alone.

        y: labels as in the training data, if the net knows the names of its classes, else 0, 1, ...; or targets.
        Weights of samples that are not given are 1.
        metrics: names of further ones, as in JobProto.metric; "confusion" gives nested lists.
        Of a partitioned model collective: each rank calls it with rows of its own, as many as it likes, and gets the
        metrics of the rows of all ranks. Raises ConfigError if a metric does not exist or does not fit the net.
        """
        feed = feed_of(self.known, *arrays_of(self, x, y), weighs=True)
        self.known.warn_of_mixing(batchsize, measures=True)
        with self._passes.of(*feed, batchsize) as batches, self._passes.evaluator(metrics) as evaluator:
            measured = evaluator.measure(batches)
        if self.partitioned:
            measured.share(self.ranks.rank, self.ranks.numbers)
            measured.sums = self.ranks.sum(measured.sums)
        return measured.numbers | {name: detail.value for name, detail in measured.details.items()}

    @property
    def outputs(self) -> tuple[str, ...]:
        """The layers whose outputs `predict` gives: the losses, or else the last layer."""
        return tuple(self._test_net.predictions())

    @property
    def known(self) -> KnownData:
        """What is known of the data: names of classes, targets and columns."""
        if self._known is None or self._known.net is not self._test_net or self._known.texts is not self.described:
            self._known = KnownData(self._test_net, self.described)
        return self._known

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The names of the classes of the first output, if they are known: that of column i of `predict` is i."""
        return self.known.classes(self.outputs[0])

    def predict(self, x: Any, *, output: str | None = None, batchsize: int | None = None) -> Any:
        """The net's output for every row of x: class probabilities of a softmax loss, else the output of the loss or
        the last layer. x: one array, or arrays by the names of the input layers. -> (B, ...), of a layer with T time
        steps (B, T, ...), on the host.

        A Dask array gives a Dask array: its blocks are predicted on the workers when it is computed. A DataFrame, of
        pandas or Dask, gives a DataFrame with the same index; one of polars or a pyarrow Table an array. Columns of
        tables and coordinates of DataArrays, also of those in a list, are put in the order of training by their names.
        output: one of `outputs`; by default the first.
        batchsize: rows in one pass; by default it depends on the layers' widths.

        Of a partitioned model collective, as `evaluate`; each rank gets the output for its own rows.
        Raises ConfigError where the net has nothing to predict with, DataError for samples of other names.
        """
        return predict(self, x, self._output(output), batchsize)

    def predict_field(
        self,
        x: Any,
        *,
        stride: int | None = None,
        margin: int = 0,
        output: str | None = None,
        batchsize: int | None = None,
    ) -> Any:
        """The prediction at every position of one field, by a net that reads patches of it, such as a U-Net: the mean
        of the predictions of all patches there. -> (H, W), or (H, W, K) of K values at each position.

        x: (H, W), (H, W, C) or (C, H, W), of any size from that of a patch: an array, a DataArray, or a Dataset, whose
        variables are the channels. Of a net with several input layers, a Dataset or a mapping with a field for each. A
        Dask array gives a Dask array: the workers predict each block with what it needs
        of its neighbours. Coordinates are kept.
        stride: between patches, by default half of what is used of one. The last patch of each row and column ends
        with the field. margin: positions at edges of a patch inside the field that are not used, since a net knows
        less there. With a margin as wide as what a net of convolutions sees around a position, the result is that of
        the same net on the whole field.
        output, batchsize: as of `predict`.

        A patch with a missing value is not predicted: NaN where no other one lies.
        Raises ConfigError where the net does not predict fields of the size of its input, DataError for other fields.
        """
        return predict_field(self, x, self._output(output), stride, margin, batchsize)

    def predict_all(self, x: Any, *, output: str | None = None, batchsize: int | None = None) -> dict[str, np.ndarray]:
        """The outputs for every row of x in memory as arrays, by the names of `outputs`; see `predict`. x: what
        `output` needs, by default the first one; others are there if they need no more."""
        name = self._output(output)
        return self.computed(arrays_of(self, x, output=name)[0], output=name, batchsize=batchsize)

    def computed(self, x: Any, *, output: str | None = None, batchsize: int | None = None) -> dict[str, np.ndarray]:
        """`predict_all` of arrays as the input layers read them."""
        if not self.partitioned and is_empty(x):
            return {name: array[:0] for name, array in self.computed(self._row_of_zeros()).items()}
        feed, rows = feed_of(self.known, x, output=output or self.outputs[0])
        found: dict[str, np.ndarray] = {}
        done, size = 0, rows_of_a_pass(self._test_net) if batchsize is None else batchsize
        with self._passes.of(feed, rows, size) as batches:
            for part, step in batches:
                with self._passes.evaluator() as evaluator:
                    for name, y in evaluator.predict(part, step).items():
                        if name not in found:
                            found[name] = np.empty((rows, *y.shape[1:]), y.dtype)
                        found[name][done : done + len(y)] = y
                done += len(y)
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        if self.partitioned:
            message = f"is partitioned over {self.ranks.size} ranks and cannot be pickled"
            hint = "Pickle its state_dict(), which every rank must call."
            raise ConfigError(Problem("model", message, hint=hint))
        made = {"seed": self.seed, "dtype": self.ops.dtype}
        code = self.code or pack(self._proto)
        parameters = self.state_dict() if self._used else None
        kept = {"number": self.number, "described": dict(self.described), "where": self.where}
        return _unpickled, (self._proto.SerializeToString(), made, code, parameters, kept)

    def state_dict(self) -> dict[str, np.ndarray]:
        """Copies of the parameters, by name: whole arrays on every rank. Of a partitioned model collective."""
        held = {name: array.copy() for name, array in self._held.items()}
        return self.ranks.whole(self.net.params, held)

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Set the parameters from whole arrays, on every rank of a partitioned model.

        Raises CheckpointError where names or shapes differ.
        """
        own = own_arrays(self.net.params, state)
        for param in self.net.params:
            param.value[...] = self.ops.asarray(own[param.name], self.ops.dtype)

    def save(self, path: str | Path) -> None:
        """Write the net with its parameters to a checkpoint file, for `load_model`. Of a partitioned model collective;
        rank 0 writes.

        Raises CheckpointError where the file cannot be written.
        """
        state, code = self.state_dict(), self.code or pack(self._proto)
        if self.ranks.rank == 0:
            text = Job.from_proto(JobProto(name="model", neuralnet=self._proto)).to_text()
            kept = None if code is None else code.signed()
            checkpoint = Checkpoint(self.number, self.seed, text, state, described=self.described, code=kept)
            checkpoints.save(checkpoint, Path(path))

    def to_onnx(self, path: str | Path, outputs: Sequence[str] = ()) -> None:
        """Write the net with its parameters as an ONNX model, as `singa-dask export` does.

        outputs: names of layers, by default the one of the predictions.

        Raises ConfigError where a layer has no counterpart in ONNX, the model is partitioned, or the file cannot be
        written.
        """
        from singa_dask.export.onnx import save

        if self.partitioned:
            hint = "Load the state_dict() that every rank gets into a Model of its own, and export that."
            raise ConfigError(Problem("model", f"is partitioned over {self.ranks.size} ranks", hint=hint))
        save(self._make_test_net(self.net), Path(path), outputs)

    def spread(self, ranks: Ranks) -> None:
        """Train on these ranks; each keeps its shards of rank 0's parameters if the net is partitioned. Collective.

        Raises ConfigError where the ranks' models differ, or this one is partitioned over other ranks.
        """
        if self.partitioned and (ranks.rank, ranks.size) != (self.ranks.rank, self.ranks.size):
            message = f"is partitioned over {self.ranks.size} ranks already"
            hint = "Build another one and load the state_dict() of this one into it."
            raise ConfigError(Problem("model", message, f"a DistOpt of {ranks.size}", hint))
        net = self._net if self.partitioned else self._training_net(ranks)
        self._check_same(net, ranks)
        self.ranks, self.called = ranks, False
        if self.partitioned or not net.partitioned:
            return
        kept = ranks.numbers(self._used)[0] == 1
        whole = self._held if kept and ranks.rank == 0 else {}
        self._adopt(net)
        if kept:
            net.allocate()
            self._used = True
            for param in net.own.params:
                shard = ranks.scattered(param, whole.get(param.name), np.dtype(self.ops.dtype))
                param.value[...] = self.ops.asarray(shard)
            for name in [entry.name for entry in net.flat.entries] if whole else []:
                net.named_params[name].value[...] = self.ops.asarray(whole[name])

    def join(self, group: LayerGroup) -> None:
        """Let the layers of the training net exchange with those of the other ranks; if the model is partitioned, also
        those of the test net."""
        self._net.join(group)
        if self.partitioned:
            self._test_net.join(group)

    @property
    def _held(self) -> dict[str, np.ndarray]:
        """What this rank has of the parameters, by name, on the host; may be views."""
        flat, own = self.net.flat, self.net.own
        return flat.named(self.ops.to_host(flat.values)) | own.named(self.ops.to_host(own.values))

    def _output(self, name: str | None) -> str:
        """The output of this name, by default the first. Raises ConfigError."""
        names = self.outputs
        if name is not None and name not in names:
            raise ConfigError(Problem("output", "is not an output of this model", repr(name), nearest(name, names)))
        return name or names[0]

    def _row_of_zeros(self) -> dict[str, np.ndarray]:
        net = self._test_net
        return {name: np.zeros((1, *net.shapes[name]), self.ops.dtype) for name in net.input_layers}

    def _training_net(self, ranks: Ranks) -> Net:
        with unpacked(self.code):
            return Net(self._proto, Phase.kTrain, self.ops, rank=ranks.rank, size=ranks.size, allocate=False)

    def _adopt(self, net: Net) -> None:
        """Use this training net, whose parameters have no memory yet."""
        self._net, self._used = net, False
        self._test_net = self._make_test_net(net)
        self._passes = Passes(self)

    def own_test_net(self) -> Net:
        """A test net with the parameters of the model and buffers of its own; of a partitioned model the only one."""
        net = self.net
        return self._test_net if self.partitioned else self._make_test_net(net)

    def _make_test_net(self, net: Net) -> Net:
        rank, size = (self.ranks.rank, self.ranks.size) if net.partitioned else (0, 1)
        with unpacked(self.code):
            return Net(self._proto, Phase.kTest, self.ops, share=net, rank=rank, size=size)

    def _check_same(self, net: Net, ranks: Ranks) -> None:
        """Raise ConfigError on all ranks if their models differ."""
        described: list[Any] = [(param.name, param.whole_shape) for param in net.params]
        if net.partitioned:
            shardings = [(name, layer.partition.reads, layer.partition.makes) for name, layer in net.layers.items()]
            described += [self.seed, shardings]
        marks = ranks.numbers(zlib.crc32(repr((described, str(self.ops.dtype))).encode()))
        other = next((rank for rank, mark in enumerate(marks) if mark != marks[0]), None)
        if other is not None:
            what = "parameters, partitions or seed" if net.partitioned else "parameters"
            message = f"rank {other} has a model of other {what} than rank 0"
            raise ConfigError(Problem("model", message, hint="Build the same layers on every rank."))


def _unpickled(
    net: bytes,
    made: Mapping[str, Any],
    code: CodeBundle | None,
    parameters: Mapping[str, np.ndarray] | None,
    kept: Mapping[str, Any],
) -> Model:
    with unpacked(code):
        model = Model(NetProto.FromString(net), **made, **kept["where"].here(made["dtype"]))
    model.code = code
    for name, value in kept.items():
        setattr(model, name, value)
    if parameters is not None:
        model.load_state_dict(parameters)
    return model
