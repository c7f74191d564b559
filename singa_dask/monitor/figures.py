"""What all pictures have in common: figures that matplotlib draws without a display, and their files."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from singa_dask.errors import ConfigError, Problem
from singa_dask.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

IMPORT_S = 30.0
FORMATS = (".svg", ".png")


@cache
def load_drawing() -> Thread:
    """Import matplotlib in the background, which saves a quarter of a second at the end of a run.

    Call it when there is something to draw, not earlier: the import takes a core from starting workers.
    """
    thread = Thread(target=import_module, args=("matplotlib.figure",), daemon=True)
    thread.start()
    return thread


def new_figure(width: float, height: float, **settings: Any) -> Figure:
    """A figure of so many inches."""
    load_drawing().join(IMPORT_S)  # two threads that import it at once can see a half-initialised module
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), **settings)
    FigureCanvasAgg(figure)
    return figure


def panels(figure: Figure, count: int, columns: int) -> Sequence[Axes]:
    """So many panels of a figure, in rows."""
    every: list[Axes] = [*figure.subplots(-(-count // columns), columns, squeeze=False).flatten()]
    for spare in every[count:]:
        spare.remove()
    return every[:count]


def save(figure: Figure, path: Path, *, form: str = "png", dpi: int = 120, **settings: Any) -> None:
    """Write a figure, whole or not at all."""
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=dpi, format=form, **settings)


def check_format(path: Path) -> None:
    """Raise ConfigError if pictures cannot be written in the format of this file's suffix."""
    if path.suffix.lower() not in FORMATS:
        message, hint = "the suffix selects the format, .svg or .png", f"Use --out {path.with_suffix('.svg')}."
        raise ConfigError(Problem("--out", message, str(path), hint))


def save_out(figure: Figure, *paths: Path, **settings: Any) -> None:
    """Write a figure where --out says, in the formats of the suffixes. Raises ConfigError if that cannot be done."""
    try:
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            save(figure, path, form=path.suffix.lower().removeprefix("."), dpi=144, **settings)
    except OSError as error:
        raise ConfigError(Problem("--out", f"cannot be written ({error.strerror})", str(path))) from error
