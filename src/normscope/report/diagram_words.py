"""Phase diagrams: trainings on their grid, drawn and told in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from normscope.report.boundary_words import boundary_words
from normscope.report.diagram import RATE
from normscope.report.divergence_words import divergence_words, factor_of
from normscope.report.document import Picture
from normscope.report.pictures import picture_of
from normscope.report.words import counted, listed

__all__ = [
    "diagram_findings",
    "diagram_picture",
    "diagram_words",
    "has_results",
    "shown_diagrams",
    "theory_words",
]

_CLOSURES = {
    "train": "train follows the batch's statistics, as training does",
    "frozen": "frozen holds them fixed",
    "printed": "printed is the paper's formula",
}


def has_results(dataset: xr.Dataset) -> bool:
    """Whether any cell of a diagram was computed."""
    return bool(_done(dataset).any())


def diagram_words(dataset: xr.Dataset) -> str:
    """What the diagram shows.

    Args:
        dataset: ``test_loss`` and ``diverged`` over a setting, the learning rate and the seed;
            not-a-number where there is no result.
    """
    axis = _axis(dataset)
    done, diverged = _done(dataset), (dataset["diverged"] == 1).any("seed")
    missing = int((~done.any("seed")).sum())
    cells = f"Of {counted(diverged.size, 'cell')}"
    over = f" over {_range(dataset, axis)} and {_range(dataset, RATE)}"
    holes = [f"{missing} {'has' if missing == 1 else 'have'} no result yet"] if missing else []
    if missing == diverged.size:
        return f"{cells}{over}, {holes[0]}."
    limit = "" if bool((done.any("seed") == done.all("seed")).all()) else "up to "
    seeds = dataset.sizes["seed"]
    told = f"{int(diverged.sum())} diverged{' in at least one seed' if seeds > 1 else ''}"
    words = f"{cells} x {limit}{counted(seeds, 'seed')}{over}, {listed([*holes, told])}"
    loss = dataset["test_loss"].mean("seed").where(~diverged)
    if not bool(loss.notnull().any()):
        return f"{words}."
    best = loss.stack(cell=(axis, RATE))
    best = best.isel(cell=int(best.argmin("cell")))
    place = f"{axis} {float(best[axis]):.3g} and learning rate {float(best[RATE]):.3g}"
    return f"{words}; the lowest mean test loss, {float(best):.3g}, is at {place}."


def diagram_findings(dataset: xr.Dataset) -> str:
    """What the diagram shows, and from which learning rate on training diverges.

    Args:
        dataset: one diagram, with the theory's lines if there are any.
    """
    if not has_results(dataset):
        return diagram_words(dataset)
    return f"{diagram_words(dataset)} {boundary_words(dataset)}"


def diagram_picture(dataset: xr.Dataset, name: str = "") -> Picture:
    """The heat map.

    Args:
        dataset: one diagram.
        name: what tells it from others, for the caption.
    """
    from normscope.plots.phase_diagram import phase_diagram

    # the settings stand below it on the page
    figure: Any = phase_diagram(dataset, with_settings=False).figure
    caption = (
        f"Mean test loss{f', {name}' if name else ''}: the page's own colour where a run "
        "diverged, grey where nothing is known."
    )
    if "critical_learning_rate" in dataset:
        caption = f"{caption} {theory_words(dataset)}".rstrip()
    return picture_of(figure, f"Heat map. {diagram_words(dataset)}", caption)


def theory_words(dataset: xr.Dataset) -> str:
    """What the theory's lines of a diagram are; "" where none is drawn.

    Args:
        dataset: with ``critical_learning_rate`` over the closures.
    """
    lines = dataset["critical_learning_rate"].dropna("closure", how="all")  # the drawn ones
    if not lines.size:
        return ""
    closures = map(str, lines["closure"].values)
    known = [_CLOSURES[each] for each in closures if each in _CLOSURES]
    told = f": {'; '.join(known)}" if known else ""
    return f"Red: the theory's critical learning rate{told}. Thin: half of it."


def shown_diagrams(
    diagrams: Mapping[str, xr.Dataset], most: int = 6
) -> tuple[list[str], list[Picture]]:
    """Several diagrams, told and drawn; those without any result are only told.

    Args:
        diagrams: by what tells each from the others.
        most: diagrams that are shown.
    """
    chosen = list(diagrams.items())[:most]
    words = [f"{f'{name}: ' if name else ''}{diagram_findings(each)}" for name, each in chosen]
    factor = factor_of(each for _, each in chosen)
    words += [] if factor is None else [divergence_words(factor)]
    further = len(diagrams) - len(chosen)
    words += [f"{counted(further, 'further diagram')} not drawn here."] if further else []
    return words, [diagram_picture(each, name) for name, each in chosen if has_results(each)]


def _done(dataset: xr.Dataset) -> xr.DataArray:
    """Which trainings have a result: a test loss, or a divergence."""
    return dataset["test_loss"].notnull() | (dataset["diverged"] == 1)


def _axis(dataset: xr.Dataset) -> str:
    return next(str(d) for d in dataset["test_loss"].dims if d not in (RATE, "seed"))


def _range(dataset: xr.Dataset, name: str) -> str:
    values = np.asarray(dataset[name].values)
    return f"{name.replace('_', ' ')} {values.min():.3g} to {values.max():.3g}"
