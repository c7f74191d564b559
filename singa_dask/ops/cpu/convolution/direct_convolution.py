"""Convolution without a buffer of columns, by the micro-kernel: sums of products over pixels in place."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from singa_dask.ops.arrays import Array
from singa_dask.ops.cpu.convolution import direct_kernels, tables
from singa_dask.ops.cpu.convolution.direct_tables import Gather, Scatter, WeightSums
from singa_dask.ops.cpu.convolution.micro_kernel import PANEL
from singa_dask.ops.cpu.toolkit import workspace
from singa_dask.ops.cpu.toolkit.team import Team
from singa_dask.ops.window import Window

Shape = tuple[int, ...]

# A gather is faster than a scatter up to this ratio of their numbers of positions.
_GATHER_LIMIT = 1.3


def _transposed(window: Window, height: int, width: int) -> Window | None:
    """The window over dy whose convolution with the rotated weight gives dx; None where a scatter is faster."""
    (kh, kw), (ph, pw) = window.kernel, window.pad
    oh, ow = window.output_size(height, width)
    if window.stride != (1, 1) or ph >= kh or pw >= kw or height * width > _GATHER_LIMIT * oh * ow:
        return None
    return Window(window.kernel, (1, 1), (kh - 1 - ph, kw - 1 - pw))


@dataclass(frozen=True)
class DirectConvolution:
    """A convolution of given shapes, with one thread for each span of images."""

    spans: tuple[tuple[int, int], ...]
    forward_tables: Gather
    weight_tables: WeightSums
    input_tables: Gather | Scatter
    panels: Shape
    input_panels: Shape
    weight: Shape

    @classmethod
    def of(cls, x_shape: Shape, window: Window, filters: int, threads: int) -> DirectConvolution:
        count, height, width, channels = x_shape
        sample, (kh, kw) = (height, width, channels), window.kernel
        spans = tables.spans(count, threads)
        images = count // len(spans)
        turned = _transposed(window, height, width)
        oh, ow = window.output_size(height, width)
        output = oh, ow, filters
        backward: Gather | Scatter
        if turned:
            backward, columns, lines = Gather.of(output, turned, channels, images), channels, kh * kw * filters
        else:
            backward, columns, lines = Scatter.of(sample, window, filters, images), kw * channels, kh * filters
        return cls(
            spans,
            Gather.of(sample, window, filters, images),
            WeightSums.of(sample, window, filters, images),
            backward,
            (tables.panels(filters) * kh * kw * channels * PANEL,),
            (tables.panels(columns) * lines * PANEL,),
            (kh, kw, channels, filters),
        )

    @cached_property
    def elements(self) -> int:
        """The size of a workspace."""
        return max(workspace.elements(*shapes) for shapes in ((self.panels,), self._of_weight, self._of_input))

    @cached_property
    def _of_weight(self) -> list[Shape]:
        """The workspace of the pass for the weight: each thread's padded images and panel, then the sums of all
        but the first thread."""
        padded, sums = [self.weight_tables.padded, self.weight_tables.panel], [self.weight]
        return padded * len(self.spans) + sums * (len(self.spans) - 1)

    @cached_property
    def _of_input(self) -> list[Shape]:
        """The workspace of the pass for the input: panels, and padded images per thread."""
        backward = self.input_tables
        return [self.input_panels, *([backward.padded] * len(self.spans) if isinstance(backward, Scatter) else [])]

    def forward(self, team: Team, x: Array, weight: Array, bias: Array | None, out: Array, buffer: Array) -> None:
        (panels,) = workspace.cut(buffer, self.panels)
        direct_kernels.pack(weight.reshape(-1, *weight.shape[2:]), panels, whole=True)
        self._gather(team, x, self.forward_tables, panels, bias, out)

    def _gather(self, team: Team, x: Array, of: Gather, panels: Array, bias: Array | None, out: Array) -> None:
        start = of.zeros if bias is None else bias

        def images(t: int) -> None:
            direct_kernels.convolve(x, self.spans[t], tuple(of), panels, start, out)

        team.run(len(self.spans), images)

    def backward_weight(
        self, team: Team, x: Array, dy: Array, dweight: Array, buffer: Array, accumulate: bool
    ) -> None:
        of, count = self.weight_tables, len(self.spans)
        parts = workspace.cut(buffer, *self._of_weight)
        targets = [dweight, *parts[2 * count :]]

        def images(t: int) -> None:
            padded, panel = parts[2 * t : 2 * t + 2]
            target, adding = targets[t].reshape(-1), accumulate and t == 0
            direct_kernels.convolve_backward_weight(x, dy, self.spans[t], tuple(of), padded, panel, adding, target)

        team.run(count, images)
        for part in targets[1:]:
            dweight += part

    def backward_input(self, team: Team, dy: Array, weight: Array, dx: Array, buffer: Array) -> None:
        panels, *padded = workspace.cut(buffer, *self._of_input)
        of, filters = self.input_tables, weight.shape[-1]
        if isinstance(of, Gather):
            turned = weight.reshape(-1, *weight.shape[2:])[::-1]
            direct_kernels.pack(turned.transpose(0, 2, 1), panels, whole=True)
            self._gather(team, dy, of, panels, None, dx)
            return
        direct_kernels.pack(weight.reshape(weight.shape[0], -1, filters).transpose(0, 2, 1), panels, whole=False)

        def images(t: int) -> None:
            direct_kernels.scatter(dy, self.spans[t], tuple(of), panels, padded[t], dx)

        team.run(len(self.spans), images)
