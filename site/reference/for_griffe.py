"""The docstrings that mkdocstrings gets from griffe."""

from __future__ import annotations

from typing import Any

import griffe

from reference.docstrings import as_markdown


class Prose(griffe.Extension):
    """Makes Markdown of every docstring of the package."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            names = {parameter.name for parameter in obj.parameters} if isinstance(obj, griffe.Function) else None
            obj.docstring.value = as_markdown(obj.docstring.value, names)
