"""The sliding window of convolution and pooling."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod

Sizes = tuple[int, ...]
Slices = tuple[slice, ...]


@dataclass(frozen=True)
class Window:
    """A window that moves by `stride` over an image padded by `pad` on every side, and covers `kernel` pixels, each
    `dilation` from the next; all (height, width), or (depth, height, width) over volumes. up: the last position may
    overhang, if it begins on the image or on the padding before it."""

    kernel: Sizes
    stride: Sizes = (1, 1)
    pad: Sizes = (0, 0)
    dilation: Sizes = (1, 1)
    up: bool = False

    @property
    def sizes(self) -> tuple[Sizes, Sizes, Sizes]:
        """kernel, stride and pad, in the order in which CPU kernels take them."""
        return self.kernel, self.stride, self.pad

    @property
    def area(self) -> int:
        return prod(self.kernel)

    @property
    def reach(self) -> Sizes:
        """From the first to the last pixel under it."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilation, strict=True))

    @property
    def plain(self) -> bool:
        """Whether it covers a rectangle of an image without gaps."""
        return self.dilation == (1, 1)

    @lru_cache(maxsize=512)  # noqa: B019 - windows are few, and immutable
    def output_size(self, *size: int) -> Sizes:
        """floor((size + 2 pad - reach) / stride) + 1 in each direction; 0 or less where the window does not fit. If
        `up`, one more where a further window begins early enough."""
        by_axis = zip(size, self.reach, self.stride, self.pad, strict=True)
        return tuple(self._positions(n + 2 * p - r, s, n + p) for n, r, s, p in by_axis)

    def _positions(self, way: int, stride: int, end: int) -> int:
        count = way // stride + 1
        return count + (self.up and way >= 0 and way % stride > 0 and count * stride < end)

    @lru_cache(maxsize=512)  # noqa: B019 - windows are few, and immutable
    def offsets(self, *size: int) -> tuple[tuple[Sizes, Slices, Slices], ...]:
        """For every place inside the window, (row, column): the outputs for which it lies on the image, and the pixels
        under it, both as slices of equal lengths, (rows, columns)."""
        output = self.output_size(*size)
        found = []
        for place in product(*map(range, self.kernel)):
            spans = [self._overlap(axis, offset, size[axis], output[axis]) for axis, offset in enumerate(place)]
            outputs, pixels = zip(*spans, strict=True)
            found.append((place, outputs, pixels))
        return tuple(found)

    def _overlap(self, axis: int, offset: int, size: int, output: int) -> tuple[slice, slice]:
        stride, shift = self.stride[axis], offset * self.dilation[axis] - self.pad[axis]
        first = max(0, -(shift // stride))
        stop = max(first, min(output, (size - 1 - shift) // stride + 1))
        start = first * stride + shift
        return slice(first, stop), slice(start, start + (stop - first) * stride, stride)
