"""What tests of layers in loops share."""

import pytest

from singa_dask import autograd, device


@pytest.fixture
def in_float64(monkeypatch):
    """Tensors and layers compute in float64, and what is called is remembered."""
    device.set_default_dtype("float64")
    monkeypatch.setattr(autograd, "training", True)
    autograd.set_seed(0)
    yield
    device.set_default_dtype("float32")
