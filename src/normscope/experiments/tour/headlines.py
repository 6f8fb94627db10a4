"""The first screen of the report: the question, and the results in a few short sentences.

Every sentence is derived from the numbers, so it is correct whichever way they come out. Numbers
are medians over the seeds; the sections of the report give the range over them.
"""

from __future__ import annotations

import numpy as np
import xarray as xr

from normscope.experiments.tour.findings import (
    boundary_rows,
    norms_of,
    over_steps,
    statement_counts,
    worst_in_a_seed,
)
from normscope.experiments.tour.parts import diagram_part
from normscope.experiments.tour.wording import extremes, factor, shared_rate
from normscope.plots.names import statement_name, with_norm
from normscope.text import format_number, join_words


def question(results: xr.Dataset) -> str:
    """What was asked, and of which net.

    Args:
        results: of the tour.

    Returns:
        A sentence or two.
    """
    of, seeds = results.attrs, results.sizes["seed"]
    net = f"a fully connected net of {of['depth']} layers of width {of['width']} on {of['data']}"
    nets = join_words([with_norm(norm) for norm in norms_of(results)])
    several = f", {seeds} seeds each" if seeds > 1 else ""
    return (
        f"How large a learning rate does a net take, and why? Asked of {net}, {nets}; the same "
        f"first weights{several}."
    )


def findings(results: xr.Dataset) -> list[str]:
    """What was found.

    Args:
        results: of the tour.

    Returns:
        At most five sentences or pairs of them, with their numbers.
    """
    parts = (_limits, _training, _landscape, _curvature, _theory)
    return [text for each in parts if (text := each(results))]


def _limits(results: xr.Dataset) -> str:
    limit = results["limit"].median("seed")
    offs = [
        factor(float(results["predicted"].sel(norm=norm).median()), float(limit.sel(norm=norm)))
        for norm in norms_of(results)
    ]
    span = format_number(float(limit.max() / limit.min()))
    apart = f": a factor of {span} apart" if limit.size > 1 else ""
    which = "every limit" if limit.size > 1 else "it"
    return (
        f"The learning rate at which training breaks {_ends(limit)}{apart}. The prediction from "
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
    outcome, of = results[f"{prefix}outcome"] == "diverged", results.sizes["seed"]
    counts = {norm: int(outcome.sel(norm=norm).sum()) for norm in norms_of(results)}
    broken = [f"{with_norm(norm)} ({n} of {of} seeds)" for norm, n in counts.items() if n]
    return f"training diverges {join_words(broken)}" if broken else "no training diverges"


def _landscape(results: xr.Dataset) -> str:
    widths = over_steps(results["loss_high"] - results["loss_low"]).median("seed")
    rate = format_number(float(results["common_rate"]))
    return (
        f"Along the gradient, at the learning rate {rate} for all, the loss "
        f"{_ends(widths, 'varies most', 'least', 'varies by')}."
    )


def _curvature(results: xr.Dataset) -> str:
    largest = results["lambda_max"].sel(mode="train")
    return f"Before training the largest eigenvalue of the curvature {_ends(largest)}."


def _theory(results: xr.Dataset) -> str:
    """Theorems and phase diagram."""
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


def _ends(
    values: xr.DataArray, most: str = "is largest", least: str = "smallest", alone: str = "is"
) -> str:
    """The largest and the smallest over the normalizations; NaN counts as infinite.

    >>> _ends(xr.DataArray([1.0, 4.0], dims="norm", coords={"norm": ["none", "batch"]}))
    'is largest with BatchNorm, 4, and smallest without normalization, 1'
    """
    known = values.fillna(np.inf)
    shown = {
        norm: format_number(float(known.sel(norm=norm))) for norm in map(str, known["norm"].values)
    }
    if len(shown) < 2:
        return " ".join(f"{alone} {value} {with_norm(norm)}" for norm, value in shown.items())
    low, high = extremes(known)
    return f"{most} {with_norm(high)}, {shown[high]}, and {least} {with_norm(low)}, {shown[low]}"
