"""Every updater, activation, metric and file format is known wherever it has to be, and CONTRIBUTING.md says where."""

import re

import pytest
from support import stations
from support.stations import EXEMPT, ROOT, STATIONS, missing, names_of

from singa_dask import updaters
from singa_dask.algorithms import metrics
from singa_dask.data import sharding
from singa_dask.export import onnx
from singa_dask.job import evaluations
from singa_dask.layers import activation
from singa_dask.ops import update

RECIPES = dict(
    re.findall(r"^\*\*An? ([\w ]+)\*\*(.*?)(?=^\*\*|^For all)", (ROOT / "CONTRIBUTING.md").read_text(), re.M | re.S)
)


@pytest.mark.parametrize("kind", STATIONS)
def test_every_station_knows_every_name_and_is_in_the_recipe(kind):
    assert missing(kind, names_of(kind)) == []
    assert [station for station in STATIONS[kind] if f"`{station.partition(':')[0]}`" not in RECIPES[kind]] == []
    for station, names in EXEMPT.get(kind, {}).items():
        assert not STATIONS[kind][station](names), "it is there by now: take it off EXEMPT"


@pytest.mark.parametrize(("kind", "skipped"), [(kind, station) for kind in STATIONS for station in STATIONS[kind]])
def test_a_station_that_is_skipped_is_named(kind, skipped, monkeypatch):
    known = {name: (lambda names: set()) if name == skipped else (lambda names: set(names)) for name in STATIONS[kind]}
    monkeypatch.setitem(STATIONS, kind, known)
    assert missing(kind, {"planted"}) == [f"{skipped} does not have planted"]


class Planted:
    rule = type = "kPlanted"


@pytest.mark.parametrize(
    ("kind", "name", "registries", "known"),
    [
        ("updater", "Planted", [(updaters.BY_TYPE, "kPlanted")], "updaters/__init__.py: BY_TYPE"),
        ("updater", "Planted", [(update.RULES, "planted")], "ops/update.py: RULES"),
        ("activation", "Planted", [(activation._KINDS, "PLANTED")], "layers/activation.py: _KINDS"),
        ("activation", "Planted", [(onnx._CONVERTERS, Planted)], "export/onnx.py: _CONVERTERS"),
        ("metric", "hinge", [(metrics.METRICS["values"], "hinge")], "algorithms/metrics.py: METRICS"),
        ("data format", "xlsx", [(sharding.FORMATS, "xlsx")], "data/sharding.py: FORMATS"),
    ],
)
def test_what_is_planted_in_one_registry_is_missed_in_all_others(kind, name, registries, known, monkeypatch):
    for registry, key in registries:
        monkeypatch.setitem(registry, key, Planted)
    assert len(missing(kind, {name})) == len(STATIONS[kind]) - 1
    assert not any(known in line for line in missing(kind, {name}))


def test_a_planted_metric_of_errors_is_not_maximised_in_silence(monkeypatch):
    monkeypatch.setitem(metrics.METRICS["values"], "hinge", Planted)
    assert any("_MINIMISED" in line for line in missing("metric", names_of("metric")))
    monkeypatch.setattr(evaluations, "_MINIMISED", evaluations._MINIMISED | {"hinge"})
    assert not any("_MINIMISED" in line for line in missing("metric", names_of("metric")))
    assert all(
        evaluations.is_minimised(name) is (name not in stations.MAXIMISED)
        for name in names_of("metric") - stations.NO_NUMBER
    )
