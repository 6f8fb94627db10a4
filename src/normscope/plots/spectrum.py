"""Eigenvalue densities on a symmetric-logarithmic axis, alone or a row per normalization."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import SymmetricalLogLocator

from normscope.errors import InputError
from normscope.plots.axes import logarithmic_axis
from normscope.plots.labels import add_values
from normscope.plots.names import name_of
from normscope.plots.style import annotate, colour_of, new_axes, new_figure
from normscope.text import format_number

# Makes the part from zero to the threshold as long as a decade, so that the area under the drawn
# curve is the share of the eigenvalues (up to the logarithm of the other axis).
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
        axes: to draw on, also over another spectrum with the same ``linear_threshold``; None for
            a new figure.
        label: for the legend; None for the kind and mode.
        colour: of the curve.

    Returns:
        The axes drawn on.
    """
    axes = new_axes(axes)
    _set_scales(axes, float(results.attrs["linear_threshold"]))
    values, density = results["eigenvalue"].values, results["density"].values
    error = results["density_error"].values
    # an eighth of the peak of one eigenvalue: below it there are only tails of the kernel
    floor = 0.5 / float(results.attrs["parameters"])
    lower, upper = (np.maximum(curve, floor) for curve in (density - error, density + error))
    axes.fill_between(values, lower, upper, color=colour, alpha=0.25, lw=0)
    name = f"{results['kind'].item()}, {results['mode'].item()}" if label is None else label
    axes.plot(values, np.where(density > floor, density, np.nan), color=colour, label=name)
    axes.set_ylim(bottom=min(floor, axes.get_ylim()[0]) if len(axes.lines) > 1 else floor)
    axes.set(xlabel="eigenvalue", ylabel="density per decade")
    axes.legend(frameon=False)
    return axes


def spectra(results: xr.Dataset) -> Figure:
    """Draw a row for each normalization: the density, and lambda_max of the Gauss-Newton matrix.

    Args:
        results: ``eigenvalue``, ``density`` and ``density_error`` over (norm, point), NaN beyond
            the points of a network; ``parameters`` and ``lambda_max`` (mode) over norm;
            ``linear_threshold`` as an attribute.

    Returns:
        The figure.
    """
    norms = [str(norm) for norm in results["norm"].values]
    figure = new_figure(width=5.4, height=0.7 + 1.25 * len(norms))
    panels = figure.subplots(len(norms), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    threshold = float(results.attrs["linear_threshold"])
    for axes, norm in zip(panels, norms, strict=True):
        row, colour = results.sel(norm=norm), colour_of(norm)
        spectrum(_one_spectrum(row, threshold), axes, name_of(norm), colour)
        largest = float(row["lambda_max"].sel(mode="train"))
        if np.isfinite(largest):
            axes.axvline(largest, color=colour, lw=1, ls="--")
            place, text = (largest, 0.88), format_number(largest)
            style: dict[str, Any] = {"color": colour, "va": "center"}
            annotate(axes, text, place, axes.get_xaxis_transform(), 4, **style)
        add_values(axes, row["eigenvalue"], row["density"], ("eigenvalue", "density"))
        legend = axes.get_legend()
        if legend is not None:
            legend.remove()
        axes.set_title(name_of(norm), color=colour, fontsize=10, y=0.08)
        axes.set(xlabel="", ylabel="")
    panels[-1].set_xlabel("eigenvalue of the Hessian")
    locator = SymmetricalLogLocator(linthresh=threshold, base=10)
    locator.numticks = 7
    panels[-1].xaxis.set_major_locator(locator)
    figure.supylabel("density per decade", fontsize="medium")
    return figure


def _one_spectrum(row: xr.Dataset, threshold: float) -> xr.Dataset:
    """Return one network's density as `spectrum` takes it."""
    known = np.isfinite(row["eigenvalue"].values)
    curves = {
        name: ("eigenvalue", row[name].values[known]) for name in ("density", "density_error")
    }
    return xr.Dataset(
        curves,
        coords={"eigenvalue": row["eigenvalue"].values[known]},
        attrs={"linear_threshold": threshold, "parameters": float(row["parameters"])},
    )


def _set_scales(axes: Axes, threshold: float) -> None:
    """Make the axis symmetric-logarithmic; raise InputError if it has another linear part."""
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
