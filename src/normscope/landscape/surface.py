"""`surface`: measures the loss on a line or plane through the weights."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from normscope.curvature import operator
from normscope.errors import InputError, NormscopeError, StateError
from normscope.interrupts import interrupt_safe
from normscope.landscape.directions import (
    Axis,
    Checkpoint,
    Direction,
    checkpoint_list,
    choose_axes,
    flat_weights,
    read_state,
    warn_if_oblique,
)
from normscope.landscape.grid import (
    Filled,
    axis_counts,
    axis_extents,
    axis_values,
    covering_ends,
    fill_grid,
)
from normscope.landscape.measures import centre_curvature, minimum_width, roughness
from normscope.landscape.parts import Parts
from normscope.landscape.points import Plane, check_surface_mode, faster_stack
from normscope.landscape.result import Surface
from normscope.problem.copies import copy_module, refers_to
from normscope.problem.loss import Loss, WholeLoss
from normscope.problem.modes import is_batch_norm
from normscope.problem.parameters import Parameters, parameter_layout
from normscope.problem.problem import Data, Problem
from normscope.problem.sharded import gather_shards
from normscope.progress import Progress, ProgressOption, callback_of
from normscope.progress_bar import shows_progress
from normscope.results import Store
from normscope.sweeps.engines import Engine
from normscope.sweeps.run import open_store
from normscope.validation import check_bool, check_integer, check_number
from normscope.warn import warn

AXES = ("alpha", "beta")
"""Names of the dimensions of a surface."""


@interrupt_safe
@shows_progress("surface")
@gather_shards
def surface(
    model: nn.Module,
    loss: Loss | WholeLoss | str | None,
    data: Data,
    directions: Direction | Sequence[Direction] = "random",
    mode: str = "train",
    *,
    dimensions: int = 2,
    scaling: str | None = None,
    extent: Any = None,
    points: int | Sequence[int] = 25,
    checkpoints: Iterable[Checkpoint] | Checkpoint = (),
    centre: Checkpoint | None = None,
    refine: float | None = None,
    hessian: bool = True,
    params: Parameters = None,
    seed: int = 0,
    store: Store | str | os.PathLike[str] | None = None,
    engine: str | Engine = "local",
    workers: int = 1,
    threads: int | None = None,
    address: str | None = None,
    progress: ProgressOption = None,
) -> Surface:
    r"""Return the loss on a line or plane through the weights; the model is left as it is.

    .. math:: f(\alpha, \beta) = L(\theta + \alpha d_1 + \beta d_2)

    Every value is that of a plain evaluation of the model with these weights, over all batches,
    with the same dropout masks and noise at every point. One forward pass is made for each point
    and batch; two with population statistics.

    Args:
        model: any module whose parameters are on one device.
        loss: as for `normscope.Problem`.
        data: one batch, a list of batches or a DataLoader.
        directions: "random", "gradient", "hessian" or "ggn" (top eigenvectors), "checkpoints"
            (principal components of their distances from the weights); a flat tensor; tensors by
            parameter name; or a list of one or two of these.
        mode: how BatchNorm takes its statistics at each point: "train" (the batch's, as in
            training), "population" (recomputed over the data, then as in inference), "eval" (the
            running ones of the centre, which do not fit other weights) or "as_is" (each layer by
            its own flag).
        dimensions: 1 or 2, for one named direction.
        scaling: of the directions: "filter" (each filter as long as the weights' own), "layer"
            (each tensor) or "none" (unit length; given ones as they are). With the first two,
            biases and norm layers do not move. None: "filter" for random directions, else "none".
        extent: a number for -extent to extent, (low, high), or one for each axis. None: 1, or
            what covers the checkpoints.
        points: of each axis, at least 3; an odd number has the centre on the grid.
        checkpoints: state dicts, models or files, or one of them, whose path is projected on the
            surface.
        centre: weights and buffers at the origin; None for the model's.
        refine: relative tolerance. Points where the surface is smooth are interpolated to it
            instead of measured; None measures all.
        hessian: whether to compute d'Hd of each direction, beside the curvature of the surface.
        params: names of parameters or modules that move; None for all that are trainable.
        seed: of random directions, dropout, noise and the data's order.
        store: keeps every part that was computed, so that the same call resumes; None: memory.
        engine: local, ray or dask.
        workers: parts computed at the same time.
        threads: of each worker; None: torch's present number with one worker, else 1.
        address: of a running Ray or Dask cluster.
        progress: a function called with `Progress` events; True for a bar.

    Returns:
        The surface.

    Raises:
        InputError: if an argument has a bad value.
        StateError: if the loss at the centre is not finite or not reproducible, or points failed.

    >>> line = nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.zeros_(line.weight)
    >>> batch = torch.ones(4, 1), torch.zeros(4, 1)  # the loss is w**2 / 2
    >>> found = surface(line, "squared_error", batch, [torch.ones(1)], points=3)
    >>> found.loss.values.tolist()
    [0.5, 0.0, 0.5]
    """
    begun = time.perf_counter()
    check_surface_mode(mode)
    _check_arguments(dimensions, refine, hessian, seed, threads)
    dimensions, seed = int(dimensions), int(seed)  # of numpy too
    send = callback_of(progress)
    problem = Problem(model if centre is None else _at_centre(model, loss, centre), loss, data)
    plane = Plane(problem, parameter_layout(problem.model, params), (), mode, seed)
    flat = [flat_weights(read_state(each), plane.layout) for each in checkpoint_list(checkpoints)]
    at_centre = _centre_loss(plane)
    send(Progress("directions"))
    axes = choose_axes(plane, directions, dimensions, scaling, flat)
    plane = plane.along([axis.vector for axis in axes])
    trajectory = _trajectory(plane, flat)
    grid = _grid(axes, extent, axis_counts(points, len(axes)), trajectory)
    few = [tuple(float(each[0]) * share for each in grid) for share in (0.0, 0.5, 1.0)]
    plane = plane.along(plane.directions, faster_stack(plane, few))
    engine_options = {
        "engine": engine,
        "workers": workers,
        "threads": threads or (torch.get_num_threads() if workers == 1 else 1),
        "address": address,
    }
    with open_store(store) as opened:
        losses = [at_centre, *plane.along(plane.directions).losses(_off_centre(grid))]
        parts = Parts(plane, grid, opened, engine_options, send, losses, axes)
        filled = fill_grid([len(each) for each in grid], parts.measure, refine)
    dataset = _labelled(grid, filled)
    forms = _hessian_forms(plane, hessian and mode != "population")
    numbers = _axis_numbers(dataset, axes, forms, _rounding(plane))
    dataset = dataset.assign(numbers).assign(trajectory)
    dataset.attrs = _attributes(plane, axes, scaling) | {
        "centre_loss": at_centre,
        "evaluated": int(filled.measured.sum()),
        "seconds": time.perf_counter() - begun,
    }
    return Surface(dataset)


def _check_arguments(
    dimensions: int, refine: float | None, hessian: bool, seed: int, threads: int | None
) -> None:
    """Raise an error for an argument of `surface` of another type, or out of its range."""
    check_integer("dimensions", dimensions)
    check_integer("seed", seed)
    check_bool("hessian", hessian)
    if dimensions not in (1, 2):
        raise InputError(f"dimensions must be 1 or 2, got {dimensions}.")
    if refine is not None:
        check_number("refine", refine)
        if not refine > 0:
            raise InputError(f"refine must be a positive tolerance, got {refine}.")
    if threads is not None:
        check_integer("threads", threads)
        if threads < 1:
            raise InputError(f"threads must be at least 1, got {threads}.")


def _off_centre(grid: Sequence[np.ndarray]) -> list[tuple[float, ...]]:
    """Return two points, one towards each end of the axes, whose losses identify a surface."""
    return [
        tuple(share * float(each[end]) for each in grid) for share, end in ((0.3, 0), (0.4, -1))
    ]


def _labelled(grid: Sequence[np.ndarray], filled: Filled) -> xr.Dataset:
    """Return the values of a grid with its coordinates."""
    names = AXES[: len(grid)]
    return xr.Dataset(
        {"loss": (names, filled.loss), "measured": (names, filled.measured)},
        dict(zip(names, grid, strict=True)) | {"axis": list(names)},
    )


def _attributes(plane: Plane, axes: Sequence[Axis], scaling: str | None) -> dict[str, Any]:
    """Return the settings of a surface."""
    return {
        "kind": "loss surface",
        "model": type(plane.problem.model).__name__,
        "statistics": plane.mode,  # the name "mode" is reserved in a NetCDF file of scipy
        "batch_norm_layers": sum(map(is_batch_norm, plane.problem.model.modules())),
        "scaling": scaling or "default",
        "cosine": warn_if_oblique(axes),
        "parameters": plane.layout.size,
        "samples": plane.data.samples,
        "batch_size": plane.data.batch_size,
        "batches": len(plane.data.factors),
        "stack": plane.stack,
        "seed": plane.seed,
    }


def _at_centre(model: nn.Module, loss: Any, centre: Checkpoint) -> nn.Module:
    """Return a copy of the model with the weights and buffers of a checkpoint."""
    if refers_to(loss, model):
        raise StateError(
            "centre= works on a copy of the model, but the loss refers to the model itself; load "
            "the weights into the model instead."
        )
    copied = copy_module(model)
    state = read_state(centre)
    flat_weights(state, parameter_layout(copied))  # names what is missing
    try:
        copied.load_state_dict(dict(state))
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise InputError(f"the centre does not fit the model ({reason}).") from error
    return copied


def _centre_loss(plane: Plane) -> float:
    """Return the loss at the centre.

    Raises:
        StateError: if it is not finite, or differs when it is computed again.
    """
    here = plane.along(())
    first, again = here.losses([(), ()])
    if not np.isfinite(first):
        raise StateError(
            f"the loss at the centre is {first}; a surface needs finite weights and data."
        )
    eps = float(torch.finfo(plane.layout.dtype).eps)
    if abs(first - again) > eps**0.5 * max(abs(first), 1e-3):
        raise StateError(
            f"the same weights gave the losses {first:.6g} and {again:.6g}: the model or the loss "
            "changes from call to call, so that it has no surface; remove that state or draw."
        )
    return float(first)


def _trajectory(plane: Plane, checkpoints: Sequence[Tensor]) -> dict[str, Any]:
    """Return the coordinates of checkpoints on the plane, and their distances from it."""
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


def _grid(
    axes: Sequence[Axis], extent: Any, counts: Sequence[int], trajectory: Mapping[str, Any]
) -> list[np.ndarray]:
    """Return the values of each axis."""
    if extent is not None:
        ends = axis_extents(extent, len(axes))
        return [axis_values(*end, count) for end, count in zip(ends, counts, strict=True)]
    found = []
    for index, (axis, count) in enumerate(zip(axes, counts, strict=True)):
        low, high = -1.0, 1.0
        if trajectory:
            along = trajectory["trajectory"][1][:, index]
            own = axis.name == "checkpoints"
            if own or along.min() < low or along.max() > high:
                least = 0.0 if own else 1.0
                low, high = min(-least, along.min()), max(least, along.max())
                low, high = covering_ends(low, high, count)
        found.append(axis_values(low, high, count))
    return found


def _hessian_forms(plane: Plane, wanted: bool) -> list[float]:
    """Return d'Hd for each direction; NaN if it is not wanted, or cannot be computed."""
    problem, unknown = plane.problem, [float("nan")] * len(plane.directions)
    if not wanted:
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


def _rounding(plane: Plane) -> float:
    """Return the relative rounding of a loss: that of the coarsest dtype the model computes in."""
    dtypes = {each.dtype for each in plane.problem.model.parameters() if each.is_floating_point()}
    device = plane.layout.device.type
    if torch.is_autocast_enabled(device):
        dtypes.add(torch.get_autocast_dtype(device))
    return max(float(torch.finfo(each).eps) for each in dtypes)


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
