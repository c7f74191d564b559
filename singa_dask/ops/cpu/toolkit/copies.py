"""Copies of lines of float32, vector by vector."""

from __future__ import annotations

from typing import Any

from singa_dask.ops.cpu.toolkit.intrinsics import emitted
from singa_dask.ops.cpu.toolkit.numba_parts import cgutils
from singa_dask.ops.cpu.toolkit.vectors import I64, VECTOR, Vectors


def copy(vectors: int) -> Any:
    """The intrinsic that copies `count` lines of so many vectors; the last vector has `lanes` elements.

    source, target: addresses; steps: elements from line to line.
    """

    def lines(v: Vectors, source: Any, step: Any, target: Any, target_step: Any, count: Any, lanes: Any) -> None:
        source, target = v.address(source), v.address(target)
        for last in v.by_lanes(lanes):
            masks = [None] * (vectors - 1) + [last]
            with cgutils.for_range(v.builder, count) as line:
                place = v.at(target, v.builder.mul(line.index, target_step))
                parts = v.row(v.at(source, v.builder.mul(line.index, step)), masks)
                for n, (part, mask) in enumerate(zip(parts, masks, strict=True)):
                    v.store(part, v.at(place, I64(n * VECTOR)), mask)

    return emitted(lines)


copy_lines = copy(1)
