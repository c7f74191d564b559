"""Regressor against MLPRegressor of scikit-learn: the same net, initial parameters, updater, batch size and steps.

What differs: the order of the samples, and float32 against float64.
"""

import warnings

import numpy as np
import pytest
from sklearn.datasets import load_diabetes
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPRegressor
from sklearn.preprocessing import StandardScaler

from singa_dask import Model, Regressor, layers

HIDDEN, EPOCHS, BATCH, SEEDS = 16, 40, 32, 3


def net():
    hidden = layers.InnerProduct("hidden", num_output=HIDDEN)
    return [hidden, layers.ReLU("relu"), layers.InnerProduct("output", num_output=1)]


def initial(seed, width):
    whole = [layers.RecordInput("data", shape=[width], target_shape=[1]), *net(), layers.EuclideanLoss("loss")]
    return Model(whole, seed=seed).state_dict()


def peer(start, x, y):
    """scikit-learn's regressor after the same number of steps from these parameters."""
    options = {"alpha": 0, "batch_size": BATCH, "tol": 0, "n_iter_no_change": 10**6, "warm_start": True}
    fitted = MLPRegressor(hidden_layer_sizes=(HIDDEN,), max_iter=1, random_state=0, **options).fit(x, y)
    fitted.coefs_ = [start["hidden_weight"].astype(float), start["output_weight"].astype(float)]
    fitted.intercepts_ = [start["hidden_bias"].astype(float), start["output_bias"].astype(float)]
    fitted.set_params(max_iter=EPOCHS).fit(x, y)
    assert fitted.n_iter_ == EPOCHS
    return fitted


def test_the_regressor_reaches_what_scikit_learns_net_reaches():
    x, test_x, y, test_y = train_test_split(*load_diabetes(return_X_y=True), test_size=90, random_state=0)
    assert len(x) % BATCH == 0  # so that both take the same number of steps
    features, target = StandardScaler().fit(x), StandardScaler().fit(y[:, None])
    scaled_x, scaled_y = features.transform(x), target.transform(y[:, None]).ravel()
    scaled_test = features.transform(test_x), target.transform(test_y[:, None]).ravel()
    ours, theirs = [], []
    for seed in range(SEEDS):
        regressor = Regressor(net(), epochs=EPOCHS, batch_size=BATCH, learning_rate=0.001, random_state=seed).fit(x, y)
        assert regressor.result_.summary["step"] == EPOCHS * len(x) // BATCH
        ours.append(regressor.score(test_x, test_y))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            theirs.append(peer(initial(regressor.model_.seed, x.shape[1]), scaled_x, scaled_y).score(*scaled_test))
    print(f"R2 of {SEEDS} seeds: {np.mean(ours):.4f}, scikit-learn {np.mean(theirs):.4f}")
    assert np.mean(ours) == pytest.approx(np.mean(theirs), abs=0.01)
    assert np.mean(ours) > 0.25
