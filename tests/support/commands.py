"""What end-to-end tests share: the examples, and reading what a run leaves behind."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "singa_dask"]


@dataclass
class Ran:
    """A command that ended."""

    code: int
    out: str
    err: str

    @property
    def last_line(self) -> str:
        return self.out.rstrip().splitlines()[-1]


def run(*args: object, cwd: Path, env: dict[str, str], timeout: float = 50) -> Ran:
    """Run `singa-dask ARGS` to its end."""
    done = subprocess.run(
        [*COMMAND, *map(str, args)], cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def example(job: str = "digits") -> Path:
    return ROOT / "examples" / job / "job.conf"


def cluster(name: str = "allreduce") -> Path:
    return ROOT / "examples" / "clusters" / f"{name}.conf"


def sets(**values: object) -> list[str]:
    """--set options; "__" stands for "."."""
    return [part for key, value in values.items() for part in ("--set", f"{key.replace('__', '.')}={value}")]


def summary(workspace: Path) -> dict:
    return json.loads((workspace / "summary.json").read_text())


def metrics(workspace: Path) -> list[dict]:
    return [json.loads(line) for line in (workspace / "metrics.jsonl").read_text().splitlines()]
