"""The figure that a command was asked for: refused before the work, written whole after it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["check_figure", "draw_on", "save_figure"]


def check_figure(out: Path | None) -> None:
    """Refuse a figure that could not be written before the work, not after it.

    Args:
        out: where the figure is to go; None for no figure.

    Raises:
        UnknownNameError: if its ending is no format of figures.
    """
    if out is None:
        return
    from matplotlib.backend_bases import FigureCanvasBase

    from normscope.registry import unknown_name

    formats = FigureCanvasBase.get_supported_filetypes()
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.suffix.removeprefix(".").lower() not in formats:
        raise unknown_name("figure format", out.suffix, [".svg", ".png", ".pdf"])


def draw_on(out: Path | None, draw: Callable[[Axes], object]) -> None:
    """Draw on the axes of a new figure and write it; nothing for None."""
    if out is None:
        return
    from normscope.plots.style import new_figure

    figure = new_figure()
    draw(figure.subplots())
    save_figure(figure, out)


def save_figure(figure: Figure, out: Path) -> None:
    """Write a figure atomically."""
    from normscope.files import replacing

    with replacing(out) as unfinished:
        figure.savefig(unfinished)
