"""What the tour found of learning rates: where training breaks, who knew, and what it is worth."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from normscope.experiments.tour.findings import norms_of
from normscope.experiments.tour.words import (
    contrast,
    enumerated,
    factor,
    number,
    shared_rate,
    typical,
)
from normscope.plots.names import with_norm

__all__ = ["about_limits", "about_training", "late_loss", "worst_in_a_seed"]


def about_limits(results: xr.Dataset) -> list[str]:
    """Where training breaks, and who knew."""
    norms, limit = norms_of(results), results["limit"]
    shown = contrast(limit, "is largest", "smallest")
    sentences = [f"The learning rate at which training breaks {shown}.{_span(limit)}"]
    open_ended = [norm for norm in norms if np.isinf(results["unstable"].sel(norm=norm)).any()]
    if open_ended:
        names = enumerated([with_norm(norm) for norm in open_ended])
        sentences.append(f"The short runs found no end {names}: there the limit may be higher.")
    return [*sentences, _prediction(results), *_theory(results)]


def _span(limit: xr.DataArray) -> str:
    """How far apart the normalizations are."""
    if limit.sizes["norm"] < 2:
        return ""
    middle = limit.median("seed")
    return f" The one is {number(float(middle.max() / middle.min()))} times the other."


def _prediction(results: xr.Dataset) -> str:
    """How good the prediction was."""
    offs = {
        norm: factor(*(float(results[name].sel(norm=norm).median()) for name in _PREDICTED))
        for norm in norms_of(results)
    }
    best, worst = min(offs, key=offs.__getitem__), max(offs, key=offs.__getitem__)
    apart = (
        f"by a factor of {offs[worst]:.2f}"
        if best == worst
        else f"by a factor of {offs[best]:.2f} ({with_norm(best)}) to {offs[worst]:.2f} "
        f"({with_norm(worst)})"
    )
    return (
        "Predicted from the first weights, before any run, the limit is off "
        f"{apart}{worst_in_a_seed(results)}."
    )


def worst_in_a_seed(results: xr.Dataset) -> str:
    """How far off the prediction was at worst; medians over the seeds hide that."""
    if results.sizes["seed"] < 2:
        return ""
    predicted, limit = (results[name] for name in _PREDICTED)
    worst = float(np.maximum(predicted / limit, limit / predicted).max())
    return f" by the median over the seeds, at worst {worst:.2f} in one seed"


_PREDICTED = ("predicted", "limit")
_NO_FORMULA = "has no closure here for the module"  # as `meanfield.predict` says it


def _theory(results: xr.Dataset) -> list[str]:
    """What the architecture alone said."""
    norms = norms_of(results)
    covered = [norm for norm in norms if results["theory"].sel(norm=norm).notnull().all()]
    sentences = []
    if covered:
        rates = enumerated([_estimate(results.sel(norm=norm), norm) for norm in covered])
        sentences.append(
            "From the architecture alone, mean-field theory estimates the rate below which no "
            f"direction is unstable at {rates}."
        )
    return sentences + _not_covered(results, [norm for norm in norms if norm not in covered])


def _not_covered(results: xr.Dataset, norms: Sequence[str]) -> list[str]:
    """Why there is no estimate of some nets: mostly a layer that the theory has no formula for."""
    layers, others = [], []
    for norm in norms:
        reason = str(results["theory_says"].sel(norm=norm).values.ravel()[0])
        if _NO_FORMULA in reason:
            layers.append(with_norm(norm))
        else:
            reason = reason.partition(". ")[0].rstrip(".")
            others.append(f"It makes no estimate {with_norm(norm)}: {reason}.")
    if layers:
        those = "that layer" if len(layers) == 1 else "those layers"
        others.insert(
            0,
            f"It makes no estimate {enumerated(layers)}: it has no formula for what {those} "
            f"{'does' if len(layers) == 1 else 'do'} to the signal.",
        )
    return [each.replace("It", "Mean-field theory", 1) for each in others]


def _estimate(results: xr.Dataset, norm: str) -> str:
    """The theory's estimate of one net beside the measured one."""
    theory, measured = (typical(results[name]) for name in ("theory", "curvature_bound"))
    return f"{theory} {with_norm(norm)} (by measured curvature and short runs: {measured})"


def about_training(results: xr.Dataset) -> list[str]:
    """How the nets train, all at one rate and each at half its own limit."""
    steps = results.sizes["training_step"]
    accuracy = results["test_accuracy"].fillna(0.0)  # a net that broke classifies nothing
    return [
        f"At one rate for all, {shared_rate(results)}, {_ended(results, 'shared_')}.",
        f"With each net at half its own limit {_ended(results, '')}.",
        f"There, after {steps} steps, the accuracy on samples that were not trained on "
        f"{contrast(accuracy, 'is highest', 'lowest', 3)}.",
    ]


def _ended(results: xr.Dataset, prefix: str) -> str:
    """How many trainings diverged, and the losses of those that never did."""
    of, steps = results.sizes["seed"], results.sizes["training_step"]
    outcome = results[f"{prefix}outcome"] == "diverged"
    counts = {norm: int(outcome.sel(norm=norm).sum()) for norm in norms_of(results)}
    parts = [f"{n} of {of} {with_norm(norm)}" for norm, n in counts.items() if n]
    begin = f"trainings diverge: {enumerated(parts)}" if parts else "no training diverges"
    whole = [norm for norm, n in counts.items() if not n]
    if not whole:
        return begin
    late = late_loss(results, prefix).sel(norm=whole)
    return f"{begin}; after {steps} steps the loss {contrast(late, 'is highest', 'lowest')}"


def late_loss(results: xr.Dataset, prefix: str = "") -> xr.DataArray:
    """The mean of the last ten training losses; not a number after a divergence."""
    losses: xr.DataArray = results[f"{prefix}training_loss"]
    return losses.isel(training_step=slice(-10, None)).mean("training_step", skipna=False)
