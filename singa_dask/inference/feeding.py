"""From the arrays that a model is called on to what its net is fed, a mini-batch after the other."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from math import prod
from typing import Any

import numpy as np

from singa_dask.data.columns import Channels, Column, Role
from singa_dask.data.containers import dense, in_types_of_numpy, is_table
from singa_dask.data.encoders import is_plain_number
from singa_dask.data.listed import together
from singa_dask.data.native import native
from singa_dask.data.normalise import resolve_normalisation
from singa_dask.data.sources.stored import Stored
from singa_dask.data.windows import trained_step
from singa_dask.errors import CommTimeout, DataError, NotFinite, check_count
from singa_dask.exchange.ranks import Ranks
from singa_dask.inference.described import KnownData, class_names, numbers
from singa_dask.job.job_pb2 import LayerProto, NetProto, Phase
from singa_dask.job.stores import net_shape
from singa_dask.layers.context import Step
from singa_dask.net import Batch, Net, features_as_targets, inputs_of, labelled_inputs
from singa_dask.net.setup import told_apart

# Rows of a pass that predicts: the output of the widest layer then has PASS_ELEMENTS, and stays in a cache.
PASS_ELEMENTS = 1 << 18
LEAST_ROWS, MOST_ROWS = 500, 4096


def read_files(proto: NetProto) -> None:
    """Put the numbers of mean_file and std_file into the net's input layers. Raises ConfigError, DataError."""
    for layer in [*proto.layer, *(layer for group in proto.layer_group for layer in group.layer)]:
        store = layer.store_conf if layer.HasField("store_conf") else LayerProto().store_conf
        if (store.mean_file or store.std_file) and store.shape and not store.normalise:
            shape = net_shape(tuple(store.shape))
            channels = Channels.LAST if len(shape) > 1 else Channels.NONE
            column = Column(layer.name, Role.FEATURE, "float32", shape, channels)
            resolve_normalisation(store, column, column, None)


def check_normalisation(net: Net) -> None:
    """Raise ConfigError if the normalisation of an input layer is wrong or needs training data."""
    for name in net.input_layers:
        layer = net.input_layer(name)
        _ = layer.normalisation, layer.target_normalisation


def feed_of(
    known: KnownData, x: Any, y: Any = None, *, output: str | None = None, weighs: bool = False
) -> tuple[dict[str, Batch], int]:
    """The arrays by input layer, in the units of the data, and the number of rows.

    known: of the net. x: one array, or arrays by input layer; y: labels or targets, likewise, or None. output: the
    layer that is to be predicted: other inputs than it depends on may be missing. Of an input layer of which only the
    labels are read, x may be the labels or targets. weighs: samples whose weight is not given have that of 1.
    Raises DataError if the arrays are not those of the net, or differ in the number of rows.
    """
    net = known.net
    names, answering = net.input_layers, _answering(net)
    needed = [name for name in names if name not in answering] if output is None else inputs_of(net, output)
    given = dict(x) if isinstance(x, Mapping) else dict.fromkeys(needed[:1], x)
    given |= _weights(known, given) if weighs else {}
    check_named(known, needed, given)
    answers = {name: given.pop(name) for name in answering & given.keys()}
    answers |= {} if y is None else _labels(net, y, given)
    labels = {name: _numbered(known, name, each) for name, each in answers.items()}
    if output is None and (missing := sorted(answering - labels.keys())):
        raise DataError(f"the input layers {', '.join(missing)} bring labels or targets: give y. Received: none.")
    features = {name: _array(like_trained(known, name, array, "x")) for name, array in given.items()}
    sizes = {f"x[{name!r}]" if len(features) > 1 else "x": len(array) for name, array in features.items()}
    sizes |= {f"y[{name!r}]" if len(labels) > 1 else "y": len(array) for name, array in labels.items()}
    rows = next(iter(sizes.values()))
    if rows < 1 or len(set(sizes.values())) > 1:
        told = ", ".join(f"{size} in {name}" for name, size in sizes.items())
        raise DataError(f"a mini-batch must have as many samples in all arrays, and at least one. Received: {told}.")
    for name in answering & labels.keys():
        features[name] = np.broadcast_to(np.float32(0), (rows, *net.shapes[name]))
    return {name: Batch(array, labels.get(name)) for name, array in features.items()}, rows


def check_named(known: KnownData, needed: Collection[str], given: Collection[str]) -> None:
    """Raise DataError if arrays are not given for these input layers. given: the layers that get one."""
    if not set(needed) <= set(given) <= set(known.net.input_layers):
        told = f"x must be arrays for the input layers {', '.join(needed)}. Received: {', '.join(given) or 'none'}."
        hint = f"Give a mapping with an array for each: {{{', '.join(f'{name!r}: ...' for name in needed)}}}."
        if weights := _weights(known, {}).keys() & needed:
            layer = min(weights)
            hint = f"A loss that needs {layer!r} only to weigh samples sets output_sources = (0,)."
        raise DataError(f"{told} {hint}")


def normalised(known: KnownData, feed: Mapping[str, Batch]) -> dict[str, Batch]:
    """The same mini-batch as the loader would give it. known: of the net.

    Raises DataError if arrays do not fit their input layers.
    """
    found, net = {}, known.net
    for name, batch in feed.items():
        layer = net.input_layer(name)
        labels = None if batch.labels is None else layer.normalised_labels(net.ops, batch.labels)
        found[name] = Batch(layer.normalised(net.ops, known.filled(name, batch.features)), labels)
    return found


def is_finite(net: Net, batch: Batch) -> bool:
    """Whether the net can compute with these features."""
    return batch.features.dtype.kind != "f" or bool(net.ops.xp.isfinite(batch.features).all())


def not_finite(data: KnownData, layer: str, features: Any, ready: Any, before: int) -> NotFinite:
    """The error that names the features of an input layer that the net cannot compute with. features: all of them;
    data: of the net; ready: those of a mini-batch, normalised, with `before` samples before them."""
    net, known = data.net, data.inputs.get(layer)
    with np.errstate(over="ignore"):
        values = net.ops.to_host(data.filled(layer, features)).astype(net.ops.dtype, copy=False)
    wrong = np.argwhere(~np.isfinite(values).reshape(len(values), -1))
    if not len(wrong):  # normalising has made them so
        wrong = np.argwhere(~np.isfinite(net.ops.to_host(ready)).reshape(len(ready), -1)) + np.array([before, 0])
    name, names = (known.column.name, known.column.names) if known is not None else (layer, ())
    if values.ndim == 2:
        place = int(wrong[0, 1])
        wrong = wrong[wrong[:, 1] == place]
        name = names[place] if names else f"{name}[{place}]"
    first = int(wrong[0, 0])
    what = "NaN" if np.isnan(values[first]).any() else f"infinite or beyond {np.dtype(net.ops.dtype)}"
    hint = "Fill them as those of the training data were, or leave out these samples."
    return NotFinite(name, what, len(wrong), first, hint)


def like_trained(known: KnownData, layer: str, array: Any, what: str, *, lone: bool = False) -> Any:
    """What is given for an input layer, see `native`. what: "x" or "y". lone: whether it is a single sample. Raises
    DataError for an array of h5py or zarr with other dimensions, coordinates or units than those of the training data,
    and for samples in a list likewise, see `listed`."""
    array, trained = native(array), known.along(layer, answers=what == "y")
    if isinstance(array, Stored):
        array = array.like(trained, f"{what} of {layer}", lone=lone)
    step = trained_step(known.store(layer)) if what == "x" and layer in known.net.layers else None
    return together(array, what, trained, step if step and step.size else None)[0]


def as_recorded(known: KnownData, layer: str, array: Any, what: str) -> Any:
    """What is given for an input layer, with the channels last. Where all axes of a sample are equal, they are where
    the shards have them; else the shape tells later. what: "x" or "y"."""
    array, described = like_trained(known, layer, array, what), known.inputs.get(layer)
    column = None if described is None else described.column if what == "x" else described.answers
    if column is None or column.raw.channels is not Channels.FIRST:
        return array
    read = known.net.shapes[layer] if what == "x" else known.net.input_layer(layer).target_shape
    equal = column.raw.shape == column.raw.net_shape == read == np.shape(array)[1:]
    return np.moveaxis(np.asarray(dense(array)), 1, -1) if equal else array


def _answering(net: Net) -> set[str]:
    """The input layers of which only the labels are read."""
    read = {
        source
        for layer in net.layers.values()
        for position, source in enumerate(layer.proto.srclayers)
        if position not in layer.label_positions
    }
    return set(labelled_inputs(net)) - read


def _labels(net: Net, y: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """The labels by input layer. Raises DataError if no layer would read them."""
    read = labelled_inputs(net)
    taken = features_as_targets(net)
    if taken and not read:
        loss, source = next(iter(taken.items()))
        raise DataError(
            f"layer {loss!r} takes the samples of {source!r} as its target, and y would not be read. Set target_shape "
            f"of {source!r} to the shape of one target ([1] for one number), or leave y out if the net is to "
            "reproduce its input."
        )
    if not isinstance(y, Mapping):
        return dict.fromkeys(read or given, y)
    if set(y) - set(read):
        readable = ", ".join(read) or "none"
        raise DataError(f"y must be labels or targets of input layers: {readable}. Received: {', '.join(y)}.")
    return dict(y)


def _numbered(known: KnownData, layer: str, answers: Any) -> Any:
    """Labels or targets as an array of numbers: of classes that have names their places.

    Raises DataError where a label is not one of the classes, or a target is missing that no mask leaves out.
    """
    described, read = known.inputs.get(layer), dense(like_trained(known, layer, answers, "y"))
    given: Any = np.asarray(read) if isinstance(read, Stored) else read
    if is_table(given):
        answered = None if described is None else described.answers
        names = () if described is None or answered is None else described.names(answered, given.columns)
        if not names and len(given.columns) > 1:
            hint = "Give y.to_numpy(), with the columns in the order of training."
            raise DataError(
                f"y: has the columns {', '.join(map(str, given.columns))}, and the net knows no names. {hint}"
            )
        given = numbers(given, names or map(str, given))
    column = described.answers if described is not None else None
    classes = class_names(column)
    given = _ignored(known, given, column)
    if classes is not None and classes != tuple(map(str, range(len(classes)))):
        values = np.asarray(given)
        whole = values.dtype.kind in "biu" or (values.dtype.kind == "f" and (values == np.floor(values)).all())
        if values.dtype.kind in "OUS" or (
            whole and column is not None and not column.coded and all(map(is_plain_number, classes))
        ):
            found, places = np.unique((values.astype(np.int64) if whole else values).astype(str), return_inverse=True)
            numbers_of = {f"{ignored}": ignored for ignored in _ignored_labels(known)}
            numbers_of |= {name: place for place, name in enumerate(classes)}
            if unknown := [name for name in found.tolist() if name not in numbers_of]:
                raise DataError(f"y: {unknown[0]!r} is not one of the classes {', '.join(classes[:8])}.")
            return np.array([numbers_of[name] for name in found.tolist()])[places].reshape(values.shape)
    array = _array(given, "y")
    masked = any(each.is_loss and len(each.proto.srclayers) > 2 for each in known.net.layers.values())
    limit = np.finfo(known.net.ops.dtype).max
    for what, wrong in (
        ("missing", lambda: array != array),
        (f"infinite or beyond {np.dtype(known.net.ops.dtype)}", lambda: (array > limit) | (array < -limit)),
    ):
        if array.dtype.kind == "f" and not masked and (places := wrong()).any():
            first = int(np.argwhere(np.asarray(places))[0, 0])
            raise DataError(f"y: a value is {what}, the first in sample {first}. Leave out these samples.")
    return array


def _ignored_labels(known: KnownData) -> list[int]:
    """The negative labels that losses ignore."""
    found = [layer.proto.softmaxloss_conf for layer in known.net.layers.values() if layer.is_loss]
    return [conf.ignore_label for conf in found if conf.HasField("ignore_label") and conf.ignore_label < 0]


def _ignored(known: KnownData, labels: Any, column: Column | None) -> Any:
    """Labels of positions with -1 for all negative numbers, as Classifier trains those, if the loss ignores -1 and
    none of them is a class."""
    labels = np.asarray(labels) if isinstance(labels, list) else labels
    if column is None or not column.of_positions or -1 not in _ignored_labels(known):
        return labels
    names = class_names(column) or ()
    if getattr(labels, "dtype", np.dtype(object)).kind not in "if" or any(name.startswith("-") for name in names):
        return labels
    labels = labels.copy()
    labels[labels < 0] = -1
    return labels


def _weights(known: KnownData, given: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """A weight of 1 for each sample where an input layer of weights gets none. given: arrays by input layer."""
    rows = len(next(iter(given.values()), ()))
    weights = {name for name, each in known.inputs.items() if each.column.role is Role.WEIGHT}
    return {name: np.ones((rows, *known.net.shapes[name]), np.float32) for name in weights - given.keys()}


def _array(array: Any, what: str = "x") -> Any:
    array = dense(in_types_of_numpy(native(array)))
    array = array if hasattr(array, "shape") else np.asarray(array)
    if not array.shape:
        raise DataError("x and y must be arrays whose first axis counts the samples. Received: a number.")
    if array.dtype.kind not in "biuf":
        try:
            if array.dtype.kind != "O" or any(isinstance(value, str | bytes) for value in np.asarray(array).flat):
                raise TypeError("not a type of real numbers")
            return np.asarray(array).astype(np.float64)  # mixed columns, of which all may be numbers
        except (TypeError, ValueError) as error:
            hint = "A net that was trained with a table reads texts and dates from a DataFrame with its columns."
            hint = hint if what == "x" else "Give classes as in training, and targets as numbers."
            raise DataError(f"{what} must be numbers. Received: {array.dtype} ({error}). {hint}") from error
    return array


def rows_of_a_pass(net: Net) -> int:
    """By the widths of the layers."""
    made = ((layer, net.shapes[name]) for name, layer in net.layers.items())
    widest = max(prod(shape[0] if told_apart(layer, shape) else shape) for layer, shape in made)
    return max(LEAST_ROWS, min(MOST_ROWS, PASS_ELEMENTS // widest))


def step_of(ranks: Ranks, phase: int, number: int, seed: int, counts: tuple[int, ...]) -> Step:
    """The step of this rank in a mini-batch of so many rows by rank."""
    return Step(phase, number, seed, sum(counts[: ranks.rank]), sum(counts), counts)


def mini_batches(
    known: KnownData, ranks: Ranks, seed: int, feed: Mapping[str, Batch], rows: int, batchsize: int
) -> Iterator[tuple[dict[str, Batch], Step]]:
    """Test data, `batchsize` rows at a time. Of a partitioned net, all ranks get as many mini-batches, the last ones
    maybe without rows. Raises ConfigError for a wrong batchsize, DataError for values that are not finite."""
    check_count("batchsize", batchsize)
    known.warn_of_mixing(batchsize)
    net = known.net
    for call, step in enumerate(_steps(ranks if net.parameter_net.partitioned else None, seed, rows, batchsize)):
        some = slice(call * batchsize, (call + 1) * batchsize)
        part = {
            name: Batch(batch.features[some], None if batch.labels is None else batch.labels[some])
            for name, batch in feed.items()
        }
        with np.errstate(over="ignore"):
            ready = normalised(known, part)
        for name in ready.keys() & set(known.needed):
            if not is_finite(net, ready[name]):
                raise not_finite(known, name, feed[name].features, ready[name].features, some.start)
        yield ready, step


def _steps(ranks: Ranks | None, seed: int, rows: int, batchsize: int) -> Iterator[Step]:
    """ranks: over which the net is partitioned."""
    if ranks is None:
        for start in range(0, rows, batchsize):
            yield Step(Phase.kTest, 0, seed, start, min(batchsize, rows - start))
        return
    try:
        every = tuple(zip(ranks.numbers(rows), ranks.numbers(batchsize), strict=True))
    except CommTimeout as error:
        what = f"The model is partitioned: evaluate() and predict() are calls of all {ranks.size} ranks."
        raise CommTimeout(f"{error}. {what}") from error
    for call in range(max(-(-count // size) for count, size in every)):
        counts = tuple(min(max(count - call * size, 0), size) for count, size in every)
        yield step_of(ranks, Phase.kTest, 0, seed, counts)
