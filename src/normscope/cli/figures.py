"""The figure that a command was asked for: refused before the work, written whole after it."""

from __future__ import annotations

import os
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
        InputError: if its folder is not there and could not be made; it is made with the figure.
    """
    if out is None:
        return
    from matplotlib.backend_bases import FigureCanvasBase

    from normscope.registry import unknown_name

    formats = FigureCanvasBase.get_supported_filetypes()
    _check_folder(out.parent)
    if out.suffix.removeprefix(".").lower() not in formats:
        raise unknown_name("figure format", out.suffix, [".svg", ".png", ".pdf"])


def _check_folder(folder: Path) -> None:
    """Refuse a folder that could not be written into, without making it."""
    from normscope.errors import InputError

    there = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        reason = "cannot be written into" if there.is_dir() else "is no folder"
        raise InputError(f"the figure cannot go to {folder}: {there} {reason}; choose another.")


def draw_on(out: Path | None, draw: Callable[[Axes], object], title: str = "") -> None:
    """Draw on the axes of a new figure, under a title, and write it; nothing for None."""
    if out is None:
        return
    from normscope.plots.style import new_figure

    figure = new_figure()
    axes = figure.subplots()
    draw(axes)
    if title:
        axes.set_title(title, fontsize="small", wrap=True)
    save_figure(figure, out)


def save_figure(figure: Figure, out: Path) -> None:
    """Write a figure atomically."""
    from normscope.files import replacing

    with replacing(out) as unfinished:
        figure.savefig(unfinished)
