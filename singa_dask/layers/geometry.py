"""The sliding window that convolution_conf and pooling_conf describe."""

from __future__ import annotations

from typing import Any

from singa_dask.layers.base import Layer
from singa_dask.layers.param import Shape
from singa_dask.ops import Window

# The axes along which windows move, by the number of axes of samples: sequences, images, volumes.
_AXES = {2: ("_x",), 3: ("_y", "_x"), 4: ("_z", "_y", "_x")}


def window_of(layer: Layer, shape: Shape) -> Window:
    """The layer's window over samples of `shape`: `kernel`, `pad`, `stride` and `dilation`, or their `_x` (width),
    `_y` (height) and `_z` (depth) forms if set. Sequences have a window over images of height 1.

    Raises ConfigError if the source has other axes, or the settings are out of range.
    """
    if len(shape) not in _AXES:
        hint = "Give store_conf.shape as channels, height, width, and put no InnerProduct before this layer."
        kind = type(layer).__name__
        raise layer.problem(f"{kind} needs images, sequences or volumes", f"samples of shape {shape}", hint)
    names = _AXES[len(shape)]
    first = (1,) * (len(names) == 1)
    kernel, stride, dilation = (first + _sizes(layer.conf, key, names) for key in ("kernel", "stride", "dilation"))
    pad = (0,) * len(first) + _sizes(layer.conf, "pad", names)
    window = Window(kernel, stride, pad, dilation, getattr(layer.conf, "ceil_mode", False))
    if min(*kernel, *stride, *dilation) < 1:
        raise layer.problem("kernel, stride and dilation must be at least 1", window)
    if min(pad) < 0 or any(p >= r for p, r in zip(pad, window.reach, strict=True)):
        raise layer.problem("pad must lie between 0 and (kernel - 1) dilation", window)
    return window


def as_image(shape: Shape) -> Shape:
    """The shape over which the window of `window_of` moves."""
    return (1, *shape) if len(shape) == 2 else shape


def check_fits(layer: Layer, window: Window, size: Shape) -> None:
    """Raise ConfigError unless the window fits on a padded image of this size."""
    if min(window.output_size(*size)) < 1:
        message = f"a kernel of {window.reach} is larger than the image, {size} padded by {window.pad}"
        raise layer.problem(message, hint="Use a smaller kernel or more padding.")


def _sizes(conf: Any, key: str, axes: tuple[str, ...]) -> tuple[int, ...]:
    if key not in conf.DESCRIPTOR.fields_by_name:  # windows of pooling have no dilation
        return (1,) * len(axes)
    common = getattr(conf, key)
    return tuple(getattr(conf, key + axis) if conf.HasField(key + axis) else common for axis in axes)
