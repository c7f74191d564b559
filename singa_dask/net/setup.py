"""The setup of the layers of a net: the shapes, labels and targets that each reads from its sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from singa_dask.errors import SingaError
from singa_dask.job.job_pb2 import Phase
from singa_dask.layers.base import Layer, LossLayer
from singa_dask.layers.formula import Loss
from singa_dask.layers.input import InputLayer
from singa_dask.layers.labels import refuse_targets
from singa_dask.layers.param import Shape
from singa_dask.net.graph import Graph
from singa_dask.net.last_steps import last_step
from singa_dask.net.passes import failure


def set_up(layers: Mapping[str, Layer], graph: Graph, phase: int) -> dict[str, Any]:
    """Call every layer's setup with its sources' shapes. Returns all shapes."""
    shapes: dict[str, Any] = {}
    targets: dict[str, Shape | None] = {}  # the targets that layers bring or pass on
    last: dict[str, str] = {}
    moved: dict[str, frozenset[str]] = {}  # by which layers the positions of an output are
    for name, layer in layers.items():
        read = {position: targets[layer.proto.srclayers[position]] for position in layer.target_positions}
        layer.targets = {position: shape for position, shape in read.items() if shape is not None}
        targets[name] = _target(layer, targets)
        sources = [source_shape_of(layers, graph, shapes, name, i) for i in range(len(layer.proto.srclayers))]
        _check_kind(layer, layers, sources)
        layer.sources(tuple(sources))
        try:
            shapes[name] = layer.setup(*sources)
        except SingaError:
            raise
        except Exception as error:
            raise failure(layer, phase, "setup", sources, error) from error
        by = [
            moved[at] if i not in layer.label_positions else frozenset() for i, at in enumerate(layer.proto.srclayers)
        ]
        if layer.is_loss and phase & Phase.kTrain:
            _check_moved(layer, layers, sources, by)
        moved[name] = frozenset({name} if layer.moves else ()).union(*by)
        if (of := last_step(layer, last, layers, sources)) is not None:
            last[name] = of
        for position in layer.label_positions:
            source = layer.proto.srclayers[position]
            first = labels_from(layers, source)
            # User layers may provide any labels.
            if not (isinstance(first, InputLayer) or first.makes_labels or first.type == "kUserLayer"):
                hint = "Name the layer that reads the data. The order of srclayers matters."
                raise layer.problem("reads labels from a layer without labels", source, hint)
        pieces = len(graph.consumers[name])
        if told_apart(layer, shapes[name]) and len(shapes[name]) != pieces:
            message = f"has {len(shapes[name])} outputs, but {pieces} layers read them"
            raise layer.problem(message, hint="Make both numbers equal.")
    return shapes


def _check_kind(layer: Layer, layers: Mapping[str, Layer], shapes: Sequence[Any]) -> None:
    """Check that a loss that compares classes gets labels, or the share of each class, and one that compares values
    targets. shapes: of its sources."""
    if isinstance(layer, Loss):
        named = layer.proto.srclayers
        layer.check_sources([layers[source] for source in named])
        labels = {i: labels_from(layers, named[i]) for i in layer.targets.keys() & {*layer.label_sources}}
        layer.classes = frozenset(i for i, of in labels.items() if isinstance(of, InputLayer) and of.labels_positions)
    compares = layer.compares if isinstance(layer, LossLayer) else ""
    for position in layer.targets if compares else ():
        source = layer.proto.srclayers[position]
        first = labels_from(layers, source)
        shares = isinstance(layer, LossLayer) and layer.takes_shares and layer.targets[position] == shapes[0]
        if not isinstance(first, InputLayer) or first.labels_positions == (compares == "classes" and not shares):
            continue
        if shares:
            received = f"scores {shapes[0]}, labels {layer.targets[position]}"
            hint = "Labels of a single class teach nothing: add samples of others, or write numbers with --target."
            raise layer.problem("needs scores of at least two classes at each position of the labels", received, hint)
        if compares == "classes":
            refuse_targets(layer)
        message = "compares numbers, but its source has labels of positions, which are classes"
        hint = "Use SoftmaxLoss for classes. If they are numbers, write the shards with --target."
        raise layer.problem(message, f"{source!r} has labels of shape {layer.targets[position]}", hint)


def _check_moved(
    loss: Layer, layers: Mapping[str, Layer], shapes: Sequence[Any], moved: Sequence[frozenset[str]]
) -> None:
    """Check that the positions that a loss compares are moved by the same layers. shapes: of its sources."""
    for i in range(1, len(shapes)):
        if i in loss.label_positions - loss.targets.keys():
            continue  # one label a sample
        flat = _has_positions(shapes[0]) and prod(shapes[i]) == prod(shapes[0])
        if (flat or _has_positions(shapes[i])) and (by := moved[0] ^ moved[i]):
            first = layers[min(by)]
            message = "moves images at random, and not what they are compared with"
            received = f"{first.moves}; {loss.name!r} compares {loss.proto.srclayers[0]!r} with positions of "
            hint = (
                "Leave it out, and change both in a transform: train(transform=), or store_conf.transform: "
                '"singa_dask.transforms:mirror".'
            )
            raise first.problem(message, f"{received}{loss.proto.srclayers[i]!r} {shapes[i]}", hint)


def _has_positions(shape: Shape) -> bool:
    """Whether samples of this shape have a height and a width."""
    return len(shape) > 2 and min(shape[:2]) > 1


def _target(layer: Layer, targets: Mapping[str, Shape | None]) -> Shape | None:
    """The shape of the target that a layer brings or passes on."""
    if isinstance(layer, InputLayer):
        return layer.target_shape
    if not layer.passes_labels or layer.makes_labels or not layer.proto.srclayers:
        return None
    passed = targets[layer.proto.srclayers[0]]
    return None if passed is None else layer.passed_target(passed)


def labels_from(layers: Mapping[str, Layer], source: str) -> Layer:
    """The layer whose labels a source provides or passes on."""
    first = layers[source]
    while first.passes_labels and not first.makes_labels:
        first = layers[first.proto.srclayers[0]]
    return first


def told_apart(layer: Layer, shape: Any) -> bool:
    """Whether `shape` has one shape per destination instead of one for all."""
    return layer.multiple_outputs and bool(shape) and isinstance(shape[0], tuple)


def source_shape_of(layers: Mapping[str, Layer], graph: Graph, shapes: Mapping[str, Any], name: str, i: int) -> Any:
    target = layers[name].targets.get(i)
    if target is not None:
        return target
    source = layers[name].proto.srclayers[i]
    if not told_apart(layers[source], shapes[source]):
        return shapes[source]
    edges = [(edge.consumer, edge.position) for edge in graph.consumers[source]]
    return shapes[source][edges.index((name, i))]
