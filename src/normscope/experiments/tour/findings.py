"""Sentences of the report, derived from the numbers of the tour.

The sentences are correct whichever way the numbers come out. Every function returns those of one
part. Numbers are medians over the seeds, with the range in brackets.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from normscope.experiments.tour.parts import diagram_part
from normscope.experiments.tour.wording import contrast, factor, shared_rate, typical
from normscope.plots.names import statement_name, with_norm
from normscope.report.diagrams import grid_boundary
from normscope.results.record import training_settings
from normscope.text import format_number, join_words


def norms_of(results: xr.Dataset) -> list[str]:
    """Return the normalizations, in their order."""
    return [str(norm) for norm in results["norm"].values]


def reference_of(results: xr.Dataset) -> str:
    """Return the normalization that others are compared with: none, if it was measured."""
    norms = norms_of(results)
    return "none" if "none" in norms else norms[0]


def about_landscape(results: xr.Dataset) -> list[str]:
    """Describe the bands along the gradient, at one learning rate for all."""
    widths = results["loss_high"] - results["loss_low"]
    rate = format_number(float(results["common_rate"]))
    shown = contrast(over_steps(widths), "varies most", "least")
    parts = {
        "the loss varies less": widths,
        "the gradient changes less along its own direction": results["gradient_distance_high"],
        "the roughness (beta), the largest change of the gradient per distance, is lower": results[
            "effective_smoothness"
        ],
    }
    below = [f"{what} {_smaller(results, over_steps(each))}" for what, each in parts.items()]
    reference = with_norm(reference_of(results))
    against = f"Compared with the net {reference}, in every seed: {'; '.join(below)}."
    return [
        f"At one learning rate for all, {rate}, half the smallest limit, the loss along the "
        f"gradient {shown}.",
        *([against] if len(norms_of(results)) > 1 else []),
        _SAME_RATE,
    ]


def over_steps(curves: xr.DataArray) -> xr.DataArray:
    """Return the median over the steps; infinite where half of them are not finite."""
    middle: xr.DataArray = curves.where(np.isfinite(curves), np.inf).median("step")
    return middle


def _smaller(results: xr.Dataset, values: xr.DataArray) -> str:
    """Name the normalizations whose value is below the reference's in every seed."""
    reference = reference_of(results)
    base = values.sel(norm=reference).fillna(np.inf)
    found = [
        with_norm(norm)
        for norm in norms_of(results)
        if norm != reference and bool((values.sel(norm=norm).fillna(np.inf) < base).all())
    ]
    return join_words(found) if found else _NOWHERE


def about_shift(results: xr.Dataset) -> list[str]:
    """Describe internal covariate shift by the paper's measure."""
    cosine, reference = shift_cosine(results), with_norm(reference_of(results))
    shown = contrast(cosine, "is highest", "lowest", 3)
    where = _smaller(results, cosine)
    lower = (
        f"Nowhere else is it lower than {reference} in every seed."
        if where == _NOWHERE
        else f"It is lower than {reference} in every seed {where}."
    )
    return [
        "Internal covariate shift, measured by the cosine between a layer's gradient before and "
        f"after the layers below it take their step (1: no shift): the cosine {shown}.",
        *([lower] if len(norms_of(results)) > 1 else []),
        _SAME_RATE,
    ]


def shift_cosine(results: xr.Dataset) -> xr.DataArray:
    """Return the mean over the steps and all layers but the first, which no other precedes."""
    later: xr.DataArray = results["shift_cosine"].isel(layer=slice(1, None))
    return later.mean(("step", "layer"))


def about_curvature(results: xr.Dataset) -> list[str]:
    """Describe the spectrum before training, and the values of other modes."""
    largest = results["lambda_max"]
    shown = contrast(largest.sel(mode="train").expand_dims("seed"), "is largest", "smallest")
    wrong = (_other_modes(largest.sel(norm=norm), norm) for norm in norms_of(results))
    return [
        "Before training the largest eigenvalue of the Gauss-Newton matrix in train mode "
        f"{shown} (first seed).",
        *list(filter(None, wrong))[:1],
    ]


def _other_modes(largest: xr.DataArray, norm: str) -> str:
    """Describe the values of other modes, where they differ."""
    value = float(largest.sel(mode="train"))
    others = {words: float(largest.sel(mode=mode)) for mode, words in _MODES.items()}
    apart = [
        f"{format_number(other)} {words}"
        for words, other in others.items()
        if np.isfinite(other) and factor(other, value) > _APART
    ]
    if not apart:
        return ""
    modes = join_words([f"{format_number(value)} in train mode", *apart])
    return f"The value {with_norm(norm)} is {modes}."


_NOWHERE = "in no other net"
_MODES = {"frozen": "with the batch statistics held fixed", "eval": "in eval mode"}
_APART = 1.1  # least factor between modes that is reported
_SAME_RATE = (
    "The rate is the same for all: a net with a higher limit takes steps that are small for it."
)


def about_limits(results: xr.Dataset) -> list[str]:
    """Describe the stability limits, and how close each prediction came."""
    norms, limit = norms_of(results), results["limit"]
    shown = contrast(limit, "is largest", "smallest")
    sentences = [f"The learning rate at which training breaks {shown}.{_span(limit)}"]
    open_ended = [norm for norm in norms if np.isinf(results["unstable"].sel(norm=norm)).any()]
    if open_ended:
        names = join_words([with_norm(norm) for norm in open_ended])
        sentences.append(f"The short runs found no end {names}: there the limit may be higher.")
    return [*sentences, _prediction(results), *_theory(results)]


def _span(limit: xr.DataArray) -> str:
    """Return the ratio of the largest and the smallest limit."""
    if limit.sizes["norm"] < 2:
        return ""
    middle = limit.median("seed")
    return (
        f" The largest is {format_number(float(middle.max() / middle.min()))} times the smallest."
    )


def _prediction(results: xr.Dataset) -> str:
    """Describe the error of the prediction."""
    offs = prediction_errors(results)
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


def prediction_errors(results: xr.Dataset) -> dict[str, float]:
    """Return by which factor the median prediction is off the median limit, by normalization."""
    return {
        norm: factor(*(float(results[name].sel(norm=norm).median()) for name in _PREDICTED))
        for norm in norms_of(results)
    }


def worst_in_a_seed(results: xr.Dataset) -> str:
    """Describe the largest error in a single seed, which medians hide."""
    if results.sizes["seed"] < 2:
        return ""
    predicted, limit = (results[name] for name in _PREDICTED)
    worst = float(np.maximum(predicted / limit, limit / predicted).max())
    return f" (median over seeds; worst {worst:.2f}x)"


_PREDICTED = ("predicted", "limit")
_NO_FORMULA = "has no closure here for the module"  # part of the message of `meanfield.predict`


def _theory(results: xr.Dataset) -> list[str]:
    """Describe the estimate of mean-field theory."""
    norms = norms_of(results)
    covered = [norm for norm in norms if results["theory"].sel(norm=norm).notnull().all()]
    sentences = []
    if covered:
        rates = join_words([_estimate(results.sel(norm=norm), norm) for norm in covered])
        sentences.append(
            "From the architecture alone, mean-field theory estimates the curvature bound at "
            f"{rates}."
        )
    return sentences + _not_covered(results, [norm for norm in norms if norm not in covered])


def _not_covered(results: xr.Dataset, norms: Sequence[str]) -> list[str]:
    """Explain missing estimates: mostly a layer that the theory has no formula for."""
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
            f"It makes no estimate {join_words(layers)}: it has no formula for what {those} "
            f"{'does' if len(layers) == 1 else 'do'} to the signal.",
        )
    return [each.replace("It", "Mean-field theory", 1) for each in others]


def _estimate(results: xr.Dataset, norm: str) -> str:
    """Format the theory's estimate of one net and the measured bound, medians over the seeds."""
    theory, measured = (
        format_number(float(results[name].median())) for name in ("theory", "curvature_bound")
    )
    return f"{theory} {with_norm(norm)} (measured: {measured})"


def about_training(results: xr.Dataset) -> list[str]:
    """Describe training, all at one rate and each at half its own limit."""
    steps = results.sizes["training_step"]
    accuracy = results["test_accuracy"].fillna(0.0)  # a net that broke classifies nothing
    return [
        f"At one rate for all, {shared_rate(results)}, {_ended(results, 'shared_')}.",
        f"With each net at half its own limit {_ended(results, '')}.",
        f"There, after {steps} steps, {_accuracies(accuracy)}.",
    ]


def _accuracies(accuracy: xr.DataArray) -> str:
    """Describe test accuracies; which is highest only if all of several seeds agree."""
    several, middle = accuracy.sizes["seed"] > 1, accuracy.median("seed")
    if middle.size < 2 or (several and _is_ordered(accuracy)):
        return f"the test accuracy {contrast(accuracy, 'is highest', 'lowest', 3)}"
    low, high = (format_number(float(end), 3) for end in (middle.min(), middle.max()))
    why = "the seeds do not agree on an order" if several else "one seed does not show an order"
    return f"the nets' test accuracies are {low} to {high}; {why}"


def _is_ordered(values: xr.DataArray) -> bool:
    """Return whether the seeds agree on which normalization has the most and which the least."""
    middle = values.median("seed")
    most, least = str(middle.idxmax("norm").item()), str(middle.idxmin("norm").item())
    above = values.sel(norm=most) > values.drop_sel(norm=most).max("norm")
    below = values.sel(norm=least) < values.drop_sel(norm=least).min("norm")
    return bool((above & below).all())


def _ended(results: xr.Dataset, prefix: str) -> str:
    """Describe how many trainings diverged, and the losses of the others."""
    of, steps = results.sizes["seed"], results.sizes["training_step"]
    counts = diverged_seeds(results, prefix)
    parts = [f"{n} of {of} {with_norm(norm)}" for norm, n in counts.items() if n]
    begin = f"trainings diverge: {join_words(parts)}" if parts else "no training diverges"
    whole = [norm for norm, n in counts.items() if not n]
    if not whole:
        return begin
    late = late_loss(results, prefix).sel(norm=whole)
    return f"{begin}; after {steps} steps the loss {contrast(late, 'is highest', 'lowest')}"


def diverged_seeds(results: xr.Dataset, prefix: str) -> dict[str, int]:
    """Return in how many seeds training diverged, by normalization."""
    outcome = results[f"{prefix}outcome"] == "diverged"
    return {norm: int(outcome.sel(norm=norm).sum()) for norm in norms_of(results)}


def late_loss(results: xr.Dataset, prefix: str = "") -> xr.DataArray:
    """Return the mean of the last ten training losses; NaN after a divergence."""
    losses: xr.DataArray = results[f"{prefix}training_loss"]
    return losses.isel(training_step=slice(-10, None)).mean("training_step", skipna=False)


def about_depth(results: xr.Dataset) -> list[str]:
    """Describe the growth of gradients, backwards through the layers."""
    layers = results.sizes["depth_layer"]
    norms, growth = norms_of(results), results["growth"]
    shown = contrast(growth, "is largest", "smallest", 3)
    sentences = [
        f"Backwards through {layers} layers, before training, the growth of the squared gradient "
        f"per layer {shown}.",
    ]
    if "batch" in norms:
        skips = typical(results["growth_with_skips"], 3)
        expected = format_number(float(results["expected_growth"]), 3)
        sentences.append(
            f"Theory expects {expected} of a wide net with BatchNorm at this batch size. With skip "
            f"connections around each BatchNorm the measured factor is {skips}."
        )
    return sentences


def statement_counts(results: xr.Dataset) -> dict[str, dict[str, tuple[int, int]]]:
    """Count the verdicts on each statement that hold, by form.

    Args:
        results: of the tour.

    Returns:
        By form and statement: how many hold, and of how many.
    """
    counts: dict[str, dict[str, tuple[int, int]]] = {}
    rows = zip(
        results["form"].values, results["statement"].values, results["refuted"].values, strict=True
    )
    for form, statement, refuted in rows:
        held, of = counts.setdefault(str(form), {}).get(str(statement), (0, 0))
        counts[str(form)][str(statement)] = (held + (not refuted), of + 1)
    return counts


def about_theorems(results: xr.Dataset) -> list[str]:
    """Describe which statements hold on the net's own layers."""
    layers = len(np.unique(results["norm_layer"].values))
    sentences: list[str] = []
    for form, counts in statement_counts(results).items():
        held, of = (sum(pair[place] for pair in counts.values()) for place in (0, 1))
        failing = [
            f"{statement_name(name)} (fails in {cases - good} of {cases}, by up to "
            f"{_miss(results, form, name)})"
            for name, (good, cases) in counts.items()
            if good < cases
        ]
        how = _HOW.get(form, form)
        fails = f"; not so {join_words(failing)}" if failing else ""
        where = f" on the {layers} BatchNorm layers of this run's net" if not sentences else ""
        sentences.append(
            f"Of {of} checks{where} the theorems {how} hold in {'all' if held == of else held}"
            f"{fails}."
        )
    return [" ".join(sentences)] if sentences else []


_HOW = {"exact": "in their exact form", "printed": "as printed, at a vanishing eps,"}


def _miss(results: xr.Dataset, form: str, statement: str) -> str:
    """Return the largest difference of the sides among the failures, relative to their terms."""
    own = (results["form"].values == form) & (results["statement"].values == statement)
    failed = own & (results["refuted"].values == 1)
    return f"{np.abs(results['slack'].values[failed]).max():.1g} of its terms"


def about_diagram(results: xr.Dataset) -> list[str]:
    """Describe the distance of the theory's line from the measured limits."""
    part = diagram_part(results)
    both = boundary_rows(part)
    runs = (
        f"{part['test_loss'].size} short trainings{_diagram_settings(part)} over the scale of "
        "BatchNorm and the learning"
    )
    if not both:
        return [f"{runs} rate: no row holds both a stable and a broken one to hold theory against."]
    offs = [factor(theory, found) for _, found, theory in both]
    within = sum(off <= 2 for off in offs)
    return [
        f"{runs} rate: the theory's critical rate is within a factor of 2 of the measured one at "
        f"{within} of {len(both)} scales, at worst a factor of {max(offs):.1f} away (neighbouring "
        f"rates of the grid are a factor of {_grid_step(part):.1f} apart)."
    ]


def _diagram_settings(part: xr.Dataset) -> str:
    """Return loss and epochs of the diagram's trainings in brackets, if they are known."""
    settings = training_settings(part)
    if "loss" not in settings or "epochs" not in settings:
        return ""
    return f" ({str(settings['loss']).replace('_', ' ')}, {settings['epochs']:g} epochs)"


def boundary_rows(part: xr.Dataset) -> list[tuple[float, float, float]]:
    """Return measured and theoretical stability limits, for each scale at which both are known.

    Args:
        part: the diagram.

    Returns:
        Scale of BatchNorm, measured and theoretical learning rate.
    """
    measured = grid_boundary(part)
    line = part["critical_learning_rate"].sel(closure="train")
    known = [
        (float(gamma), float(measured.sel(gamma=gamma)), float(line.sel(gamma=gamma)))
        for gamma in part["gamma"].values
    ]
    return [row for row in known if np.isfinite(row[1]) and np.isfinite(row[2])]


def _grid_step(part: xr.Dataset) -> float:
    rates = part["learning_rate"].values
    return float(np.max(rates[1:] / rates[:-1])) if len(rates) > 1 else 1.0


# each part's sentences, in the order of the tour
STORIES = {
    "limits": about_limits,
    "training": about_training,
    "landscape": about_landscape,
    "shift": about_shift,
    "curvature": about_curvature,
    "depth": about_depth,
    "theorems": about_theorems,
    "diagram": about_diagram,
}
