"""Figure 3: the baseline without normalization, over learning rate and weight variance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import xarray as xr

from normscope.experiments.recipe import experiment
from normscope.experiments.wei2018.phase_diagram import (
    BISECTED,
    DEFAULTS,
    EVERYTHING,
    FINER,
    agreement,
    brackets,
    diagrams,
    geometric,
    nearest_half,
    panels,
    resolution,
)
from normscope.plots.phase_diagram import phase_diagrams
from normscope.results import Claim

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
    defaults={
        **DEFAULTS,
        "deviations": (0.5, 0.8, 1.1, 1.4, 1.7, 2.0, 2.5, 3.0),
        "boundary_deviations": (),
        "learning_rates": geometric(1e-5, 1, 14),
        "width": 1000,
    },
    scales={
        "quick": {
            "data": "digits",
            "deviations": (0.8, 1.4, 2.2),
            "learning_rates": geometric(1e-4, 1, 7),
            "width": 48,
            "samples": None,
            "test_samples": None,
            "seeds": 1,
            "workers": 1,
        },
        "small": {},
        "medium": {
            **BISECTED,
            "deviations": (0.5, 1.1, 1.7, 3.0),
            "boundary_deviations": (0.5, 1.1, 1.7, 3.0),
            "learning_rates": geometric(1e-5, 1, 8),
        },
        "paper": {
            **EVERYTHING,
            "deviations": tuple(np.linspace(0.5, 3, 30).tolist()),
            "learning_rates": geometric(1e-5, 1, 40),
            "seeds": 5,
        },
    },
)
def figure3(
    *, deviations: Sequence[float], boundary_deviations: Sequence[float], **settings: Any
) -> xr.Dataset:
    """Test loss over initial weights and learning rate: the fully connected net without a norm.

    The vertical axis is the standard deviation of the weights; the caption's gamma is a misprint.
    Reference: wei2018, Figure 3 and Section 6.4.

    Args:
        deviations: of a weight, times the square root of the number of inputs.
        boundary_deviations: where the boundary is searched by bisection; none: it is the grid's.
        **settings: width of the hidden layers, and those of `diagrams`.

    Returns:
        That of `diagrams` over ``sigma_w``.
    """
    squares, searched = (
        [float(f"{deviation**2:.12g}") for deviation in each]
        for each in (deviations, boundary_deviations)
    )
    settings |= {"model": "fully_connected", "norm": "none"}
    found = diagrams("sigma_w2", squares, searched, **settings)
    coordinates = {"sigma_w": list(deviations), "boundary_sigma_w": list(boundary_deviations)}
    for name in [name for name, values in coordinates.items() if values]:
        found = found.rename({f"{name}2": name}).assign_coords({name: coordinates[name]})
    return found
