"""The tour's numbers as tables, beside the pictures they belong to."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import xarray as xr

from normscope.experiments.tour.diagram import diagram_part
from normscope.experiments.tour.findings import norms_of, over_steps, shift_cosine
from normscope.experiments.tour.findings_of_limits import late_loss
from normscope.experiments.tour.findings_of_theory import boundary_rows, statement_counts
from normscope.experiments.tour.words import factor
from normscope.plots.names import name_of, statement_name
from normscope.report import Table
from normscope.report.document import Value

__all__ = ["tables_of"]

_DIGITS = 3
_MISSING = "-: no finite number, as a training diverged or the mode has none."


def tables_of(part: str, results: xr.Dataset) -> list[Table]:
    """The tables of a part of the tour.

    Args:
        part: a name of ``STORIES``.
        results: of the tour.

    Returns:
        At most one table.
    """
    return [_TABLES[part](results)] if part in _TABLES else []


_RATES = {
    "limit": "limit",
    "stable": "still trains",
    "unstable": "breaks",
    "predicted": "limit by curvature",
    "theory": "estimate by theory",
    "curvature_bound": "stable at first",
    "recommended": "rate to take",
}


def _rates(results: xr.Dataset) -> Table:
    rows: list[list[Value]] = []
    for norm in norms_of(results):
        for seed in map(int, results["seed"].values):
            own = results.sel(norm=norm, seed=seed)
            rows.append([name_of(norm), seed, *(_number(own[name]) for name in _RATES)])
    note = (
        "The limit lies between the largest rate that still trains and the smallest that breaks; "
        "take half of it. Stable at first: the rate below which no direction is unstable at the "
        "first weights, by the curvature measured there; where a short run broke below that, at "
        "most half of the lowest rate that broke. The theory estimates what the curvature says, "
        "from the architecture alone. -: no rate that breaks was found, or theory has no estimate."
    )
    columns = ["normalization", "seed", *_RATES.values()]
    return Table("Learning rates by normalization and seed", columns, rows, note, _DIGITS)


def _training(results: xr.Dataset) -> Table:
    return _by_norm(
        "After training at half the own limit, and at the rate that all share",
        results,
        {
            "test accuracy": results["test_accuracy"],
            "training loss": late_loss(results),
            "training loss, shared rate": late_loss(results, "shared_"),
        },
    )


def _landscape(results: xr.Dataset) -> Table:
    return _by_norm(
        "Along the gradient, medians over the steps",
        results,
        {
            "loss varies by": over_steps(results["loss_high"] - results["loss_low"]),
            "gradient changes by": over_steps(results["gradient_distance_high"]),
            "effective smoothness": over_steps(results["effective_smoothness"]),
        },
    )


def _shift(results: xr.Dataset) -> Table:
    distance = results["shift_distance"].isel(layer=slice(1, None)).mean(("step", "layer"))
    columns = {"shift cosine": shift_cosine(results), "l2 difference": distance}
    caption = "Covariate shift, arithmetic means over the steps and all layers but the first"
    return _by_norm(caption, results, columns)


_MODES = {"train": "in training", "frozen": "statistics held fixed", "eval": "in eval mode"}


def _curvature(results: xr.Dataset) -> Table:
    columns = {
        words: results["lambda_max"].sel(mode=mode)
        for mode, words in _MODES.items()
        if mode in results["mode"].values
    }
    columns |= {
        "lowest of the Hessian": results["lowest"],
        "highest of the Hessian": results["highest"],
    }
    caption = "Largest eigenvalue of the Gauss-Newton matrix, and the ends of the Hessian's"
    return _by_norm(f"{caption}; first seed alone", results, columns, seeds=1)


def _checks(results: xr.Dataset) -> Table:
    rows: list[list[Value]] = [
        [statement_name(name), "as printed" if form == "printed" else form, held, of]
        for form, counts in statement_counts(results).items()
        for name, (held, of) in counts.items()
    ]
    return Table("Checks by statement and form", ["statement", "form", "hold", "of"], rows)


def _diagram(results: xr.Dataset) -> Table:
    known = boundary_rows(diagram_part(results))
    rows = [[*row, factor(row[1], row[2])] for row in known]
    columns = ["scale of BatchNorm", "training breaks at", "theory says", "factor between them"]
    return Table("Learning rates at which training breaks", columns, rows, digits=_DIGITS)


def _by_norm(
    caption: str,
    results: xr.Dataset,
    columns: Mapping[str, xr.DataArray],
    seeds: int | None = None,
) -> Table:
    """A row for each normalization, of medians over the seeds."""
    seeds = results.sizes["seed"] if seeds is None else seeds
    rows: list[list[Value]] = [
        [name_of(norm), *(_number(values.sel(norm=norm)) for values in columns.values())]
        for norm in norms_of(results)
    ]
    of_seeds = f"; medians over {seeds} seeds" if seeds > 1 else ""
    heads = ["normalization", *columns]
    missing = any(value is None for row in rows for value in row)
    note = _MISSING if missing else ""
    return Table(f"{caption}{of_seeds}", heads, rows, note, _DIGITS)


def _number(values: xr.DataArray) -> float | None:
    """The median; None if that is no finite number."""
    found = float(np.median(values.values))
    return found if np.isfinite(found) else None


_TABLES: dict[str, Callable[[xr.Dataset], Table]] = {
    "limits": _rates,
    "training": _training,
    "landscape": _landscape,
    "shift": _shift,
    "curvature": _curvature,
    "theorems": _checks,
    "diagram": _diagram,
}
