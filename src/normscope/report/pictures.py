"""Figures of matplotlib as pictures of a report."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO
from typing import TYPE_CHECKING, Any

from normscope.report.document import Panel, Picture

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

__all__ = ["picture_of"]

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "path",  # letters as shapes: the same on every machine
    "svg.hashsalt": "normscope",  # the same figure gives the same bytes
}

_POINTS = 72  # in an inch, and the unit of the drawings
_WIDEST = 5.4  # inches that a phone's width holds with letters that are read
_MARGIN = 3  # points around a panel


def picture_of(figure: Figure, text: str, caption: str = "") -> Picture:
    """A figure as a picture; on the page its ink and paper follow the theme.

    Args:
        figure: any figure of matplotlib.
        text: what it shows, for those who do not see it.
        caption: the line below it; "": the text.
    """
    import matplotlib as mpl

    parts = _named_parts(figure)
    written = StringIO()
    with mpl.rc_context(_STYLE):
        figure.savefig(written, format="svg", metadata={"Date": None})
    return Picture(written.getvalue(), text, caption, _panels(figure, parts))


def _named_parts(figure: Figure) -> list[list[Artist]]:
    """The panels with their colour bars, then legends and texts of the figure; each has a name."""
    found: dict[Artist, list[Artist]] = {}
    for axes in figure.axes:
        bar = getattr(axes, "_colorbar", None)  # drawn beside the panel that it explains
        found.setdefault(axes if bar is None else _explained(bar, axes), []).append(axes)
    parts = list(found.values())
    parts += [[artist] for artist in (*figure.legends, *figure.texts)]
    for number, artist in enumerate(artist for part in parts for artist in part):
        if artist.get_gid() is None:
            artist.set_gid(f"part-{number}")
    return parts


def _explained(bar: Any, axes: Artist) -> Artist:
    """What a colour bar belongs to; a bar of bare colours, to the panel that made room for it."""
    beside = getattr(axes, "_colorbar_info", {}).get("parents") or [axes]
    whose: Artist = getattr(bar.mappable, "axes", None) or beside[0]
    return whose


def _borrows(figure: Figure) -> bool:
    """Whether a panel is not read alone: a label of all stands at the side, or a neighbour's do."""
    sides = {"x": ("labelbottom", "labeltop"), "y": ("labelleft", "labelright")}
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis) if axes.axison and axes.get_visible() else ():
            shown = axis.get_tick_params()
            first, second = sides[axis.axis_name]
            if (
                not shown.get(first, True)
                and not shown.get(second, False)
                and len(axis.get_ticklocs())
            ):
                return True
    return bool(figure.get_supylabel())


def _panels(figure: Figure, parts: Sequence[Sequence[Artist]]) -> list[Panel]:
    """Where the parts lie; none if the figure is narrow, or a part too wide or not read alone."""
    from matplotlib.transforms import Bbox

    widest = _WIDEST * _POINTS
    width, height = (float(length) * _POINTS for length in figure.get_size_inches())
    if len(figure.axes) < 2 or width <= widest or _borrows(figure):
        return []
    scale, found, widths = _POINTS / figure.dpi, [], []
    for part in parts:
        boxes = [box for box in (artist.get_tightbbox() for artist in part) if box is not None]
        if not boxes:
            continue
        box = Bbox.union(boxes).padded(_MARGIN / scale)
        left, low, right, high = (float(end) * scale for end in box.extents)
        left, right = max(left, 0.0), min(right, width)
        top, bottom = max(height - high, 0.0), min(height - low, height)
        names = tuple(str(artist.get_gid()) for artist in part)
        found.append(Panel(names, (left, top, right - left, bottom - top)))
        widths.append(0.0 if part[0] in figure.texts else right - left)  # a line may shrink
    return found if max(widths, default=0.0) <= widest else []
