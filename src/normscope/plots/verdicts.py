"""Checked statements: the relative difference of their two sides, a row for each statement."""

from __future__ import annotations

import textwrap

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from normscope.plots.axes import logarithmic_axis
from normscope.plots.names import statement_name
from normscope.plots.style import INK, hide_spines, marker_key, new_figure

_FORMS = {"exact": "#0072B2", "printed": "#D55E00", "article": "#009E73"}
_LABELS = {"exact": "exact form", "printed": "as printed", "article": "as in the article"}
_IN_FORM = {"exact": "if exact", "printed": "as printed", "article": "in the article"}
_LETTERS = 26  # of a line of a statement's name
_SMALLEST = 1e-18  # sides that are bit-identical are drawn here


def verdicts(results: xr.Dataset) -> Figure:
    """Draw a marker for each check: a dot if the statement holds, a cross if it fails.

    An identity holds if the sides differ by rounding error only; the sides of a bound may differ.

    Args:
        results: ``statement``, ``form``, ``kind``, ``slack`` and ``refuted`` over ``verdict``.

    Returns:
        The figure.
    """
    names = list(dict.fromkeys(map(str, results["statement"].values)))
    forms = list(dict.fromkeys(map(str, results["form"].values)))
    figure = new_figure(width=5.6, height=1.5 + 0.5 * len(names))
    axes = figure.subplots()
    for index, form in enumerate(forms):
        offset = 0.0 if len(forms) == 1 else 0.4 * index / (len(forms) - 1) - 0.2
        own = results.isel(verdict=np.flatnonzero(results["form"].values == form))
        rows = np.array([names.index(str(name)) for name in own["statement"].values])
        apart = np.maximum(np.abs(own["slack"].values), _SMALLEST)
        failed = own["refuted"].values.astype(bool)
        colour = _FORMS.get(form, INK)
        axes.plot(apart[~failed], rows[~failed] + offset, "o", ms=4, alpha=0.6, color=colour)
        axes.plot(apart[failed], rows[failed] + offset, "x", ms=6, alpha=0.8, color=colour)
    logarithmic_axis(axes, "x")
    axes.set_xlabel("relative difference of the sides", loc="right")  # room beside long names
    axes.set_yticks(range(len(names)), [_title(results, name) for name in names], fontsize=9)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(axis="x", alpha=0.25)
    hide_spines(axes, "top", "right", "left")
    keys = [
        *(marker_key("s", _LABELS.get(form, form), color=_FORMS.get(form, INK)) for form in forms),
        marker_key("o", "holds"),
        marker_key("x", "fails"),
    ]
    figure.legend(handles=keys, loc="outside upper center", ncols=2, frameon=False)
    return figure


def _title(results: xr.Dataset, name: str) -> str:
    """Return the statement's name and kind; the kind of each form if they differ."""
    own = results.isel(verdict=np.flatnonzero(results["statement"].values == name))
    kinds = dict(zip(map(str, own["form"].values), map(str, own["kind"].values), strict=True))
    if len(set(kinds.values())) == 1:
        return "\n".join(textwrap.wrap(f"{statement_name(name)}, {kinds.popitem()[1]}", _LETTERS))
    each = [f"{kind} {_IN_FORM.get(form, form)}" for form, kind in kinds.items()]
    return ",\n".join([statement_name(name), *each])
