"""What pictures show."""

import pytest
from matplotlib.figure import Figure


@pytest.fixture
def figures(monkeypatch):
    """The figures that have been saved."""
    saved, save = [], Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (saved.append(self), save(self, *a, **k)))
    return saved
