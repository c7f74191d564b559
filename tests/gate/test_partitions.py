"""A folder of Parquet partitions gives the samples of the same table in one file: a table of partition columns and of
what they are used for."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from singa_dask import load
from singa_dask.data.sharding import shard_files
from singa_dask.errors import DataError

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
N = 24
ROW = np.arange(N)
TABLE = pd.DataFrame({"row": ROW.astype(float), "y": ROW % 5 / 2})
COLUMNS = {
    "texts": np.where(ROW % 3 == 0, "a", "b"),
    "missing texts": np.where(ROW % 3 == 0, None, np.where(ROW % 2 == 0, "a", "b")),
    "encoded texts": np.where(ROW % 3 == 0, "sea ice", np.where(ROW % 2 == 0, "land/rock", "50 %")),
    "integers": 2001 + ROW % 3,
    "large integers": 2**40 + ROW % 3,
    "missing integers": pd.array(np.where(ROW % 3 == 0, None, 2001 + ROW % 2), "Int64"),
    "numbers": ROW % 3 / 4,
    "missing numbers": np.where(ROW % 3 == 0, np.nan, ROW % 2 / 4),
    "booleans": ROW % 3 == 0,
    "dates": pd.Timestamp("2020-01-01") + pd.to_timedelta(ROW % 3, unit="D"),
    "texts of digits": np.where(ROW % 3 == 0, "007", "7"),
}
BY_PANDAS = {"texts of digits", "booleans", "dates"}  # types that other programs do not write with the files
USES: dict[str, dict[str, Any]] = {
    "feature": {"target": "y"},
    "feature, filled": {"target": "y", "missing": "most_frequent"},
    "label": {"label": "kind", "drop": "y"},
    "target": {"target": "kind", "drop": "y"},
}


def by_pandas(frame: pd.DataFrame, folder: Path) -> None:
    frame.to_parquet(folder, partition_cols=["kind"], index=False)


def by_arrow(frame: pd.DataFrame, folder: Path) -> None:
    table = pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata()
    parquet.write_to_dataset(table, folder, partition_cols=["kind"])


WRITERS: dict[str, Callable[[pd.DataFrame, Path], None]] = {"pandas": by_pandas, "Arrow": by_arrow}


def outcome(source: Path, out: Path, options: Any) -> Any:
    """What shards hold of each split, in the order of the rows, or why they are refused."""
    try:
        made = shard_files("parquet", out, source=source, shuffle=False, **options)
    except DataError as error:
        text = re.sub(", such as '.*?',", "", str(error).replace(str(source), "SOURCE"))
        return text.partition(", the first in sample")[0].partition(" (In ")[0]
    found = {}
    for split, manifest in made.items():
        columns = [column for column in manifest.columns if column.role in ("feature", "label", "target")]
        stored = load(out / split, [column.name for column in columns])
        values = [np.asarray(each).reshape(len(each), -1) for each in stored]
        order = np.argsort(values[0][:, 0])
        told = [(c.name, c.role, c.shape, c.classes, tuple(c.names)) for c in columns]
        found[split] = told, [each[order].round(5).tolist() for each in values], len(manifest.encoders)
    return found


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("column", COLUMNS)
def test_a_folder_is_the_same_as_one_file(column: str, writer: str, tmp_path: Path) -> None:
    if writer != "pandas" and column in BY_PANDAS:
        pytest.skip("the type is in no file")
    frame, wrong = TABLE.assign(kind=COLUMNS[column]), []
    frame.to_parquet(tmp_path / "one.parquet", index=False)
    WRITERS[writer](frame, tmp_path / "parts")
    for use, options in USES.items():
        file, folder = (outcome(tmp_path / of, tmp_path / f"{use} {of}", options) for of in ("one.parquet", "parts"))
        if file != folder:
            wrong.append(f"{use}: {folder} for {file}")
    assert not wrong, "\n".join(wrong)
