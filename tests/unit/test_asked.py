"""docs/asked.md: each thread has an answer, and each test that shows one exists."""

from __future__ import annotations

import ast
import re

import pytest
from support.programs import ROOT

PAGE = ROOT / "docs/asked.md"
ANSWERS = re.findall(r"^- .*?(?=^- |^#|\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
_THREAD = re.compile(r"https://github\.com/([\w.-]+/[\w.-]+)/issues/(\d+)")
_TEST = re.compile(r"\[`(test_\w+)`\]\(\.\./(tests/[\w/]+\.py)\)")


def said_by(path: str) -> dict[str, str]:
    """The tests of a file, with what they say of themselves."""
    tree = ast.parse((ROOT / path).read_text())
    return {each.name: ast.get_docstring(each) or "" for each in tree.body if isinstance(each, ast.FunctionDef)}


def test_there_are_25_answers():
    assert len(ANSWERS) == 25


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: answer.partition("]")[0].strip("- ["))
def test_each_names_its_thread_and_its_tests_or_says_that_there_is_none(answer):
    assert _THREAD.search(answer)
    found = _TEST.findall(answer)
    assert answer.count("](../tests/") == len(found)
    assert found or "Unanswered: " in answer
    assert [name for name, path in found if name not in said_by(path)] == []


def test_said_by_threads_are_on_the_page_beside_these_threads():
    files = sorted((ROOT / "tests/threads").glob("test_*.py"))
    shown = {test: {*_THREAD.findall(answer)} for answer in ANSWERS for test in _TEST.findall(answer)}
    assert files
    for file in files:
        path = str(file.relative_to(ROOT))
        for name, said in said_by(path).items():
            if name.startswith("test_"):
                assert {*_THREAD.findall(said)} and {*_THREAD.findall(said)} <= shown.get((name, path), set()), name


def test_the_page_is_short():
    assert len(PAGE.read_text().split()) <= 900
