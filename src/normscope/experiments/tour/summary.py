"""Summary of the tour: one row for each normalization."""

from __future__ import annotations

import math
import textwrap

import numpy as np
import xarray as xr

from normscope.experiments.tour.findings import (
    about_curvature,
    about_depth,
    about_diagram,
    about_landscape,
    about_limits,
    about_shift,
    about_theorems,
    about_training,
    late_loss,
    norms_of,
    over_steps,
    shift_cosine,
)
from normscope.plots.names import name_of

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


# heads of the table by the name of the value, in words that fit a terminal; on page and terminal
HEADS = {
    "normalization": "normalization",
    "limit": "limit",
    "predicted": "limit by curvature",
    "theory": "estimate by theory",
    "accuracy": "test accuracy",
    "loss varies by": "loss varies by",
    "smoothness": "effective smoothness",
    "shift cosine": "shift cosine",
    "λ max": "largest eigenvalue",
    "growth": "growth per layer",
}
LEGEND = (
    "Recommended = limit / 2; accuracy measured there. Loss and smoothness: along the gradient, at "
    "one rate. Shift cosine: 1 means no shift. Last two: before training; eigenvalue of the first "
    "seed. -: no number, since theory has none or a training diverged."
)
SAME_AGAIN = (
    "The same command on the same machine, with the same number of threads, gives these numbers "
    "again bit for bit. On other machines rounding differs, and training near the limit is "
    "chaotic: limits may differ by about 15 %, and borderline verdicts may flip."
)
_DIGITS = 3
_HEAD_WIDTH = 8  # of a terminal, for words that are not longer


def summary_rows(results: xr.Dataset) -> list[dict[str, object]]:
    """One row for each normalization, medians over the seeds.

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
        | {name: _middle(values.sel(norm=norm)) for name, values in columns.items()}
        for norm in norms_of(results)
    ]


def summary_table(results: xr.Dataset) -> list[dict[str, object]]:
    """The same for a reader: the values that matter, of few digits, under the heads in words.

    Args:
        results: of the tour.

    Returns:
        One row for each normalization, the heads broken into lines that fit a terminal of 120
        columns; what they mean is `LEGEND`.
    """
    heads = {
        name: "\n".join(textwrap.wrap(head, _HEAD_WIDTH, break_long_words=False))
        for name, head in HEADS.items()
    }
    return [
        {head: _rounded(row[name]) for name, head in heads.items()} for row in summary_rows(results)
    ]


def _rounded(value: object) -> object:
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


def _middle(values: xr.DataArray) -> float | None:
    """The median over the seeds, if they all have a number."""
    found = float(np.median(values.values))
    return found if math.isfinite(found) else None
