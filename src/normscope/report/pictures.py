"""Pictures of a report: matplotlib figures as SVG, with captions and text alternatives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import StringIO
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from normscope.errors import NormscopeError, StateError
from normscope.plots.names import BANDS
from normscope.report.diagrams import has_result
from normscope.report.document import Panel, Picture, Series
from normscope.report.narrative import (
    describe_boundary,
    describe_diagram,
    describe_scope,
    describe_theory,
    diagram_findings,
    divergence_sentence,
    factor_of,
)
from normscope.text import plural

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "path",  # letters as shapes, independent of installed fonts
    "svg.hashsalt": "normscope",  # bit-identical output
}


@dataclass(frozen=True)
class Drawn:
    """What is said and drawn of a result.

    Args:
        words: sentences.
        pictures: drawings.
        headline: the sentence that matters most; "" if there is none.
    """

    words: list[str] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    headline: str = ""


_POINTS = 72  # per inch; the unit of the drawings
_WIDEST = 5.4  # inches that a phone shows with legible letters
_NARROW = 4.4  # inches of a drawing for a phone
_MARGIN = 3  # points around a panel


def picture_of(figure: Figure, text: str, caption: str = "") -> Picture:
    """Convert a figure to a picture, whose colours follow the theme of the page.

    A figure with a layout engine is drawn as wide as the page's column. A narrow screen shows its
    panels one by one; a single panel, or a narrow figure, is drawn a second time for such a screen.

    Args:
        figure: of matplotlib.
        text: what it shows, for readers who do not see it.
        caption: the line below it; "" for the text.
    """
    from normscope.plots.style import WIDTH

    width, height = map(float, figure.get_size_inches())
    if figure.get_layout_engine() is None or width >= WIDTH:
        return _draw_picture(figure, text, caption)
    try:
        figure.set_size_inches(WIDTH, height)
        wide = _draw_picture(figure, text, caption)
        if width > _WIDEST and len(figure.axes) > 1:
            return wide
        figure.set_size_inches(min(width, _NARROW), height)
        return replace(wide, panels=(), narrow=_draw_picture(figure, text, caption))
    finally:
        figure.set_size_inches(width, height)


def _draw_picture(figure: Figure, text: str, caption: str) -> Picture:
    """Draw a figure in its present size."""
    import matplotlib as mpl

    parts = _named_parts(figure)
    written = StringIO()
    with mpl.rc_context(_STYLE):
        figure.savefig(written, format="svg", metadata={"Date": None})
    panels, values = _panels(figure, parts), _values(figure)
    return Picture(written.getvalue(), text, caption, panels, values)


def _values(figure: Figure) -> list[Series]:
    """Return the values of every panel, at their places in the drawing."""
    from normscope.plots.labels import values_of

    scale, height = _POINTS / figure.dpi, figure.get_figheight() * _POINTS
    found = []
    for axes in figure.axes:
        box = axes.get_window_extent()
        for each in values_of(axes):
            pixels = axes.transData.transform(each.places) if len(each.places) else each.places
            inside = [box.contains(*place) for place in pixels]
            points = [
                (round(float(x) * scale, 1), round(height - float(y) * scale, 1), *texts)
                for (x, y), texts, shown in zip(pixels, each.texts, inside, strict=True)
                if shown
            ]
            found += [Series(each.name, each.x, each.y, points)] if points else []
    return found


def _named_parts(figure: Figure) -> list[list[Artist]]:
    """Give an id to every panel, colour bar, legend and text; return them, panels with bars."""
    found: dict[Artist, list[Artist]] = {}
    for axes in figure.axes:
        bar = getattr(axes, "_colorbar", None)
        found.setdefault(axes if bar is None else _panel_of_bar(bar, axes), []).append(axes)
    parts = list(found.values())
    parts += [[artist] for artist in (*figure.legends, *figure.texts)]
    for number, artist in enumerate(artist for part in parts for artist in part):
        if artist.get_gid() is None:
            artist.set_gid(f"part-{number}")
    return parts


def _panel_of_bar(bar: Any, axes: Artist) -> Artist:
    """Return the panel of a colour bar; without a mappable of its own, the panel beside it."""
    beside = getattr(axes, "_colorbar_info", {}).get("parents") or [axes]
    panel: Artist = getattr(bar.mappable, "axes", None) or beside[0]
    return panel


def _shares_labels(figure: Figure) -> bool:
    """Return whether a panel cannot stand alone: it shares tick labels or a common axis label."""
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
    """Return the panels; none if the figure is narrow, a part too wide, or labels are shared."""
    from matplotlib.transforms import Bbox

    widest = _WIDEST * _POINTS
    width, height = (float(length) * _POINTS for length in figure.get_size_inches())
    if len(figure.axes) < 2 or width <= widest or _shares_labels(figure):
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
        widths.append(0.0 if part[0] in figure.texts else right - left)  # text may shrink
    return found if max(widths, default=0.0) <= widest else []


def try_drawing(draw: Callable[[], Drawn]) -> Drawn:
    """Return sentences and pictures; if values cannot be drawn, a sentence that says so.

    matplotlib fails on some finite values, such as a range from -1e308 to 1e308.

    Args:
        draw: returns sentences and pictures.
    """
    try:
        return draw()
    except NormscopeError:
        raise
    except Exception as error:  # matplotlib may raise anything then
        reason = " ".join(str(error).split())[:100]
        return Drawn([f"No figure is drawn: matplotlib cannot draw these values ({reason})."])


def draw_diagrams(diagrams: Mapping[str, xr.Dataset], most: int = 6) -> Drawn:
    """Describe and draw phase diagrams; those without any result are only described.

    Args:
        diagrams: by what distinguishes them.
        most: largest number of diagrams to show.
    """
    chosen = list(diagrams.items())[:most]
    words = [f"{f'{name}: ' if name else ''}{diagram_findings(each)}" for name, each in chosen]
    factor = factor_of(each for _, each in chosen)
    words += [] if factor is None else [divergence_sentence(factor)]
    further = len(diagrams) - len(chosen)
    words += [f"{plural(further, 'further diagram')} not drawn here."] if further else []
    drawn = [(each, name) for name, each in chosen if bool(has_result(each).any())]
    pictures = [_diagram_picture(each, name) for each, name in drawn]
    alone = drawn[0][0] if len(drawn) == len(diagrams) == 1 else None
    return Drawn(words, pictures, "" if alone is None else describe_boundary(alone))


def _diagram_picture(diagram: xr.Dataset, name: str) -> Picture:
    from normscope.plots.phase_diagram import phase_diagram

    # the page lists the settings below the figure
    figure: Any = phase_diagram(diagram, with_settings=False).figure
    caption = (
        f"Mean test loss{f', {name}' if name else ''}. Blank: a run diverged. Grey: no result."
    )
    if "critical_learning_rate" in diagram:
        caption = f"{caption} {describe_theory(diagram)}".rstrip()
    return picture_of(figure, f"Heat map. {describe_diagram(diagram)}", caption)


def scope_picture(dataset: xr.Dataset, name: str = "") -> Picture | None:
    """Draw what a scope measured; None if no value is finite.

    Args:
        dataset: of the scope.
        name: of the training run, for the caption.
    """
    from normscope.plots.scope import scope_figure

    try:
        figure = scope_figure(dataset)
    except StateError:
        return None
    panels = [" ".join(axes.get_title().split()) for axes in figure.axes]
    text = f"{plural(len(panels), 'panel')} over the training steps: {', '.join(panels)}. "
    text += " ".join(describe_scope(dataset))
    caption = f"What the scope measured{f', {name}' if name else ''}: each panel over the steps."
    if any(each in dataset and bool(dataset[each].notnull().any()) for each in BANDS):
        ends = dataset["distance"].values
        caption += (
            " A band reaches from the smallest to the largest value along the gradient, at "
            f"{ends.min():.3g} to {ends.max():.3g} times the learning rate."
        )
    return picture_of(figure, text, caption)


def curves_picture(losses: Sequence[tuple[str, xr.DataArray]], omitted: int = 0) -> Picture:
    """Draw the losses of training runs over their steps.

    Args:
        losses: name and losses of each run.
        omitted: how many further runs are not drawn.
    """
    from normscope.plots.axes import logarithmic_axis, step_axis
    from normscope.plots.style import new_figure

    figure = new_figure(5.6, 3.8)
    axes = figure.subplots()
    for name, loss in losses:
        steps = loss["step"].values if "step" in loss.coords else np.arange(loss.size)
        axes.plot(steps, loss.values, lw=1.2, label=name)
    if all(bool((loss > 0).all()) for _, loss in losses):
        logarithmic_axis(axes, "y")
    step_axis(axes)
    axes.set_ylabel("loss")
    axes.legend(frameon=False, fontsize="x-small")
    ends = [f"{name}: {float(y[0]):.3g} to {float(y[-1]):.3g}" for name, y in losses]
    more = f"; {plural(omitted, 'further training')} not drawn" if omitted else ""
    caption = f"Loss over the steps{more}."
    return picture_of(figure, f"Loss over the steps. {'; '.join(ends)}.", caption)
