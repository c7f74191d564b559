"""Fixtures for tests of the cluster."""

import pytest
from support.nannies import Nannies

from singa_dask.cluster import nanny_store


@pytest.fixture
def nannies(monkeypatch):
    nannies = Nannies()
    monkeypatch.setattr(nanny_store, "ask_nannies", nannies.ask)
    yield nannies
    nannies.close()
