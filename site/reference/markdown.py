"""Text as Markdown."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

_SPAN = re.compile(r"(`[^`\n]+`)")
_SPECIAL = re.compile(r"[\\*>\[\]|]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")


def escaped(text: str) -> str:
    """Plain text, in which only backticks mean something."""
    return outside_code(text, lambda part: _SPECIAL.sub(r"\\\g<0>", part).replace("<", "&lt;"))


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """The text with what is not between backticks changed."""
    parts = _SPAN.split(text)
    parts[::2] = map(change, parts[::2])
    return "".join(parts)


def fenced(text: str, language: str = "text") -> str:
    """Code."""
    return f"````{language}\n{text.rstrip()}\n````"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells, which are Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def defined(terms: Iterable[tuple[str, str]]) -> str:
    """Terms and what they mean, which are Markdown."""
    return "\n\n".join(f"{term}\n:   {' '.join(text.split())}" for term, text in terms)


def sentence(text: str) -> str:
    """The text with a full stop, and with a capital letter unless its first word is a name."""
    text = re.sub(r"^[a-z]+(?![\w`(])", lambda word: word[0].capitalize(), " ".join(text.split()))
    return text if not text or text[-1] in ".?!:" else f"{text}."
