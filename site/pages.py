"""The pages of the repository, and what the site makes of them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from reference import GENERATED
from reference.markdown import fenced

ROOT = Path(__file__).parents[1]
OUTSIDE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "examples/README.md")
SUFFIXES = (".md", ".png", ".svg", ".gif")
LANGUAGES = {".py": "python", ".conf": "proto", ".proto": "proto", ".sbatch": "bash", ".sh": "bash", ".toml": "toml"}

_UNSEARCHED = "---\nsearch:\n  exclude: true\n---\n\n"
_FENCE = r"^[ ]*(```|~~~).*?^[ ]*\1"
_BLOCK = re.compile(_FENCE, re.MULTILINE | re.DOTALL)
_CODE = re.compile(rf"{_FENCE}|`[^`\n]+`", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:)([^()#\s]*)(?:#([^()\s]*))?(?=\))")
_LIST = re.compile(
    r"^(?![-*] |\d+\. |[\s#|>]).+\n(?=[-*] |1\. )", re.MULTILINE
)  # which GitHub needs no blank line before
_REFERENCE = re.compile(r"^<!-- reference: ([\w-]+) -->\n.*?^<!-- /reference -->$", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"<!--.*?-->", re.DOTALL)


def all_pages() -> list[Path]:
    """The hand-written pages of the site."""
    return [*(ROOT / name for name in OUTSIDE), *sorted(ROOT.glob("docs/**/*.md"))]


def name(path: Path) -> str:
    """The path of a file in the repository, and on the site."""
    return path.relative_to(ROOT).as_posix()


def outside_code(text: str, change: re.Pattern[str], to: object) -> str:
    """The text with what a pattern finds changed, except in code."""
    made, end = [], 0
    for code in _CODE.finditer(text):
        made += [change.sub(to, text[end : code.start()]), code[0]]  # type: ignore[call-overload]
        end = code.end()
    return "".join(made) + change.sub(to, text[end:])  # type: ignore[call-overload]


def without_code(text: str) -> str:
    """The text of a page without code and comments."""
    return _MARK.sub("", _CODE.sub("", text))


def without_blocks(text: str) -> str:
    """The text of a page without blocks of code and comments."""
    return _MARK.sub("", _BLOCK.sub("", text))


def links(path: Path) -> Iterator[tuple[str, str | None]]:
    """The relative links of a page: path and heading."""
    for found in _LINK.finditer(without_code(path.read_text())):
        yield found[1], found[2]


def targets(path: Path) -> set[Path]:
    """What a page links to in the repository, except for itself."""
    return {Path(os.path.normpath(path.parent / target)) for target, _ in links(path) if target}


def expanded(text: str) -> str:
    """A page with the reference that its marks ask for, in place of what stands between them."""
    return _REFERENCE.sub(lambda mark: GENERATED[mark[1]](), text)


def on_site(text: str, path: Path) -> str:
    """The Markdown of a page as the site has it."""

    def link(found: re.Match[str]) -> str:
        target = Path(os.path.normpath(path.parent / found[1])) if found[1] else path
        return found[0] if target.suffix in SUFFIXES else _page_of(found[1], target)

    text = outside_code(outside_code(text, _LINK, link), _LIST, r"\g<0>\n")
    return outside_code(expanded(text), _MARK, "")


def sources(named: Iterable[Path]) -> dict[str, str]:
    """A page for each of these sources and folders, and for what is in the folders."""
    made = {}
    for path in sorted(named):
        if path.is_dir():
            inside = sorted(each for each in path.iterdir() if each.is_file() and each.suffix in LANGUAGES)
            lines = [f"- [{each.name}]({each.name}.md)" for each in inside]
            made[_page_of(name(path), path)] = f"{_UNSEARCHED}# {name(path)}\n\n" + "\n".join(lines) + "\n"
            made |= sources(inside)
        elif path.suffix in LANGUAGES:
            code = fenced(path.read_text(), LANGUAGES[path.suffix])
            made[_page_of(name(path), path)] = f"{_UNSEARCHED}# {path.name}\n\n{code}\n"
    return made


def _page_of(link: str, target: Path) -> str:
    """The page that shows a source or a folder."""
    return f"{link}/index.md" if target.is_dir() else f"{link}.md"
