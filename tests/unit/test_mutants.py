"""`make mutants`: what it changes, what it leaves alone, and that it tells killed mutants from survivors."""

from __future__ import annotations

import ast
from pathlib import Path
from textwrap import dedent

import mutants
import pytest
from mutants import Covered, Mutant, Mutation, draw, mutations, nearest_tests

ROOT = Path(__file__).parents[2]


def changes(source: str) -> list[str]:
    """The mutants of a module, each as its changed text."""
    source = dedent(source)
    for mutation in mutations(source):
        ast.parse(mutation.apply(source))
    return [f"{mutation.line}: {mutation.before} -> {mutation.after}" for mutation in mutations(source)]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = a < b", ["a < b -> (a <= b)"]),
        ("x = a is not b", ["a is not b -> (a is b)"]),
        ("x = a and b", ["a and b -> (a or b)"]),
        ("x = a + 1", ["a + 1 -> (a - 1)", "1 -> 2"]),
        ("x = not a", ["not a -> (a)"]),
        ("x = True", ["True -> False"]),
        ("x = f(a, b)", ["f(a, b) -> f(b, a)"]),
        ("x = [a for a in b if a]", ["a -> (not (a))"]),
        ("x = a if c else b", ["c -> (not (c))"]),
        ("self.x = a", ["self.x = a -> pass"]),
        ("x += a", ["x += a -> pass", "x += a -> x -= a"]),
        ("f(a)", ["f(a) -> pass"]),
        ("raise ValueError('a', 1 + 2)", ["raise ValueError('a', 1 + 2) -> pass"]),
        ("assert a, 1 + 2", ["a -> (not (a))"]),
        ("def f():\n    return a", ["return a -> return None"]),
        ("if a:\n    pass", ["a -> (not (a))"]),
        ("time.sleep(0.1)", ["time.sleep(0.1) -> pass"]),
        ("if time.monotonic() >= a:\n    pass", ["time.monotonic() >= a -> (not (time.monotonic() >= a))"]),
        ("def f():\n    return False", ["False -> True"]),
        ("while a:\n    break", ["a -> (not (a))", "break -> continue"]),
        ("é = 'é'; x = a < b", ["a < b -> (a <= b)"]),
    ],
)
def test_each_kind_of_change(source, expected):
    assert [change.partition(": ")[2] for change in changes(source)] == expected


@pytest.mark.parametrize(
    "source",
    [
        '"""1 + 2."""',
        "import a",
        "LIMIT_S = 10 * 60",
        "_log.info('%d', a + 1)",
        "x = f'{a + 1}'",
        "x = 'a' + b",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    x = a < b",
        "class A:\n    def __repr__(self):\n        return a + b",
        "raise NotImplementedError",
        "def f(timeout_s=10.0, *, deadline=5, x: 'a | b' = None) -> 'a | b': ...",
        "x = f(timeout=3)",
        "x = max(a, b)",
        "x = np.maximum(a, b)",
        "x = zip(a, strict=True)",
        "x = time.monotonic() < a",
        "@dataclass(frozen=True)\nclass A:\n    wait_s: float = 3.0",
    ],
)
def test_what_no_test_can_notice_is_left_alone(source):
    assert changes(source) == []


def test_every_mutant_of_the_package_is_valid_python():
    for path in sorted((ROOT / "singa_dask" / "server").glob("*.py")):
        source = path.read_text()
        for mutation in mutations(source)[::7]:
            ast.parse(mutation.apply(source))


def test_a_draw_depends_on_the_seed_and_on_no_other_room():
    once = draw(ROOT, ["server", "exchange"], 20, 1)
    assert once == draw(ROOT, ["server", "exchange"], 20, 1)
    assert once[:10] == draw(ROOT, ["server"], 10, 1) != draw(ROOT, ["server"], 10, 2)
    assert [mutant.room for mutant in once] == ["server"] * 10 + ["exchange"] * 10
    assert len({(mutant.path, mutant.mutation.line) for mutant in once}) == 20
    assert {m.path.name for m in draw(ROOT, ["server/stub"], 10, 1)} == {"stub.py"}
    with pytest.raises(SystemExit, match="neither a folder with modules nor a module"):
        draw(ROOT, ["nowhere"], 1, 1)


def test_the_nearest_tests_come_first():
    tests = nearest_tests(ROOT, Path("singa_dask/server/stub.py"), "singa_dask")
    assert tests[-1] == ROOT / "tests/simulation/test_simulation.py"
    names = [str(test.relative_to(ROOT / "tests" / "unit")) for test in tests[:-1]]
    assert names[0] == "server/test_stub.py" and len(set(names)) == len(names)
    last = max(i for i, name in enumerate(names) if name.startswith("server/"))
    assert {"server/test_protocol.py", "server/test_slices.py"} <= set(names[: last + 1])
    assert all(name.startswith("server/") for name in names[: last + 1])


@pytest.mark.parametrize(
    ("line", "text", "expected"),
    [
        (2, "a", ["slow", "slower"]),
        (3, "a", ["quick", "slow"]),
        (2, "f(\n    a\n)", ["quick", "slow", "slower"]),  # to line 4
        (5, "a", []),  # run on import too
        (9, "a", []),  # run by no test in its own process
    ],
)
def test_the_tests_that_run_a_mutant_come_fastest_first(line, text, expected):
    lines = {2: {"slow", "slower"}, 3: {"slow", "quick"}, 4: {"quick"}, 5: {"", "slow"}}
    covered = Covered({Path("pkg/a.py"): lines}, {"slower": 3.0, "quick": 0.5, "slow": 2.0}, 10.0)
    tests, limit_s = covered.tests(Mutant("room", Path("pkg/a.py"), Mutation(line, 0, 0, text, "b")))
    assert tests == expected and limit_s == 60 + 3 * sum(covered.seconds[test] for test in expected)


def test_mutants_are_drawn_from_every_room_but_those_that_are_named():
    rooms = mutants.rooms_of(ROOT / "singa_dask")
    assert {"data", "server", "supervision"} < set(rooms) and not set(rooms) & mutants.NOT_DRAWN
    assert all((ROOT / "singa_dask" / room).is_dir() for room in {*rooms, *mutants.NOT_DRAWN, *mutants.SIMULATED})


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A package of one room with two modules of one mutant each, of which the tests notice one."""
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:zarr")  # a plugin that takes a second to import
    files = {
        "pkg/__init__.py": "",
        "pkg/room/__init__.py": "",
        "pkg/room/told.py": "def larger(a, b):\n    x = a > b\n    if x == 1: pass\n    yield x\n",
        "pkg/room/untold.py": "def smaller(a, b):\n    yield a < b\n",
        "tests/conftest.py": "from hypothesis import settings\nsettings.register_profile('mutants')\n",
        "tests/unit/room/test_told.py": (
            "from pkg.room.told import larger\n"
            "def test_larger():\n    assert list(larger(2, 1)) == [True] and list(larger(1, 1)) == [False]\n"
        ),
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def play(root: Path, *options: str) -> int | str:
    """What the command exits with."""
    with pytest.raises(SystemExit) as ended:
        mutants.main(["--root", str(root), "--package", "pkg", *options])
    return ended.value.code


def run(root: Path, monkeypatch, drawn: list[Mutant], *options: str) -> int | str:
    """The same, for these mutants."""
    monkeypatch.setattr(mutants, "draw", lambda *_: drawn)
    return play(root, "--rooms", "room/told,room/untold", *options)


def test_only_tests_that_run_the_line_are_played(small, monkeypatch):
    """They are found also where they have parameters, run by several processes, or use code of fixtures."""
    (small / "tests/unit/room/test_told.py").write_text(
        "import pytest\nfrom pkg.room.told import larger\nfrom pkg.room.untold import smaller\n"
        "@pytest.fixture\ndef found():\n    return list(larger(2, 1))\n"
        "@pytest.mark.parametrize('x', [1, 'a b'])\ndef test_larger(found, x):\n    assert found == [True]\n"
        "def test_smaller():\n    assert list(smaller(1, 2)) == [True]\n"
    )
    played, with_mutant = [], mutants.Copy.with_mutant
    monkeypatch.setattr(
        mutants.Copy, "with_mutant", lambda *args: played.append(args[2]) or with_mutant(*args), raising=True
    )
    told, untold = (draw(small, [f"room/{name}"], 1, 1, "pkg")[0] for name in ("told", "untold"))
    run(small, monkeypatch, [told, untold], "--processes", "2", "--at-least", "0")
    name = "tests/unit/room/test_told.py::test_"
    assert sorted(map(sorted, played)) == [[f"{name}larger[1]", f"{name}larger[a b]"], [f"{name}smaller"]]


def test_survivors_are_reported_and_the_tree_stays_as_it_is(small, capsys, monkeypatch):
    told, untold = (draw(small, [f"room/{name}"], 1, 1, "pkg")[0] for name in ("told", "untold"))
    before = {path: path.read_text() for path in small.rglob("*.py")}
    assert run(small, monkeypatch, [told, untold], "--at-least", "0.5") == 0
    printed = capsys.readouterr().out
    assert "SURVIVED" in printed and "killed" in printed and "50%" in printed
    assert printed.rstrip().endswith(f"Survivors:\n  {untold}")
    assert {path: path.read_text() for path in small.rglob("*.py")} == before


def test_a_saved_list_is_played_again_without_its_survivors(small, capsys, monkeypatch):
    told, untold = (draw(small, [f"room/{name}"], 1, 1, "pkg")[0] for name in ("told", "untold"))
    drawn = small / "drawn.json"
    assert run(small, monkeypatch, [told, untold], "--processes", "2", "--save", str(drawn)) == 1
    path = small / told.path
    path.write_text(f"x = 1\n\n{path.read_text()}")
    assert play(small, "--only", str(drawn), "--at-least", "1") == 0
    assert f"{told.path}:{told.mutation.line + 2}" in capsys.readouterr().out.rpartition("Survivors")[2]
    path.write_text("x = 1\n")
    assert "no longer has the text" in play(small, "--only", str(drawn))


@pytest.mark.parametrize(("survivors", "at_least", "status"), [(1, 0.75, 0), (2, 0.75, 1), (0, 1, 0), (4, 0, 0)])
def test_too_few_killed_mutants_are_an_error(small, monkeypatch, survivors, at_least, status):
    drawn = draw(small, ["room"], 4, 1, "pkg")
    assert len(drawn) == 4
    monkeypatch.setattr(mutants, "_run", lambda *_: drawn[:survivors])
    assert run(small, monkeypatch, drawn, "--at-least", str(at_least)) == status


def test_tests_that_fail_without_a_mutant_are_an_error(small, monkeypatch):
    drawn = draw(small, ["room"], 1, 1, "pkg")
    (small / "tests/unit/room/test_told.py").write_text("def test(): assert False\n")
    assert "the tests fail without a mutant: FAILED tests/unit/room/test_told.py" in run(small, monkeypatch, drawn)


def test_a_mutant_that_never_ends_is_killed_by_the_deadline(small, capsys, monkeypatch):
    source = "def larger(a, b):\n    while a < 0:\n        pass\n    yield a > b\n"
    path = small / "pkg/room/told.py"
    path.write_text(source)
    (endless,) = (m for m in mutations(source) if m.after == "(not (a < 0))")
    assert run(small, monkeypatch, [Mutant("room/told", path.relative_to(small), endless)], "--deadline", "1") == 0
    assert "timeout after 1 s" in capsys.readouterr().out
