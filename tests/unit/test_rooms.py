"""Rooms import downwards only."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import singa_dask

PACKAGE = Path(singa_dask.__file__).parent
# From the ground up; rooms on one line may use each other.
ROOMS = [
    ["errors", "files", "temporary"],
    ["output"],
    ["job"],
    ["ops"],
    ["layers"],
    ["net"],
    ["export"],
    ["autograd"],
    ["algorithms"],
    ["updaters"],
    ["comm"],
    ["exchange"],
    ["server"],
    ["data"],
    ["cluster"],
    ["distopt"],
    ["training"],
    ["planning"],
    ["profiling"],
    ["monitor", "supervision"],
    ["estimators"],
    ["cli"],
]
LEVEL = {room: level for level, rooms in enumerate(ROOMS) for room in rooms}


def room_of(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports_of(tree):
    """Modules of the package that are imported when the module is (not those under TYPE_CHECKING)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("singa_dask"):
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("singa_dask"))


FILES = [p for p in sorted(PACKAGE.rglob("*.py")) if p.parent != PACKAGE or p.stem in LEVEL]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_downwards(path):
    room = room_of(path)
    assert room in LEVEL, f"{room} is a new room: give it a level"
    for module in imports_of(ast.parse(path.read_text())):
        target = module.split(".")[1] if "." in module else None
        if target in LEVEL:
            assert LEVEL[target] <= LEVEL[room], f"{room} may not import {module}"


def told_by(program: str) -> str:
    """What a Python of its own prints."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_the_package_starts_neither_mpi_nor_dask_nor_cuda():
    program = (
        "import sys, singa_dask; singa_dask.layers, singa_dask.updaters, singa_dask.Job, singa_dask.ClusterTopology;"
        "print([m for m in ('mpi4py.MPI', 'cupy', 'distributed') if m in sys.modules])"
    )
    assert told_by(program) == "[]"


def test_what_workers_are_forked_from_brings_no_cuda():
    """Which does not survive a fork."""
    program = """if True:
        import sys

        class Seen:
            asked = []

            def find_spec(self, name, path=None, target=None):
                self.asked.append(name.partition(".")[0])

        sys.meta_path.insert(0, Seen())
        import singa_dask.training.forked
        print("numba" in Seen.asked, "cupy" in Seen.asked, "numba.cuda.cudadrv" in sys.modules)
    """
    assert told_by(program) == "True False False"


def test_what_commands_import_beside_their_workers_does_not_bring_numba():
    program = (
        "import sys, singa_dask.cli, singa_dask.supervision.driver, singa_dask.monitor.progress;"
        "print('numba' in sys.modules)"
    )
    assert told_by(program) == "False"
