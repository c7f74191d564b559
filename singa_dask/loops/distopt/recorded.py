"""The parameters of a loss that was computed in a loop, as the model that a DistOpt trains."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from singa_dask.errors import ConfigError, Problem, TrainingError
from singa_dask.exchange.ranks import Ranks
from singa_dask.layers.group import LayerGroup
from singa_dask.layers.param import Param
from singa_dask.net.flat import FlatParams
from singa_dask.ops.arrays import address_of
from singa_dask.tensors.gradients import ones
from singa_dask.tensors.tape import Tape


class Recorded:
    """The parameters from which the first loss was computed, in one flat array. It is its own net: see Net and Model.

    number: steps made. unused: names of parameters that the last loss of no rank has used. A later loss may use fewer
    of the parameters, and no others. Raises ConfigError where two parameters have one name.
    """

    partitioned = False

    def __init__(self, tape: Tape) -> None:
        self.ops = tape.outputs[0].device.ops
        self.params: Sequence[Param] = tape.params
        self._known = frozenset(self.params)
        if twice := [name for name, count in Counter(param.name for param in self.params).items() if count > 1]:
            hint = "Name the modules that have them: net.name = 'left'. Call SetRandSeed before all layers."
            raise ConfigError(Problem("loss", "two layers have parameters of one name", ", ".join(twice), hint))
        values = [param.value.copy() for param in self.params]
        self.flat = FlatParams.of(self.params, self.ops)
        for param, value in zip(self.params, values, strict=True):
            param.value[...] = value
        self._places = [address_of(param.value) for param in self.params]
        self.own = FlatParams.of([], self.ops)
        self.number = 0
        self.ranks = Ranks()
        self.unused: frozenset[str] = frozenset()
        self._tape, self._share, self._statistics, self._total = tape, 1.0, 1.0, 1

    @property
    def net(self) -> Recorded:
        return self

    def spread(self, ranks: Ranks) -> None:
        """Train it on these ranks. Collective. Raises TrainingError where their parameters differ: the forward pass of
        the first loss has used them."""
        sizes = ranks.numbers(self.flat.size)
        if len(set(sizes)) > 1:
            raise TrainingError(
                f"the ranks' models have different numbers of parameters: {', '.join(map(str, sizes))}"
            )
        marks = ranks.numbers(zlib.crc32(self.ops.to_host(self.flat.values).tobytes()))
        if other := next((rank for rank, mark in enumerate(marks) if mark != marks[0]), None):
            raise TrainingError(
                f"rank {other} has other initial parameters than rank 0. Give all ranks the same seed, "
                "dev.SetRandSeed(0), or make the parameters equal before the first update (synchronize in "
                "examples/distopt/tutorial.py)."
            )
        self.ranks = ranks

    def join(self, group: LayerGroup) -> None:
        """Layers that are called on arrays compute with the rows of this rank."""

    def loss(self, tape: Tape) -> RecordedLoss:
        """A loss, for DistOpt. Collective. Raises TrainingError if it used other parameters than the first one, or if
        another optimiser has trained them since."""
        if taken := [p.name for p, at in zip(self.params, self._places, strict=True) if address_of(p.value) != at]:
            names = ", ".join(taken)
            raise TrainingError(
                f"another optimiser or to_device has moved the parameters {names}. Use one optimiser for each "
                "parameter, and move parameters to their device before the first update."
            )
        if others := [param.name for param in tape.params if param not in self._known]:
            names = ", ".join(others)
            raise TrainingError(
                f"the first loss did not use the parameters {names}. Let the first step use all layers. Make tensors "
                "with stores_grad=True once, before the first step."
            )
        told, self.unused = self.ranks.numbers(2 * tape.rows + (len(tape.params) < len(self.params))), frozenset()
        if any(number % 2 for number in told):
            used = self.ranks.sum(np.array([param in tape.tensors for param in self.params], np.float64))
            self.unused = frozenset(param.name for param, count in zip(self.params, used, strict=True) if not count)
        return RecordedLoss(self, tape, tape.rows, sum(number // 2 for number in told))

    def claim(self, tape: Tape, total_rows: int) -> None:
        """Go backward over this tape next. total_rows: of all ranks."""
        self._tape, self._total = tape, total_rows
        self.divide_by(total_rows)

    def divide_by(self, rows: int) -> None:
        """Let the next gradients be those of the loss, summed over its rows and divided by so many."""
        self._share, self._statistics = self._tape.rows / rows, self._total / rows

    def backward(self, on_gradient: Callable[[Param], None] | None = None) -> None:
        """See Net.backward."""
        for param in self.params:
            if param not in self._tape.tensors:
                param.grad[...] = 0
                if on_gradient:
                    on_gradient(param)
        for param in self._tape.backward([ones(self._tape.outputs[0]) * self._share], share=self._statistics):
            if on_gradient:
                on_gradient(param)

    def state_dict(self) -> dict[str, np.ndarray]:
        """Copies of the parameters, by name."""
        return {param.name: np.array(self.ops.to_host(param.value)) for param in self.params}


@dataclass
class RecordedLoss:
    """See inference.loss.TrainingLoss."""

    model: Recorded
    tape: Tape
    rows: int
    total_rows: int

    def claim(self) -> Any:
        """The model, for one backward pass."""
        self.model.claim(self.tape, self.total_rows)
        return self.model
