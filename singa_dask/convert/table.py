"""Where the parameters of each layer are in PyTorch, and how their axes lie there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import prod
from typing import NamedTuple

import numpy as np

from singa_dask.layers.attention import Attention
from singa_dask.layers.base import Layer
from singa_dask.layers.inner_product import InnerProduct
from singa_dask.layers.partition import Shape

Groups = list[list[str]]


class WeightRow(NamedTuple):
    """Parameters of a layer, and the tensor of PyTorch that has them.

    roles: of the parameters; several lie one after the other along the axis g. tensor: its name behind that of the
    PyTorch module, {l} being the layer of a recurrent module; "" if there is no module, but a parameter. added: a
    second tensor, which is added to the first. apart: the role for which it must be zero. axes: see Turn.
    """

    roles: tuple[str, ...]
    tensor: str
    axes: str
    added: str = ""
    apart: str = ""

    @property
    def gates(self) -> bool:
        """Whether it has a parameter of each gate."""
        return "(g " in self.axes


Form = tuple[WeightRow, ...]


def _affine(weight: str) -> tuple[Form, ...]:
    return ((WeightRow(("weight",), "weight", weight), WeightRow(("bias",), "bias", "O -> O")),)


def _norm(*more: WeightRow) -> tuple[Form, ...]:
    return ((WeightRow(("scale",), "weight", "C -> C"), WeightRow(("bias",), "bias", "C -> C"), *more),)


def _recurrent(*gates: str, apart: str = "") -> tuple[Form, ...]:
    def roles(what: str) -> tuple[str, ...]:
        return tuple(f"{gate}_{what}" if gate else what for gate in gates)

    bias = WeightRow(roles("b"), "bias_ih_{l}", "(g H) -> g H", "bias_hh_{l}", apart)
    weights = "(g H) I -> g H I"
    return (
        (WeightRow(roles("hx"), "weight_ih_{l}", weights), WeightRow(roles("hh"), "weight_hh_{l}", weights), bias),
    )


# Type of layer -> PyTorch's modules, and the forms in which its parameters can be there: the first is written.
TABLE: dict[str, tuple[str, tuple[Form, ...]]] = {
    "kConvolution": ("Conv1d, Conv2d, Conv3d", _affine("O I * -> * I O")),
    "kTransposedConvolution": ("ConvTranspose1d, 2d, 3d", _affine("I O * -> * O I")),
    "kInnerProduct": ("Linear", _affine("O (C *) -> (* C) O")),
    "kBM": (
        "BatchNorm1d, 2d, 3d",
        _norm(WeightRow(("mean",), "running_mean", "C -> C"), WeightRow(("var",), "running_var", "C -> C")),
    ),
    "kLayerNorm": ("LayerNorm", _norm()),
    "kGroupNorm": ("GroupNorm", _norm()),
    "kEmbedding": ("Embedding", ((WeightRow(("table",), "weight", "V C -> V C"),),)),
    "kPositionalEmbedding": (
        "Embedding, Parameter",
        (
            (WeightRow(("table",), "weight", "T C -> T C"),),
            (WeightRow(("table",), "", "1 T C -> (1 T) C"),),
            (WeightRow(("table",), "", "T C -> T C"),),
        ),
    ),
    "kClassToken": (
        "Parameter",
        tuple((WeightRow(("token",), "", axes),) for axes in ("1 01 C -> (1 01 C)", "1 C -> (1 C)", "C -> C")),
    ),
    "kRNN": ("RNN", _recurrent("")),
    "kGRU": ("GRU", _recurrent("r", "z", "c", apart="c_b")),
    "kLSTM": ("LSTM", _recurrent("i", "f", "g", "o")),
    "kAttention": (
        "MultiheadAttention",
        (
            (
                WeightRow(("weight",), "in_proj_weight", "(3 N D) C -> C 3 N D"),
                WeightRow(("bias",), "in_proj_bias", "(3 N D) -> 3 N D"),
                WeightRow(("output_weight",), "out_proj.weight", "C (N D) -> N D C"),
                WeightRow(("output_bias",), "out_proj.bias", "C -> C"),
            ),
        ),
    ),
}
_TRANSPOSED = _affine("O (C *) -> O (* C)")  # the weight of an InnerProduct that is stored as (O, I)
# Of attention with num_kv_heads: the heads of q, then those of k, then those of v.
_SHARED = tuple(row._replace(axes=row.axes.replace("3 N", "H")) for row in TABLE["kAttention"][1][0])
# Beside parameters, tensors that PyTorch counts with and no layer needs.
COUNTERS = ("num_batches_tracked",)


def forms_of(layer: Layer) -> tuple[Form, ...]:
    """In which forms the parameters of this layer can be in PyTorch; none if the table has no row for it.

    A layer of the user's own says it in its class: torch_axes = {"weight": "O I -> I O"}, by role, which is the name
    there too.
    """
    own = getattr(layer, "torch_axes", None)
    if own is not None:
        return (tuple(WeightRow((role,), role, axes) for role, axes in own.items()),)
    kinds = (vars(base).get("type") for base in type(layer).__mro__)
    kind = next((kind for kind in kinds if kind in TABLE), None)
    if kind is None:
        return ()
    if isinstance(layer, Attention) and layer.conf.num_kv_heads not in (0, layer.conf.num_heads):
        return (_SHARED,)
    return _TRANSPOSED if isinstance(layer, InnerProduct) and layer.conf.transpose else TABLE[kind][1]


class Transposition(NamedTuple):
    """How the axes of an array turn, as a text says: "O (C *) -> (* C) O".

    A name is an axis; names in parentheses are axes that lie in one. * stands for the axes of positions, such as
    height and width; a number is an axis of that size. sizes: by name.
    """

    there: Groups
    here: Groups
    sizes: Mapping[str, int]

    @classmethod
    def of(cls, text: str, shape: Shape, known: dict[str, int], positions: int) -> Transposition:
        """shape: of the array here. known: sizes of axes, as far as `shape` does not tell them. positions: how many
        axes * stands for: "*0", "*1", ..."""
        stars = " ".join(f"*{i}" for i in range(positions))
        sides = [re.findall(r"\(([^)]*)\)|(\S+)", side) for side in text.replace("*", stars).split("->")]
        there, here = ([(joined or single).split() for joined, single in side] for side in sides)
        sizes = {axis: int(axis) for group in here for axis in group if axis.isdigit()} | known
        for group, size in zip(here, shape, strict=True):
            rest = size // prod(sizes[axis] for axis in group if axis in sizes)
            sizes |= {axis: rest for axis in group if axis not in sizes}
        return cls(there, here, sizes)

    @property
    def shape_there(self) -> Shape:
        return tuple(prod(self.sizes[axis] for axis in group) for group in self.there)

    def to_here(self, array: np.ndarray) -> np.ndarray:
        """An array of shape `shape_there`, as it is here."""
        return _turned(array, self.there, self.here, self.sizes)

    def to_there(self, array: np.ndarray) -> np.ndarray:
        """The inverse of `to_here`."""
        return _turned(array, self.here, self.there, self.sizes)


def _turned(array: np.ndarray, before: Groups, after: Groups, sizes: Mapping[str, int]) -> np.ndarray:
    split = [axis for group in before for axis in group]
    pieces = array.reshape([sizes[axis] for axis in split])
    turned = pieces.transpose([split.index(axis) for group in after for axis in group])
    return turned.reshape([prod(sizes[axis] for axis in group) for group in after])


def lines() -> Iterator[str]:
    """The table as docs/reference/pytorch-weights.md has it."""
    yield "| layer | in PyTorch | parameter | tensor | there -> here |"
    yield "|---|---|---|---|---|"
    for kind, (modules, forms) in TABLE.items():
        for row in (row for form in forms for row in form):
            roles = ", ".join(f"`{role}`" for role in row.roles)
            tensor = " + ".join(f"`{name}`" for name in (row.tensor, row.added) if name) or "the parameter itself"
            yield f"| `{kind}` | {modules} | {roles} | {tensor} | `{row.axes}` |"
