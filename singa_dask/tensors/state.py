"""What holds for all calls of a training loop, as Apache SINGA's module autograd has it: training, seeds, ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from typing import Any

import numpy as np


class CallMode:
    """training: whether calls are those of training, and remembered. seed: of initial parameters and of dropout. draw:
    what tensors draw from. numbers: of tensors that are parameters. unnamed: how many layers of each class were named
    by a number. dtype: of the default device."""

    def __init__(self) -> None:
        self.training, self.dtype = False, np.dtype(np.float32)
        self.set_seed(0)

    def set_seed(self, number: int) -> None:
        """Seed what is drawn from now on, and begin to number from 1 again."""
        self.seed, self.draw = number, np.random.default_rng(number)
        self.numbers, self.unnamed = count(1), Counter[str]()


state = CallMode()

# Which rows of the mini-batch are this process's: those of this rank, of ranks with equally many rows.
rank: ContextVar[int] = ContextVar("rank", default=0)
# Makes, from the Ops of a device, the group of ranks over which layers normalise; None of a rank on its own.
group_of: ContextVar[Any] = ContextVar("group_of", default=lambda ops: None)
# None: as long as they are those of training.
_remembering: ContextVar[bool | None] = ContextVar("remembering", default=None)
# What calls functions of tensors: "" for a training loop, "function" for a net, "forward" where one is built.
caller: ContextVar[str] = ContextVar("caller", default="")


def remembers() -> bool:
    """Whether calls are remembered for a way back."""
    given = _remembering.get()
    return state.training if given is None else given


@contextmanager
def called_by(name: str, *, remembers: bool) -> Iterator[None]:
    """Inside, functions of tensors are called by a net; see `caller`."""
    tokens = _remembering.set(remembers), caller.set(name)
    try:
        yield
    finally:
        _remembering.reset(tokens[0])
        caller.reset(tokens[1])


@contextmanager
def no_grad() -> Iterator[None]:
    """Inside, calls are not remembered, and gradients do not go back over them."""
    token = _remembering.set(False)
    try:
        yield
    finally:
        _remembering.reset(token)


def name_by_number(kind: Any) -> str:
    """The next name of a layer of this class that has none."""
    name = kind.__name__.lower()
    state.unnamed[name] += 1
    return f"{name}{state.unnamed[name]}"
