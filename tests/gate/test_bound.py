"""Every way in after the first is bound to the description of the data: a table of entry points and faults.

A cell is right where the samples are refused, or where the fault is one of order alone, where the result is the same.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import pandas as pd
import pytest

from singa_dask import Regressor
from singa_dask.errors import DataError

xarray = pytest.importorskip("xarray")
N, H, W = 24, 4, 4
DRAW = np.random.default_rng(0)
GRID = ("day", "north", "east")
COORDS = {"day": np.arange(N), "north": np.linspace(50, 60, H), "east": np.linspace(0, 9, W)}
PACKED = {"scale_factor": 0.01, "add_offset": 3.0}


def field(name: str, units: str) -> Any:
    return xarray.DataArray(DRAW.normal(size=(N, H, W)), COORDS, GRID, name, {"units": units})


WIND, HEAT = field("wind", "m s-1"), field("heat", "W m-2")
STATIONS = xarray.Dataset({name: (WIND[:, 0, i].drop_vars(("north", "east"))) for i, name in enumerate("ab")})
Y = (HEAT.mean(("north", "east")) + WIND[:, 0, 0]).drop_vars(("north", "east")).assign_attrs(units="J")
FRAME = pd.DataFrame(DRAW.normal(size=(N, 3)), columns=list("abc"), index=np.arange(N) + 7)
SAMPLES = {
    "DataArray": (WIND, Y),
    "Dataset of one field": (WIND.to_dataset(), Y),
    "Dataset of fields": (xarray.Dataset({"wind": WIND, "heat": HEAT}), Y),
    "Dataset of numbers": (STATIONS, Y),
    "DataFrame": (FRAME, pd.Series(FRAME.a * 2 + FRAME.b, FRAME.index, name="y")),
}
FIELDS = [name for name in SAMPLES if name not in ("DataFrame", "Dataset of numbers")]


def other_units(x: Any) -> Any:
    if not hasattr(x, "data_vars"):
        return x.assign_attrs(units="erg")
    first = next(iter(x.data_vars))
    return x.assign({first: x[first].assign_attrs(units="knots")})


def packed(x: Any) -> Any:
    if hasattr(x, "data_vars"):
        return x.assign({name: packed(array) for name, array in x.data_vars.items()})
    return x.assign_attrs(PACKED)


OF_X = {
    "units": (other_units, [name for name in SAMPLES if name != "DataFrame"]),
    "packed": (packed, [name for name in SAMPLES if name != "DataFrame"]),
    "dimension of another name": (lambda x: x.rename(north="row"), FIELDS),
    "dimension of another name, reversed": (lambda x: x.isel(north=slice(None, None, -1)).rename(north="row"), FIELDS),
    "reversed": (lambda x: x.isel(north=slice(None, None, -1)), FIELDS),
    "transposed": (lambda x: x.transpose("east", "day", "north"), FIELDS),
}
OF_Y = {
    "rows in another order": (lambda y: y[::-1], [*SAMPLES]),
    "units": (other_units, [name for name in SAMPLES if name != "DataFrame"]),
    "packed": (packed, [name for name in SAMPLES if name != "DataFrame"]),
}


OF_WEIGHTS = {"rows in another order": OF_Y["rows in another order"]}
OF_ORDER = ("reversed", "rows in another order", "transposed")


def weights(y: Any) -> Any:
    found = y * 0 + np.linspace(0.5, 1, N)
    return found.rename("w").assign_attrs({}) if hasattr(found, "dims") else found


def number(x: Any) -> np.ndarray:
    return np.asarray(x, float).reshape(-1)


def fitted(x: Any, y: Any, **more: Any) -> Any:
    weight = {key: more.pop(key) for key in list(more) if key == "sample_weight"}
    return Regressor(epochs=1, random_state=0, **more).fit(x, y, **weight)


def validated(net: Any) -> np.ndarray:
    return number(net.history_.loss[net.history_.phase == "validate"])


# Each gives numbers: net, samples and answers of training, and those to take now.
WITH_X = {
    "predict": lambda net, x, y, now: number(net.predict(now)),
    "Model.predict": lambda net, x, y, now: number(net.model_.predict(now)),
    "Model.evaluate": lambda net, x, y, now: number(net.model_.evaluate(now, y)["loss"]),
    "score": lambda net, x, y, now: number(net.score(now, y)),
    "validation": lambda net, x, y, now: validated(fitted(x, y, validation=(now, y))),
    "partial_fit": lambda net, x, y, now: number(deepcopy(net).partial_fit(now, y).predict(x)),
}
WITH_Y = {
    "fit": lambda net, x, y, now: number(fitted(x, now).predict(x)),
    "score": lambda net, x, y, now: number(net.score(x, now)),
    "Model.evaluate": lambda net, x, y, now: number(net.model_.evaluate(x, now)["loss"]),
    "validation": lambda net, x, y, now: validated(fitted(x, y, validation=(x, now))),
    "partial_fit": lambda net, x, y, now: number(deepcopy(net).partial_fit(x, now).predict(x)),
}
WITH_WEIGHTS = {
    "fit": lambda net, x, y, now: number(fitted(x, y, sample_weight=now).predict(x)),
    "partial_fit": lambda net, x, y, now: number(deepcopy(net).partial_fit(x, y, sample_weight=now).predict(x)),
    "score": lambda net, x, y, now: number(net.score(x, y, sample_weight=now)),
}
WAYS = {
    **{f"{way}, X": (call, "x", OF_X) for way, call in WITH_X.items()},
    **{f"{way}, y": (call, "y", OF_Y) for way, call in WITH_Y.items()},
    **{f"{way}, sample_weight": (call, "weights", OF_WEIGHTS) for way, call in WITH_WEIGHTS.items()},
}
NOT_KNOWN = {
    ("fit, y", "units", kind)
    for kind in SAMPLES  # there is nothing yet that they could differ from
}


@pytest.fixture(scope="module")
def nets() -> dict[str, Any]:
    return {kind: fitted(*samples) for kind, samples in SAMPLES.items()}


@pytest.mark.parametrize("way", WAYS)
def test_what_does_not_fit_the_description_is_refused(way: str, nets: dict[str, Any]) -> None:
    call, what, faults = WAYS[way]
    wrong = []
    for kind, (x, y) in SAMPLES.items():
        given = {"x": x, "y": y, "weights": weights(y)}[what]
        expected = None
        for fault, (change, kinds) in faults.items():
            if kind not in kinds or (way, fault, kind) in NOT_KNOWN:
                continue
            try:
                found = call(nets[kind], x, y, change(given))
            except (DataError, ValueError):
                continue
            except Exception as error:
                wrong.append(f"{kind}, {fault}: {type(error).__name__}: {error}")
                continue
            if fault in OF_ORDER and expected is None:
                expected = call(nets[kind], x, y, given)
            if fault not in OF_ORDER or not np.allclose(found, expected, rtol=1e-5, atol=1e-6):
                wrong.append(f"{kind}, {fault}")
    assert not wrong, "\n".join(wrong)
