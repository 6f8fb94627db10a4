"""`surface`: measures the loss on a line or plane through the weights."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from normscope.errors import InputError, StateError
from normscope.interrupts import interrupt_safe
from normscope.landscape.dataset import hessian_forms, project, surface_dataset
from normscope.landscape.directions import (
    Checkpoint,
    Direction,
    checkpoint_list,
    choose_axes,
    flat_weights,
    read_state,
)
from normscope.landscape.grid import choose_grid, fill_grid
from normscope.landscape.parts import Parts
from normscope.landscape.points import Plane, check_surface_mode, checksum, faster_stack
from normscope.landscape.result import Surface
from normscope.layers.population import warn_of_kept_statistics
from normscope.problem.copies import copy_module, refers_to
from normscope.problem.loss import Loss, WholeLoss
from normscope.problem.parameters import Parameters, parameter_layout
from normscope.problem.problem import Data, Problem
from normscope.problem.sharded import gather_shards
from normscope.problem.wrappers import rename_wrapped
from normscope.progress import Progress, ProgressOption, callback_of
from normscope.progress_bar import shows_progress
from normscope.results import Store
from normscope.sweeps.engines import Engine
from normscope.sweeps.run import open_store
from normscope.validation import as_seed, check_bool, check_integer, check_number


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
        checkpoints: state dicts, models or files, or one of them, of the model plain or inside
            DataParallel, DistributedDataParallel or torch.compile. Their path is projected on the
            surface.
        centre: weights and buffers at the origin; None for the model's.
        refine: relative tolerance. Points where the surface is smooth are interpolated to about
            it instead of measured; None measures all.
        hessian: whether to compute d'Hd of each direction, beside the curvature of the surface.
        params: names of parameters or modules that move; None for all that are trainable.
        seed: of random directions, dropout, noise and the data's order.
        store: keeps every part that was computed, so that the same call resumes, and then the
            surface for ``normscope report``; None: memory.
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
    _check_arguments(dimensions, refine, hessian, threads)
    send, seed = callback_of(progress), as_seed(seed)
    if mode == "population":
        warn_of_kept_statistics("mode='population'", model)
    problem = Problem(model if centre is None else _at_centre(model, loss, centre), loss, data)
    plane = Plane(problem, parameter_layout(problem.model, params), (), mode, seed)
    path = [flat_weights(read_state(each), plane.layout) for each in checkpoint_list(checkpoints)]
    centre_loss = _centre_loss(plane)
    send(Progress("directions"))
    axes = choose_axes(plane, directions, int(dimensions), scaling, path)
    plane = plane.along([axis.vector for axis in axes])
    trajectory = project(plane, path)
    grid = choose_grid([axis.name for axis in axes], extent, points, trajectory)
    plane = plane.along(plane.directions, faster_stack(plane, grid))
    threads = threads or (torch.get_num_threads() if workers == 1 else 1)
    used = {"engine": engine, "workers": workers, "threads": threads, "address": address}
    with open_store(store) as opened:
        parts = Parts(plane, grid, axes, centre_loss, opened, used, send)
        filled = fill_grid([len(each) for each in grid], parts.measure, refine)
        forms = hessian_forms(plane, hessian)
        dataset = surface_dataset(plane, axes, grid, filled, forms, trajectory)
        settings = {"centre_loss": centre_loss, "scaling": scaling or "default"}
        dataset.attrs |= settings | {"seconds": time.perf_counter() - begun}
        if store is not None:
            options = {"scaling": scaling, "refine": refine, "hessian": hessian}
            parts.keep(dataset, {**options, "checkpoints": checksum(path)})
    return Surface(dataset)


def _check_arguments(
    dimensions: int, refine: float | None, hessian: bool, threads: int | None
) -> None:
    """Raise an error for an argument of `surface` of another type, or out of its range."""
    check_integer("dimensions", dimensions)
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


def _at_centre(model: nn.Module, loss: Any, centre: Checkpoint) -> nn.Module:
    """Return a copy of the model with the weights and buffers of a checkpoint."""
    if refers_to(loss, model):
        raise StateError(
            "centre= works on a copy of the model, but the loss refers to the model itself; load "
            "the weights into the model instead."
        )
    copied = copy_module(model)
    state = rename_wrapped(read_state(centre), copied.state_dict())
    flat_weights(state, parameter_layout(copied))  # names what is missing
    try:
        copied.load_state_dict(state)
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
            "changes from call to call; remove the state or the random draw that changes it."
        )
    return float(first)
