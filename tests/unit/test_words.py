"""Words that users should not read, and what to write in their place."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# A word -> what to write. Whole words, in any case.
WORDS = {
    "goes on from": "continues from, resumes from",
    "a line says so": "a message is logged",
    "made again": "repeated",
    "deal": "assignment",
    "guest": "co-located server",
    "crowd": "concurrency",
    "survey": "status request",
    "portion": "share, shard",
    "settled": "complete",
    "contestant": "program, library",
    "truth value": "True or False",
    "whole number": "integer",
    "framework": "strategy",
}
_PATTERNS = {word: re.compile(rf"(?<![\w./-]){word}s?(?![\w-]|\.\w)", re.IGNORECASE) for word in WORDS}


def prose(name: str, text: str) -> Iterator[str]:
    """What users read of a file, without code: pages, docstrings, messages and `--help`, comments of job.proto."""
    if name.endswith(".md"):
        yield re.sub(r"^```.*?^```|`[^`]*`|\]\([^)]*\)", " ", text, flags=re.DOTALL | re.MULTILINE)
    elif name.endswith(".proto"):
        yield from re.findall(r"//(.*)", text)
    else:
        parts = set[ast.AST]()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.JoinedStr):
                parts |= set(node.values)
                yield "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
            elif (
                node not in parts
                and isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and " " in node.value
            ):
                yield re.sub(r"`[^`]*`", " ", node.value)


def counts(name: str, text: str) -> dict[str, int]:
    """How often a file has each of the words."""
    found = Counter[str]()
    for piece in prose(name, text):
        found += {word: len(pattern.findall(" ".join(piece.split()))) for word, pattern in _PATTERNS.items()}
    return dict(sorted(found.items()))


def files() -> dict[str, Path]:
    """All files that have prose for users."""
    paths = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "singa_dask/job/job.proto"]
    paths += [path for folder in ("docs", "examples") for path in sorted((ROOT / folder).rglob("*.md"))]
    paths += [p for of in ("singa_dask", "benchmarks") for p in sorted((ROOT / of).rglob("*.py"))]
    return {str(path.relative_to(ROOT)): path for path in paths if not path.stem.endswith("_pb2")}


@pytest.mark.parametrize("quarter", range(4))
def test_no_file_has_one_of_the_words(quarter):
    found = [
        f"{name}: {word!r}. Write: {WORDS[word]}."
        for name, path in sorted(files().items())[quarter::4]
        for word in counts(name, path.read_text())
    ]
    assert found == []


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        (
            "a.md",
            "The guests\nof `crowd`. [survey](crowd.md)\n```\ndeal\n```\nA Deal.",
            {"deal": 1, "guest": 1, "survey": 1},
        ),
        ("a.md", "frameworks.md, crowd-size, ordeal, 3 whole\nnumbers", {"whole number": 1}),
        ("a.py", "'''A portion of `deal`.'''\nsurvey = f(guest, 'crowd')", {"portion": 1}),
        ("a.py", "raise E(f'{deal} made{1} again', 'it was made '\n'again')", {"made again": 1}),
        ("a.py", "# settled here\nx = f'the {guest} is settled'", {"settled": 1}),
        ("a.proto", "optional int32 crowd = 1;  // a crowd", {"crowd": 1}),
    ],
)
def test_words_are_counted_where_users_read_them(name, text, expected):
    assert counts(name, text) == expected
