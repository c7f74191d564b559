"""The result of a converter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from singa_dask.data.writer import Samples


@dataclass(frozen=True)
class Split:
    """One split of a data set. A converter names it "train", "test", or "" for a single split.

    features: (N, H, W, C) uint8 or (N, D). labels: (N,) whole numbers, or None.
    window: samples per window; None for the writer's default. ordered: whether the order of the samples is part of the
    data, so that they must not be shuffled.
    """

    features: Samples
    labels: np.ndarray | None
    classes: Sequence[str] | int | None = None
    notes: tuple[str, ...] = ()
    window: int | None = None
    ordered: bool = False

    def __len__(self) -> int:
        return self.features.shape[0]
