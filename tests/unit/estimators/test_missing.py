"""Estimators fill missing values by the rule of the first samples."""

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from singa_dask import Classifier, Regressor
from singa_dask.errors import ConfigError

DRAW = np.random.default_rng(9)
N = 40
Y = DRAW.normal(size=N)


def with_gaps(*shape):
    x = DRAW.normal(2, 3, (N, *shape)).astype(np.float32)
    x[DRAW.random(x.shape) < 0.1] = np.nan
    return x


def options(missing):
    return {"epochs": 1, "random_state": 3, "missing": missing}


def rule(estimator):
    return estimator._known().features.fill


@pytest.mark.parametrize("missing", ["mean", 0.5, "mask"])
@pytest.mark.parametrize("shape", [(3,), (6, 6, 2)])
def test_what_is_fitted_fills_what_is_predicted(shape, missing):
    x, new = with_gaps(*shape), with_gaps(*shape)
    regressor = Regressor(**options(missing), validation=(new, Y)).fit(x, Y)
    expected = 0.5 if missing == 0.5 else np.nanmean(x, tuple(range(len(shape))))
    np.testing.assert_allclose(rule(regressor).values, np.atleast_1d(expected), rtol=1e-5)
    filled = np.where(np.isnan(new), np.asarray(rule(regressor).values, np.float32), new)
    found = regressor.predict(new)
    assert np.isfinite(found).all()
    if missing != "mask":
        np.testing.assert_allclose(found, regressor.predict(filled), rtol=1e-5)
    lazy = da.from_array(new, chunks=(15, *shape))
    np.testing.assert_allclose(regressor.predict(lazy).compute(), found, rtol=1e-4)
    np.testing.assert_allclose(regressor.predict(np.ma.masked_invalid(new)), found, rtol=1e-5)
    assert regressor.__sklearn_tags__().input_tags.allow_nan
    assert clone(regressor).missing == missing


@pytest.mark.parametrize("lazy", [False, True])
def test_later_calls_of_partial_fit_keep_the_rule(lazy):
    def held(array):
        return da.from_array(array, chunks=(15, *array.shape[1:])) if lazy else array

    classes = DRAW.integers(0, 3, N)
    classifier = Classifier(**options("mask"))
    classifier.partial_fit(held(with_gaps(3)), held(classes), classes=[0, 1, 2])
    first = rule(classifier)
    classifier.partial_fit(held(with_gaps(3) + 9), held(classes))
    assert rule(classifier) == first and first.flags
    with pytest.raises(ConfigError, match="missing: is other than in the earlier call"):
        classifier.set_params(missing="error").partial_fit(held(np.nan_to_num(with_gaps(3))), held(classes))


def test_columns_of_a_dask_table_have_the_ways_of_tables():
    table = pd.DataFrame(with_gaps(2), columns=["a", "b"])
    y = dd.from_pandas(pd.Series(Y, name="y"), npartitions=2, sort=False)
    regressor = Regressor(**options("median")).fit(dd.from_pandas(table, npartitions=2, sort=False), y)
    known = regressor._known().encoders
    np.testing.assert_allclose([encoder.fill for encoder in known], table.median(), rtol=1e-5)
    assert np.isfinite(regressor.predict(dd.from_pandas(table, npartitions=2, sort=False)).compute()).all()


def test_without_a_rule_they_are_refused():
    x = with_gaps(3)
    with pytest.raises(ValueError, match="NaN"):
        Regressor(epochs=1).fit(x, Y)
    regressor = Regressor(epochs=1).fit(np.nan_to_num(x), Y)
    with pytest.raises(ValueError, match="NaN"):
        regressor.predict(x)
    with pytest.raises(ConfigError, match="missing: is other than in the earlier call"):
        regressor.set_params(missing="mean").partial_fit(x, Y)
    with pytest.raises(ConfigError, match="missing: is for the columns of a table"):
        Regressor(**options("median")).fit(x, Y)
    with pytest.raises(ConfigError, match="missing: is not for sequences of different lengths"):
        Regressor(**options("mean")).fit([with_gaps(3)[:4], with_gaps(3)[:5]], Y[:2])
    with pytest.raises(ValueError, match="infinity"):
        Regressor(**options("mean")).fit(np.where(np.isnan(x), np.inf, x), Y)
