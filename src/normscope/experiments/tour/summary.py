"""The tour in one row for each normalization."""

from __future__ import annotations

import math

import numpy as np
import xarray as xr

from normscope.experiments.tour.findings import (
    about_curvature,
    about_landscape,
    about_shift,
    norms_of,
    over_steps,
    shift_cosine,
)
from normscope.experiments.tour.findings_of_limits import about_limits, about_training, late_loss
from normscope.experiments.tour.findings_of_theory import (
    about_depth,
    about_diagram,
    about_theorems,
)
from normscope.plots.names import name_of

__all__ = ["STORIES", "findings", "summary_rows"]

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


def findings(results: xr.Dataset) -> list[str]:
    """What was found: the first sentence of every part.

    Args:
        results: of the tour.

    Returns:
        Sentences with their numbers.
    """
    return [sentences[0] for tell in STORIES.values() if (sentences := tell(results))]


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
        "by curvature": results["by_curvature"],
        "by theory": results["by_theory"],
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


def _middle(values: xr.DataArray) -> float | None:
    """The median over the seeds, if they all have a number."""
    found = float(np.median(values.values))
    return found if math.isfinite(found) else None
