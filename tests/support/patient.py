"""A layer that shows whether gradients travel while the backward pass goes on."""

from __future__ import annotations

import threading
from typing import ClassVar

from support.user_layers import Same


class Patient(Same):
    """y = x; its backward call comes back when the exchange of the layers above it has ended.

    done: set at that time; by the first row of the worker's share.
    """

    done: ClassVar[dict[int, threading.Event]] = {}

    def setup(self, *src):
        self.factor = self.declare("factor", (16,), 1, 1, value=1)
        return src[0]

    def backward(self, ctx, dy):
        assert self.done[ctx.step.first_row].wait(60), "the exchange waits for the end of the backward pass"
        return dy
