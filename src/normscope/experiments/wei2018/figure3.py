"""Figure 3: the baseline without normalization, over learning rate and weight variance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import xarray as xr

from normscope.experiments.recipe import experiment
from normscope.experiments.wei2018.phase_diagram import (
    FINER,
    agreement,
    bisected,
    both_losses,
    brackets,
    nearest_half,
    panels,
    resolution,
)
from normscope.plots.phase_diagram import phase_diagrams
from normscope.progress import ProgressCallback
from normscope.results import Claim, Store
from normscope.sweeps.diagram import seed_list

_STATEMENT = (
    "The predicted maximal learning rate of the vanilla network, over the variance of its weights, "
    "is the baseline (Section 6.4)."
)


_TEXT = "the larger the initial weights, the smaller the critical learning rate"
_RULE = (
    "the boundaries of the rows in order: reproduced if the last bracket is below the first and no "
    "row rises, not reproduced if a row rises by a whole bracket"
)


def _claims(results: xr.Dataset) -> list[Claim]:
    source = "wei2018, Figure 3"
    claims = [*agreement(results, source, _STATEMENT)]
    claims += [replace(each, origin="beyond the paper") for each in nearest_half(results, source)]
    claims += [_falling(loss, panel, source) for loss, panel in panels(results)]
    return claims


def _falling(loss: str, panel: xr.Dataset, source: str) -> Claim:
    """Whether the boundary falls with the deviation of the weights."""
    bracket, _ = brackets(panel)
    (row,) = bracket.dims
    bracket = bracket.dropna(row).sortby(row)
    low, high, middle = bracket["low"], bracket["high"], (bracket["low"] * bracket["high"]) ** 0.5
    measured, decided = f"{low.size} rows have a boundary", None
    if low.size >= 3:
        ends = " to ".join(f"{float(x):.3g} at {float(x[row]):.3g}" for x in middle[[0, -1]])
        rises = int((middle.diff(row) > 0).sum())
        measured = f"{ends}, {rises} rises in {low.size} rows, {resolution(panel)}"
        is_lower = bool(high[-1] <= low[0]) and not rises
        decided = False if (low.values[1:] >= high.values[:-1]).any() else is_lower or None
    return Claim(
        f"{_TEXT} ({loss})",
        source,
        measured,
        decided,
        statement=f"{_TEXT.capitalize()}.",
        rule=_RULE,
        origin="beyond the paper",
        resolve="" if decided is not None else f"three rows with a boundary; {FINER}",
    )


@experiment(
    "wei2018/figure3",
    claims=_claims,
    figure=phase_diagrams,
    scales={
        "quick": {
            "data": "digits",
            "deviations": (0.8, 1.4, 2.2),
            "learning_rates": tuple(np.geomspace(1e-4, 1, 7).tolist()),
            "width": 48,
            "samples": None,
            "test_samples": None,
            "seeds": 1,
            "workers": 1,
        },
        "small": {},
        "medium": {
            "deviations": (0.5, 1.1, 1.7, 3.0),
            "learning_rates": tuple(np.geomspace(1e-5, 1, 8).tolist()),
            "losses": ("squared_error",),
            "epochs": 5.0,
            "samples": None,
            "test_samples": None,
            "seeds": 1,
            "boundary_deviations": (0.5, 1.1, 1.7, 3.0),
        },
        "paper": {
            "deviations": tuple(np.linspace(0.5, 3, 30).tolist()),
            "learning_rates": tuple(np.geomspace(1e-5, 1, 40).tolist()),
            "samples": None,
            "test_samples": None,
            "epochs": 5.0,
            "seeds": 5,
        },
    },
)
def figure3(
    *,
    data: str = "mnist",
    deviations: Sequence[float] = (0.5, 0.8, 1.1, 1.4, 1.7, 2.0, 2.5, 3.0),
    learning_rates: Sequence[float] = tuple(np.geomspace(1e-5, 1, 14).tolist()),
    losses: Sequence[str] = ("squared_error", "cross_entropy"),
    width: int = 1000,
    epochs: float = 1.0,
    samples: int | None = 12800,
    test_samples: int | None = 2000,
    batch_size: int = 128,
    momentum: float = 0.9,
    seeds: int = 2,
    boundary_deviations: Sequence[float] = (),
    boundary_seeds: int = 3,
    tolerance: float = 0.05,
    workers: int = 2,
    seed: int = 0,
    store: Store,
    progress: ProgressCallback,
) -> xr.Dataset:
    """Test loss over initial weights and learning rate: the fully connected net without a norm.

    The vertical axis is the standard deviation of the weights; the caption's gamma is a misprint.
    Reference: wei2018, Figure 3 and Section 6.4.

    Args:
        data: a registered data set.
        deviations: of a weight, times the square root of the number of inputs.
        learning_rates: of SGD.
        losses: to train with.
        width: of the hidden layers.
        epochs: passes over the training data.
        samples: of the training data; None: all.
        test_samples: of the test data; None: all.
        batch_size: samples per step.
        momentum: heavy-ball momentum.
        seeds: trainings of each cell.
        boundary_deviations: where the boundary is searched by bisection; none: it is the grid's.
        boundary_seeds: searches at each of them.
        tolerance: relative width of a bracket at which a search ends.
        workers: trainings at the same time, one thread each.
        seed: first seed; the others follow it.
        store: keeps each training.
        progress: receives an event as trainings end.

    Returns:
        As Figure 2, with ``sigma_w`` instead of gamma and ``boundary_sigma_w`` instead of
        ``boundary_gamma``.
    """
    settings = {
        "model": "fully_connected",
        "norm": "none",
        "data": data,
        "width": width,
        "epochs": epochs,
        "samples": samples,
        "test_samples": test_samples,
        "batch_size": batch_size,
        "momentum": momentum,
    }
    axes = {"sigma_w2": _variances(deviations), "learning_rate": list(learning_rates)}
    running: dict[str, Any] = {"workers": workers, "progress": progress}
    found = both_losses(axes, settings, losses, seeds, seed, store, **running)
    found = found.rename(sigma_w2="sigma_w").assign_coords(sigma_w=list(deviations))
    if not boundary_deviations:
        return found
    running["tolerance"] = tolerance
    values, searches = _variances(boundary_deviations), seed_list(boundary_seeds, seed)
    searched = bisected("sigma_w2", values, settings, losses, searches, store, **running)
    searched = searched.rename(boundary_sigma_w2="boundary_sigma_w")
    return found.merge(searched.assign_coords(boundary_sigma_w=list(boundary_deviations)))


def _variances(deviations: Sequence[float]) -> list[float]:
    """Return squares to twelve digits."""
    return [float(f"{deviation**2:.12g}") for deviation in deviations]
