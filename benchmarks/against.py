"""Two commits of this project, pair by pair: is the later one not slower?

make against REV=HEAD~3 BENCH=step      # or: python benchmarks/against.py --rev HEAD~3 step --workload mlp-64
make against REV=HEAD~3 BENCH=data      # shards, the loader, predictions

Exit status: 0 passed, 1 failed, 3 undecided.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import click
from rich.console import Console
from rich.table import Table
from tools.contest import Program, contest, environment
from tools.pairs import AT_A_TIME, Interval, goes_on, verdict

ROOT = Path(__file__).parents[1]
LIMIT_S = 1800.0
STATUS = {"passed": 0, "failed": 1, "undecided": 3}


@dataclass(frozen=True)
class Tree:
    """The files of a commit, in a folder of their own. python: of the environment of its lock file."""

    commit: str
    root: Path
    python: str

    @classmethod
    def of(cls, commit: str, folder: Path) -> Tree:
        """Raises click.UsageError if there is no such commit."""
        packed = subprocess.run(["git", "-C", str(ROOT), "archive", commit], capture_output=True)
        if packed.returncode:
            raise click.UsageError(f"{commit!r}: {packed.stderr.decode().strip()}")
        root = folder / "tree"
        with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as files:
            files.extractall(root, filter="data")
        tree = cls(commit, root, _python(root, folder / "venv"))
        (package,) = tree.told("import singa_dask; print(singa_dask.__file__)")
        assert root in Path(package).parents, f"{package} is not of {root}"
        return tree

    @property
    def variables(self) -> dict[str, str]:
        """Its own programs, package and shards; its kernels are beside the package."""
        path = os.pathsep.join([str(self.root / "benchmarks"), str(self.root)])
        return {"PYTHONPATH": path, "SINGA_DASK_CACHE": str(self.root.parent / "cache")}

    def told(self, program: str, folder: Path | None = None) -> list[str]:
        """The words that a program prints. folder: of its modules, by default that of this commit."""
        command = [self.python, "-P", "-c", program]  # not the package of the current folder
        environment_ = environment(1) | self.variables
        if folder is not None:
            environment_["PYTHONPATH"] = os.pathsep.join([str(folder), str(self.root)])
        return subprocess.run(command, env=environment_, stdout=subprocess.PIPE, text=True, check=True).stdout.split()

    def workloads(self, bench: str) -> list[str]:
        """What both commits can be timed with, if the other one has it too."""
        if bench == "data":
            return self.told("from programs.data_ours import WAYS; print(*WAYS)", folder=ROOT / "benchmarks")
        return self.told("from tools.workloads import WORKLOADS; print(*WORKLOADS)")

    def start(self, bench: str, workload: str) -> Program:
        """A process on one core with one thread. It trains a net, by the program of its commit; or samples go their
        way, by the program of this one with the package of its commit."""
        program, arguments, folder = "step_ours", [workload, "1"], self.root / "benchmarks"
        variables = self.variables
        if bench == "data":
            program, arguments, folder = "data_ours", [workload], ROOT / "benchmarks"
            variables = variables | {"PYTHONPATH": os.pathsep.join([str(folder), str(self.root)])}
        return Program.start(program, arguments, 1, folder=folder, python=self.python, variables=variables)


def _python(root: Path, venv: Path) -> str:
    """Of this environment if it has the tree's lock file: the package comes from the tree. Else of one of its own."""
    lock = "requirements.lock"
    if (root / lock).read_bytes() == (ROOT / lock).read_bytes():
        return sys.executable
    install = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    subprocess.run([*install, "--require-hashes", "-r", str(root / lock)], check=True)
    subprocess.run([*install, "--no-deps", "--editable", str(root)], check=True)
    return install[0]


def compile_kernels(trees: Sequence[Tree], bench: str, rows: Sequence[str]) -> None:
    """Make some steps of each."""

    def begin(tree: Tree) -> None:
        for row in rows:
            tree.start(bench, row).end()

    with ThreadPoolExecutor() as pool:
        list(pool.map(begin, trees))


def paired(trees: Sequence[Tree], bench: str, row: str) -> list[float]:
    """The ratios of AT_A_TIME pairs. Each time other processes play: where their memory lies makes a difference."""
    before, after = (tree.start(bench, row) for tree in trees)
    contest([before, after], AT_A_TIME)
    return [b / a for b, a in zip(before.seconds, after.seconds, strict=True)]


def show(bench: str, rows: dict[str, list[float]]) -> None:
    """Print the rows and what they say."""
    what = "one training step" if bench == "step" else "the way of samples"
    table = Table(title=f"{what}, one thread; ratio = time before / time after", box=None)
    for name in ("workload", "ratio", "lowest", "highest"):
        table.add_column(name, justify="left" if name == "workload" else "right")
    for row, ratios in rows.items():
        table.add_row(row, *(f"{of(ratios):.3f}" for of in (median, min, max)))
    Console(width=100).print(table)
    interval, pairs = Interval.of(rows), min(map(len, rows.values()))
    print(
        f"geometric mean {interval.mean:.3f}, 95 %: {interval.low:.3f} to {interval.high:.3f}, {pairs} pairs", end=""
    )
    print(f": {verdict(rows)}")


@click.command()
@click.option("--rev", required=True, help="The earlier commit.")
@click.option("--to", default="HEAD", show_default=True, help="The later one.")
@click.option("--workload", "workloads", multiple=True, help="Default: all that both have.")
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write the ratios to this file.")
@click.argument("bench", type=click.Choice(["step", "data"]))
def main(rev: str, to: str, workloads: tuple[str, ...], out: Path | None, bench: str) -> None:
    """Time a training step, or the way of samples, at two commits in turns."""
    began = time.monotonic()
    with TemporaryDirectory(prefix="against-") as folder:
        trees = [Tree.of(commit, Path(folder, name)) for commit, name in ((rev, "before"), (to, "after"))]
        known = [tree.workloads(bench) for tree in trees]
        chosen = [row for row in known[1] if row in known[0] and row in (workloads or known[1])]
        if not chosen:
            raise click.UsageError(f"nothing to time; both have {', '.join(set(known[0]) & set(known[1]))}")
        compile_kernels(trees, bench, chosen)
        rows: dict[str, list[float]] = {row: [] for row in chosen}
        more = True
        while more:
            at = time.monotonic()
            for row, ratios in rows.items():
                ratios += paired(trees, bench, row)
            now = time.monotonic()
            more = goes_on(rows, began + LIMIT_S - now, now - at)
    show(bench, rows)
    if out:
        out.write_text(json.dumps(rows, indent=1) + "\n")
    sys.exit(STATUS[verdict(rows)])


if __name__ == "__main__":
    main()
