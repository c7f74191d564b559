"""Optimisers under SINGA 3.x's names and settings."""

import pytest

from singa_dask import opt, updaters
from singa_dask.errors import ConfigError
from singa_dask.updaters import schedules

COSINE = schedules.Cosine(base_lr=0.1, change_freq=100)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (opt.SGD(0.05, 0.9, 0, 1e-4), updaters.SGD(lr=0.05, momentum=0.9, weight_decay=1e-4)),
        (opt.SGD(lr=0.05), updaters.SGD(lr=0.05)),
        (opt.SGD(), updaters.SGD(lr=0.1)),
        (opt.SGD(learning_rate=schedules.Fixed(base_lr=0.2)), updaters.SGD(lr=0.2)),
        (opt.SGD(lr=0.05, momentum=0.9, nesterov=True), updaters.Nesterov(lr=0.05, momentum=0.9)),
        (
            opt.Adam(lr=0.1, beta_1=0.8, beta_2=0.9, epsilon=1e-7),
            updaters.Adam(lr=0.1, beta1=0.8, beta2=0.9, delta=1e-7),
        ),
        (opt.SGD(0.5, 0.9, 0.25, dtype="float32"), updaters.SGD(lr=0.375, momentum=0.9)),
        (opt.SGD(0.5, dampening=0.25), updaters.SGD(lr=0.5)),  # SINGA dampens what momentum keeps
        (opt.RMSProp(lr=0.1, rho=0.8, epsilon=1e-7), updaters.RMSProp(lr=0.1, rho=0.8, delta=1e-7)),
        (opt.RMSProp(lr=0.1), updaters.RMSProp(lr=0.1, rho=0.9)),
        (opt.LAMB(COSINE), updaters.LAMB(learning_rate=COSINE)),
    ],
)
def test_settings_have_the_names_order_and_defaults_of_singa(made, expected):
    assert made.proto == expected.proto


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"dampening": 0.1, "momentum": 0.9, "nesterov": True}, "updater.dampening"),
        ({"beta": 0.1}, "updater.beta"),
        ({"nesterov": True}, "needs momentum"),
        ({"epsilon": 1, "delta": 1}, "given twice"),
    ],
)
def test_settings_that_are_not_available_are_named(settings, field):
    with pytest.raises(ConfigError, match=field):
        opt.SGD(lr=0.1, **settings)


def test_dampening_needs_a_number_as_rate():
    with pytest.raises(ConfigError, match="Multiply the rates of the schedule by 1 - dampening"):
        opt.SGD(COSINE, momentum=0.9, dampening=0.1)
