"""The dataset of a surface: its values and settings, the numbers of each axis, the checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from normscope.curvature import operator
from normscope.errors import NormscopeError
from normscope.landscape.directions import Axis, flat_weights, warn_if_oblique
from normscope.landscape.grid import Filled
from normscope.landscape.measures import centre_curvature, minimum_width, roughness
from normscope.landscape.points import Plane
from normscope.problem.modes import is_batch_norm
from normscope.warn import warn

AXES = ("alpha", "beta")
"""Names of the dimensions of a surface."""


def surface_dataset(
    plane: Plane,
    axes: Sequence[Axis],
    grid: Sequence[np.ndarray],
    filled: Filled,
    forms: Sequence[float],
    trajectory: Mapping[str, Any],
) -> xr.Dataset:
    """Return a surface as `normscope.landscape.Surface` describes it.

    Args:
        plane: with its directions.
        axes: of the surface.
        grid: the values of each axis.
        filled: the values of the grid.
        forms: d'Hd of each axis.
        trajectory: variables of the checkpoints.
    """
    names = AXES[: len(grid)]
    dataset = xr.Dataset(
        {"loss": (names, filled.loss), "measured": (names, filled.measured)},
        dict(zip(names, grid, strict=True)) | {"axis": list(names)},
        _attributes(plane, axes) | {"evaluated": int(filled.measured.sum())},
    )
    numbers = _axis_numbers(dataset, axes, forms, plane.rounding)
    return dataset.assign(numbers).assign(trajectory)


def _attributes(plane: Plane, axes: Sequence[Axis]) -> dict[str, Any]:
    """Return the settings of a surface."""
    return {
        "kind": "loss surface",
        "model": type(plane.problem.model).__name__,
        "statistics": plane.mode,  # the name "mode" is reserved in a NetCDF file of scipy
        "batch_norm_layers": sum(map(is_batch_norm, plane.problem.model.modules())),
        "cosine": warn_if_oblique(axes),
        "parameters": plane.layout.size,
        "samples": plane.data.samples,
        "batch_size": plane.data.batch_size,
        "batches": len(plane.data.factors),
        "stack": plane.stack,
        "seed": plane.seed,
    }


def project(plane: Plane, checkpoints: Sequence[Tensor]) -> dict[str, Any]:
    """Return variables: the coordinates of checkpoints on a plane, their distances from it."""
    if not checkpoints:
        return {}
    basis = torch.stack([each.double() for each in plane.directions], dim=1)
    centre = flat_weights(plane.evaluator.point, plane.layout).double()
    moved = torch.stack([each.double() - centre for each in checkpoints], dim=1)
    found = torch.linalg.lstsq(basis.cpu(), moved.cpu()).solution  # (axes, checkpoints)
    distance = (moved.cpu() - basis.cpu() @ found).norm(dim=0)
    return {
        "trajectory": (("checkpoint", "axis"), found.T.numpy()),
        "trajectory_distance": ("checkpoint", distance.numpy()),
    }


def hessian_forms(plane: Plane, wanted: bool) -> list[float]:
    """Return d'Hd for each direction.

    NaN if it is not wanted, or cannot be computed: with population statistics, or by a model that
    cannot be differentiated twice.
    """
    problem, unknown = plane.problem, [float("nan")] * len(plane.directions)
    if not wanted or plane.mode == "population":
        return unknown
    try:
        hessian = operator(
            problem.model,
            problem.loss,
            problem.data,
            kind="hessian",
            mode=plane.mode,
            params=plane.layout.names,
            seed=plane.seed,
        )
        directions = torch.stack(plane.directions, dim=1)
        products = hessian.matmat(directions.to(plane.layout.dtype)).to(directions.dtype)
    except NormscopeError:
        return unknown
    found: list[float] = (directions * products).double().sum(0).tolist()
    return found


def _axis_numbers(
    dataset: xr.Dataset, axes: Sequence[Axis], forms: Sequence[float], eps: float
) -> dict[str, tuple[str, Any]]:
    """Return the numbers of each axis as variables of a dataset.

    Args:
        dataset: with the losses.
        axes: of the surface.
        forms: d'Hd of each axis.
        eps: relative rounding of a loss.
    """
    loss, measured = dataset["loss"].values, dataset["measured"].values
    grid = [dataset[name].values for name in AXES[: len(axes)]]
    widths = [minimum_width(loss, grid, index) for index in range(len(axes))]
    seconds: dict[str, list[float]] = {}
    for name, measure in (("curvature", centre_curvature), ("roughness", roughness)):
        seconds[name] = [measure(loss, measured, grid, index, eps) for index in range(len(axes))]
        plain = [measure(loss, measured, grid, index) for index in range(len(axes))]
        _warn_if_rounded(name, np.isnan(seconds[name]) & ~np.isnan(plain))
    numbers = {
        "direction": [axis.name for axis in axes],
        "direction_norm": [float(axis.vector.norm()) for axis in axes],
        "curvature": seconds["curvature"],
        "hessian_curvature": list(forms),
        "roughness": seconds["roughness"],
        "width": [width for width, _ in widths],
        "width_is_bound": [is_bound for _, is_bound in widths],
    }
    return {name: ("axis", values) for name, values in numbers.items()}


def _warn_if_rounded(what: str, is_rounded: np.ndarray) -> None:
    """Warn of numbers that are NaN because the differences of the loss are rounding."""
    if is_rounded.any():
        along = " and ".join(np.array(AXES)[: len(is_rounded)][is_rounded])
        warn(
            f"the {what} along {along} is NaN: the loss changes by little more than its rounding; "
            "use a larger extent, or a model and data in a more precise dtype."
        )
