"""Nets that are timed as their users write them, as a table: of each a mini-batch of random data.

Nothing here imports singa_dask or PyTorch. `tools/modules.py` has our nets, `programs/nets_torch.py` has PyTorch's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

CLASSES = 10
UNITS = 128  # of the recurrent layers
# Of MobileNetV2: factor, filters, blocks, stride of the first one. Images of 32 x 32 keep their size at first.
STAGES = (
    *((1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2)),
    *((6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)),
)


@dataclass(frozen=True)
class Case:
    """shapes: of what `forward` reads, of a sample, by name; images have their channels last. y: classes if it has no
    shape. target: PyTorch's time / ours with its fastest variant; None if PyTorch does not take part."""

    batch: int
    shapes: Mapping[str, tuple[int, ...]]
    target: float | None = None

    def data(self) -> dict[str, np.ndarray]:
        """One mini-batch."""
        draw, found = np.random.default_rng(0), {}
        for name, shape in self.shapes.items():
            if shape:
                found[name] = draw.standard_normal((self.batch, *shape), np.float32)
            else:
                found[name] = draw.integers(0, CLASSES, self.batch)
        return found

    @property
    def images(self) -> bool:
        """Whether memory formats differ."""
        return len(self.shapes["x"]) == 3


def _images(batch: int, target: float | None = None, size: int = 32, channels: int = 3) -> Case:
    return Case(batch, {"x": (size, size, channels), "y": ()}, target)


STEPS = 24
# A day of hourly records, and what is known of the next day, whose values are to be forecast.
_FORECAST: dict[str, Any] = {"x": (STEPS, 16), "known": (STEPS, 8), "y": (STEPS, 1)}

CASES = {
    "resnet18": _images(32, 1.2),
    "vit-tiny": _images(32, 1.2),
    "densenet-block": _images(32, 1.2),
    "lstm-encoder-decoder": Case(64, _FORECAST, 1.2),
    "mobilenet-v2": _images(32, 1.0),
    "mlp": Case(64, {"x": (20,), "y": ()}),
    "mlp-formula": Case(64, {"x": (20,), "y": ()}),
    "mlp-values": Case(64, {"x": (20,), "y": (10,)}),
    "mlp-values-formula": Case(64, {"x": (20,), "y": (10,)}),
    "cnn": _images(64, size=28, channels=1),
    "cnn-formula": _images(64, size=28, channels=1),
}
