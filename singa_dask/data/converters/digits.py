"""scikit-learn's handwritten digits: real data that needs no download."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from singa_dask.data.catalogue import Recipe
from singa_dask.data.ingest.collections import images_of
from singa_dask.data.plan import permutation
from singa_dask.data.sources.source import Source
from singa_dask.errors import DataError

_SEED = 0
_TEST_FRACTION = 0.2


def load(recipe: Recipe, raw: dict[str, Path]) -> dict[str, Source]:
    """1,797 images of 8 x 8 pixels from 0 to 16. A fixed fifth of every class is the test split.

    Raises DataError if scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise DataError(
            "digits: scikit-learn is not installed. Run `pip install '.[datasets]'` in a clone of singa_dask."
        ) from error
    bunch = load_digits()
    images = bunch.images.astype(np.uint8)[..., np.newaxis]
    labels = bunch.target.astype(np.int64)
    order = permutation((_SEED, labels.size), labels.size)
    is_test = np.zeros(labels.size, dtype=bool)
    for label in np.unique(labels):
        members = order[labels[order] == label]
        is_test[members[: round(members.size * _TEST_FRACTION)]] = True
    train, test = order[~is_test[order]], order[is_test[order]]
    return {
        "train": images_of(images[train], labels[train], recipe.classes),
        "test": images_of(images[test], labels[test], recipe.classes),
    }
