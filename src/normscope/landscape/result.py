"""The result of `surface`: its numbers, and how they are printed, drawn and written."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import xarray as xr

from normscope.landscape.export import write_surface
from normscope.text import Rendered, Table, format_number, plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, repr=False, eq=False)
class Surface(Rendered):
    """The loss on a line or plane through the weights.

    Args:
        dataset: ``loss`` over ``alpha`` (and ``beta``), the coordinates along the directions, with
            0 at the weights; ``measured``, False where the loss is interpolated; and over ``axis``:
            ``direction`` (its name), ``direction_norm``, ``curvature`` (second difference at the
            centre), ``hessian_curvature`` (d'Hd), ``roughness`` (largest second difference),
            ``width`` (of the region below twice the minimum) and ``width_is_bound`` (True if it
            reaches an end of the axis). With checkpoints: ``trajectory`` (their coordinates) and
            ``trajectory_distance`` (from the plane), over ``checkpoint``.
    """

    dataset: xr.Dataset

    @property
    def loss(self) -> xr.DataArray:
        """The loss over the coordinates."""
        return self.dataset["loss"]

    @property
    def minimum(self) -> float:
        """The lowest loss on the surface."""
        return float(self.loss.min())

    def numbers(self, axis: str) -> dict[str, Any]:
        """Return the numbers of one axis by name.

        Args:
            axis: "alpha" or "beta".
        """
        own = self.dataset.data_vars.items()
        return {str(k): v.sel(axis=axis).item() for k, v in own if v.dims == ("axis",)}

    def to_dict(self) -> dict[str, Any]:
        """Return the settings, and the numbers of each axis by its name; not the whole grid."""
        data = self.dataset
        axes = {
            str(name): self.numbers(str(name))
            | {"from": float(data[name][0]), "to": float(data[name][-1]), "points": data[name].size}
            for name in data["axis"].values
        }
        settings = {str(name): value for name, value in data.attrs.items() if name != "statistics"}
        found = {"mode": data.attrs["statistics"], **settings, "minimum": self.minimum}
        found["axes"] = axes
        if "trajectory" in data:
            found["trajectory"] = data["trajectory"].values.tolist()
            found["trajectory_distance"] = data["trajectory_distance"].values.tolist()
        return found

    def to_dataframe(self) -> pd.DataFrame:
        """Return one row for each point."""
        return self.dataset[["loss", "measured"]].to_dataframe().reset_index()

    def plot(self, ax: Axes | None = None, *, kind: str = "contour") -> Axes:
        """Draw the surface.

        Args:
            ax: where to draw, for ``kind="3d"`` axes of that projection; None for a new figure.
            kind: "contour" or "3d"; a line is drawn as a line.

        Returns:
            The axes drawn on.
        """
        from normscope.plots.surface import surface_plot

        return surface_plot(self.dataset, ax, kind)

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the numbers to a file, atomically.

        Args:
            path: ending in .nc (NetCDF, complete), .csv (one row for each point) or .vtk (for
                ParaView).

        Returns:
            The path.
        """
        return write_surface(self.dataset, path)

    def report(self, path: str | os.PathLike[str], title: str | None = None) -> Path:
        """Write one HTML file, in which the surface can be turned, read and sliced.

        Args:
            path: of the file.
            title: of the page.

        Returns:
            The path.
        """
        from normscope.report.datasets import write_surface_report

        return write_surface_report(self.dataset, path, title)

    def _table(self) -> Table:
        data = self.dataset
        rows = []
        for name in data["axis"].values:
            numbers = self.numbers(str(name))
            bound = ">= " if numbers["width_is_bound"] else ""
            rows.append(
                {
                    "axis": str(name),
                    "direction": numbers["direction"],
                    "curvature": numbers["curvature"],
                    "d'Hd": numbers["hessian_curvature"],
                    "roughness": numbers["roughness"],
                    "width": f"{bound}{format_number(numbers['width'], 3)}",
                }
            )
        attrs = data.attrs
        title = f"loss {attrs['centre_loss']:.4g} at the centre, minimum {self.minimum:.4g}"
        grid = " x ".join(str(data.sizes[name]) for name in data["axis"].values)
        measured = f"{attrs['evaluated']} of {data['loss'].size} measured"
        notes = [
            f"{grid} points ({measured}), mode {attrs['statistics']}, "
            f"{plural(attrs['samples'], 'sample')}, {attrs['seconds']:.2f} s. Curvature is the "
            "second difference at the centre, d'Hd that of the Hessian along the axis direction d, "
            "roughness the largest second difference anywhere, width that of the region below "
            "twice the minimum; all in units of the axis."
        ]
        return Table(rows, title, notes, numbers=("width",))
