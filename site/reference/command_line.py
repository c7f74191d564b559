"""The commands and their options: what `--help` says."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import click

from reference.markdown import defined, escaped, fenced, outside_code

_OPTION = re.compile(r"(?<![\w`-])(--[a-z][a-z-]*[a-z])")


class Markdown(click.HelpFormatter):
    """Help as Markdown, where click's own formatter lays it out for a terminal."""

    def __init__(self, prefix: str) -> None:
        super().__init__(width=1000)  # no summary of a command is cut
        self.prefix = prefix

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        self.write(fenced(f"{prog} {args}"), "\n\n")

    def write_heading(self, heading: str) -> None:
        self.write(f"**{heading}**\n\n")

    def write_text(self, text: str) -> None:
        for paragraph in re.split(r"\n[ ]*\n", text):
            verbatim = paragraph.lstrip().startswith("\b")
            self.write(fenced(paragraph.lstrip("\b \n"), "bash") if verbatim else _prose(paragraph), "\n\n")

    def write_dl(self, rows: Sequence[tuple[str, str]], *args: Any, **kwargs: Any) -> None:
        self.write(defined((self._term(first), _prose(second) or "&nbsp;") for first, second in rows), "\n\n")

    def _term(self, first: str) -> str:
        first = first.strip()
        option = re.search(r"--[\w-]+", first)
        if option is None:
            return f"[`{first}`](#{first})" if not self.prefix else f"`{first}`"
        return f"`{first}`{{ #{self.prefix}{option[0]} }}"

    def write(self, *strings: str) -> None:
        text = "".join(strings)
        example = re.fullmatch(r" *\$ (.*)\n", text)
        super().write(f"{fenced(example[1], 'bash')}\n\n" if example else text)

    def indent(self) -> None:
        """Sections are not indented."""

    dedent = indent


def commands() -> Iterator[tuple[str, click.Context]]:
    """The name and the context of every command."""
    from singa_dask.cli import main

    context = click.Context(main, info_name="singa-dask", **main.context_settings)
    for name, command in main.commands.items():
        yield name, click.Context(command, info_name=name, parent=context)


def page() -> str:
    """All commands."""
    found = list(commands())
    assert found[0][1].parent is not None
    parts = [_help(found[0][1].parent, "")]
    parts += [f"## {name} {{ #{name} }}\n\n{_help(context, name)}" for name, context in found]
    return "\n\n".join(parts)


def _help(context: click.Context, prefix: str) -> str:
    formatter = Markdown(prefix)
    context.command.format_help(context, formatter)
    return re.sub(r"\n{3,}", "\n\n", formatter.getvalue()).strip()


def _prose(text: str) -> str:
    return outside_code(escaped(" ".join(text.split())), lambda part: _OPTION.sub(r"`\1`", part))
