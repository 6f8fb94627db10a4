"""What a tour found: a row for each normalization, and one sentence for each part.

The numbers are medians over the seeds; the tables of the report give the range over them.
"""

from __future__ import annotations

import math
import textwrap

import numpy as np
import xarray as xr

from normscope.experiments.tour.parts import diagram_part
from normscope.plots.names import name_of, statement_name, with_norm
from normscope.report.diagrams import grid_boundary
from normscope.text import format_number, join_words


def norms_of(results: xr.Dataset) -> list[str]:
    """Return the normalizations, in their order."""
    return [str(norm) for norm in results["norm"].values]


def reference_of(results: xr.Dataset) -> str:
    """Return the normalization that others are compared with: none, if it was measured."""
    norms = norms_of(results)
    return "none" if "none" in norms else norms[0]


def is_open(results: xr.Dataset, norm: str) -> bool:
    """Return whether in a seed no short run broke: the limit may be higher."""
    return bool(np.isinf(results["unstable"].sel(norm=norm)).any())


def quantities(results: xr.Dataset) -> dict[str, xr.DataArray]:
    """Return what the tables compare, over norm and mostly seed.

    Losses are means of the last ten steps; the landscape is the median over the steps, infinite
    where half of them are not finite; the shift is the mean over the steps and all layers but the
    first, which no other precedes.
    """

    def over_steps(curves: xr.DataArray) -> xr.DataArray:
        return curves.where(np.isfinite(curves), np.inf).median("step")

    late = results.isel(training_step=slice(-10, None))
    shift = results[["shift_cosine", "shift_distance"]].isel(layer=slice(1, None))
    shift = shift.mean(("step", "layer"))
    largest = results["lambda_max"]
    return {
        "take": results["recommended"],
        "limit": results["limit"],
        "predicted": results["predicted"],
        "theory": results["theory"],
        "accuracy": results["test_accuracy"],
        "loss": late["training_loss"].mean("training_step", skipna=False),
        "loss, shared rate": late["shared_training_loss"].mean("training_step", skipna=False),
        "seeds that diverge": diverged_seeds(results),
        "seeds that diverge, shared rate": diverged_seeds(results, "shared_"),
        "loss varies by": over_steps(results["loss_high"] - results["loss_low"]),
        "gradient changes by": over_steps(results["gradient_distance_high"]),
        "smoothness": over_steps(results["effective_smoothness"]),
        "shift cosine": shift["shift_cosine"],
        "l2 difference": shift["shift_distance"],
        "λ max": largest.sel(mode="train"),
        "statistics held fixed": largest.sel(mode="frozen"),
        "in eval mode": largest.sel(mode="eval"),
        "lowest of the Hessian": results["lowest"],
        "highest of the Hessian": results["highest"],
        "growth": results["growth"],
    }


def diverged_seeds(results: xr.Dataset, prefix: str = "") -> xr.DataArray:
    """Return in how many seeds training diverged, by normalization."""
    counts: xr.DataArray = (results[f"{prefix}outcome"] == "diverged").sum("seed")
    return counts


def statement_counts(results: xr.Dataset) -> dict[tuple[str, str], tuple[int, int]]:
    """Return by form and statement how many verdicts hold, and of how many."""
    counts: dict[tuple[str, str], tuple[int, int]] = {}
    columns = (results[name].values for name in ("form", "statement", "refuted"))
    for form, statement, refuted in zip(*columns, strict=True):
        held, of = counts.get((str(form), str(statement)), (0, 0))
        counts[str(form), str(statement)] = (held + (not refuted), of + 1)
    return counts


def boundary_rows(results: xr.Dataset) -> list[list[float]]:
    """Return rows of BatchNorm's scale, measured limit, the theory's, and the factor between."""
    part = diagram_part(results)
    limits = [grid_boundary(part), part["critical_learning_rate"].sel(closure="train")]
    rows = [
        [float(scale), *(float(limit.sel(gamma=scale)) for limit in limits)]
        for scale in part["gamma"].values
    ]
    known = [row for row in rows if np.isfinite(row).all()]
    return [[*row, max(row[1] / row[2], row[2] / row[1])] for row in known]


def finite_median(values: xr.DataArray) -> float | None:
    """Return the median over the seeds if all of them have a number."""
    found = float(np.median(values.values))
    return found if math.isfinite(found) else None


def headline(results: xr.Dataset) -> str:
    """Return the largest limit and its ratio to that of the reference, in a sentence.

    If no limit is larger, the smallest is given. There is a ratio only if the seeds agree on
    which of the two is larger, and both limits have an end.
    """
    middle, reference = results["limit"].median("seed"), reference_of(results)
    norm = str(middle.idxmax("norm").item())
    if norm == reference:
        norm = str(middle.idxmin("norm").item())
    own, base = (results["limit"].sel(norm=each) for each in (norm, reference))
    shown, other = (
        f"{'at least ' if is_open(results, each) else ''}{format_number(float(limit.median()))}"
        for each, limit in ((norm, own), (reference, base))
    )
    words = f"Training breaks at a learning rate of {shown} {with_norm(norm)}"
    against = f"the limit {with_norm(reference)} ({other})"
    if middle.size == 1:
        return f"{words}."
    if not ((own > base).all() or (own < base).all()):
        return f"{words}. That is not clearly different from {against}: the seeds disagree."
    if is_open(results, norm) or is_open(results, reference):
        return f"{words}, against {against}."
    return f"{words}, {format_number(float(own.median() / base.median()))} times {against}."


def extremes(values: xr.DataArray) -> str:
    """Return which normalization has the largest and which the smallest median; NaN is infinite.

    >>> limits = [[1.0, 5.0], [4.0, 3.0]]
    >>> pair = xr.DataArray(limits, [("norm", ["none", "batch"]), ("seed", [0, 1])])
    >>> extremes(pair.isel(seed=[0]))
    'largest with BatchNorm (4), smallest without normalization (1)'
    >>> extremes(pair)
    'largest with BatchNorm (3.5), smallest without normalization (3); the seeds disagree'
    """
    known = values.fillna(np.inf)
    middle = known.median("seed")
    most, least = (str(each.item()) for each in (middle.idxmax("norm"), middle.idxmin("norm")))
    high, low = (format_number(float(middle.sel(norm=norm)), 3) for norm in (most, least))
    if most == least:
        return f"{high} {with_norm(most) if middle.size == 1 else 'everywhere'}"
    agree = (known.idxmax("norm") == most).all() and (known.idxmin("norm") == least).all()
    shown = f"largest {with_norm(most)} ({high}), smallest {with_norm(least)} ({low})"
    return shown if agree else f"{shown}; the seeds disagree"


def _prediction(results: xr.Dataset) -> str:
    predicted, limit = results["predicted"], results["limit"]
    if predicted.isnull().all():
        return "No limit could be predicted before a run."
    medians = predicted.median("seed"), limit.median("seed")
    typical, worst = (
        float(np.exp(abs(np.log(one / other))).max())
        for one, other in (medians, (predicted, limit))
    )
    seeds = f" (median over the seeds; worst seed {worst:.2f}x)" if limit.sizes["seed"] > 1 else ""
    return (
        f"The limit predicted before any run is within {typical:.2f}x of the verified one{seeds}."
    )


def _diverging(results: xr.Dataset, prefix: str) -> str:
    counts = diverged_seeds(results, prefix)
    broken = [
        f"{with_norm(norm)} ({int(counts.sel(norm=norm))} of {results.sizes['seed']} seeds)"
        for norm in norms_of(results)
        if counts.sel(norm=norm) > 0
    ]
    return f"training diverges {join_words(broken)}" if broken else "no training diverges"


def _theorems(results: xr.Dataset) -> str:
    counts = statement_counts(results)
    exact = [pair for (form, _), pair in counts.items() if form == "exact"]
    held, of = (sum(pair[place] for pair in exact) for place in (0, 1))
    failing = [
        f"{statement_name(name)} in {good} of {cases}"
        for (form, name), (good, cases) in counts.items()
        if form == "printed" and good < cases
    ]
    printed = f"; as printed, {join_words(failing)}" if failing else ""
    hold = f"all {of}" if held == of else f"{held} of {of}"
    return f"In their exact form the theorems hold in {hold} checks{printed}."


def _diagram(results: xr.Dataset) -> str:
    factors = [row[-1] for row in boundary_rows(results)]
    if not factors:
        return "No scale of BatchNorm has a stable and a broken training to hold theory against."
    near = sum(each <= 2 for each in factors)
    return (
        "Mean-field theory puts the learning rate at which training breaks within a factor of 2 at "
        f"{near} of {len(factors)} scales of BatchNorm, at worst a factor of {max(factors):.1f} "
        "away."
    )


def findings(results: xr.Dataset) -> dict[str, str]:
    """Return a sentence for each part of the tour, in their order."""
    shared, common = (format_number(float(results[f"{of}_rate"]), 3) for of in ("shared", "common"))
    values = quantities(results)

    def most(name: str) -> str:
        found = values[name]
        return extremes(found if "seed" in found.dims else found.expand_dims("seed"))

    return {
        "limits": _prediction(results),
        "training": f"At one learning rate for all, {shared} (half the largest limit in any seed), "
        f"{_diverging(results, 'shared_')}; at half its own limit, {_diverging(results, '')}.",
        "landscape": f"Along the gradient, at the learning rate {common} for all, the range of the "
        f"loss is {most('loss varies by')}.",
        "shift": "The cosine of a layer's gradients before and after the layers below it are "
        f"updated (1: no shift) is {most('shift cosine')}.",
        "curvature": f"Before training the largest eigenvalue of the curvature is {most('λ max')}.",
        "depth": f"Backwards through {results.sizes['depth_layer']} layers, before training, the "
        f"growth of the squared gradient per layer is {most('growth')}.",
        "theorems": _theorems(results),
        "diagram": _diagram(results),
    }


# heads of the table by the name of the value, in words that fit a terminal; on page and terminal
HEADS = {
    "normalization": "normalization",
    "limit": "limit",
    "predicted": "predicted limit",
    "theory": "estimate by theory",
    "accuracy": "test accuracy",
    "loss varies by": "loss varies by",
    "smoothness": "roughness (beta)",
    "shift cosine": "shift cosine",
    "λ max": "largest eigenvalue",
    "growth": "growth per layer",
}
LEGEND = (
    "Predicted: before any run. Recommended = limit / 2; accuracy measured there. Loss and "
    "roughness: along the gradient, at one rate; larger is rougher. Shift cosine: 1 means no "
    "shift. Last two: before training; eigenvalue of the first seed. -: no number, since theory "
    "has none or a training diverged."
)
SAME_AGAIN = (
    "The same command on the same machine, with the same number of threads, gives these numbers "
    "again bit for bit. On other machines rounding differs, and training near the limit is "
    "chaotic: limits may differ by about 15 %, and borderline verdicts may flip."
)
_VALUES = ("take", *list(HEADS)[1:5], "loss", *list(HEADS)[5:])
_HEAD_WIDTH = 8  # of a terminal, for words that are not longer


def summary_rows(results: xr.Dataset) -> list[dict[str, str | float | None]]:
    """Return one row for each normalization: names and numbers, None where there is none."""
    values = quantities(results)
    return [
        {"normalization": name_of(norm)}
        | {name: finite_median(values[name].sel(norm=norm)) for name in _VALUES}
        for norm in norms_of(results)
    ]


def summary_table(results: xr.Dataset) -> list[dict[str, str | float | None]]:
    """Return the rows for a terminal: values of `HEADS` to three digits, heads in short lines."""
    heads = {
        name: "\n".join(textwrap.wrap(head, _HEAD_WIDTH, break_long_words=False))
        for name, head in HEADS.items()
    }
    short = {name_of("none"): "none"}  # fits into the column
    return [
        {
            head: float(f"{x:.3g}") if isinstance(x := row[name], float) else short.get(str(x), x)
            for name, head in heads.items()
        }
        for row in summary_rows(results)
    ]
