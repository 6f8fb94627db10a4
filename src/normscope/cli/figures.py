"""The figure that a command was asked for: refused before the work, written whole after it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from normscope.cli.destinations import check_file, printing_first

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
        InputError: if it cannot be written there; its folder is made with the figure.
    """
    if out is None:
        return
    from matplotlib.backend_bases import FigureCanvasBase

    from normscope.registry import unknown_name

    formats = FigureCanvasBase.get_supported_filetypes()
    check_file(out, "figure", "figure.svg")
    if out.suffix.removeprefix(".").lower() not in formats:
        raise unknown_name("figure format", out.suffix, [".svg", ".png", ".pdf"])


def draw_on(
    out: Path | None, draw: Callable[[Axes], object], title: str = ""
) -> AbstractContextManager[Path | None]:
    """Draw on the axes of a new figure, under a title, and write it; nothing for None.

    Args:
        out: where it goes.
        draw: draws on the axes.
        title: of the axes.

    Returns:
        A block in which the answer is printed, with the path of the figure; None without one. That
        it could not be written is raised after the block.
    """
    return printing_first(partial(_drawn, out, draw, title))


def _drawn(out: Path | None, draw: Callable[[Axes], object], title: str) -> Path | None:
    if out is None:
        return None
    from normscope.plots.style import new_figure

    figure = new_figure()
    axes = figure.subplots()
    draw(axes)
    if title:
        axes.set_title(title, fontsize="small", wrap=True)
    return save_figure(figure, out)


def save_figure(figure: Figure, out: Path) -> Path:
    """Write a figure atomically; where it is."""
    from normscope.files import replacing

    with replacing(out) as unfinished:
        figure.savefig(unfinished)
    return out
