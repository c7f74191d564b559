"""The blocks of a page run in order, as they stand there."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from support.commands import ROOT, run_command

BLOCK = re.compile(r"```(sh|python)\n(.*?)```", re.DOTALL)
# As in a notebook, the workers cannot import what the process runs.
CELLS = "import sys; exec(compile(sys.stdin.read(), '<cells>', 'exec'))"


def blocks_of(page: str) -> list[tuple[str, str]]:
    """Language and code of the blocks of a page."""
    return BLOCK.findall((ROOT / "docs" / f"{page}.md").read_text())


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", ["notebooks", "search", "from-pytorch"])
def test_every_block_of_the_notebook_runs(page: str, tmp_path: Path, environment: dict[str, str]) -> None:
    cells = "".join(code for _, code in blocks_of(page))
    run_command([sys.executable, "-c", CELLS], input=cells, cwd=tmp_path, env=environment, timeout=300)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_quickstart_trains_survives_a_killed_worker_and_predicts(tmp_path, environment) -> None:
    """In one shell, as a reader types it: `wait` and `kill` are for the run that an earlier block has started."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    typed = [
        code if language == "sh" else f"python - <<'END'\n{code}END\n" for language, code in blocks_of("quickstart")
    ]
    ran = run_command(
        ["bash", "-eu"], input="".join(typed), cwd=tmp_path, env={**environment, "PATH": path}, timeout=300
    )
    log = (tmp_path / "three.log").read_text()
    assert "Restart 1 of 3" in log and "Restart 2" not in log
    assert re.findall(r"^done at step \d+.* accuracy (0\.9\d+|1\.0+)", log, re.MULTILINE), log
    assert "clean: " in ran.out
    known, predicted = ((tmp_path / name).read_text().split() for name in ("new-flats.csv", "prices.csv"))
    for row, price in zip(known[1:], predicted[1:], strict=True):
        area, district = row.split(",")
        assert abs(float(price.split(",")[1]) - 3 * float(area) - 80 * (district == "harbour")) < 40
    assert (tmp_path / "runs/flats-allreduce/parity-test.png").exists()
