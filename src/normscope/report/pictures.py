"""Figures of matplotlib as pictures of a report."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING, Any

from normscope.report.document import Picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["picture_of"]

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "path",  # letters as shapes: the same on every machine
    "svg.hashsalt": "normscope",  # the same figure gives the same bytes
}


def picture_of(figure: Figure, text: str, caption: str = "") -> Picture:
    """A figure as a picture; on the page its ink and paper follow the theme.

    Args:
        figure: any figure of matplotlib.
        text: what it shows, for those who do not see it.
        caption: the line below it; "": the text.
    """
    import matplotlib as mpl

    written = StringIO()
    with mpl.rc_context(_STYLE):
        figure.savefig(written, format="svg", metadata={"Date": None})
    return Picture(written.getvalue(), text, caption)
