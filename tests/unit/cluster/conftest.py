"""Fixtures for tests of the cluster."""

import pytest
from support.nannies import Nannies

from singa_dask.cluster import held


@pytest.fixture
def nannies(monkeypatch):
    nannies = Nannies()
    monkeypatch.setattr(held, "ask_nannies", nannies.ask)
    yield nannies
    nannies.close()
