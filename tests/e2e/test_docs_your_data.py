"""The tutorials can be followed: the blocks of a section run in order, as they stand there."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commands import ROOT, run_command

BLOCK = re.compile(r"```(sh|python)\n(.*?)```", re.DOTALL)


def sections(text: str) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Title and blocks of each section that has blocks; comments of code begin none."""
    title, blocks = "", []
    for part in re.findall(r"^```.*?^```$|^##? [^\n]*$", text, re.DOTALL | re.MULTILINE):
        if part.startswith("#"):
            if blocks:
                yield title, blocks
            title, blocks = part.lstrip("# "), []
        else:
            blocks += BLOCK.findall(part)
    if blocks:
        yield title, blocks


TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
WALKS = {title: blocks for page in TUTORIALS for title, blocks in sections(page.read_text())}
# As in a notebook, the workers cannot import what the process runs.
CELL = "import sys; exec(compile(sys.stdin.read(), '<cell>', 'exec'))"
# What a walk leaves behind, of what the page promises.
MADE = {
    "HDF5": [
        "fields.conf",
        "pictures/parity-test.png",
        "energies.csv",
        "parity.png",
        "runs/fields-allreduce/curves.png",
    ],
    "Tables": ["prices.parquet", "runs/flats-allreduce/parity-test.png"],
    "Images": ["pictures/confusion-test.png", "photos.csv", "runs/photos-allreduce/metrics.jsonl"],
    "Dask collections and estimators": [
        "runs/points-allreduce/checkpoint/best.h5",
        "runs/points-allreduce/data",
        "shards/points/test/manifest.json",
    ],
    "Forecasts of time series": [],
    "Several targets, weights and masks": ["shards/parts/manifest.json", "runs/parts-allreduce/summary.json"],
    "A class for each pixel": [],
    "DataArrays and Datasets": [],
    "Large fields": ["shards/ocean/manifest.json", "runs/ocean-allreduce/summary.json"],
    "Transforms": [],
}


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("title", WALKS)
def test_every_step_of_the_page_runs(title: str, tmp_path: Path, environment: dict[str, str]) -> None:
    env = {**environment, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"}
    for language, block in WALKS[title]:
        command = {"sh": ["bash", "-eux"], "python": [sys.executable, "-c", CELL]}[language]
        run_command(command, input=block, cwd=tmp_path, env=env, timeout=300)
    assert [name for name in MADE[title] if not (tmp_path / name).exists()] == []


def test_every_walk_is_known() -> None:
    assert MADE.keys() == WALKS.keys()
