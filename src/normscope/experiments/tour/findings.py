"""What the tour found of landscape and curvature, in sentences made of its numbers alone.

They are right whichever way the numbers come out. Every function returns the sentences of one part;
the first stands on the report's first screen.
Numbers are medians over the seeds, with the range over them in brackets.
"""

from __future__ import annotations

import numpy as np
import xarray as xr

from normscope.experiments.tour.words import contrast, enumerated, factor, number
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
    parts = {
        "the variation of the loss": widths,
        "the change of the gradient along its own direction": results["gradient_distance_high"],
        "the effective smoothness, the steepest such change per distance,": results[
            "effective_smoothness"
        ],
    }
    below = [f"{what} {_smaller(results, over_steps(each))}" for what, each in parts.items()]
    against = f"Smaller than {with_norm(reference_of(results))} in every seed: {'; '.join(below)}."
    return [
        f"At one learning rate for all, {rate}, half the smallest limit, the loss met along the "
        f"gradient {shown}.",
        *([against] if len(norms_of(results)) > 1 else []),
        _SAME_RATE,
    ]


def over_steps(curves: xr.DataArray) -> xr.DataArray:
    """The median over the steps; infinite where half of them are not finite."""
    middle: xr.DataArray = curves.where(np.isfinite(curves), np.inf).median("step")
    return middle


def _smaller(results: xr.Dataset, values: xr.DataArray) -> str:
    """With which normalizations a value is smaller than the reference's in every seed."""
    reference = reference_of(results)
    base = values.sel(norm=reference).fillna(np.inf)
    found = [
        with_norm(norm)
        for norm in norms_of(results)
        if norm != reference and bool((values.sel(norm=norm).fillna(np.inf) < base).all())
    ]
    return enumerated(found) if found else _NOWHERE


def about_shift(results: xr.Dataset) -> list[str]:
    """Internal covariate shift by the paper's measure."""
    cosine, reference = shift_cosine(results), with_norm(reference_of(results))
    shown = contrast(cosine, "is highest", "lowest", 3)
    where = _smaller(results, cosine)
    lower = (
        f"Nowhere else is it lower than {reference} in every seed."
        if where == _NOWHERE
        else f"It is lower than {reference} in every seed {where}."
    )
    return [
        "Internal covariate shift, seen by the cosine between a layer's gradient before and after "
        f"the layers below it take their step (1: no shift): the cosine {shown}.",
        *([lower] if len(norms_of(results)) > 1 else []),
        _SAME_RATE,
    ]


def shift_cosine(results: xr.Dataset) -> xr.DataArray:
    """The mean over the steps and all layers but the first, which none precedes."""
    later: xr.DataArray = results["shift_cosine"].isel(layer=slice(1, None))
    return later.mean(("step", "layer"))


def about_curvature(results: xr.Dataset) -> list[str]:
    """The spectrum before training, and what a wrong mode would say."""
    largest = results["lambda_max"]
    shown = contrast(largest.sel(mode="train").expand_dims("seed"), "is largest", "smallest")
    wrong = (_other_modes(largest.sel(norm=norm), norm) for norm in norms_of(results))
    return [
        "Before training the largest eigenvalue of the Gauss-Newton matrix as training feels it, "
        f"with the batch's own statistics, {shown} (first seed).",
        *list(filter(None, wrong))[:1],
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


_NOWHERE = "in no other net"
_MODES = {"frozen": "with the statistics held fixed", "eval": "in eval mode"}
_APART = 1.1  # from here on a mode is worth a sentence
_SAME_RATE = (
    "The rate is the same for all: a net with a higher limit takes steps that are small for it."
)
