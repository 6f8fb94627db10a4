"""The density of a spectrum on a symmetric-logarithmic axis."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from normscope.errors import InputError
from normscope.plots.axes import logarithmic_axis
from normscope.plots.style import new_figure

# With this the part from zero to the threshold is as long as a decade, and the area under the
# drawn curve is the share of the eigenvalues (up to the logarithm of the other axis).
_LINEAR_SCALE = 0.9


def spectrum(
    results: xr.Dataset,
    axes: Axes | None = None,
    label: str | None = None,
    colour: str = "#0072B2",
) -> Axes:
    """Draw the density of eigenvalues with its standard error over the probes.

    Args:
        results: as ``normscope.curvature.spectrum`` returns it.
        axes: where to draw, also over another spectrum with the same ``linear_threshold``; None
            for a new figure.
        label: for the legend; None for the kind and mode.
        colour: of the curve.

    Returns:
        The axes drawn on.
    """
    axes = new_figure().subplots() if axes is None else axes
    _set_scales(axes, float(results.attrs["linear_threshold"]))
    values, density = results["eigenvalue"].values, results["density"].values
    error = results["density_error"].values
    # an eighth of one eigenvalue's peak: below it there is none, only the kernel's tails
    floor = 0.5 / float(results.attrs["parameters"])
    lower, upper = (np.maximum(curve, floor) for curve in (density - error, density + error))
    axes.fill_between(values, lower, upper, color=colour, alpha=0.25, lw=0)
    name = f"{results['kind'].item()}, {results['mode'].item()}" if label is None else label
    axes.plot(values, np.where(density > floor, density, np.nan), color=colour, label=name)
    axes.set_ylim(bottom=min(floor, axes.get_ylim()[0]) if len(axes.lines) > 1 else floor)
    axes.set_xlabel("eigenvalue")
    axes.set_ylabel("density per decade")
    axes.legend(frameon=False)
    return axes


def _set_scales(axes: Axes, threshold: float) -> None:
    """Make the axis symmetric-logarithmic, or refuse one with another linear part."""
    if axes.get_xscale() == "symlog":
        present = getattr(axes.xaxis.get_transform(), "linthresh", threshold)
        if not np.isclose(present, threshold):
            raise InputError(
                f"spectra on one axis need one linear_threshold, got {present:g} and "
                f"{threshold:g}; give the same one to normscope.curvature.spectrum."
            )
        return
    axes.set_xscale("symlog", linthresh=threshold, linscale=_LINEAR_SCALE)
    axes.tick_params(axis="x", labelsize="x-small")  # two sides of many decades each
    logarithmic_axis(axes, "y")
