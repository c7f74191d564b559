import pytest

from singa_dask import autograd


@pytest.fixture(autouse=True)
def training(monkeypatch):
    """Calls are those of training, with parameters by seed 0."""
    monkeypatch.setattr(autograd, "training", True)
    autograd.set_seed(0)
