"""The README's program runs as it stands there."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from support.commands import ROOT, run_command

PROGRAM = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def test_the_program_trains_and_predicts(tmp_path: Path, environment: dict[str, str]) -> None:
    assert PROGRAM is not None
    (tmp_path / "digits.py").write_text(PROGRAM[1])
    ran = run_command([sys.executable, "digits.py"], cwd=tmp_path, env=environment, timeout=120)
    assert float(ran.out.split()[-1]) > 0.9, ran.out
