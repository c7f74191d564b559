"""The sliding window of convolution and pooling."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

Span = tuple[slice, slice]


@dataclass(frozen=True)
class Window:
    """A window of `kernel` that moves by `stride` over an image padded by `pad` on every side; all (height, width)."""

    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    pad: tuple[int, int] = (0, 0)

    @property
    def sizes(self) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
        """kernel, stride and pad, in the order in which CPU kernels take them."""
        return self.kernel, self.stride, self.pad

    @property
    def area(self) -> int:
        return self.kernel[0] * self.kernel[1]

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """floor((size + 2 pad - kernel) / stride) + 1 in both directions; 0 or less where the window does not fit."""
        (kh, kw), (sh, sw), (ph, pw) = self.kernel, self.stride, self.pad
        return (height + 2 * ph - kh) // sh + 1, (width + 2 * pw - kw) // sw + 1

    def offsets(self, height: int, width: int) -> Iterator[tuple[int, int, Span, Span]]:
        """For every position (i, j) inside the window: the outputs for which it lies on the image, and the pixels
        under it, both as (rows, columns) slices of equal lengths."""
        output = self.output_size(height, width)
        for i in range(self.kernel[0]):
            rows = self._overlap(0, i, height, output[0])
            for j in range(self.kernel[1]):
                columns = self._overlap(1, j, width, output[1])
                yield i, j, (rows[0], columns[0]), (rows[1], columns[1])

    def _overlap(self, axis: int, offset: int, size: int, output: int) -> Span:
        stride, shift = self.stride[axis], offset - self.pad[axis]
        first = max(0, -(shift // stride))
        stop = max(first, min(output, (size - 1 - shift) // stride + 1))
        start = first * stride + shift
        return slice(first, stop), slice(start, start + (stop - first) * stride, stride)
