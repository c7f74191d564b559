"""The data of examples/heat: the solver against the exact solution, conservation and symmetry."""

import numpy as np
import pytest
from support.programs import program

heat = program("generate", "examples/heat")


@pytest.mark.parametrize("waves", [(1, 0), (0, 2), (1, 1)])
def test_a_cosine_decays_as_the_equation_has_it(heat, waves):
    """cos(a pi x) cos(b pi y) has no flux through the edges, and decays with exp(-(a^2 + b^2) pi^2 k t)."""
    at = (np.arange(32) + 0.5) / 32
    start = np.cos(waves[0] * np.pi * at)[:, None] * np.cos(waves[1] * np.pi * at)
    conductivity, time = 0.5, 0.02
    found = heat.solve(start[None], np.full((1, 32, 32), conductivity), time)[0]
    decay = np.exp(-(waves[0] ** 2 + waves[1] ** 2) * np.pi**2 * conductivity * time)
    np.testing.assert_allclose(found, decay * start, atol=2e-3)


def test_heat_is_conserved_and_extremes_never_grow(heat):
    x, later = heat.samples(20, 16, 0.01, seed=3)
    start = x[:, 0]
    np.testing.assert_allclose(later.mean(axis=(1, 2)), start.mean(axis=(1, 2)), atol=1e-6)
    assert (later.max(axis=(1, 2)) <= start.max(axis=(1, 2)) + 1e-6).all()
    assert (later.min(axis=(1, 2)) >= start.min(axis=(1, 2)) - 1e-6).all()
    assert later.var() < 0.7 * start.var()


def test_axes_are_alike(heat):
    x, later = heat.samples(5, 16, 0.01, seed=4)
    turned = heat.solve(x[:, 0].astype(float).swapaxes(1, 2), x[:, 1].astype(float).swapaxes(1, 2), 0.01)
    np.testing.assert_allclose(turned.swapaxes(1, 2), later, atol=1e-5)


def test_a_seed_gives_the_same_samples(heat):
    once, again, other = (heat.samples(3, 8, 0.01, seed)[0] for seed in (0, 0, 1))
    assert np.array_equal(once, again) and not np.array_equal(once, other)
