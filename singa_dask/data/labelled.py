"""DataArrays and Datasets of xarray: arrays whose dimensions have names and coordinates."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from singa_dask.data import schema
from singa_dask.data.containers import dense, in_name_order, is_lazy
from singa_dask.data.schema import (
    SEPARATOR,
    Along,
    Coordinates,
    around,
    check_grid,
    order_like,
    same_order,
    scalars_of,
)
from singa_dask.data.sources.conventions import VALID, is_any, overlooked, packing, units_of
from singa_dask.data.sources.stored import Stored, of_values, stored
from singa_dask.errors import DataError

logger = logging.getLogger(__name__)

VARIABLE, OUTPUT = "variable", "output"
_FIELD, _ROWS = "(field)", "(sample)"


def is_labelled(x: Any) -> bool:
    """Whether x is a DataArray or a Dataset."""
    return type(x).__module__.partition(".")[0] == "xarray" and hasattr(x, "dims")


def with_gaps(x: Any) -> Any:
    """What xarray has decoded, with NaN for missing values that it has overlooked; all else as it is."""
    if type(x) is dict:
        return {name: with_gaps(each) for name, each in x.items()}
    if not is_labelled(x):
        return x
    if hasattr(x, "data_vars"):
        made = {name: (each, with_gaps(each)) for name, each in x.data_vars.items()}
        return x.assign({name: new for name, (each, new) in made.items() if new is not each})
    left = overlooked(x.encoding, np.dtype(x.encoding.get("dtype", x.dtype))) if x.dtype.kind == "f" else []
    return x.where(~is_any(x, left)) if left else x


def as_table(x: Any) -> Any:
    """A Dataset whose variables have one value per sample as a DataFrame, which keeps their units as an attribute; all
    else as it is."""
    if not hasattr(x, "data_vars") or any(variable.ndim != 1 for variable in x.data_vars.values()):
        return x
    units = {str(name): along_of(variable, str(name)).units for name, variable in x.data_vars.items()}
    plain = x.reset_coords(drop=True)
    if any(is_lazy(variable.data) for variable in x.data_vars.values()):
        return plain.to_dask_dataframe()[list(x.data_vars)]
    table = plain.to_dataframe()[list(x.data_vars)]
    table.attrs["units"] = units
    return table


@dataclass(frozen=True)
class Labels:
    """What a DataArray says beside its values, or a Dataset, whose `variables` are the last dimension. coords: those
    of each dimension but the first."""

    dims: tuple[str, ...]
    coords: Mapping[str, Any]
    along: Along
    name: str | None = None
    variables: tuple[str, ...] = ()

    @classmethod
    def of_sample(cls, along: Along) -> Self:
        """Those of samples of which this is known."""
        return cls((_ROWS, *along.dims), {}, along)

    def of(self, values: Any) -> Any:
        """Values with these dimensions as a DataArray, or as an array of a file."""
        if self.dims[:1] == (_ROWS,):
            return of_values(values, self.along)
        import xarray

        coords = {**self.coords, **self.along.scalars}
        return xarray.DataArray(values, coords, self.dims, self.name, {"units": self.along.units})


def variables_of(dataset: Any, what: str = "X") -> dict[str, Any]:
    """The arrays of the variables of a Dataset, with the samples first. Raises DataError if one has no samples."""
    found = dict(dataset.data_vars)
    if not found:
        raise DataError(f"{what}: the Dataset has no variables.")
    first = next(iter(found.values()))
    for name, variable in found.items():
        if not first.dims or first.dims[0] not in variable.dims:
            raise DataError(
                f"{what}: {name!r} has the dimensions {variable.dims}, without that of the samples, which is the "
                f"first one of {first.name!r}, {first.dims}. Leave it out, or broadcast it."
            )
    return {str(name): variable.transpose(first.dims[0], ...) for name, variable in found.items()}


def first_array(x: Any) -> Any:
    """The first DataArray of X, with whose dimensions all others are compared; None if it has none."""
    if hasattr(x, "data_vars"):
        return next(iter(variables_of(x).values()))
    return next(filter(is_labelled, x.values() if isinstance(x, Mapping) else [x]), None)


def stacked(x: Any, what: str, names: Sequence[str] = ()) -> Any:
    """A DataArray as it is; the variables of a Dataset, or those of these names, as its last dimension.

    Raises DataError where they differ in their dimensions, or one is missing.
    """
    if not hasattr(x, "data_vars"):
        return x
    missing = [name for name in names if name not in x.data_vars]
    if missing:
        raise DataError(f"{what}: lacks the variables {', '.join(missing)}, to which the net was fitted.")
    arrays = variables_of(x[list(names)] if names else x, what)
    dims = {name: array.dims for name, array in arrays.items()}
    first = next(iter(dims.values()))
    for name, own in dims.items():
        if set(own) != set(first):
            raise DataError(f"{what}: the variables differ in their dimensions: {first}, but {name!r} {own}.")
    if not names and len(arrays) > 1:
        logger.warning("%s: the variables %s are the channels, in this order.", what, ", ".join(arrays))
    units = SEPARATOR.join(along_of(variable, f"{what}: {name}").units for name, variable in arrays.items())
    made = x[list(arrays)].to_dataarray(VARIABLE).transpose(*first, VARIABLE)
    made.attrs = {"units": units} if units.strip(SEPARATOR) else {}
    return made


def has_other_variables(array: Any, other: Any) -> bool:
    """Whether two Datasets that were `stacked` have not the same variables; all else has none."""
    names, others = (
        {*each[VARIABLE].values.tolist()} if is_labelled(each) and VARIABLE in each.coords else None
        for each in (array, other)
    )
    return names is not None and others is not None and names != others


def labels_of(array: Any, what: str) -> Labels | None:
    """Those of a DataArray, which may be a Dataset that was `stacked`, or of an array of h5py or zarr."""
    if isinstance(array, Stored):
        return Labels.of_sample(array.along())
    if not is_labelled(array):
        return None
    variables = next((array[dim].values.tolist() for dim in (VARIABLE, OUTPUT) if dim in array.coords), ())
    coords = {name: array.coords[name] for name in array.dims[1:] if name in array.coords}
    name = None if array.name is None else str(array.name)
    return Labels(tuple(array.dims), coords, along_of(array, what), name, tuple(variables))


def values_of(x: Any) -> Any:
    """The values of a DataArray, and of an array of h5py or zarr; all else as it is."""
    if isinstance(x, Stored):
        return np.asarray(x)
    return dense(x.data) if is_labelled(x) else x


def as_samples(field: Any) -> Any:
    """A field as one sample: a DataArray, a Dataset or an array."""
    return field.expand_dims(_FIELD) if is_labelled(field) else field[None]


def index_along(array: Any, dim: Any) -> Any:
    """The coordinates along a dimension as an index of pandas: those of its name, else all that lie along it alone,
    such as time(obs). None without any."""
    if dim in array.indexes:
        return array.indexes[dim]
    known = {name: coord.values for name, coord in sorted(array.coords.items()) if coord.dims == (dim,)}
    if not known:
        return None
    import pandas

    if len(known) > 1:
        return pandas.MultiIndex.from_arrays([*known.values()], names=[*known])
    return pandas.Index(*known.values(), name=next(iter(known)))


def _places(array: Any, dim: Any) -> Coordinates | None:
    """The coordinates along a dimension of the samples."""
    if dim in array.indexes:
        return Coordinates.of(in_name_order(array.indexes[dim]).values)
    others = {str(name): (coord.dims, coord.values) for name, coord in array.coords.items() if dim in coord.dims}
    return around(dim, array.dims[1:], others) if others else None


def along_of(array: Any, what: str) -> Along:
    """What a DataArray says of its samples, which its first dimension counts. Raises DataError if its values are
    packed."""
    try:
        packed = packing(array.attrs, array.dtype).keys() - {VALID}
    except ValueError as error:
        raise DataError(f"{what}: {error}") from error
    if packed:
        raise DataError(
            f"{what}: holds packed values, as its attribute {min(packed)!r} says. Unpack them: "
            "xarray.decode_cf(dataset), or open the file without mask_and_scale=False and decode_times=False."
        )
    dims = array.dims[1:]
    known = ((str(dim), _places(array, dim)) for dim in dims)
    told = {dim: each for dim, each in known if each is not None}
    scalars = scalars_of({str(name): coord.values for name, coord in array.coords.items() if not coord.dims})
    return Along(tuple(map(str, dims)), told, units_of(array.attrs, array.dtype), scalars)


def turned(array: Any, trained: Along, what: str, *, warns: Along | None = None) -> Any:
    """A DataArray with the samples first, and then the dimensions and coordinates in the order of the training data;
    all else as it is. Raises DataError if they do not suit these. warns: of coordinates other than there, by default
    than in training."""
    if isinstance(array, Stored):
        return array.like(trained, what)
    if not is_labelled(array):
        return array
    trained = trained.named_like(along_of(array, what))
    others = [dim for dim in array.dims if dim not in trained.dims]
    if trained.dims and len(others) == 1:
        array = array.transpose(*others, ...)
    own = along_of(array, what)
    turn = own.turn_to(trained, what)
    own.warn_of_places(trained if warns is None else warns, what)
    array = array.transpose(array.dims[0], *trained.dims) if turn.axes else array
    return array.isel({trained.dims[axis]: list(order) for axis, order in turn.places})


def check_turned(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Raise DataError where one of several arrays was turned, but not another one with an axis of that size."""
    first, moved = first_array(after), dict[int, str]()
    for what, array in after.items():
        if is_labelled(array):
            samples, old = array.dims[0], before[what]
            own, known, others = (
                {dim: _places(each.transpose(samples, ...), dim) for dim in each.dims if dim != samples}
                for each in (array, old, first)
            )
            moved |= {
                array.sizes[dim]: what
                for dim, was in zip(own, known, strict=True)
                if dim != was or (own[dim] is not None and own[dim] != known[dim])
            }
            for dim in own.keys() & others.keys():
                at, like = own[dim], others[dim]
                if at is None or like is None:
                    continue
                order = at.order_like(like)
                if order is None or (order[1:] < order[:-1]).any():
                    raise DataError(
                        f"{what}: would be turned, but not what is given with it: the training data had coordinates "
                        "for some arrays only. Give all arrays in the order of the training data."
                    )
    plain = {what: array for what, array in after.items() if hasattr(array, "dtype") and not is_labelled(array)}
    schema.check_turned(moved, {what: array.shape[1:] for what, array in plain.items()}, "the training data")


def check_fields(given: Sequence[tuple[str, Any]]) -> None:
    """Raise DataError if an array of a file has the dimensions or coordinates of what is given with it in another
    order. By names for messages."""
    known = [(what, stored(each)) for what, each in given if not hasattr(each, "data_vars")]
    fields = [(what, each) for what, each in known if isinstance(each, Stored) or is_labelled(each)]
    if len(fields) > 1 and any(isinstance(each, Stored) for _, each in fields):  # reads coordinates
        told = ((what, labels_of(each, what)) for what, each in fields)
        schema.check_orders([(what, labels.along) for what, labels in told if labels is not None])


def in_order(x: Any, like: Any, what: str) -> Any:
    """The DataArray x with the dimensions that `like` has too in the same order, the first one first, and with the
    coordinates too.

    Raises DataError where these are others, or x lacks the first dimension.
    """
    if like.dims[0] not in x.dims:
        raise DataError(
            f"{what}: has the dimensions {x.dims}, without that of the samples, which is the first one of X, "
            f"{like.dims}. Rename or transpose."
        )
    check_grid(_sizes(x, like.dims[0]), _sizes(like, like.dims[0]), what, "X")
    for dim in filter(x.dims.__contains__, like.dims):
        own, other = _compared(x, like, dim)
        if own is not None and other is not None:
            order = order_like(own, other)
            if order is None:
                known = sorted(str(name) for name, coord in x.coords.items() if dim in coord.dims and name != dim)
                hint = "Align them first: xarray.align(X, y)."
                if dim not in x.indexes:
                    hint = f"Select the same, or leave them out: drop_vars({known})."
                raise DataError(f"X and {what} have other coordinates along {dim!r}. {hint}")
            if (order[1:] < order[:-1]).any():
                x = x.isel({dim: order})
    return x.transpose(like.dims[0], *same_order([dim for dim in x.dims if dim != like.dims[0]], like.dims[1:]))


def _compared(x: Any, like: Any, dim: Any) -> tuple[Any, Any]:
    """What two DataArrays say of the places along a dimension, by the coordinates that both have; None without any."""
    own, other = index_along(x, dim), index_along(like, dim)
    if own is not None and other is not None:
        own, other = shared_levels(own, other)
        return (None, None) if own is None else (own.values, other.values)
    if dim == like.dims[0]:
        return None, None
    told = [
        known.array for each in (x, like) if (known := _places(each.transpose(like.dims[0], ...), dim)) is not None
    ]
    return (told[0], told[1]) if len(told) > 1 else (None, None)


def shared_levels(own: Any, other: Any) -> tuple[Any, Any]:
    """Two indexes with the levels whose names both have, in the order of these; None if they share no name."""
    if not {*own.names} & {*other.names}:
        return None, None
    without = ([name for name in a.names if name not in b.names] for a, b in ((own, other), (other, own)))
    first, second = (in_name_order(a.droplevel(b) if b else a) for a, b in zip((own, other), without, strict=True))
    return first, second


def _sizes(array: Any, samples: str) -> dict[str, int]:
    """Of the places of a sample."""
    return {dim: size for dim, size in array.sizes.items() if dim not in (samples, VARIABLE, OUTPUT)}


def paired(x: Any, y: Any) -> tuple[Any, Any]:
    """Two DataArrays with the same dimension of the samples first, and the others that both have in the same order.

    The samples are the first dimension of x, or of y if y lacks that. Raises DataError if they have no such dimension,
    or other coordinates along it.
    """
    sample = x.dims[0] if x.dims[0] in y.dims else y.dims[0]
    if sample not in x.dims:
        raise DataError(f"X and y have no common dimension of the samples: {x.dims} and {y.dims}. Rename one.")
    x = x.transpose(sample, ...)
    y = in_order(y, x, "y")
    return x, y.transpose(*(dim for dim in x.dims if dim in y.dims), ...)


def labelled(values: Any, x: Any, dims: Sequence[str], coords: Mapping[str, Any], name: str | None = None) -> Any:
    """Predictions for the DataArray x as a DataArray. dims, coords: of the axes after the samples; dimensions of x of
    the same size have its coordinates."""
    import xarray

    sizes = dict(zip((x.dims[0], *dims), values.shape, strict=True))
    own = {
        key: coord
        for key, coord in x.coords.items()
        if set(coord.dims) <= {d for d, size in sizes.items() if x.sizes.get(d) == size}
    }
    others = {key: coord for key, coord in coords.items() if key in sizes and key not in own}
    return xarray.DataArray(values, dims=tuple(sizes), coords={**others, **own}, name=name)


def as_given(found: Any, given: Any) -> Any:
    """A DataArray with the dimensions and coordinates in the order that they have in `given`."""
    for dim in (dim for dim in found.dims[1:] if dim in found.indexes and dim in given.indexes):
        own = given.indexes[dim]
        if own.is_unique and {*own} == {*found.indexes[dim]} and not own.equals(found.indexes[dim]):
            found = found.sel({dim: own})
    dims = [dim for dim in given.dims if dim in found.dims]
    return found.transpose(*dims, ...) if len(dims) > 1 else found


def dims_of(x: Any, shape: Sequence[int], last: str) -> tuple[str, ...]:
    """The names of the axes of predictions after the samples, of this shape: of fields of the size of the images x
    theirs, and `last` for those that remain."""
    images = x.ndim >= 3 and tuple(shape[:2]) == x.shape[1:3]
    rest = len(shape) - 2 * images
    return (*(x.dims[1:3] if images else ()), *([last] if rest == 1 else [f"{last}_{i}" for i in range(rest)]))
