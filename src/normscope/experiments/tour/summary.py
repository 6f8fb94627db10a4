"""The first screen of the report: the question, a few short sentences, and a row for each norm.

Every sentence is derived from the numbers, so it is correct whichever way they come out. Numbers
are medians over the seeds; the sections of the report give the range over them.
"""

from __future__ import annotations

import math
import textwrap

import numpy as np
import xarray as xr

from normscope.experiments.tour.findings import (
    boundary_rows,
    diverged_seeds,
    late_loss,
    norms_of,
    over_steps,
    prediction_errors,
    shift_cosine,
    statement_counts,
    worst_in_a_seed,
)
from normscope.experiments.tour.parts import diagram_part
from normscope.experiments.tour.wording import contrast, factor, shared_rate
from normscope.plots.names import name_of, statement_name, with_norm
from normscope.text import format_number, join_words


def question(results: xr.Dataset) -> str:
    """Return the question, and the net it is about.

    Args:
        results: of the tour.

    Returns:
        A sentence or two.
    """
    of, seeds = results.attrs, results.sizes["seed"]
    net = f"a fully connected net of {of['depth']} layers of width {of['width']} on {of['data']}"
    several = f", {seeds} seeds" if seeds > 1 else ""
    return f"How large a learning rate can a net take, and why? Here: {net}{several}."


def findings(results: xr.Dataset) -> list[str]:
    """Return the findings in words.

    Args:
        results: of the tour.

    Returns:
        At most five sentences or pairs of them, with their numbers.
    """
    parts = (_limits, _training, _landscape, _curvature, _theory)
    return [text for each in parts if (text := each(results))]


def _limits(results: xr.Dataset) -> str:
    limit = results["limit"].median("seed")
    offs = prediction_errors(results).values()
    span = format_number(float(limit.max() / limit.min()))
    apart = f": a factor of {span} apart" if limit.size > 1 else ""
    which = "every limit" if limit.size > 1 else "it"
    return (
        f"The learning rate at which training breaks {contrast(limit)}{apart}. The prediction from "
        f"the first weights, before any run, is within {max(offs):.2f}x of {which}"
        f"{worst_in_a_seed(results)}."
    )


def _training(results: xr.Dataset) -> str:
    shared, own = (_diverged(results, prefix) for prefix in ("shared_", ""))
    return (
        f"At one learning rate for all, {shared_rate(results)}, {shared}; at half its own limit, "
        f"{own}."
    )


def _diverged(results: xr.Dataset, prefix: str) -> str:
    """Describe which trainings diverged."""
    of, counts = results.sizes["seed"], diverged_seeds(results, prefix)
    broken = [f"{with_norm(norm)} ({n} of {of} seeds)" for norm, n in counts.items() if n]
    return f"training diverges {join_words(broken)}" if broken else "no training diverges"


def _landscape(results: xr.Dataset) -> str:
    widths = over_steps(results["loss_high"] - results["loss_low"]).median("seed")
    rate = format_number(float(results["common_rate"]))
    return (
        f"Along the gradient, at the learning rate {rate} for all, the loss "
        f"{contrast(widths, 'varies most', 'least', alone='varies by')}."
    )


def _curvature(results: xr.Dataset) -> str:
    largest = results["lambda_max"].sel(mode="train")
    return f"Before training the largest eigenvalue of the curvature {contrast(largest)}."


def _theory(results: xr.Dataset) -> str:
    """Describe theorems and phase diagram."""
    counts = statement_counts(results)
    sentences = []
    if "exact" in counts:
        held, of = (sum(pair[place] for pair in counts["exact"].values()) for place in (0, 1))
        hold = f"all {of}" if held == of else f"{held} of {of}"
        printed = counts.get("printed", {}).items()
        failing = [statement_name(name) for name, (good, cases) in printed if good < cases]
        verb = "fails" if len(failing) == 1 else "fail"
        fails = f"; as printed, {join_words(failing)} {verb}" if failing else ""
        sentences.append(f"The theorems in their exact form hold in {hold} checks{fails}.")
    offs = [factor(theory, found) for _, found, theory in boundary_rows(diagram_part(results))]
    if offs:
        within = int(np.sum(np.array(offs) <= 2))
        sentences.append(
            "Mean-field theory puts the learning rate at which training breaks within a factor of "
            f"2 at {within} of {len(offs)} scales of BatchNorm, at worst a factor of "
            f"{max(offs):.1f} away."
        )
    return " ".join(sentences)


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
_DIGITS = 3
_HEAD_WIDTH = 8  # of a terminal, for words that are not longer


def summary_rows(results: xr.Dataset) -> list[dict[str, str | float | None]]:
    """Return one row for each normalization, medians over the seeds.

    Args:
        results: of the tour.

    Returns:
        Names and numbers; None where there is none.
    """
    columns = {
        "take": results["recommended"],
        "limit": results["limit"],
        "predicted": results["predicted"],
        "theory": results["theory"],
        "accuracy": results["test_accuracy"],
        "loss": late_loss(results),
        "loss varies by": over_steps(results["loss_high"] - results["loss_low"]),
        "smoothness": over_steps(results["effective_smoothness"]),
        "shift cosine": shift_cosine(results),
        "λ max": results["lambda_max"].sel(mode="train"),
        "growth": results["growth"],
    }
    return [
        {"normalization": name_of(norm)}
        | {name: finite_median(values.sel(norm=norm)) for name, values in columns.items()}
        for norm in norms_of(results)
    ]


def summary_table(results: xr.Dataset) -> list[dict[str, str | float | None]]:
    """Return the rows to be read: the main values with few digits, heads in words.

    Args:
        results: of the tour.

    Returns:
        One row for each normalization, "none" without, the heads broken into short lines; what they
        mean is `LEGEND`.
    """
    heads = {
        name: "\n".join(textwrap.wrap(head, _HEAD_WIDTH, break_long_words=False))
        for name, head in HEADS.items()
    }
    rows = [{head: row[name] for name, head in heads.items()} for row in summary_rows(results)]
    for row in rows:
        if row["normalization"] == name_of("none"):
            row["normalization"] = "none"
    return [
        {head: float(f"{x:.{_DIGITS}g}") if isinstance(x, float) else x for head, x in row.items()}
        for row in rows
    ]


def finite_median(values: xr.DataArray) -> float | None:
    """Return the median over the seeds if all of them have a number."""
    found = float(np.median(values.values))
    return found if math.isfinite(found) else None
