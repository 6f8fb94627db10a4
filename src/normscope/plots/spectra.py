"""Densities of several nets' eigenvalues, one row each on a shared axis."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.ticker import SymmetricalLogLocator

from normscope.plots.names import name_of
from normscope.plots.spectrum import spectrum
from normscope.plots.style import colour_of, new_figure

__all__ = ["spectra"]


def spectra(results: xr.Dataset) -> Figure:
    """Draw a row for each normalization: the density, and lambda_max of the Gauss-Newton matrix.

    Args:
        results: ``eigenvalue``, ``density`` and ``density_error`` over (norm, point), not a number
            beyond a net's own points; ``parameters`` and ``lambda_max`` (mode) over norm;
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
        spectrum(_alone(row, threshold), axes, name_of(norm), colour)
        largest = float(row["lambda_max"].sel(mode="train"))
        if np.isfinite(largest):
            axes.axvline(largest, color=colour, lw=1, ls="--")
        legend = axes.get_legend()
        if legend is not None:
            legend.remove()
        axes.set_title(name_of(norm), color=colour, fontsize=10, y=0.08)
        axes.set_xlabel("")
        axes.set_ylabel("")
    panels[-1].set_xlabel("eigenvalue of the Hessian")
    locator = SymmetricalLogLocator(linthresh=threshold, base=10)
    locator.numticks = 7
    panels[-1].xaxis.set_major_locator(locator)
    figure.supylabel("density per decade", fontsize="medium")
    return figure


def _alone(row: xr.Dataset, threshold: float) -> xr.Dataset:
    """One net's density as `normscope.plots.spectrum` takes it."""
    known = np.isfinite(row["eigenvalue"].values)
    curves = {
        name: ("eigenvalue", row[name].values[known]) for name in ("density", "density_error")
    }
    return xr.Dataset(
        curves,
        coords={"eigenvalue": row["eigenvalue"].values[known]},
        attrs={"linear_threshold": threshold, "parameters": float(row["parameters"])},
    )
