"""Random changes of the samples of a mini-batch, which training alone makes.   B rows, H height, W width.

A transform is a function f(batch, rng) that returns the batch:

    def augment(batch, rng):
        batch = transforms.mirror(batch, rng)
        return transforms.noise(transforms.crop(batch, rng, pad=2), rng, std=0.1)

    train(job, data=(x, y), transform=augment)

batch: arrays by name, in the units of the data, channels last: "x", the samples (B, ...); "y", their labels (B,),
targets (B, ...), or labels of positions (B, H, W); and those of the other input layers by the layers' names, such as a
mask, their labels as "<layer>.y". Shapes must stay. rng: Draws.

mirror, crop and rotate change all arrays of the height and width of x alike: fields to predict, maps and masks are
turned with the images. Values such as wind directions stay as they are. Fields of another size, and vectors with a
value for each position of x, are refused. {**batch, **mirror({"x": batch["x"]}, rng)} changes x alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np

from singa_dask.ops.random import RandomOps, random_bits, stream_key

Batch = dict[str, np.ndarray]


class Draws(RandomOps):
    """Random numbers for the rows of a mini-batch. Each call draws new ones. Those of a row depend on the seed, the
    step and the place of the row in the group's mini-batch alone, and so not on the number of workers."""

    xp = np

    def __init__(self, seed: int, step: int, first_row: int, rows: int) -> None:
        self.rows = rows
        self._of, self._first, self._calls = (seed, step), first_row, 0

    def random(self, *shape: int) -> np.ndarray:
        """Uniform numbers from 0 to below 1: (B, *shape)."""
        key, first, count = self._next(shape)
        bits = random_bits(np, key, first, count) >> np.uint64(11)
        return (bits * 2.0**-53).reshape(self.rows, *shape)

    def integers(self, low: int, high: int, *shape: int) -> np.ndarray:
        """Integers from low to below high: (B, *shape)."""
        return low + (self.random(*shape) * (high - low)).astype(np.int64)

    def normals(self, *shape: int) -> np.ndarray:
        """Numbers with mean 0 and standard deviation 1: (B, *shape)."""
        key, first, _ = self._next(shape)
        zeros = np.zeros((self.rows, *shape))
        return np.asarray(self.normal(zeros, key, first, np.empty_like(zeros)))

    def _next(self, shape: tuple[int, ...]) -> tuple[int, int, int]:
        self._calls += 1
        size = prod(shape)
        return stream_key(*self._of, f"transform {self._calls}"), self._first * size, self.rows * size


def mirror(batch: Batch, rng: Draws, *, vertical: bool = False) -> Batch:
    """Half of the images left to right. vertical: also half of them upside down."""
    batch = _flipped(batch, rng.random() < 0.5, 2)
    return _flipped(batch, rng.random() < 0.5, 1) if vertical else batch


def _flipped(batch: Batch, chosen: np.ndarray, axis: int) -> Batch:
    return _changed(batch, {"flip": chosen}, lambda images, flip: np.flip(images, axis) if flip else images)


def rotate(batch: Batch, rng: Draws) -> Batch:
    """Square images by 0, 90, 180 or 270 degrees."""
    height, width = _size(batch)
    if height != width:
        raise ValueError(f"rotate needs square images, not {height} x {width}")
    return _changed(batch, {"turns": rng.integers(0, 4)}, lambda images, turns: np.rot90(images, turns, axes=(1, 2)))


def crop(batch: Batch, rng: Draws, *, pad: int = 4, mode: Any = "reflect") -> Batch:
    """Images with `pad` further pixels at each side, cropped to their size at a random place. mode: of numpy.pad."""
    height, width = _size(batch)
    places = {"top": rng.integers(0, 2 * pad + 1), "left": rng.integers(0, 2 * pad + 1)}

    def cropped(images: np.ndarray, top: int, left: int) -> np.ndarray:
        around = [(0, 0), (pad, pad), (pad, pad), *[(0, 0)] * (images.ndim - 3)]
        return np.pad(images, around, mode)[:, top : top + height, left : left + width]

    return _changed(batch, places, cropped)


def noise(batch: Batch, rng: Draws, *, std: float | np.ndarray = 0.1) -> Batch:
    """x plus normal noise. std: its standard deviation, of all values or per channel."""
    x = batch["x"]
    return {**batch, "x": (x + std * rng.normals(*x.shape[1:])).astype(x.dtype)}


def brightness(batch: Batch, rng: Draws, *, share: float = 0.2) -> Batch:
    """Each sample of x times a factor from 1 - share to 1 + share."""
    x = batch["x"]
    factors = 1 + share * (2 * rng.random(*[1] * (x.ndim - 1)) - 1)
    return {**batch, "x": (x * factors).astype(x.dtype)}


def _size(batch: Batch) -> tuple[int, int]:
    shape = batch["x"].shape
    if len(shape) not in (3, 4):
        raise ValueError(f"x must be images (B, H, W) or (B, H, W, C), but has the shape {shape}")
    return shape[1], shape[2]


def _changed(batch: Batch, draws: Mapping[str, np.ndarray], change: Callable[..., np.ndarray]) -> Batch:
    """The batch with each row of all images changed by what was drawn for it. Raises ValueError for other fields."""
    size, names = _size(batch), list(draws)
    rows = np.stack(list(draws.values()), axis=1)
    found = dict(batch)
    for key, values in batch.items():
        if values.ndim < 3 or values.shape[1:3] != size:
            _check_no_field(key, values.shape, size)
            continue
        found[key] = values.copy()
        for drawn in np.unique(rows, axis=0):  # those with equal draws at once
            some = np.flatnonzero((rows == drawn).all(axis=1))
            found[key][some] = change(values[some], **dict(zip(names, drawn.tolist(), strict=True)))
    return found


def _check_no_field(key: str, shape: tuple[int, ...], size: tuple[int, int]) -> None:
    """Raise ValueError for an array that would have to be changed with the images, and has another size. Labels and
    targets (B, h, w) are fields; others of so many axes are sequences."""
    answers = key.split(".")[-1] == "y"
    field = len(shape) == 4 or (len(shape) == 3 and answers)
    if (field and min(shape[1:3]) > 1) or (len(shape) == 2 and shape[1] == prod(size) > 1):
        raise ValueError(
            f"{key} has the shape {shape} and x images of {size[0]} x {size[1]}: it would not be changed with them. "
            "Give it in their height and width, or change it in a function of your own. Without positions, change x "
            'alone: batch = {**batch, **transforms.mirror({"x": batch["x"]}, rng)}.'
        )
