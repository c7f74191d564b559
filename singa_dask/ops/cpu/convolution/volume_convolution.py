"""Convolution of volumes as one of images: the planes under a window become channels of one plane.

    x (B, D, H, W, C) -> planes (B OD, H, W, kd C),    W (kd, kh, kw, C, O) -> (kh, kw, kd C, O)

so that the algorithms for images compute it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Protocol

import numpy as np

from singa_dask.ops.arrays import Array
from singa_dask.ops.cpu.toolkit import workspace
from singa_dask.ops.cpu.toolkit.team import Team
from singa_dask.ops.window import Window

Shape = tuple[int, ...]


class ImageConvolution(Protocol):
    """A convolution of given shapes. x: (B, H, W, C); buffer: of at least `elements`."""

    @property
    def elements(self) -> int: ...

    def forward(self, team: Team, x: Array, weight: Array, bias: Array | None, out: Array, buffer: Array) -> None: ...

    def backward_weight(
        self, team: Team, x: Array, dy: Array, dweight: Array, buffer: Array, accumulate: bool
    ) -> None: ...

    def backward_input(self, team: Team, dy: Array, weight: Array, dx: Array, buffer: Array) -> None: ...


class VolumeConvolution:
    """The passes of ImageConvolution for x (B, D, H, W, C). images: the convolution of the planes."""

    def __init__(self, x_shape: Shape, window: Window, images: ImageConvolution):
        count, depth, height, width, channels = x_shape
        self._images = images
        self._along = Window(window.kernel[:1], window.stride[:1], window.pad[:1], window.dilation[:1])
        self._depth = depth
        self._planes = (count, *self._along.output_size(depth), height, width, *self._along.kernel, channels)

    @staticmethod
    def of_images(x_shape: Shape, window: Window) -> tuple[Shape, Window]:
        """The shape of the planes, and the window over them."""
        count, depth, height, width, channels = x_shape
        flat = Window(window.kernel[1:], window.stride[1:], window.pad[1:], window.dilation[1:])
        return (count * window.output_size(depth, height, width)[0], height, width, window.kernel[0] * channels), flat

    @cached_property
    def elements(self) -> int:
        return workspace.elements(self._planes, (self._images.elements,))

    def forward(self, team: Team, x: Array, weight: Array, bias: Array | None, out: Array, buffer: Array) -> None:
        planes, rest = self._filled(x, buffer)
        self._images.forward(team, planes, self._flat_weight(weight), bias, _flat(out), rest)

    def backward_weight(
        self, team: Team, x: Array, dy: Array, dweight: Array, buffer: Array, accumulate: bool
    ) -> None:
        planes, rest = self._filled(x, buffer)
        depth, height, width, channels, filters = dweight.shape
        flat = np.empty((height, width, depth * channels, filters), dweight.dtype)
        self._images.backward_weight(team, planes, _flat(dy), flat, rest, False)
        own = flat.reshape(height, width, depth, channels, filters).transpose(2, 0, 1, 3, 4)
        dweight[...] = dweight + own if accumulate else own

    def backward_input(self, team: Team, dy: Array, weight: Array, dx: Array, buffer: Array) -> None:
        planes, rest = workspace.cut(buffer, self._planes, (self._images.elements,))
        self._images.backward_input(team, _flat(dy), self._flat_weight(weight), self._as_images(planes), rest)
        dx[...] = 0
        for part, pixels in self._parts(planes):
            dx[:, pixels] += part

    def _filled(self, x: Array, buffer: Array) -> tuple[Array, Array]:
        planes, rest = workspace.cut(buffer, self._planes, (self._images.elements,))
        if self._along.pad[0]:
            planes[...] = 0
        for part, pixels in self._parts(planes):
            part[...] = x[:, pixels]
        return self._as_images(planes), rest

    def _parts(self, planes: Array) -> Iterator[tuple[Array, slice]]:
        """For every place of the window along the depth: the planes of the output that have it, and those under it."""
        for (place,), (outputs,), (pixels,) in self._along.offsets(self._depth):
            yield planes[:, outputs, :, :, place], pixels

    def _as_images(self, planes: Array) -> Array:
        count, outputs, height, width, depth, channels = self._planes
        return planes.reshape(count * outputs, height, width, depth * channels)

    @staticmethod
    def _flat_weight(weight: Array) -> Array:
        depth, height, width, channels, filters = weight.shape
        return np.ascontiguousarray(weight.transpose(1, 2, 0, 3, 4)).reshape(height, width, depth * channels, filters)


def _flat(volumes: Array) -> Array:
    return volumes.reshape(-1, *volumes.shape[2:])
