"""The reference, generated from the code: what stands for `<!-- reference: NAME -->` in a page."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from reference import command_line, error_classes, job_file, layer_types, python_api

GENERATED: dict[str, Callable[[], str]] = {
    "command-line": command_line.page,
    "errors": error_classes.page,
    "job-file": job_file.page,
    "layers": layer_types.page,
    "python": python_api.package,
    "python-layers": python_api.layers,
    "python-loops": partial(python_api.page, *python_api.LOOPS),
    "python-parts": partial(python_api.page, *python_api.PARTS),
}
