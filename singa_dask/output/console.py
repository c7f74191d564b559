"""rich's console for text of files and jobs."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, TextIO

import rich.console
from rich.segment import Segment
from rich.text import Text

from singa_dask.output.streams import Output, escape


class Console(rich.console.Console):
    """A console on an `Output`. It escapes the text that it shows, and does not interpret markup in strings."""

    def __init__(self, *, file: TextIO | Output | None = None, stderr: bool = False, **options: Any) -> None:
        self.output = Output.of(file or (sys.stderr if stderr else sys.stdout))
        super().__init__(file=self.output, stderr=stderr, markup=False, emoji=False, **options)  # type: ignore[arg-type]

    def render_str(self, text: str, **options: Any) -> Text:
        """A string as text: escaped before it is measured."""
        return super().render_str(escape(text), **options)

    def render(self, renderable: Any, options: Any = None) -> Iterable[Segment]:
        """Segments of anything: what has not passed `render_str` is escaped here."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else escape(text), style, control)
