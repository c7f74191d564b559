"""Optimisers under SINGA 3.x's names and settings."""

import pytest

from singa_dask import opt, updaters
from singa_dask.errors import ConfigError
from singa_dask.updaters import schedules


def test_sgd_takes_its_settings_in_singas_order():
    assert opt.SGD(0.05, 0.9, 0, 1e-4).proto == updaters.SGD(lr=0.05, momentum=0.9, weight_decay=1e-4).proto


def test_sgd_with_nesterov_is_the_rule_of_that_name():
    assert opt.SGD(lr=0.05, momentum=0.9, nesterov=True).proto == updaters.Nesterov(lr=0.05, momentum=0.9).proto
    assert opt.SGD(lr=0.05).proto == updaters.SGD(lr=0.05).proto


def test_settings_have_singas_names_too():
    assert (
        opt.Adam(lr=0.1, beta_1=0.8, beta_2=0.9, epsilon=1e-7).proto
        == updaters.Adam(lr=0.1, beta1=0.8, beta2=0.9, delta=1e-7).proto
    )
    assert opt.RMSProp(lr=0.1, rho=0.8, epsilon=1e-7).proto == updaters.RMSProp(lr=0.1, rho=0.8, delta=1e-7).proto


def test_the_learning_rate_may_be_a_schedule():
    schedule = schedules.Cosine(base_lr=0.1, change_freq=100)
    assert opt.LAMB(schedule).proto == updaters.LAMB(learning_rate=schedule).proto


def test_what_may_be_left_out():
    assert opt.RMSProp(lr=0.1).proto == updaters.RMSProp(lr=0.1, rho=0.9).proto
    assert opt.SGD().proto == updaters.SGD(lr=0.1).proto
    schedule = schedules.Fixed(base_lr=0.2)
    assert opt.SGD(learning_rate=schedule).proto == updaters.SGD(lr=0.2).proto


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"dampening": 0.1}, "updater.dampening"),
        ({"beta": 0.1}, "updater.beta"),
        ({"nesterov": True}, "needs momentum"),
        ({"epsilon": 1, "delta": 1}, "given twice"),
    ],
)
def test_settings_that_are_not_available_are_named(settings, field):
    with pytest.raises(ConfigError, match=field):
        opt.SGD(lr=0.1, **settings)
