"""Draw the first figure of the README from the demo's numbers: one bar per normalization.

python docs/images/limits.py normscope-out/demo.nc    # `make figures` runs it after the demo
"""

from __future__ import annotations

import sys
from pathlib import Path

import xarray as xr
from matplotlib import rc_context
from matplotlib.figure import Figure

from normscope.plots.names import name_of
from normscope.plots.style import colour_of, hide_spines, new_figure

OUT = Path(__file__).with_suffix(".svg")


def draw(demo: xr.Dataset) -> Figure:
    """Return the limit by normalization, median over seeds, with the factor over the smallest."""
    limits = demo["limit"].median("seed").sortby(demo["limit"].median("seed"))
    names, values = [str(norm) for norm in limits["norm"].values], limits.values
    figure = new_figure(6.4, 2.6)
    axes = figure.subplots()
    bars = axes.barh(range(len(names)), values, color=[colour_of(name) for name in names])
    factors = [f"{value:.2g}  ({value / values[0]:.2g}x)" for value in values[1:]]
    axes.bar_label(bars, [f"{values[0]:.2g}", *factors], padding=4)
    axes.set_yticks(range(len(names)), [name_of(name) for name in names])
    axes.set_xlabel("learning rate at which training breaks")
    axes.margins(x=0.14)
    factor = f"{values[-1] / values[0]:.2g} times"
    title = f"{name_of(names[-1])} takes {factor} the learning rate"
    axes.set_title(title, loc="left", fontweight="bold")
    hide_spines(axes)
    return figure


if __name__ == "__main__":
    with rc_context({"font.size": 11, "svg.hashsalt": "normscope"}):
        draw(xr.open_dataset(sys.argv[1])).savefig(OUT, metadata={"Date": None})
