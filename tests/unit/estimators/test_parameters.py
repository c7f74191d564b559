"""Numbers that cannot be are refused before anything is read: a table of parameters and values."""

import numpy as np
import pytest

from singa_dask import Classifier, Regressor, layers, updaters
from singa_dask.errors import ConfigError

X, Y = np.eye(8, dtype=np.float32), np.arange(8) % 2
COUNTS = [0, -3, 0.5, 2.0, True, "5", np.nan]
WRONG = [(name, value) for name in ("epochs", "batch_size", "patience") for value in COUNTS]
WRONG += [("learning_rate", value) for value in (-0.1, np.nan, np.inf, "fast", True)]


@pytest.mark.parametrize("estimator", [Regressor, Classifier])
@pytest.mark.parametrize(("name", "value"), WRONG)
def test_a_number_that_cannot_be_is_refused(estimator, name, value):
    wanted = "a number of at least 0" if name == "learning_rate" else "an integer of at least 1"
    net = estimator(validation=0.5, **{name: value})
    more = {"classes": [0, 1]} if estimator is Classifier else {}
    for call in (net.fit, lambda x, y: net.partial_fit(x, y, **more)):
        with pytest.raises(ConfigError, match=f"^{name}: must be {wanted}. Received: {value!r}"):
            call(X, Y)
    assert not hasattr(net, "model_")


@pytest.mark.parametrize("fitted", [False, True])
def test_partial_fit_takes_no_moving_averages(fitted):
    net = Regressor([layers.InnerProduct(num_output=1)], epochs=1, updater=updaters.SGD(lr=0.1, ema_decay=0.5))
    if fitted:
        net.fit(X, Y)
    with pytest.raises(
        ConfigError, match=r"^updater.ema_decay: is not for partial_fit.*Received: 0\.5\. Leave it out"
    ):
        net.partial_fit(X, Y)
