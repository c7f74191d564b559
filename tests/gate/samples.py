"""The situations: samples, where they go in, and what they need of a container."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

N = 40
DRAW = np.random.default_rng(3)
# Eighths are the same numbers in every type and text.
NUMBERS = {name: DRAW.integers(-40, 40, N) / 8 for name in ("a", "b", "c")}
TARGET = 2 * NUMBERS["a"] - NUMBERS["b"] + 0.5
KINDS = np.array(["red", "green", "blue", "dark red"])[DRAW.integers(0, 4, N)]
KINDS[:4] = ["red", "green", "blue", "dark red"]
DAYS = pd.Timestamp("2020-02-01") + pd.to_timedelta(DRAW.integers(0, 90, N), unit="D")
SPANS = pd.to_timedelta(DRAW.integers(1, 60, N), unit="h")
IMAGES = DRAW.integers(0, 255, (N, 6, 5, 3)).astype(np.uint8)
CLASSES = np.repeat(np.arange(4), N // 4)
GAPS = np.where(DRAW.random(IMAGES.shape) < 0.05, np.nan, IMAGES.astype(np.float32))
WEIGHTS = (np.arange(N) % 3).astype(float)


@dataclass(frozen=True)
class Situation:
    """Samples that go in at one of the ENTRIES. x: columns by name, or images. needs: what a container must be able
    to hold, by the names of `Container.lacks`. options: of the entry. new: for predictions, what comes after training,
    in place of x. way: what it shows of the product, for the page.
    """

    name: str
    entry: str
    x: Any
    y: Any = None
    needs: tuple[str, ...] = ()
    weight: Any = None
    new: Any = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def images(self) -> bool:
        return isinstance(self.x, np.ndarray)


def table(**columns: Any) -> pd.DataFrame:
    """The columns a, b, c of numbers, with these in their place or after them."""
    return pd.DataFrame({**NUMBERS, **columns})


def with_value(value: Any, row: int = 5) -> np.ndarray:
    column = NUMBERS["b"].astype(complex if isinstance(value, complex) else float)
    column[row] = value
    return column


def _texts(missing: bool = False) -> np.ndarray:
    texts = KINDS.astype(object)
    if missing:
        texts[7] = None
    return texts


MIXED = pd.DataFrame({"a": NUMBERS["a"], "kind": _texts(), "day": DAYS})
WITH_A_GAP = table(b=with_value(np.nan))
FEW = [3, 1, 2, 0, 9]
SITUATIONS = [
    Situation("numbers", "shard", table(), TARGET),
    Situation("integers as features", "shard", table(b=np.arange(N)), TARGET),
    Situation("single precision", "shard", table().astype(np.float32), TARGET),
    Situation("half precision", "shard", table().astype(np.float16), TARGET, ("half",)),
    Situation("True and False", "shard", table(b=np.arange(N) % 3 == 0), TARGET, ("columns",)),
    Situation("a column of strings", "shard", MIXED[["a", "kind"]], TARGET, ("text",)),
    Situation("strings, one of which is missing", "shard", table(b=_texts(True)), TARGET, ("text", "none")),
    Situation("dates", "shard", MIXED[["a", "day"]], TARGET, ("date",)),
    Situation("dates with a time zone", "shard", table(b=DAYS.tz_localize("Europe/Berlin")), TARGET, ("zone",)),
    Situation("time spans", "shard", table(b=SPANS), TARGET, ("span",)),
    Situation("a missing number", "shard", table(b=with_value(np.nan)), TARGET, ("missing",)),
    Situation(
        "a missing number, filled",
        "shard",
        table(b=with_value(np.nan)),
        TARGET,
        ("missing",),
        None,
        None,
        {"missing": "mean"},
    ),
    Situation("an infinite number", "shard", table(b=with_value(np.inf)), TARGET, ("infinite",)),
    Situation("complex numbers", "shard", table(b=with_value(1j)), TARGET, ("complex",)),
    Situation("numbers far from zero", "shard", table(b=1.7e9 + np.arange(N)), TARGET),
    Situation("a constant column", "shard", table(b=np.ones(N)), TARGET),
    Situation("strings that look like numbers", "shard", table(b=[f"{i % 3},5" for i in range(N)]), TARGET, ("text",)),
    Situation("a column name twice", "shard", table().set_axis(["a", "b", "b"], axis=1), TARGET, ("twice",)),
    Situation("numbers as column names", "shard", table().set_axis([1, 2, 3], axis=1), TARGET, ("number names",)),
    Situation("no samples", "shard", table()[:0], TARGET[:0]),
    Situation("labels", "shard", table(), CLASSES),
    Situation("labels that are strings", "shard", table(), _texts(), ("text label",)),
    Situation("labels with a gap", "shard", table(), np.where(CLASSES == 1, 7, CLASSES)),
    Situation("a missing label", "shard", table(), _texts(True), ("text label", "none")),
    Situation("a missing target", "shard", table(), with_value(np.nan), ("missing",)),
    Situation("several targets", "shard", table(), np.stack([TARGET, NUMBERS["c"]], 1), ("targets",)),
    Situation("weights", "shard", table(), TARGET, ("weight",), WEIGHTS),
    Situation("weights that are all 0", "shard", table(), TARGET, ("weight",), 0 * WEIGHTS),
    Situation("a negative weight", "shard", table(), TARGET, ("weight",), WEIGHTS - 1),
    Situation("images", "shard", IMAGES, CLASSES, ("images",)),
    Situation("images, channels first", "shard", IMAGES.transpose(0, 3, 1, 2), CLASSES, ("images", "channels first")),
    Situation(
        "images with missing pixels, filled",
        "shard",
        GAPS,
        CLASSES,
        ("images", "numbers", "missing"),
        options={"missing": "mean"},
    ),
    Situation(
        "images with missing pixels, marked",
        "shard",
        GAPS,
        CLASSES,
        ("images", "numbers", "missing"),
        options={"missing": "mask"},
    ),
    Situation("training on numbers", "train", table(), TARGET),
    Situation("training on strings and dates", "train", MIXED, TARGET, ("text", "date")),
    Situation("training with weights", "train", table(), TARGET, ("weight",), WEIGHTS),
    Situation("training on labels that are strings", "train", table(), _texts(), ("text label",)),
    Situation("training on images", "train", IMAGES, CLASSES, ("images",)),
    Situation("new samples", "predict", table(), TARGET, new=table().iloc[FEW]),
    Situation("one new sample", "predict", table(), TARGET, new=table().iloc[[4]]),
    Situation("columns in another order", "predict", table(), TARGET, ("columns",), new=table()[["c", "a", "b"]]),
    Situation("a column missing", "predict", table(), TARGET, ("columns",), new=table()[["a", "b"]]),
    Situation("an additional column", "predict", table(), TARGET, ("columns",), new=table(d=np.arange(N))),
    Situation(
        "a column of another name", "predict", table(), TARGET, ("columns",), new=table().rename(columns={"b": "q"})
    ),
    Situation("integers in place of other numbers", "predict", table(), TARGET, new=(8 * table()).astype(np.int64)),
    Situation(
        "a missing number in new samples", "predict", table(), TARGET, ("missing",), new=table(b=with_value(np.nan))
    ),
    Situation(
        "a missing number in new samples, after training with a fill",
        "predict",
        WITH_A_GAP,
        TARGET,
        ("missing",),
        new=table(c=with_value(np.nan)),
        options={"missing": "mean"},
    ),
    Situation(
        "an infinite number in new samples", "predict", table(), TARGET, ("infinite",), new=table(b=with_value(np.inf))
    ),
    Situation("strings in place of numbers", "predict", table(), TARGET, ("text", "columns"), new=table(b=_texts())),
    Situation("complex numbers in new samples", "predict", table(), TARGET, ("complex",), new=table(b=with_value(1j))),
    Situation("strings and dates in new samples", "predict", MIXED, TARGET, ("text", "date"), new=MIXED.iloc[FEW]),
    Situation(
        "fewer categories in new samples", "predict", MIXED, TARGET, ("text", "date"), new=MIXED[MIXED.kind == "red"]
    ),
    Situation("an unknown category", "predict", MIXED, TARGET, ("text", "date"), new=MIXED.assign(kind="violet")),
    Situation(
        "a missing category", "predict", MIXED, TARGET, ("text", "date", "none"), new=MIXED.assign(kind=_texts(True))
    ),
    Situation(
        "dates with a time zone after dates without",
        "predict",
        MIXED,
        TARGET,
        ("text", "date", "zone"),
        new=MIXED.assign(day=DAYS.tz_localize("Europe/Berlin")),
    ),
    Situation(
        "numbers in place of dates", "predict", MIXED, TARGET, ("text", "date"), new=MIXED.assign(day=NUMBERS["b"])
    ),
    Situation("new images", "predict", IMAGES, CLASSES, ("images",), new=IMAGES[FEW]),
    Situation(
        "new images, channels first",
        "predict",
        IMAGES,
        CLASSES,
        ("images", "channels first"),
        new=IMAGES[FEW].transpose(0, 3, 1, 2),
    ),
    Situation(
        "missing pixels in new images, after training with a fill",
        "predict",
        GAPS,
        CLASSES,
        ("images", "numbers", "missing"),
        new=GAPS[FEW],
        options={"missing": "mask"},
    ),
    Situation("new images of another size", "predict", IMAGES, CLASSES, ("images", "size"), new=IMAGES[FEW, :5]),
]
