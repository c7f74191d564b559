"""Mutation testing: draw random small faults ("mutants") of the package and count those that a unit test notices.

    make mutants ARGS="--seed 1 --count 100 --rooms exchange,server --at-least 0.85"
    make mutants ARGS="--seed 31 --seed 32 --save drawn.json"     # and later, for those of them that were killed:
    make mutants ARGS="--only drawn.json --at-least 1"

Each mutant changes one expression or statement of a copy of the tree. The tests that run its line, as coverage.py has
seen it, run against the mutant, the fastest first, until one fails: the mutant is killed. For code that runs on
import, and for lines that no test runs in its own process, these are all tests of the room, the nearest first. For the
rooms that simulated runs consist of, the simulation's tests are among them. What no test can notice is not drawn:
messages, log lines, `__repr__`, type annotations, constants at module level, timeouts, lengths of a sleep, `<` in
place of `<=` beside a clock, None in place of False, zip's `strict`.
"""

from __future__ import annotations

import ast
import copy
import json
import os
import queue
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import click
from coverage import CoverageData

# Rooms whose tests compare with formulas, references and tables, where a fault seldom survives.
NOT_DRAWN = {
    *("ops", "layers", "job", "cli", "monitor", "planning"),
    *("profiling", "export", "estimators", "updaters", "algorithms"),
}
SIMULATED = {"supervision", "cluster", "server", "training", "memory"}
NOT_COPIED = (".git", ".venv*", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", "runs", "out")
FILE = click.Path(path_type=Path)
# Simulated runs switch between greenlets.
COVERAGE = "[run]\nconcurrency = thread, greenlet\n"
# Constants to which a test must not be sensitive.
TIMEOUTS = ("timeout", "_s", "deadline")
SYMMETRIC = {"add", "allclose", "array_equal", "gcd", "max", "maximum", "min", "minimum", "multiply", "samefile"}
CLOCKS = {"monotonic", "perf_counter", "time"}
BOUNDARIES = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
SILENT_CALLS = {"log", "_log", "logger", "_logger", "logging", "warnings"}
_PAIRS = [
    (ast.Lt, ast.LtE),
    (ast.Gt, ast.GtE),
    (ast.Eq, ast.NotEq),
    (ast.Is, ast.IsNot),
    (ast.In, ast.NotIn),
    (ast.And, ast.Or),
    (ast.Add, ast.Sub),
    (ast.Mult, ast.FloorDiv),
    (ast.BitAnd, ast.BitOr),
    (ast.LShift, ast.RShift),
]
OTHER: dict[type[ast.AST], type[ast.AST]] = dict(_PAIRS) | {b: a for a, b in _PAIRS}
OTHER |= {ast.Div: ast.Mult, ast.Mod: ast.FloorDiv}


@dataclass(frozen=True)
class Mutation:
    """Text of one file to replace. start, stop: byte offsets; before, after: the text."""

    line: int
    start: int
    stop: int
    before: str
    after: str

    def __str__(self) -> str:
        return f"{_short(self.before)}  ->  {_short(self.after)}"

    def apply(self, source: str) -> str:
        """The source with the fault."""
        text = source.encode()
        assert text[self.start : self.stop].decode() == self.before
        return (text[: self.start] + self.after.encode() + text[self.stop :]).decode()


@dataclass(frozen=True)
class Mutant:
    """A mutation of a file, given relative to the root of the tree."""

    room: str
    path: Path
    mutation: Mutation

    def __str__(self) -> str:
        return f"{self.path}:{self.mutation.line}  {self.mutation}"


def mutations(source: str) -> list[Mutation]:
    """All mutations of a module, in the order of their lines."""
    text = source.encode()
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []
    for node, after in _changes(ast.parse(source)):
        start = starts[node.lineno - 1] + node.col_offset
        stop = starts[node.end_lineno - 1] + node.end_col_offset
        before = text[start:stop].decode()
        if after != before:
            found.append(Mutation(node.lineno, start, stop, before, after))
    return sorted(set(found), key=lambda m: (m.line, m.start, m.stop, m.after))


def draw(root: Path, rooms: Sequence[str], count: int, seed: int, package: str = "singa_dask") -> list[Mutant]:
    """`count` mutants in equal shares of the rooms. A room is a folder or a module of the package ("server/stub").
    Each of a room's lines is equally likely; none is drawn twice."""
    drawn: list[Mutant] = []
    for position, room in enumerate(rooms):
        lines: dict[tuple[Path, int], list[Mutant]] = {}
        for path in files_of(root / package / room):
            for mutation in mutations(path.read_text()):
                mutant = Mutant(room, path.relative_to(root), mutation)
                lines.setdefault((mutant.path, mutation.line), []).append(mutant)
        share = (count + len(rooms) - 1 - position) // len(rooms)
        source = random.Random(f"{seed} {room}")
        for line in source.sample(sorted(lines), min(share, len(lines))):
            drawn.append(source.choice(lines[line]))
    return drawn


def rooms_of(package: Path) -> list[str]:
    """The rooms from which mutants are drawn unless others are named."""
    return sorted(f.name for f in package.iterdir() if any(f.glob("*.py")) and f.name not in NOT_DRAWN)


def saved(file: Path, root: Path) -> list[Mutant]:
    """The mutants of a list that `--save` wrote, in today's tree, without its survivors. Where lines have moved, the
    nearest equal text counts. Raises SystemExit where a text is gone."""
    found = []
    for entry in json.loads(file.read_text()):
        if not entry["killed"]:
            continue
        wanted, path = Mutation(**entry["mutation"]), Path(entry["path"])
        source = (root / path).read_text() if (root / path).is_file() else ""
        equal = [m for m in mutations(source) if (m.before, m.after) == (wanted.before, wanted.after)]
        if not equal:
            raise SystemExit(f"--only {file}: {path}:{wanted.line} no longer has the text of {wanted}")
        found.append(Mutant(entry["room"], path, min(equal, key=lambda m: abs(m.start - wanted.start))))
    return found


def files_of(room: Path) -> list[Path]:
    """The modules of a room. Raises SystemExit where there is none."""
    files = [room.with_suffix(".py")] if room.with_suffix(".py").is_file() else sorted(room.rglob("*.py"))
    if not files:
        raise SystemExit(f"--rooms: {room} is neither a folder with modules nor a module")
    return [path for path in files if path.name != "__init__.py"]


# Where to change what


def _changes(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Nodes with positions, and the text that takes the place of each."""
    if _untold(node):
        return
    yield from _of_statement(node) if isinstance(node, ast.stmt) else _of_expression(node)
    if isinstance(node, ast.arguments):
        yield from _of_defaults(node)
        return
    for name, value in ast.iter_fields(node):
        if name in {"decorator_list", "annotation", "returns", "format_spec"}:
            continue
        if name == "value" and isinstance(node, ast.Assign) and _is_setting(node):
            continue
        if name == "exc" or (name == "msg" and isinstance(node, ast.Assert)):
            continue  # what an error says
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _changes(child)


def _untold(node: ast.AST) -> bool:
    """Whether no test should notice a change of this node."""
    match node:
        case ast.FunctionDef(name=("__repr__" | "__str__")) | ast.JoinedStr() | ast.Import() | ast.ImportFrom():
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.Expr(value=ast.Constant()):
            return True
        case ast.Raise(exc=ast.Name(id="NotImplementedError") | ast.Call(func=ast.Name(id="NotImplementedError"))):
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)))):
            return name in SILENT_CALLS
        case ast.keyword(arg=str(name), value=ast.Constant()):
            return name.endswith(TIMEOUTS) or name == "strict"
        case ast.Call(func=ast.Attribute(attr="sleep"), args=[ast.Constant()]):
            return True
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant()):
            return name.endswith(TIMEOUTS)
        case ast.Call(func=ast.Name(id=("cast" | "TypeVar"))):
            return True
    return False


def _of_defaults(node: ast.arguments) -> Iterator[tuple[ast.AST, str]]:
    named = [*zip(reversed([*node.posonlyargs, *node.args]), reversed(node.defaults), strict=False)]
    for of, default in [*reversed(named), *zip(node.kwonlyargs, node.kw_defaults, strict=True)]:
        if default is not None and not of.arg.endswith(TIMEOUTS):
            yield from _changes(default)


def _is_setting(node: ast.Assign) -> bool:
    """Whether a constant is assigned: NAME = number."""
    return all(isinstance(t, ast.Name) and t.id.isupper() for t in node.targets)


def _of_statement(node: ast.stmt) -> Iterator[tuple[ast.AST, str]]:
    match node:
        case ast.Expr() | ast.AugAssign() | ast.Raise() | ast.Delete():
            yield node, "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield node, "pass"
        case ast.Break():
            yield node, "continue"
        case ast.Continue():
            yield node, "break"
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) not in ("None", "False"):
            yield node, "return None"
    if isinstance(node, ast.AugAssign) and type(node.op) in OTHER:
        yield node, _text(node, lambda n: setattr(n, "op", OTHER[type(n.op)]()))
    if isinstance(node, ast.If | ast.While | ast.Assert) and not isinstance(node.test, ast.Constant):
        yield node.test, f"(not ({ast.unparse(node.test)}))"


def _of_expression(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    match node:
        case ast.Compare():
            for i, op in enumerate(node.ops):
                if isinstance(op, BOUNDARIES) and _reads_clock(node):
                    continue  # two readings are never equal
                yield node, _text(node, lambda n, i=i, op=op: n.ops.__setitem__(i, OTHER[type(op)]()))
        case ast.BoolOp() | ast.BinOp() if type(node.op) in OTHER and not _is_text(node):
            yield node, _text(node, lambda n: setattr(n, "op", OTHER[type(n.op)]()))
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield node, f"({ast.unparse(operand)})"
        case ast.IfExp(test=test):
            yield test, f"(not ({ast.unparse(test)}))"
        case ast.Constant(value=bool(value)):
            yield node, str(not value)
        case ast.Constant(value=int() | float() as value):
            yield node, repr(value + 1)
        case ast.comprehension(ifs=tests):
            for test in tests:
                yield test, f"(not ({ast.unparse(test)}))"
        case ast.Call(func=called, args=[ast.expr() as first, ast.expr() as second, *_]):
            if ast.unparse(called).rpartition(".")[2] not in SYMMETRIC and not any(
                isinstance(a, ast.Starred) for a in (first, second)
            ):
                yield node, _text(node, lambda n: n.args.__setitem__(slice(2), n.args[1::-1]))


def _text(node: ast.AST, change: Callable[[ast.AST], object]) -> str:
    changed = copy.deepcopy(node)
    change(changed)
    text = ast.unparse(changed)
    return f"({text})" if isinstance(node, ast.BoolOp | ast.BinOp | ast.Compare) else text


def _reads_clock(node: ast.AST) -> bool:
    """Whether a clock is read in this expression."""
    calls = [n.func for n in ast.walk(node) if isinstance(n, ast.Call)]
    return any(isinstance(f, ast.Attribute) and f.attr in CLOCKS for f in calls)


def _is_text(node: ast.AST) -> bool:
    """Whether this is a sum that contains text."""
    return any(isinstance(n, ast.JoinedStr) or isinstance(getattr(n, "value", 0), str) for n in ast.walk(node))


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 70 else line[:34] + " ... " + line[-31:]


# Which tests


def nearest_tests(root: Path, path: Path, package: str) -> list[Path]:
    """Unit tests for a module: those with its name, those of its room (the ones that import it first), then those of
    other rooms that import it, then the simulation's."""
    room, module = path.relative_to(package).parts[0], path.stem
    unit = root / "tests" / "unit"
    of_room = sorted((unit / room).rglob("test_*.py"))
    named = [test for test in of_room if test.stem == f"test_{module}" or test.stem.startswith(f"test_{module}_")]
    dotted = ".".join(path.with_suffix("").parts)
    importing = [test for test in sorted(unit.rglob("test_*.py")) if dotted in _imported(root, test)]
    simulated = sorted((root / "tests" / "simulation").glob("test_*.py")) if room in SIMULATED else []
    return list(dict.fromkeys(named + [t for t in importing if t in of_room] + of_room + importing + simulated))


@cache
def _imported(root: Path, test: Path) -> frozenset[str]:
    """The modules whose names a test imports, be it by way of a package."""
    found = set()
    for node in ast.walk(ast.parse(test.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            exports = _exports(root, node.module)
            found.add(node.module)
            for alias in node.names:
                found |= {f"{node.module}.{alias.name}", exports.get(alias.name, node.module)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return frozenset(found)


@cache
def _exports(root: Path, package: str) -> dict[str, str]:
    init = root.joinpath(*package.split("."), "__init__.py")
    if not init.is_file():
        return {}
    nodes = [n for n in ast.walk(ast.parse(init.read_text())) if isinstance(n, ast.ImportFrom) and n.module]
    return {alias.asname or alias.name: n.module for n in nodes for alias in n.names}


# Running them


class Copy:
    """A copy of the tree in which to break things."""

    def __init__(self, root: Path, into: Path) -> None:
        self.root = into / "tree"
        shutil.copytree(root, self.root, ignore=shutil.ignore_patterns(*NOT_COPIED))

    def fails(self, tests: Sequence[str], timeout_s: float, *options: str) -> str:
        """Why the tests fail: "" where they pass, else the last line of pytest's output, or "timeout"."""
        quiet = ["-x", "-q", "--no-header", "--tb=no", "-p", "no:cacheprovider", "--hypothesis-profile=mutants"]
        environment = os.environ | {"PYTHONPATH": str(self.root)}
        with tempfile.TemporaryFile("w+") as output, tempfile.NamedTemporaryFile("w", suffix=".txt") as listed:
            listed.write("\n".join(tests))
            listed.flush()
            process = subprocess.Popen(
                [sys.executable, "-m", "pytest", *quiet, *options, f"@{listed.name}"],
                cwd=self.root,
                env=environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            try:
                status = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                return f"timeout after {timeout_s:.0f} s"
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # also what the tests have left running
                process.wait()
            output.seek(0)
            lines = output.read().splitlines()
        failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
        return "" if status == 0 else (failed or lines[-1:] or [f"exit status {status}"])[0]

    def cover(self, tests: Sequence[Path], package: str, processes: int) -> Covered:
        """Run all tests, without a mutant. Raises SystemExit where one fails."""
        with tempfile.TemporaryDirectory(prefix="covered-") as folder:
            settings, report = Path(folder, "coveragerc"), Path(folder, "tests.xml")
            data = Path(folder, "coverage")
            settings.write_text(f"{COVERAGE}data_file = {data}\n")
            options = [f"--cov={package}", "--cov-context=test", "--cov-report=", f"--cov-config={settings}"]
            workers = ["-n", str(processes)] if processes > 1 else []
            began = time.monotonic()
            named = [str(test.relative_to(self.root)) for test in tests]
            if reason := self.fails(named, 7200, *options, *workers, f"--junitxml={report}"):
                raise SystemExit(f"the tests fail without a mutant: {reason}")
            seconds = dict(_seconds(report))
            found = CoverageData(str(data))
            found.read()
            lines = {
                Path(path).relative_to(self.root): {
                    line: {context.rpartition("|")[0] for context in contexts}
                    for line, contexts in found.contexts_by_lineno(path).items()
                }
                for path in found.measured_files()
            }
        return Covered(lines, seconds, time.monotonic() - began)

    def with_mutant(self, mutant: Mutant, tests: Sequence[str], timeout_s: float) -> str:
        """See `fails`."""
        file = self.root / mutant.path
        source, times = file.read_text(), file.stat()
        try:
            file.write_text(mutant.mutation.apply(source))
            return self.fails(tests, timeout_s)
        finally:
            file.write_text(source)
            os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))  # caches of the original are valid again


@dataclass(frozen=True)
class Covered:
    """What the tests of a tree run. lines: by file and line, the tests that run it, "" on import. seconds: of each
    test. whole_s: of all together."""

    lines: Mapping[Path, Mapping[int, Collection[str]]]
    seconds: Mapping[str, float]
    whole_s: float

    def tests(self, mutant: Mutant) -> tuple[list[str], float]:
        """The tests that run a mutant, and the seconds that they may take; none if it also runs on import, or if no
        test runs it in its own process."""
        last = mutant.mutation.line + mutant.mutation.before.count("\n")
        lines = self.lines.get(mutant.path, {})
        found = {test for n in range(mutant.mutation.line, last + 1) for test in lines.get(n, ())}
        if "" in found or not found <= self.seconds.keys():
            found = set()
        ordered = sorted(found, key=lambda test: (self.seconds[test], test))
        return ordered, 3 * sum(self.seconds[test] for test in ordered) + 60


def _seconds(report: Path) -> Iterator[tuple[str, float]]:
    """The name and the seconds of each test in a JUnit report."""
    for case in ElementTree.parse(report).iter("testcase"):
        path = case.attrib["classname"].replace(".", "/")
        yield f"{path}.py::{case.attrib['name']}", float(case.attrib["time"])


@click.command(context_settings={"show_default": True})
@click.option("--seed", type=int, multiple=True, default=[1], help="Of the draw; of several, each draws --count.")
@click.option("--count", default=100, help="Mutants, in equal shares of the rooms.")
@click.option("--rooms", help="Rooms or modules, by commas.  [default: all but " + ", ".join(sorted(NOT_DRAWN)) + "]")
@click.option("--only", type=FILE, help="Play the mutants again that this list names as killed.")
@click.option("--save", type=FILE, help="Write the list of mutants, and which were killed.")
@click.option("--at-least", default=0.85, help="The share to be killed.")
@click.option("--deadline", type=float, metavar="S", help="For one mutant.  [default: 3 x its tests + 60 s]")
@click.option("--own-tests", is_flag=True, help="Only unit tests of the room, no others that import it.")
@click.option("--processes", default=1, help="Mutants that are played at once.")
@click.option("--list", "only_list", is_flag=True, help="Print the mutants, and do no more.")
@click.option("--root", type=FILE, default=Path(__file__).parents[1], hidden=True)
@click.option("--package", default="singa_dask", hidden=True)
def main(
    seed: Sequence[int], count: int, rooms: str | None, only: Path | None, save: Path | None, **others: Any
) -> None:
    """Change the code at random places, and count the mutants that the unit tests kill."""
    options = SimpleNamespace(**others)
    if only:
        mutants = saved(only, options.root)
    else:
        drawn_from = rooms.split(",") if rooms else rooms_of(options.root / options.package)
        draws = [draw(options.root, drawn_from, count, each, options.package) for each in seed]
        mutants = list(dict.fromkeys(mutant for drawn in draws for mutant in drawn))
    if options.only_list:
        return print(*mutants, sep="\n")
    survivors = _run(mutants, options)
    if save:
        entries = [asdict(m) | {"path": str(m.path), "killed": m not in survivors} for m in mutants]
        save.write_text("[\n" + ",\n".join(map(json.dumps, entries)) + "\n]\n")
    sys.exit(_report(mutants, survivors, options.at_least))


def _run(mutants: Sequence[Mutant], options: SimpleNamespace) -> list[Mutant]:
    """The mutants that survive."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="mutants-"))
        trees: queue.Queue[Copy] = queue.Queue()
        for number in range(options.processes):
            trees.put(Copy(options.root, Path(folder, str(number))))
        pool = stack.enter_context(ThreadPoolExecutor(options.processes))

        def on_a_copy(what: Callable[[Copy], str]) -> tuple[str, float]:
            tree, began = trees.get(), time.monotonic()
            try:
                return what(tree), time.monotonic() - began
            finally:
                trees.put(tree)

        survivors = []
        tests = {mutant: _tests(options.root, mutant, options) for mutant in mutants}
        tree = trees.get()
        every = [tree.root / test for test in dict.fromkeys(test for of in tests.values() for test in of)]
        covered = tree.cover(every, options.package, options.processes)
        trees.put(tree)

        def played(mutant: Mutant) -> tuple[str, float]:
            running, limit_s = covered.tests(mutant)
            if not running:
                running, limit_s = [*map(str, tests[mutant])], 3 * covered.whole_s + 30
            tree, began = trees.get(), time.monotonic()
            try:
                return tree.with_mutant(mutant, running, options.deadline or limit_s), time.monotonic() - began
            finally:
                trees.put(tree)

        for number, (mutant, (reason, took)) in enumerate(zip(mutants, pool.map(played, mutants), strict=True), 1):
            print(f"{number:4} {'killed' if reason else 'SURVIVED':8} {took:6.1f} s  {mutant}", flush=True)
            if reason:
                print(f"                          {_short(reason)}", flush=True)
            else:
                survivors.append(mutant)
    return survivors


def _tests(root: Path, mutant: Mutant, options: SimpleNamespace) -> list[Path]:
    """Relative to the root of the tree."""
    unit = root / "tests" / "unit"
    own = unit / mutant.path.relative_to(options.package).parts[0]
    tests = nearest_tests(root, mutant.path, options.package)
    tests = [test for test in tests if own in test.parents or not (options.own_tests and unit in test.parents)]
    if not tests:
        raise SystemExit(f"{mutant.path} has no unit tests in {own.relative_to(root)}")
    return [test.relative_to(root) for test in tests]


def _report(mutants: Sequence[Mutant], survivors: Sequence[Mutant], at_least: float) -> int:
    print(f"\n{'room':24} killed  drawn")
    for room in dict.fromkeys(mutant.room for mutant in mutants):
        drawn = sum(mutant.room == room for mutant in mutants)
        print(f"{room:24} {drawn - sum(mutant.room == room for mutant in survivors):6} {drawn:6}")
    killed = len(mutants) - len(survivors)
    share = killed / max(1, len(mutants))
    print(f"{'all':24} {killed:6} {len(mutants):6}   {share:.0%}, at least {at_least:.0%} wanted")
    if survivors:
        print("\nSurvivors:", *survivors, sep="\n  ")
    return int(share < at_least)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # end the tests and remove the copy
    main()
