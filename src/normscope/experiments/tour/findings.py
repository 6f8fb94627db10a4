"""What the tour found of landscape and curvature, in sentences made of its numbers alone.

They are right whichever way the numbers come out. Every function returns the sentences of one part;
the first stands on the report's first screen.
Numbers are medians over the seeds, with the range over them in brackets.
"""

from __future__ import annotations

import numpy as np
import xarray as xr

from normscope.experiments.tour.words import (
    contrast,
    enumerated,
    factor,
    in_seeds,
    listed,
    number,
    typical,
)
from normscope.plots.names import with_norm

__all__ = [
    "about_curvature",
    "about_landscape",
    "about_shift",
    "norms_of",
    "over_steps",
    "reference_of",
    "shift_cosine",
]


def norms_of(results: xr.Dataset) -> list[str]:
    """The normalizations, in their order."""
    return [str(norm) for norm in results["norm"].values]


def reference_of(results: xr.Dataset) -> str:
    """The normalization that others are held against: none, if it was measured."""
    norms = norms_of(results)
    return "none" if "none" in norms else norms[0]


def about_landscape(results: xr.Dataset) -> list[str]:
    """The bands along the gradient, at one learning rate for all."""
    widths = results["loss_high"] - results["loss_low"]
    rate = number(float(results["common_rate"]))
    shown = contrast(over_steps(widths), "varies most", "least")
    return [
        f"At one learning rate for all, {rate}, half the smallest limit, the loss met along the "
        f"gradient {shown}.",
        f"The width of its band: {_held_against(results, widths)}.",
        "The gradient itself changed along its own direction by "
        f"{_held_against(results, results['gradient_distance_high'])}.",
        "The effective smoothness, the steepest such change per distance, was "
        f"{_held_against(results, results['effective_smoothness'])}.",
        _SAME_RATE,
    ]


def over_steps(curves: xr.DataArray) -> xr.DataArray:
    """The median over the steps; infinite where half of them are not finite."""
    middle: xr.DataArray = curves.where(np.isfinite(curves), np.inf).median("step")
    return middle


def _held_against(results: xr.Dataset, curves: xr.DataArray) -> str:
    """A curve's median over the steps, each normalization against the reference."""
    whole = over_steps(curves)
    reference = reference_of(results)
    base = whole.sel(norm=reference)
    parts = [f"{typical(base)} {with_norm(reference)}"]
    for norm in norms_of(results):
        if norm != reference:
            own = whole.sel(norm=norm)
            parts.append(f"{typical(own)} {with_norm(norm)} (smaller {in_seeds(own, base)})")
    return enumerated(parts)


def about_shift(results: xr.Dataset) -> list[str]:
    """Internal covariate shift by the paper's measure."""
    cosine = shift_cosine(results)
    reference = reference_of(results)
    base = cosine.sel(norm=reference)
    parts = [f"{typical(base, 3)} {with_norm(reference)}"]
    for norm in norms_of(results):
        if norm != reference:
            own = cosine.sel(norm=norm)
            parts.append(f"{typical(own, 3)} {with_norm(norm)} (lower {in_seeds(own, base)})")
    shown = contrast(cosine, "is highest", "lowest", 3)
    return [
        "Internal covariate shift, seen by the cosine between a layer's gradient before and after "
        f"the layers below it take their step (1: no shift): the cosine {shown}.",
        f"All of them: {enumerated(parts)}.",
        _SAME_RATE,
    ]


def shift_cosine(results: xr.Dataset) -> xr.DataArray:
    """The mean over the steps and all layers but the first, which none precedes."""
    later: xr.DataArray = results["shift_cosine"].isel(layer=slice(1, None))
    return later.mean(("step", "layer"))


def about_curvature(results: xr.Dataset) -> list[str]:
    """The spectrum before training, and what a wrong mode would say."""
    norms, largest = norms_of(results), results["lambda_max"]
    train = largest.sel(mode="train")
    shown = contrast(train.expand_dims("seed"), "is largest", "smallest")
    values = listed(norms, lambda norm: number(float(train.sel(norm=norm))))
    ends = listed(
        norms,
        lambda norm: " to ".join(number(float(results[end].sel(norm=norm))) for end in _ENDS),
    )
    wrong = [text for norm in norms if (text := _other_modes(largest.sel(norm=norm), norm))]
    first = f" {wrong[0]}" if wrong else ""
    return [
        "Before training the largest eigenvalue of the Gauss-Newton matrix as training feels it, "
        f"with the batch's own statistics, {shown}.{first}",
        f"All of them: {values}.",
        *wrong[1:],
        f"The Hessian's eigenvalues reach from {ends}.",
    ]


def _other_modes(largest: xr.DataArray, norm: str) -> str:
    """What other modes would say, where that differs."""
    value = float(largest.sel(mode="train"))
    others = {words: float(largest.sel(mode=mode)) for mode, words in _MODES.items()}
    apart = [
        f"{number(other)} {words}"
        for words, other in others.items()
        if np.isfinite(other) and factor(other, value) > _APART
    ]
    if not apart:
        return ""
    return (
        f"A tool that does not follow the batch would report {enumerated(apart)} "
        f"{with_norm(norm)}, where training feels {number(value)}."
    )


_ENDS = ("lowest", "highest")
_MODES = {"frozen": "with the statistics held fixed", "eval": "in eval mode"}
_APART = 1.1  # from here on a mode is worth a sentence
_SAME_RATE = (
    "The rate is the same for all: a net with a higher limit takes steps that are small for it."
)
