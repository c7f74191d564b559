"""Rooms import downwards only."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import singa_dask

PACKAGE = Path(singa_dask.__file__).parent
# From the ground up; rooms on one line may use each other.
ROOMS = [
    ["errors", "files", "temporary"],
    ["tracing"],
    ["output"],
    ["functions"],
    ["job"],
    ["ops"],
    ["transforms"],
    ["tensors", "layers"],
    ["net"],
    ["export", "convert"],
    ["algorithms"],
    ["updaters"],
    ["comm"],
    ["memory"],
    ["exchange"],
    ["server"],
    ["data"],
    ["dashboard"],
    ["cluster"],
    ["training"],
    ["inference"],
    ["loops"],
    ["planning"],
    ["profiling"],
    ["monitor", "supervision"],
    ["estimators"],
    ["cli"],
]
LEVEL = {room: level for level, rooms in enumerate(ROOMS) for room in rooms}
# Imports upwards, and modules that need each other: both lists may only become shorter.
UPWARDS: set[tuple[str, str]] = set()
CIRCLES = [{"data.manifest", "data.manifest_reader"}]
# A file has at most so many lines, and a function, without its docstring.
FILE_LINES, FUNCTION_LINES = 400, 60


def name_of(path: Path) -> str:
    """A module's name below the package; "" for the package itself."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").removesuffix(".")


MODULES = {name_of(path): path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}


def imports_of(source: str) -> set[str]:
    """Modules of the package that are imported when a module is, or when its functions run; not for types alone."""
    tree, found = ast.parse(source), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            node.body = []
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            if name.partition(".")[0] == "singa_dask":
                inside = name.removeprefix("singa_dask").removeprefix(".")
                found.add(inside if inside in MODULES else inside.rpartition(".")[0])
    return found


IMPORTS = {name: imports_of(source) - {name} for name, source in MODULES.items()}


def upwards(name: str, imported: set[str]) -> set[tuple[str, str]]:
    """The imports of a module from rooms above its own. Raises KeyError for a room without a level."""
    if name in ("", "__main__"):  # the package's lazy names, and its command
        return set()
    level = {module: LEVEL[module.partition(".")[0]] for module in (name, *imported) if module}
    return {(name, module) for module in imported if module and level[module] > level[name]}


def circles(imports: dict[str, set[str]]) -> list[set[str]]:
    """The largest sets of modules that import each other, be it by way of others."""
    reached = {name: set(imported) for name, imported in imports.items()}
    for between in imports:
        for name in imports:
            if between in reached[name]:
                reached[name] |= reached[between]
    found = [{other for other in reached[name] if name in reached[other]} for name in imports]
    return [circle for position, circle in enumerate(found) if len(circle) > 1 and circle not in found[:position]]


def test_imports_go_downwards():
    assert set().union(*(upwards(name, imported) for name, imported in IMPORTS.items())) == UPWARDS


def test_the_page_lists_the_rooms_from_top_to_bottom():
    page = (PACKAGE.parent / "docs/architecture.md").read_text()
    cells = re.findall(r"^\| (`.*?) \|", page.partition("## Rooms")[2].partition("\n## ")[0], re.MULTILINE)
    listed = [room for cell in cells for room in re.findall(r"`(\w+)(?:/|\.py)`", cell)]
    assert sorted(listed) == sorted(LEVEL)
    assert [LEVEL[room] for room in listed] == sorted(LEVEL.values(), reverse=True)


def test_no_more_modules_than_known_need_each_other():
    found = circles({name: {module for module in IMPORTS[name] if module} for name in IMPORTS if name})
    assert sorted(map(sorted, found)) == sorted(map(sorted, CIRCLES))


@pytest.mark.parametrize(
    "line", ["from singa_dask import data", "from singa_dask.data import x", "import singa_dask.data"]
)
def test_an_import_from_above_is_seen_in_each_spelling(line):
    source = f"def late():\n    {line}\nif TYPE_CHECKING:\n    import singa_dask.cli"
    assert upwards("ops.new", imports_of(source)) == {("ops.new", "data")}
    assert upwards("cli.new", imports_of(source)) == set()
    with pytest.raises(KeyError, match="new_room"):
        upwards("new_room.module", set())


def test_circles_are_found_by_way_of_others():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set()}) == [{"a", "b", "c"}]


def too_long(source: str) -> list[str]:
    """The functions that are too long, and "" if the file is."""
    found = [""] if source.count("\n") > FILE_LINES else []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = node.body[0] if ast.get_docstring(node) is not None else None
            lines = node.end_lineno - node.lineno + 1
            if lines - (docstring.end_lineno - docstring.lineno + 1 if docstring else 0) > FUNCTION_LINES:
                found.append(node.name)
    return found


def test_no_file_and_no_function_is_too_long():
    assert {name: found for name, source in MODULES.items() if (found := too_long(source))} == {}


def test_docstrings_do_not_count_as_lines_of_a_function():
    start = 'def f():\n    """a\n\n    b\n    """\n'
    assert [too_long(start + n * "    pass\n") for n in (59, 60)] == [[], ["f"]]
    assert [too_long(n * "\n") for n in (400, 401)] == [[], [""]]


def told_by(program: str) -> str:
    """What a Python of its own prints."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_the_package_starts_neither_mpi_nor_dask_nor_cuda():
    program = (
        "import sys, singa_dask; singa_dask.layers, singa_dask.updaters, singa_dask.Job, singa_dask.ClusterTopology;"
        "print([m for m in ('mpi4py.MPI', 'cupy', 'distributed') if m in sys.modules])"
    )
    assert told_by(program) == "[]"


def test_the_public_names_are_listed_before_they_are_imported():
    program = "import singa_dask; print({*singa_dask.__all__, *singa_dask._LAZY} - {*dir(singa_dask)})"
    assert told_by(program) == "set()"


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
