"""Input layers of a user's own: samples that code computes, or reads from anywhere.

R requested samples.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from singa_dask.layers.context import Context
from singa_dask.layers.input import InputLayer
from singa_dask.layers.param import Shape
from singa_dask.ops.arrays import Array


class GeneratedInput(InputLayer):
    """y = the samples with the numbers of a mini-batch.   y: (B, S).

    Users derive from it. `setup` returns the shape S of a sample, `num_samples` how many there are, and `generate` the
    samples with given numbers. Which numbers form a mini-batch, and which of them a worker gets, is decided as for
    shards: worker groups have disjoint numbers, and the workers of a group share each mini-batch.

    user_conf: batchsize; of `store_conf` also shuffle, random_skip, validation_share and has_label; and what the class
    reads from `self.user_conf`. target_shape: override it if the labels are numbers to predict.
    """

    conf_field: ClassVar[str | None] = "store_conf"

    def num_samples(self) -> int:
        """The number of samples, in the phase of the net."""
        raise NotImplementedError

    def generate(self, numbers_R: np.ndarray) -> Any:
        """The samples with these numbers, in their order: (R, S), or a pair of them and their labels (R,) or targets
        (R, *target_shape).

        A number must always give the same sample. Calls come from threads beside the training loop, and may overlap.
        """
        raise NotImplementedError

    def forward(self, ctx: Context, *x: Array) -> Array:
        return ctx.ops.asarray(x[0], ctx.ops.dtype)

    def no_labels(self, rows: int) -> np.ndarray:
        shape = self.target_shape
        return np.zeros(rows, np.int64) if shape is None else np.zeros((rows, *shape), np.float32)

    @property
    def wants_labels(self) -> bool:
        """Whether `generate` returns labels or targets."""
        return bool(self.conf.has_label)

    @property
    def sample_shape(self) -> Shape:
        """The shape that `setup` returns. Raises ConfigError if it is not 1 to 4 positive numbers."""
        shape = self.setup()
        if not (
            isinstance(shape, tuple) and 1 <= len(shape) <= 4 and all(isinstance(n, int) and n > 0 for n in shape)
        ):
            message = "setup of an input layer must return the shape of a sample, a tuple of 1 to 4 positive numbers"
            raise self.problem(message, shape, "Images have the shape (height, width, channels).")
        return shape
