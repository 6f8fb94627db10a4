"""How far the two sides of checked statements are apart: a row for each statement."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from normscope.plots.axes import logarithmic_axis
from normscope.plots.names import statement_name
from normscope.plots.style import new_figure

__all__ = ["verdicts"]

_FORMS = {"exact": "#0072B2", "printed": "#D55E00", "article": "#009E73"}
_LABELS = {"exact": "exact form", "printed": "as printed", "article": "as in the article"}
_IN_FORM = {"exact": "if exact", "printed": "as printed", "article": "in the article"}
_SMALLEST = 1e-18  # sides that are equal to the last bit are drawn here
_INK = "#555555"


def verdicts(results: xr.Dataset) -> Figure:
    """Draw a mark for each check: a dot where the statement holds, a cross where it fails.

    An identity holds where the sides differ by rounding alone; a bound may have room.

    Args:
        results: ``statement``, ``form``, ``kind``, ``slack`` and ``refuted`` over ``verdict``.

    Returns:
        The figure.
    """
    names = list(dict.fromkeys(map(str, results["statement"].values)))
    forms = list(dict.fromkeys(map(str, results["form"].values)))
    figure = new_figure(width=5.6, height=1.5 + 0.5 * len(names))
    axes = figure.subplots()
    for place, form in enumerate(forms):
        offset = 0.0 if len(forms) == 1 else 0.4 * place / (len(forms) - 1) - 0.2
        own = results.isel(verdict=np.flatnonzero(results["form"].values == form))
        rows = np.array([names.index(str(name)) for name in own["statement"].values])
        apart = np.maximum(np.abs(own["slack"].values), _SMALLEST)
        failed = own["refuted"].values.astype(bool)
        colour = _FORMS.get(form, _INK)
        axes.plot(apart[~failed], rows[~failed] + offset, "o", ms=4, alpha=0.6, color=colour)
        axes.plot(apart[failed], rows[failed] + offset, "x", ms=6, alpha=0.8, color=colour)
    logarithmic_axis(axes, "x")
    axes.set_xlabel("relative difference of the sides")
    axes.set_yticks(range(len(names)), [_title(results, name) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(axis="x", alpha=0.25)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    figure.legend(handles=_keys(forms), loc="outside upper center", ncols=2, frameon=False)
    return figure


def _title(results: xr.Dataset, name: str) -> str:
    """The statement in words, with what it is: in each form, where the forms differ in that."""
    own = results.isel(verdict=np.flatnonzero(results["statement"].values == name))
    kinds = dict(zip(map(str, own["form"].values), map(str, own["kind"].values), strict=True))
    if len(set(kinds.values())) == 1:
        return f"{statement_name(name)}, {kinds.popitem()[1]}"
    each = [f"{kind} {_IN_FORM.get(form, form)}" for form, kind in kinds.items()]
    return f"{statement_name(name)},\n{', '.join(each)}"


def _keys(forms: list[str]) -> list[Line2D]:
    colours = [
        Line2D(
            [], [], ls="", marker="s", color=_FORMS.get(form, _INK), label=_LABELS.get(form, form)
        )
        for form in forms
    ]
    marks = [
        Line2D([], [], ls="", marker=marker, color=_INK, label=label)
        for marker, label in (("o", "holds"), ("x", "fails"))
    ]
    return [*colours, *marks]
