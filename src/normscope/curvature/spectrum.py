"""The density of a curvature matrix's whole spectrum, by stochastic Lanczos quadrature."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import xarray as xr
from torch import nn

from normscope.curvature.kinds import is_mean_over_samples
from normscope.curvature.operator import operator
from normscope.curvature.precision import without_autocast
from normscope.curvature.quadrature import (
    Floats,
    Quadrature,
    SymmetricLog,
    axis_for,
    cumulative,
    grid,
    random_quadratures,
    smoothed,
)
from normscope.curvature.spaces import ParameterSpace, search_space
from normscope.errors import InputError
from normscope.interrupts import interrupt_safe
from normscope.problem.loss import Loss, WholeLoss
from normscope.problem.parameters import Parameters
from normscope.problem.problem import Data
from normscope.problem.sharded import gather_shards
from normscope.progress import Progress, ProgressCallback, ProgressOption, callback_of
from normscope.progress_bar import shows_progress
from normscope.validation import as_seed, check_integer, check_number


@interrupt_safe
@shows_progress("spectrum")
@gather_shards
def spectrum(
    model: nn.Module,
    loss: Loss | WholeLoss | str | None,
    data: Data,
    kind: str = "ggn",
    mode: str = "train",
    probes: int = 5,
    lanczos_steps: int = 64,
    params: Parameters = None,
    seed: int = 0,
    linear_threshold: float | None = None,
    smoothing: float = 0.1,
    progress: ProgressOption = None,
) -> xr.Dataset:
    r"""Return the density of all eigenvalues of a curvature matrix; the model is left as it is.

    .. math:: \rho(s) = \frac1P \sum_{i=1}^{P} K_w(s - s(\lambda_i))
        \approx \frac1n \sum_{p=1}^{n} \sum_j w_{pj}\, K_w(s - s(\theta_{pj}))

    s is the position on a symmetric-logarithmic axis, in decades; K a Gaussian of width w; theta
    and w the nodes and weights of Lanczos from n random directions, exact for polynomials of
    degree ``2 lanczos_steps - 1``. A node that represents many eigenvalues is spread by the
    residual of its Ritz vector, which is their standard deviation, before it is smoothed: finer
    detail is not resolved. Errors are standard errors over the directions. For the Fisher and
    Gauss-Newton matrix of one batch with fewer outputs than parameters, the eigenvalues that must
    be zero are counted and only the others estimated.

    Notation: P = parameters, n = probes, w = smoothing.

    Args:
        model: any module whose parameters are on one device.
        loss: as for `operator`.
        data: as for `operator`.
        kind: "ggn", "fisher", "hessian" or another name of `KINDS`.
        mode: "train", "frozen", "eval" or "as_is".
        probes: random directions, at least two; the errors fall with the root of their number.
        lanczos_steps: matvecs for each; as many vectors are held in memory.
        params: names of parameters or modules, or parameters; None for all that are trainable.
        seed: of dropout, noise, the data's order and the directions.
        linear_threshold: the axis is linear from minus this to this; None for the power of ten
            about four decades below the largest eigenvalue. Give the same one to compare spectra.
        smoothing: standard deviation of the kernel, in decades.
        progress: called with a `Progress` event after each matvec; True shows a bar, and so does
            None in a notebook or console.

    Returns:
        ``density`` and ``cumulative`` (the share of eigenvalues up to there, no kernel) over
        ``eigenvalue``, evenly spaced in the coordinate ``position``, where the density's integral
        is one; the mean ``moment`` of each ``order`` of the eigenvalues (1: the trace over P);
        each with its ``_error``; ``nodes``, ``weights`` and ``spreads`` (probe, node), shorter
        rules padded with NaN and weight zero; ``kind`` and ``mode`` as coordinates, all else as
        attributes.

    >>> import torch
    >>> batch = (torch.tensor([[3.0, 0.0], [0.0, 1.0]]), torch.zeros(2, 1))
    >>> found = spectrum(torch.nn.Linear(2, 1, bias=False), "squared_error", batch, probes=2)
    >>> found["nodes"].values.round(4).tolist()  # x x^T / m
    [[0.5, 4.5], [0.5, 4.5]]
    """
    begin = time.perf_counter()
    _check(probes, lanczos_steps, smoothing)
    seed = as_seed(seed)
    curvature = operator(model, loss, data, kind, mode, params, seed)
    # the output space, if available, has all eigenvalues but zeros, and none negative
    space = search_space(curvature, "largest", 1)
    share = space.size / curvature.shape[0]
    count = _counter(callback_of(progress), probes * min(lanczos_steps, space.size))
    with without_autocast():
        found_rules = random_quadratures(space, probes, lanczos_steps, seed, count)
        rules = [rule.diluted(share) for rule in found_rules]
    axis = axis_for(rules, linear_threshold)
    nonnegative = is_mean_over_samples(kind) or not isinstance(space, ParameterSpace)
    found = _dataset(rules, axis, smoothing, nonnegative)
    # not attributes: SciPy cannot write a NetCDF file with an attribute of the name "mode"
    return found.assign_coords(kind=kind, mode=mode).assign_attrs(
        batch_size=curvature.batch_size,
        samples=curvature.samples,
        parameters=curvature.shape[0],
        probes=probes,
        lanczos_steps=lanczos_steps,
        products=sum(rule.products for rule in rules),
        seed=seed,
        linear_threshold=axis.threshold,
        smoothing=smoothing,
        seconds=time.perf_counter() - begin,
    )


def _counter(progress: ProgressCallback, planned: int) -> Callable[[], None]:
    """Return a function that sends a progress event for each matvec."""
    done = 0

    def count() -> None:
        nonlocal done
        done += 1
        progress(Progress(done=done, total=planned, unit="matrix-vector products"))

    return count


def _dataset(
    rules: list[Quadrature], axis: SymmetricLog, width: float, nonnegative: bool
) -> xr.Dataset:
    positions = grid(rules, axis, width, nonnegative)
    values = axis.value(positions)
    orders = np.array([1, 2])
    curves = {
        "density": [smoothed(rule, axis, positions, width, nonnegative) for rule in rules],
        "cumulative": [cumulative(rule, values, nonnegative) for rule in rules],
    }
    moments = [rule.weights @ rule.nodes[:, None] ** orders for rule in rules]
    length = max(len(rule.nodes) for rule in rules)
    return xr.Dataset(
        {
            **_with_errors(curves, "eigenvalue"),
            **_with_errors({"moment": moments}, "order"),
            "nodes": (("probe", "node"), [_padded(r.nodes, length, np.nan) for r in rules]),
            "weights": (("probe", "node"), [_padded(r.weights, length, 0.0) for r in rules]),
            "spreads": (("probe", "node"), [_padded(r.spreads, length, 0.0) for r in rules]),
        },
        coords={
            "eigenvalue": values,
            "position": ("eigenvalue", positions),
            "order": orders,
            "probe": range(len(rules)),
        },
    )


def _with_errors(samples: dict[str, list[Floats]], dimension: str) -> dict[str, tuple[str, Floats]]:
    """Return the mean and standard error over the probes of each quantity."""
    found = {}
    for name, of_probes in samples.items():
        each = np.stack(of_probes)
        found[name] = (dimension, each.mean(0))
        found[f"{name}_error"] = (dimension, each.std(0, ddof=1) / np.sqrt(len(each)))
    return found


def _padded(values: Floats, length: int, filling: float) -> Floats:
    return np.pad(values, (0, length - len(values)), constant_values=filling)


def _check(probes: int, lanczos_steps: int, smoothing: float) -> None:
    check_integer("probes", probes)
    check_integer("lanczos_steps", lanczos_steps)
    check_number("smoothing", smoothing)
    if probes < 2:
        raise InputError(
            f"probes must be at least 2, to estimate the error from their spread, got {probes}."
        )
    if lanczos_steps < 1:
        raise InputError(f"lanczos_steps must be at least 1, got {lanczos_steps}.")
    if not 0 < smoothing < np.inf:
        raise InputError(f"smoothing must be a positive number of decades, got {smoothing}.")
