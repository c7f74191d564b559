"""Where the bar of reading and writing shards is shown."""

from importlib.machinery import ModuleSpec

import pytest

from singa_dask.data.ingest import progress
from singa_dask.output.console import Console


@pytest.mark.parametrize("widgets", [None, ModuleSpec("ipywidgets", None)])
@pytest.mark.parametrize("shown", [None, False])
def test_a_notebook_shows_it_where_it_has_widgets(monkeypatch, widgets, shown):
    monkeypatch.setattr(Console, "is_terminal", False)
    monkeypatch.setattr(progress, "find_spec", lambda name: widgets if name == "ipywidgets" else None)
    monkeypatch.setattr(Console, "__init__", jupyter(Console.__init__))
    bar = progress.Bar(shown)
    assert bar._progress.disable is (shown is False or widgets is None)


def jupyter(init):
    def made(self, **options):
        init(self, **options | {"force_jupyter": True})

    return made
