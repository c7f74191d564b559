"""Balanced classes count the weights of samples, in every container."""

from __future__ import annotations

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

from singa_dask import Classifier, layers
from singa_dask.errors import ConfigError

N = 60
DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(N, 3)).round(3)
Y = np.where(X[:, 0] + DRAW.normal(size=N) > -0.5, "up", "down")
WEIGHT = np.where((Y == "up") & (np.arange(N) % 2 == 0), 0.0, DRAW.integers(1, 4, N))


def table(x):
    return pd.DataFrame(x, columns=list("abc"))


def lazy(x):
    return da.from_array(x, chunks=(20, *x.shape[1:]))


CONTAINERS = {
    "NumPy": lambda x, y, w: (x, y, w),
    "lists": lambda x, y, w: (x.tolist(), y.tolist(), w.tolist()),
    "pandas": lambda x, y, w: (table(x), pd.Series(y, name="y"), pd.Series(w, name="w")),
    "pandas in other orders": lambda x, y, w: (table(x), pd.Series(y, name="y")[::-1], pd.Series(w, name="w")[::-1]),
    "Dask arrays": lambda x, y, w: (lazy(x), lazy(y), lazy(w)),
    "Dask DataFrame": lambda x, y, w: tuple(
        dd.from_pandas(each, npartitions=3) for each in (table(x), pd.Series(y, name="y"), pd.Series(w, name="w"))
    ),
}


def factors(fitted):
    return list(fitted.model_.net.proto.layer[-1].softmaxloss_conf.class_weight)


def classifier(**how):
    settings = {"class_weight": "balanced", "epochs": 3, "batch_size": N, "random_state": 0, "normalise": False}
    return Classifier([layers.InnerProduct(num_output=2)], **{**settings, **how})


@pytest.mark.parametrize("container", CONTAINERS)
def test_weights_count(container):
    x, y, weight = CONTAINERS[container](X, Y, WEIGHT)
    fitted = classifier().fit(x, y, sample_weight=weight)
    sums = np.array([WEIGHT[name == Y].sum() for name in fitted.classes_])
    assert factors(fitted) == pytest.approx(sums.sum() / (2 * sums))
    unweighted = classifier().fit(x, y)
    counts = np.array([(name == Y).sum() for name in unweighted.classes_])
    assert factors(unweighted) == pytest.approx(N / (2 * counts))


def test_rows_without_weight_are_as_rows_left_out():
    kept = WEIGHT > 0
    whole = classifier().fit(X, Y, sample_weight=WEIGHT)
    part = classifier(batch_size=int(kept.sum())).fit(X[kept], Y[kept], sample_weight=WEIGHT[kept])
    np.testing.assert_allclose(whole.predict_proba(X), part.predict_proba(X), rtol=1e-5)
    none = classifier().fit(X, Y, sample_weight=np.where(Y == "up", 1.0, 0.0))
    assert factors(none) == [1, 1]


def test_positions_count_by_the_weight_of_their_sample():
    images, maps = DRAW.normal(size=(6, 4, 4, 1)), DRAW.integers(-1, 2, (6, 4, 4))
    net = [layers.Convolution(num_filters=2, kernel=1)]
    weight = np.array([0, 1, 2, 0, 3, 1.0])
    fitted = Classifier(net, class_weight="balanced", epochs=1).fit(images, maps, sample_weight=weight)
    sums = np.array([(weight * (maps == name).sum(axis=(1, 2))).sum() for name in (0, 1)])
    assert factors(fitted) == pytest.approx(sums.sum() / (2 * sums))


@pytest.mark.parametrize("given", [[1, 4], np.array([1, 4]), "even", 3])
def test_other_class_weights_are_refused(given):
    with pytest.raises(ConfigError, match=r"class_weight: must be \{class: factor\} or \"balanced\""):
        classifier(class_weight=given).fit(X, Y)
    assert factors(classifier(class_weight={"up": 2.0, "down": 1.0}).fit(X, Y)) == [1, 2]
