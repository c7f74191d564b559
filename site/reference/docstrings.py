"""Docstrings of this project as Markdown: "name: meaning." becomes a list, examples become code."""

from __future__ import annotations

import re
from collections.abc import Collection

from reference.markdown import defined, escaped, fenced, sentence

_TERMS = re.compile(r"(?:^|(?<=[.;?)] )|(?<=\n))(?<!->\n)(\w+(?:,\s+\w+)*):\s+(?=\S)", re.MULTILINE)
_ANY = re.compile(r"[a-z_][a-z0-9_]*|[A-Z]")
_RAISES = re.compile(r"(?:^|(?<=[.;] )|(?<=\n))(?=Raises [A-Z])")


def as_markdown(text: str, names: Collection[str] | None) -> str:
    """The text of a docstring. names: of the parameters and attributes that it may describe; None for any."""
    blocks: list[str] = []
    for block in re.split(r"\n[ ]*\n", text.strip("\n")):
        if block.startswith(">>> "):
            blocks.append(fenced(block, "pycon"))
        elif block.startswith("    "):
            code = "\n".join(line.removeprefix("    ") for line in block.split("\n"))
            if blocks and blocks[-1].startswith("````python"):  # the blank line was one of the code
                blocks[-1] = f"{blocks[-1].removesuffix('````')}\n{code}\n````"
            else:
                blocks.append(fenced(code, "python"))
        else:
            blocks += [made for part in _RAISES.split(block) if (made := _described(part, names))]
    return "\n\n".join(blocks)


def _described(text: str, names: Collection[str] | None) -> str:
    """A paragraph, in which names may be described."""
    found = [
        m
        for m in _TERMS.finditer(text)
        if all(name in names if names is not None else _ANY.fullmatch(name) for name in m[1].replace(",", " ").split())
    ]
    ends = [*(m.start() for m in found[1:]), len(text)]
    terms = [
        (
            ", ".join(f"`{name}`" for name in m[1].replace(",", " ").split()),
            escaped(sentence(text[m.end() : end].strip().rstrip(";"))),
        )
        for m, end in zip(found, ends, strict=False)
    ]
    before = escaped(" ".join(text[: found[0].start() if found else len(text)].split()))
    return "\n\n".join(part for part in (before, defined(terms)) if part)
