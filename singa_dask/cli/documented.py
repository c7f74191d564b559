"""Commands whose `--help` has examples, in a group whose `--help` has sections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click


class Documented(click.Command):
    """A command with examples: (what it does, the command line)."""

    def __init__(self, *args: Any, examples: Sequence[tuple[str, str]] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = tuple(examples)
        for parameter in self.params:
            if isinstance(parameter, click.Option) and isinstance(parameter.type, click.IntRange | click.FloatRange):
                parameter.metavar = parameter.metavar or "NUMBER"

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Examples"):
            for number, (what, line) in enumerate(self.examples):
                if number:
                    formatter.write_paragraph()
                formatter.write_text(what)
                formatter.write(f"{'':{formatter.current_indent + 2}}$ {line}\n")


class Sections(click.Group):
    """A group that lists its commands by section, in the order in which they were added."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sections: dict[str, list[str]] = {}

    def add_sections(self, sections: Mapping[str, Sequence[click.Command]]) -> None:
        """Add commands, by the title of their section."""
        for title, commands in sections.items():
            for command in commands:
                self.add_command(command)
            self.sections[title] = [str(command.name) for command in commands]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(len(name) for names in self.sections.values() for name in names)
        for title, names in self.sections.items():
            with formatter.section(title):
                lines = [(f"{name:{width}}", self.commands[name].get_short_help_str(100)) for name in names]
                formatter.write_dl(lines)
