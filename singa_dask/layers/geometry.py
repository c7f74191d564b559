"""The sliding window that convolution_conf and pooling_conf describe."""

from __future__ import annotations

from typing import Any

from singa_dask.layers.base import Layer
from singa_dask.layers.param import Shape
from singa_dask.ops import Window


def window_of(layer: Layer, shape: Shape) -> Window:
    """The layer's window over images of `shape`: `kernel`, `pad` and `stride`, or their `_x` (width) and `_y` (height)
    forms if set.

    Raises ConfigError if the source is not an image or the window does not fit.
    """
    if len(shape) != 3:
        hint = "Give store_conf.shape as channels, height, width, and put no InnerProduct before this layer."
        raise layer.problem(f"{type(layer).__name__} needs images", f"samples of shape {shape}", hint)
    window = Window(_pair(layer.conf, "kernel"), _pair(layer.conf, "stride"), _pair(layer.conf, "pad"))
    if min(window.kernel) < 1 or min(window.stride) < 1:
        raise layer.problem("kernel and stride must be at least 1", window)
    if min(window.pad) < 0 or any(p >= k for p, k in zip(window.pad, window.kernel, strict=True)):
        raise layer.problem("pad must lie between 0 and kernel - 1", window)
    if min(window.output_size(*shape[:2])) < 1:
        message = f"a kernel of {window.kernel} is larger than the image, {shape[:2]} padded by {window.pad}"
        raise layer.problem(message, hint="Use a smaller kernel or more padding.")
    return window


def _pair(conf: Any, key: str) -> tuple[int, int]:
    both = getattr(conf, key)
    height, width = (getattr(conf, key + axis) if conf.HasField(key + axis) else both for axis in ("_y", "_x"))
    return height, width
