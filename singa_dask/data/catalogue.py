"""Named data sets: one TOML recipe each, in `datasets/` of a checkout or in the installed package."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from types import MappingProxyType

from singa_dask.errors import DataError, nearest


@dataclass(frozen=True)
class PublishedFile:
    """A published file. checksum: (algorithm, hex digest); size: in bytes."""

    file: str
    url: str
    checksum: tuple[str, str]
    size: int


@dataclass(frozen=True)
class Recipe:
    """How to convert a named data set to shards.

    format: of the raw files; it selects the converter. alternatives: patterns of files that can replace the sources.
    idx: for format "idx", (features file, labels file) of each split. validation: for format "text", the fraction at
    the end of the text that becomes the split "validation".
    """

    name: str
    description: str
    format: str
    splits: tuple[str, ...]
    classes: tuple[str, ...] = ()
    nshards: int = 1
    sources: tuple[PublishedFile, ...] = ()
    alternatives: tuple[str, ...] = ()
    idx: Mapping[str, tuple[str, str]] = field(default_factory=lambda: MappingProxyType({}))
    validation: float = 0.0


def recipe_names() -> list[str]:
    """The names of all data sets with a recipe."""
    return sorted(entry.name.removesuffix(".toml") for entry in _folder().iterdir() if entry.name.endswith(".toml"))


def load_recipe(name: str) -> Recipe:
    """The recipe of a named data set. Raises DataError, with the nearest name, if there is none."""
    names = recipe_names()
    if name not in names:
        raise DataError(f"no data set is named {name!r}. {nearest(name, names)}")
    return parse_recipe(_folder().joinpath(f"{name}.toml").read_text(encoding="utf-8"), f"{name}.toml")


def parse_recipe(text: str, origin: str) -> Recipe:
    """A recipe from its TOML text. Raises DataError that names `origin`."""
    try:
        table = tomllib.loads(text)
        sources = []
        for entry in table.pop("sources", []):
            algorithm = "sha256" if "sha256" in entry else "md5"
            sources.append(PublishedFile(entry["file"], entry["url"], (algorithm, entry[algorithm]), entry["size"]))
        idx = {split: (pair[0], pair[1]) for split, pair in table.pop("idx", {}).items()}
        for key in ("classes", "splits", "alternatives"):
            if key in table:
                table[key] = tuple(table[key])
        return Recipe(**table, sources=tuple(sources), idx=MappingProxyType(idx))
    except (tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise DataError(
            f"{origin}: is not a valid data set recipe ({error!r}). Compare it with datasets/mnist.toml."
        ) from error


def _folder() -> Traversable:
    packaged = files("singa_dask").joinpath("_datasets")
    if packaged.is_dir():
        return packaged
    checkout = Path(__file__).parents[2] / "datasets"
    if checkout.is_dir():
        return checkout
    raise DataError("this installation lacks the recipes of the named data sets. Reinstall singa_dask.")
