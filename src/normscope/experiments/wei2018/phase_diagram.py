"""Shared by Figures 2 and 3: diagrams for both losses, and their claims."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from scipy.stats import spearmanr

from normscope.report.diagrams import grid_boundary
from normscope.results import Claim, Store
from normscope.sweeps import Diagram
from normscope.sweeps.diagram import seed_list

NEAR = np.log10(2)  # "near" is within a factor of two


def both_losses(
    axes: Mapping[str, Sequence[Any]],
    settings: Mapping[str, Any],
    losses: Sequence[str],
    seeds: int,
    seed: int,
    store: Store,
    **running: Any,
) -> xr.Dataset:
    """The diagram for each loss, side by side.

    The paper does not say which loss it trained with: its theory is about the squared error.

    Args:
        axes: the values of the setting and of the learning rate.
        settings: of the trainings.
        losses: registered losses.
        seeds: repetitions.
        seed: the first.
        store: keeps the trainings.
        **running: workers, threads and progress.

    Returns:
        As `normscope.sweeps.phase_diagram`, with the dimension ``loss`` before the others.
    """
    found = []
    for loss in losses:
        plan = Diagram(axes, {**settings, "loss": loss}, seed_list(seeds, seed))
        plan.run(store, **running)
        found.append(plan.results(store))
    together = xr.concat(found, xr.Variable("loss", list(losses)), combine_attrs="drop_conflicts")
    words = found[0].attrs["settings"].replace(f'"loss": "{losses[0]}", ', "")
    return together.assign_attrs(settings=words)


def panels(results: xr.Dataset) -> Iterator[tuple[str, xr.Dataset]]:
    """Yield each loss with its diagram."""
    for loss in map(str, results["loss"].values):
        yield loss, results.sel(loss=loss)


def grid_step(panel: xr.Dataset) -> str:
    """The ratio of neighbouring learning rates in words: no boundary is known better.

    >>> grid_step(xr.Dataset(coords={"learning_rate": [1.0, 0.1, 0.01]}))
    'grid step 1.00 decades'
    """
    rates = np.sort(panel["learning_rate"].values)
    widest = float(np.diff(np.log10(rates)).max()) if len(rates) > 1 else np.nan
    return f"grid step {widest:.2f} decades"


def agreement(results: xr.Dataset, source: str) -> list[Claim]:
    """Distance between each closure's line and the measured boundary, for each loss."""
    claims = []
    for loss, panel in panels(results):
        measured = grid_boundary(panel)
        for closure in map(str, results["closure"].values):
            line = panel["critical_learning_rate"].sel(closure=closure)
            distance = np.abs(np.log10(line.values / measured.values))
            what = f"{closure} closure, {loss}"
            claims.append(_distance_claim(distance, what, grid_step(panel), source))
    return claims


def _distance_claim(distance: np.ndarray, what: str, step: str, source: str) -> Claim:
    known = distance[np.isfinite(distance)]
    text = f"the theory's line is within a factor of 2 of the measured boundary ({what})"
    if not len(known):
        return Claim(text, source, f"0 of {len(distance)} rows have both", None)
    median, worst = float(np.median(known)), float(known.max())
    measured = (
        f"median {median:.2f}, worst {worst:.2f} decades in {len(known)} of {len(distance)} rows, "
        f"{step}"
    )
    return Claim(text, source, measured, bool(worst <= NEAR))


def _mean_loss(panel: xr.Dataset) -> xr.DataArray:
    """Mean test loss over the seeds where every one of them ended well."""
    ended = panel["test_loss"].notnull().all("seed") & ~panel["diverged"].any("seed")
    return panel["test_loss"].mean("seed").where(ended).sortby([_row(panel), "learning_rate"])


def best_rates(panel: xr.Dataset) -> xr.DataArray:
    """The learning rate with the lowest mean test loss of each row, rows without one left out."""
    return _mean_loss(panel).dropna(_row(panel), how="all").idxmin("learning_rate")


def nearest_half(results: xr.Dataset, source: str) -> list[Claim]:
    """Whether the best learning rate sits near half the critical one, for the typical row."""
    claims = []
    for loss, panel in panels(results):
        best = best_rates(panel)
        half = panel["critical_learning_rate"].sel(closure="train") / 2
        ratio = np.log10((best / half.sel({_row(panel): best[_row(panel)]})).values)
        ratio = ratio[np.isfinite(ratio)]
        text = (
            "the best learning rate is within a factor of 2 of half the critical one, by the "
            f"median over the rows ({loss})"
        )
        if not len(ratio):
            claims.append(Claim(text, source, "0 rows have both", None))
            continue
        distance = np.abs(ratio)
        median, worst = float(np.median(distance)), float(distance.max())
        measured = (
            f"distance: median {median:.2f}, worst {worst:.2f} decades in {len(ratio)} rows; "
            f"best / half: median {10 ** float(np.median(ratio)):.2g}; {grid_step(panel)}"
        )
        claims.append(Claim(text, source, measured, bool(median <= NEAR)))
    return claims


def smaller_is(results: xr.Dataset, source: str, text: str) -> list[Claim]:
    """Whether the best test loss of a row grows with the row's setting, by rank correlation."""
    claims = []
    for loss, panel in panels(results):
        lowest = _mean_loss(panel).min("learning_rate").dropna(_row(panel))
        if lowest.size < 3:
            claims.append(Claim(f"{text} ({loss})", source, f"{lowest.size} rows", None))
            continue
        rank = float(spearmanr(lowest[_row(panel)].values, lowest.values).statistic)
        ends = f"{float(lowest[0]):.3g} at the smallest, {float(lowest[-1]):.3g} at the largest"
        measured = f"lowest test loss {ends}, rank correlation {rank:.2f}"
        claims.append(Claim(f"{text} ({loss})", source, measured, bool(rank > 0.5)))
    return claims


def falls(limits: xr.DataArray) -> bool:
    """Whether values fall from the first to the last and rise nowhere in between."""
    steps = np.diff(limits.values)
    return bool((steps <= 0).all() and limits.values[-1] < limits.values[0])


def _row(panel: xr.Dataset) -> str:
    """The name of the setting on the vertical axis."""
    return str(panel["critical_learning_rate"].transpose("closure", ...).dims[1])
