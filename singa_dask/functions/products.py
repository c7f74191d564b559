"""Products of matrices and of batches of them."""

from __future__ import annotations

from typing import Any

from singa_dask.errors import DataError
from singa_dask.functions.primitive import Primitive, function
from singa_dask.functions.shapes import broadcast_to, reshape, swapaxes

_matmul: Primitive = Primitive(
    "matmul",
    "",
    lambda xp, a, b: xp.matmul(a, b),
    lambda dy, y, a, b: _matmul(dy, swapaxes(b, -1, -2)),
    lambda dy, y, a, b: _matmul(swapaxes(a, -1, -2), dy),
)


@function
def matmul(a: Any, b: Any) -> Any:
    """The products of matrices (..., M, K) and (..., K, N), or of vectors, as NumPy has it."""
    left, right = len(a.shape), len(b.shape)
    if left == 1 or right == 1:
        rows = reshape(a, (1, -1)) if left == 1 else a
        y = matmul(rows, reshape(b, (-1, 1)) if right == 1 else b)
        shape = y.shape[:-1] if right == 1 else y.shape
        return reshape(
            y, (*shape[:-2], *shape[-1:]) if left == 1 and right > 1 else shape[:-1] if left == 1 else shape
        )
    if left > 2 and right == 2:  # one product instead of one for each matrix
        return reshape(_matmul(reshape(a, (-1, a.shape[-1])), b), (*a.shape[:-1], b.shape[-1]))
    return _matmul(a, b)


def _of_einsum(position: int, dy: Any, y: Any, *xs: Any, spec: str) -> Any:
    given, _, out = spec.partition("->")
    sources = given.split(",")
    own, others = sources[position], [each for i, each in enumerate(sources) if i != position]
    known = set(out).union(*others)
    found = "".join(letter for letter in own if letter in known)
    dx = _einsum(dy, *xs[:position], *xs[position + 1 :], spec=",".join([out, *others]) + "->" + found)
    if found == own:
        return dx
    shape = xs[position].shape  # what was summed over gets the gradient everywhere
    kept = [size if letter in known else 1 for letter, size in zip(own, shape, strict=True)]
    return broadcast_to(reshape(dx, kept), shape)


_einsum: Primitive = Primitive(
    "einsum", "", lambda xp, *xs, spec: xp.einsum(spec, *xs, optimize=True), of_any=_of_einsum
)


@function
def einsum(spec: str, *xs: Any) -> Any:
    """Sums of products by letters of axes, such as "bij,bjk->bik". Raises DataError for a letter that one operand has
    twice, and for other axes than the arrays have."""
    sources, arrow, out = spec.replace(" ", "").partition("->")
    names = sources.split(",")
    if "." in spec:
        names, out = _without_dots(names, out, [len(x.shape) for x in xs])
    if len(names) != len(xs) or any(len(name) != len(x.shape) for name, x in zip(names, xs, strict=False)):
        shapes = ", ".join(str(tuple(x.shape)) for x in xs)
        raise DataError(f"einsum: {spec!r} does not fit the shapes {shapes}")
    if any(len(set(name)) < len(name) for name in names):
        raise DataError(f"einsum: {spec!r} has a letter twice in one operand")
    if not arrow:
        letters = "".join(names)
        out = "".join(sorted(letter for letter in set(letters) if letters.count(letter) == 1))
    return _einsum(*xs, spec=",".join(names) + "->" + out)


def _without_dots(names: list[str], out: str, counts: list[int]) -> tuple[list[str], str]:
    """The letters, with others for the axes that `...` stands for."""
    free = [letter for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if letter not in "".join([*names, out])]
    most = max(count - len(name.replace("...", "")) for name, count in zip(names, counts, strict=True) if "." in name)
    found = [
        name.replace("...", "".join(free[most - (count - len(name) + 3) : most]))
        for name, count in zip(names, counts, strict=True)
    ]
    return found, out.replace("...", "".join(free[:most]))
