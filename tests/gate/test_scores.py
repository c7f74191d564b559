"""R2 is one number of the same samples, whatever the shape of the targets and whoever measures it."""

import numpy as np
import pytest
from sklearn.metrics import r2_score

from singa_dask import Regressor, layers
from singa_dask.algorithms.metrics import r2

N, T, H = 40, 4, 3
DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(N, 5, 5))
FIELD = np.stack([X, 1000 + X**2, 5 * X], axis=-1)
LOAD = X[:, 0, 0].cumsum()
BOTH = np.stack([LOAD, 1000 + 3 * X[:, 0, 1]], axis=1)
# The targets, and the axis that counts them in those of one prediction; None of a single target.
SINGLE = {
    "(N,)": (LOAD, None),
    "(N, 1)": (LOAD[:, None], None),
    "(N, K)": (BOTH, -1),
    "(N, H, W)": (X, None),
    "(N, H, W, 1)": (X[..., None], None),
    "(N, H, W, C)": (FIELD, -1),
    "(N, C, H, W)": (np.moveaxis(FIELD, -1, 1), 1),
}
WINDOWS = {"(N,)": LOAD, "(N, 1)": LOAD[:, None], "(N, 2)": BOTH}


def of_targets(true, predicted, axis, weight=None):
    """The mean over targets, with all other axes as samples, as scikit-learn has it."""
    if axis is None:
        true, predicted = true[..., None], predicted[..., None]
    true, predicted = (np.moveaxis(each, -1 if axis is None else axis, -1) for each in (true, predicted))
    weight = None if weight is None else np.repeat(weight, true[0, ..., 0].size)
    rows = (each.reshape(-1, each.shape[-1]) for each in (true, predicted))
    return r2_score(*rows, sample_weight=weight)


@pytest.mark.parametrize("shape", SINGLE)
def test_samples(shape):
    y, axis = SINGLE[shape]
    weight = DRAW.random(N) * (np.arange(N) > 3)
    fitted = Regressor(epochs=2, random_state=0).fit(X, y)
    predicted = fitted.predict(X)
    assert fitted.score(X, y) == pytest.approx(of_targets(y, predicted, axis))
    assert fitted.score(X, y, weight) == pytest.approx(of_targets(y, predicted, axis, weight))
    assert fitted.model_.evaluate(X, y, metrics=["r2"])["r2"] == pytest.approx(fitted.score(X, y), abs=1e-6)
    with pytest.raises(ValueError, match=r"y must have the shape of the predictions|inconsistent"):
        fitted.score(X, np.zeros((N, 7)))


@pytest.mark.parametrize("shape", WINDOWS)
def test_windows(shape):
    y, x = WINDOWS[shape], X[:, 0, :2]
    net = [layers.RecordInput(sequence=T, horizon=H), layers.InnerProduct(num_output=H * y[0].size)]
    fitted = Regressor(net, epochs=2, random_state=0).fit(x, y)
    seen = np.stack([x[i : i + T] for i in range(N - T - H + 1)])
    after = np.stack([y[i + T : i + T + H] for i in range(N - T - H + 1)])
    score, found = fitted.score(x, y), fitted.predict(x)[: len(seen)]
    wanted = of_targets(after, found, -1) if shape == "(N, 2)" else r2_score(after.squeeze(), found.squeeze())
    assert score == pytest.approx(wanted)
    assert fitted.model_.evaluate(seen, after, metrics=["r2"])["r2"] == pytest.approx(score, abs=1e-6)


def test_far_from_zero_and_constant():
    far = 1e9 + np.arange(4.0)
    assert r2(far + np.array([0, 0, 0, 1]), far, ()) == pytest.approx(0.8)
    assert (r2(far * 0, far * 0, ()), r2(far, far * 0 + 3, ())) == (1, 0)
    assert np.isnan(r2([1.0], [2.0], ()))
