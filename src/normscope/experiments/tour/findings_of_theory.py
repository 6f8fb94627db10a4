"""What the tour found where theory makes a statement: depth, theorems, phase diagram."""

from __future__ import annotations

import numpy as np
import xarray as xr

from normscope.experiments.tour.diagram import diagram_part
from normscope.experiments.tour.findings import norms_of
from normscope.experiments.tour.words import contrast, enumerated, factor, number, typical
from normscope.experiments.wei2018.phase_diagram import grid_boundary
from normscope.plots.names import statement_name

__all__ = [
    "about_depth",
    "about_diagram",
    "about_theorems",
    "boundary_rows",
    "statement_counts",
]


def about_depth(results: xr.Dataset) -> list[str]:
    """How gradients grow backwards through depth."""
    layers = results.sizes["depth_layer"]
    norms, growth = norms_of(results), results["growth"]
    shown = contrast(growth, "is largest", "smallest", 3)
    sentences = [
        f"Backwards through {layers} layers, before training, the growth of the squared gradient "
        f"per layer {shown}.",
    ]
    if "batch" in norms:
        skips = typical(results["growth_with_skips"], 3)
        expected = number(float(results["expected_growth"]), 3)
        sentences.append(
            f"Theory expects {expected} of a wide net with BatchNorm at this batch size. With skip "
            f"connections around each BatchNorm the measured factor is {skips}."
        )
    return sentences


def statement_counts(results: xr.Dataset) -> dict[str, dict[str, tuple[int, int]]]:
    """How many of the verdicts on each statement hold, by form.

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
    """Which statements hold on the net's own layers."""
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
        fails = f"; not so {enumerated(failing)}" if failing else ""
        where = f" on the {layers} BatchNorm layers of this run's net" if not sentences else ""
        sentences.append(
            f"Of {of} checks{where} the theorems {how} hold in {'all' if held == of else held}"
            f"{fails}."
        )
    return [" ".join(sentences)] if sentences else []


_HOW = {"exact": "in their exact form", "printed": "as printed, at a vanishing eps,"}


def _miss(results: xr.Dataset, form: str, statement: str) -> str:
    """The largest difference of the sides among the failures, relative to their terms."""
    own = (results["form"].values == form) & (results["statement"].values == statement)
    failed = own & (results["refuted"].values == 1)
    return f"{np.abs(results['slack'].values[failed]).max():.1g} of its terms"


def about_diagram(results: xr.Dataset) -> list[str]:
    """How near the theory's line is to where training breaks."""
    part = diagram_part(results)
    both = boundary_rows(part)
    runs = f"{part['test_loss'].size} short trainings over the scale of BatchNorm and the learning"
    if not both:
        return [f"{runs} rate: no row holds both a stable and a broken one to hold theory against."]
    offs = [factor(theory, found) for _, found, theory in both]
    within = sum(off <= 2 for off in offs)
    return [
        f"{runs} rate: the theory's critical rate is within a factor of 2 of the measured one at "
        f"{within} of {len(both)} scales, at worst a factor of {max(offs):.1f} away (neighbouring "
        f"rates of the grid are a factor of {_grid_step(part):.1f} apart)."
    ]


def boundary_rows(part: xr.Dataset) -> list[tuple[float, float, float]]:
    """Where training breaks and where theory says so, for each scale at which both are known.

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
