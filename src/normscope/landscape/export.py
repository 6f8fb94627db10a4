"""A surface as a file: NetCDF, CSV or VTK."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import xarray as xr

from normscope.files import replacing
from normscope.registry import unknown_name
from normscope.results.netcdf import write_netcdf


def write_surface(dataset: xr.Dataset, path: str | os.PathLike[str]) -> Path:
    """Write a surface to a file, in the format of its suffix, atomically.

    Args:
        dataset: of a `Surface`.
        path: ending in .nc, .csv or .vtk.

    Returns:
        The path.

    Raises:
        UnknownNameError: if the suffix is another.
    """
    path = Path(path)
    writer = WRITERS.get(path.suffix.lower())
    if writer is None:
        raise unknown_name("format of a surface", path.suffix, WRITERS)
    writer(dataset, path)
    return path


def _write_csv(dataset: xr.Dataset, path: Path) -> None:
    frame = dataset[["loss", "measured"]].to_dataframe().reset_index()
    with replacing(path) as unfinished:
        frame.assign(measured=frame["measured"].astype(int)).to_csv(unfinished, index=False)


def _write_vtk(dataset: xr.Dataset, path: Path) -> None:
    """Write a structured grid whose height is the loss, in VTK's legacy text format.

    A loss that is not finite has the height of the largest finite one, and is marked so: VTK does
    not draw such points.
    """
    loss = dataset["loss"].values
    names = [str(name) for name in dataset["loss"].dims]
    grid = np.meshgrid(*(dataset[name].values for name in names), indexing="ij")
    finite = np.isfinite(loss)
    top = float(loss[finite].max()) if finite.any() else 0.0
    columns = [*grid, *([np.zeros_like(loss)] * (2 - len(names))), np.where(finite, loss, top)]
    # the first index varies fastest
    places = np.stack([each.ravel(order="F") for each in columns], axis=1)
    sizes = " ".join(str(size) for size in (*loss.shape, *[1] * (3 - loss.ndim)))
    lines = [
        "# vtk DataFile Version 3.0",
        "normscope loss surface",
        "ASCII",
        "DATASET STRUCTURED_GRID",
        f"DIMENSIONS {sizes}",
        f"POINTS {len(places)} double",
        *(" ".join(f"{value:.17g}" for value in place) for place in places),
        f"POINT_DATA {len(places)}",
    ]
    scalars = {
        "loss": np.where(finite, loss, top),
        "finite": finite.astype(float),
        "measured": dataset["measured"].values.astype(float),
    }
    for name, values in scalars.items():
        lines += [f"SCALARS {name} double 1", "LOOKUP_TABLE default"]
        lines += [f"{value:.17g}" for value in values.ravel(order="F")]
    with replacing(path) as unfinished:
        unfinished.write_text("\n".join([*lines, ""]), encoding="ascii")


WRITERS: dict[str, Callable[[xr.Dataset, Path], None]] = {
    ".nc": write_netcdf,
    ".csv": _write_csv,
    ".vtk": _write_vtk,
}
"""Functions that write a surface, by suffix."""
