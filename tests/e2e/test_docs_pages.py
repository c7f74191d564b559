"""The Python blocks of a page run in order, as the cells of one notebook."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from support.commands import ROOT, run_command

# As in a notebook, the workers cannot import what the process runs.
CELLS = "import sys; exec(compile(sys.stdin.read(), '<cells>', 'exec'))"


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", ["notebooks", "search"])
def test_every_block_of_the_page_runs(page: str, tmp_path: Path, environment: dict[str, str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / f"{page}.md").read_text(), re.DOTALL)
    run_command([sys.executable, "-c", CELLS], input="".join(blocks), cwd=tmp_path, env=environment, timeout=300)
