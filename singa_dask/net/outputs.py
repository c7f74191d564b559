"""What the outputs of a net depend on, and the units in which they are."""

from __future__ import annotations

import numpy as np

from singa_dask.layers.input import InputLayer
from singa_dask.layers.normalisation import Normalisation
from singa_dask.layers.param import Shape
from singa_dask.layers.transition import Transition
from singa_dask.net.net import Net
from singa_dask.net.setup import labels_from
from singa_dask.ops.arrays import Array


def layers_of(net: Net, name: str) -> set[str]:
    """The layers on whose outputs the output of layer `name` depends, and `name`."""
    needed: set[str] = set()
    open_ = [name]
    while open_:
        layer = net.layers[open_.pop()]
        if layer.name in needed:
            continue
        needed.add(layer.name)
        open_ += [layer.proto.srclayers[position] for position in layer.output_positions]
        if layer.proto.rnn_dummy_conf.dynamic_srclayer in net.layers:
            open_.append(layer.proto.rnn_dummy_conf.dynamic_srclayer)
    return needed


def inputs_of(net: Net, name: str) -> list[str]:
    """The input layers on whose samples the output of layer `name` depends, in order."""
    needed = layers_of(net, name)
    return [layer for layer in net.input_layers if layer in needed]


def labelled_inputs(net: Net) -> list[str]:
    """The input layers whose labels or targets some layer reads, in order."""
    read = {first.name for name in net.layers for first in net.labels_from(name)}
    return [name for name in net.input_layers if name in read]


def features_as_targets(net: Net) -> dict[str, str]:
    """The layers that read the samples of an input layer as their target, and that input layer, by name."""
    found = {}
    for name, layer in net.layers.items():
        for position in layer.target_positions - layer.label_positions:
            first = labels_from(net.layers, layer.proto.srclayers[position]).name
            if first in net.input_layers:
                found[name] = first
    return found


def units(net: Net, name: str) -> tuple[Normalisation, Shape] | None:
    """How the output of a layer and the target that it is compared with are normalised, and the sample shape to which
    that applies; None if it is compared with nothing that an input layer brings.

    name: of the layer that reads the target, as a loss, or of its first source.
    """
    for every in (net, net.parameter_net):
        for layer in every.layers.values():
            sources = [_behind_transition(every, source) for source in layer.proto.srclayers]
            if name not in (layer.name, *sources[:1]):
                continue
            for position in sorted(layer.target_positions):
                first = labels_from(every.layers, sources[position])
                if not isinstance(first, InputLayer) or first.labels_positions:
                    continue
                if position in layer.label_positions - layer.targets.keys():
                    break  # it is compared with labels: what follows are weights
                if position in layer.targets:
                    return first.target_normalisation, layer.targets[position]
                if first.name == sources[position]:
                    return first.normalisation, every.shapes[first.name]
    return None


def in_units(net: Net, name: str, y: Array) -> Array:
    """The output of layer `name`, or the target that it is compared with, in the units of the data.   y: (B, ...), on
    the host or the device. Returned as it is where `units` finds nothing."""
    return undone(net, units(net, name), y)


def undone(net: Net, found: tuple[Normalisation, Shape] | None, y: Array) -> Array:
    """The same where `units` are found already."""
    if found is None:
        return y
    normalisation, shape = found
    xp = np if type(y) is np.ndarray else net.ops.xp
    return normalisation.undo(xp, y.reshape(len(y), *shape)).reshape(y.shape)


def _behind_transition(net: Net, name: str) -> str:
    layer = net.layers[name]
    return layer.proto.srclayers[0] if isinstance(layer, Transition) else name
