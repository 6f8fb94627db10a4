"""Shared by Figures 2 and 3: diagrams, boundaries, and their claims."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import xarray as xr
from scipy.stats import spearmanr

from normscope.progress import ProgressCallback
from normscope.report.diagrams import grid_bracket
from normscope.results import Claim, Store
from normscope.sweeps import Diagram, boundary
from normscope.sweeps.diagram import seed_list

NEAR = np.log10(2)  # "near" is within a factor of two
_RANK = 0.5  # least rank correlation that counts as a tendency
AGREES = (
    "The theoretically predicted upper bound closely agrees with the experimentally determined "
    "phase boundary (Section 4)."
)
HALF = "Dark strips in the heat maps, the optimal learning rates, are around eta*/2 (Section 4)."
LOWER = (
    "There is a tendency for smaller initial gammas to produce lower values of the test loss after "
    "a fixed number of epochs (Section 4)."
)
RULE = (
    "distance of the line from the boundary, which is known to lie in a bracket: reproduced if at "
    "most a factor of 2 in every row wherever the boundary is in its bracket, partly if in the "
    "median row only, not reproduced if the median row is further wherever it is, else undecided"
)
HALF_RULE = (
    "median over rows of the distance between the best rate of the grid and half the critical one, "
    "known to half a step: reproduced if at most a factor of 2 with it, not if above without it"
)
RANK_RULE = (
    "rank correlation above 0.5 with a 95 % interval (Fisher) above 0; not reproduced if the "
    "interval is below 0.5"
)
FINER = "boundaries by bisection to 5 % (scale medium)"


#: Settings of both figures with their defaults: the paper's but for samples, epochs and seeds.
DEFAULTS: dict[str, Any] = {
    "data": "mnist",
    "losses": ("squared_error", "cross_entropy"),
    "epochs": 1.0,
    "samples": 12800,
    "test_samples": 2000,
    "batch_size": 128,
    "momentum": 0.9,
    "seeds": 2,
    "boundary_seeds": 3,
    "tolerance": 0.05,
    "workers": 2,
    "threads": 1,
    "seed": 0,
}
EVERYTHING: dict[str, Any] = {"epochs": 5.0, "samples": None, "test_samples": None}  # as the paper
#: A coarse heat map, and the boundary by bisection, with the loss that the theory is about.
BISECTED: dict[str, Any] = {**EVERYTHING, "losses": ("squared_error",), "seeds": 1}


def geometric(first: float, last: float, count: int) -> tuple[float, ...]:
    """Return learning rates with equal ratios."""
    return tuple(np.geomspace(first, last, count).tolist())


def diagrams(
    setting: str,
    values: Sequence[float],
    searched: Sequence[float],
    *,
    learning_rates: Sequence[float],
    losses: Sequence[str],
    seeds: int,
    boundary_seeds: int,
    tolerance: float,
    seed: int,
    store: Store,
    workers: int,
    threads: int,
    progress: ProgressCallback,
    **settings: Any,
) -> xr.Dataset:
    """Return the diagram of each loss over a setting, and boundaries by bisection.

    From a read-only store nothing is trained: the attribute ``missing`` counts what it lacks.

    The paper does not say which loss it trained with: its theory is about the squared error.

    Args:
        setting: on the vertical axis, such as gamma.
        values: of it.
        searched: its values at which the boundary is searched by bisection; none: it is the grid's.
        learning_rates: of SGD.
        losses: to train with.
        seeds: trainings of each cell.
        boundary_seeds: searches at each value.
        tolerance: relative width of a bracket at which a search ends.
        seed: first seed; the others follow it.
        store: keeps each training.
        workers: trainings at the same time.
        threads: of each worker.
        progress: receives an event as trainings end.
        **settings: of the trainings, as for `normscope.sweeps.phase_diagram`; None is left out.

    Returns:
        ``test_loss``, ``train_loss``, ``diverged`` and others (loss, setting, learning_rate, seed),
        ``critical_learning_rate`` (loss, closure, setting); of a search ``boundary_low`` and
        ``boundary_high`` (loss, boundary_SETTING, boundary_seed), and ``boundary_theory`` (loss,
        closure, boundary_SETTING).
    """
    axes = {setting: list(values), "learning_rate": list(learning_rates)}
    settings = {name: value for name, value in settings.items() if value is not None}
    running: dict[str, Any] = {"workers": workers, "threads": threads, "progress": progress}
    search: dict[str, Any] = {
        "setting": setting,
        "seeds": seed_list(boundary_seeds, seed),
        "tolerance": tolerance,
    }
    found, brackets = [], []
    for loss in losses:
        own = {**settings, "loss": loss}
        plan = Diagram(axes, own, seed_list(seeds, seed))
        if not store.read_only:
            plan.run(store, **running)
        found.append(plan.results(store))
        if searched:
            brackets.append(boundary(searched, store=store, **search, **running, **own))
    of_losses = xr.Variable("loss", list(losses))
    words = found[0].attrs["settings"].replace(f'"loss": "{losses[0]}", ', "")
    together = xr.concat(found, of_losses, combine_attrs="drop_conflicts")
    lacking = int((together["test_loss"].isnull() & ~together["diverged"]).sum())
    together = together.assign_attrs(settings=words)
    if store.read_only and lacking:
        missing = f"{lacking} of {together['test_loss'].size} trainings of the grid"
        together = together.assign_attrs(missing=missing)
    if not searched:
        return together
    names = ("low", "high", "theory", setting, "seed")
    ends = xr.concat(brackets, of_losses, combine_attrs="drop")[["low", "high", "theory"]]
    return together.merge(ends.rename({name: f"boundary_{name}" for name in names}))


def panels(results: xr.Dataset) -> Iterator[tuple[str, xr.Dataset]]:
    """Yield each loss with its diagram."""
    for loss in map(str, results["loss"].values):
        yield loss, results.sel(loss=loss)


def resolution(panel: xr.Dataset) -> str:
    """Describe the resolution of the measured boundaries.

    >>> resolution(xr.Dataset(coords={"learning_rate": [1.0, 0.1, 0.01]}))
    'grid step 1.00 decades'
    """
    if "boundary_low" in panel:
        width = float(np.log10(panel["boundary_high"] / panel["boundary_low"]).max())
        return f"bisected, brackets of at most {width:.3f} decades"
    return f"grid step {_grid_step(panel):.2f} decades"


def _grid_step(panel: xr.Dataset) -> float:
    rates = np.sort(panel["learning_rate"].values)
    return float(np.diff(np.log10(rates)).max()) if len(rates) > 1 else np.nan


def brackets(panel: xr.Dataset) -> tuple[xr.Dataset, xr.DataArray]:
    """Return the brackets of the boundary and the theory's lines at the same rows.

    Bisected boundaries where they were searched, else those of the grid. A row is unstable if one
    of its seeds is, as in the paper.

    Args:
        panel: the diagram of one loss.

    Returns:
        ``low`` and ``high`` by row; the lines by closure and row.
    """
    if "boundary_low" not in panel:
        return grid_bracket(panel), panel["critical_learning_rate"]
    searched = {"low": "boundary_low", "high": "boundary_high"}
    found = {name: panel[variable].min("boundary_seed") for name, variable in searched.items()}
    return xr.Dataset(found), panel["boundary_theory"]


def agreement(results: xr.Dataset, source: str, statement: str = AGREES) -> list[Claim]:
    """Judge the distance between each closure's line and the measured boundary, for each loss.

    Other closures than the printed one and other losses are beyond the paper.
    """
    claims = []
    for loss, panel in panels(results):
        bracket, lines = brackets(panel)
        for closure in map(str, lines["closure"].values):
            line = lines.sel(closure=closure).values
            low, high = (np.log10(line / bracket[name].values) for name in ("low", "high"))
            claim = _distance_claim(
                low, high, f"{closure} closure, {loss}", resolution(panel), source
            )
            numbers = {**_ends(panel, bracket), "theory": line.tolist()}
            origin = _origin(closure, loss)
            claims.append(replace(claim, statement=statement, origin=origin, numbers=numbers))
    return claims


def _origin(closure: str, loss: str) -> str:
    """The paper's line is that of the printed closure, and its theory about the squared error."""
    is_papers = closure == "printed" and loss == "squared_error"
    return "paper" if is_papers else "beyond the paper"


def _ends(panel: xr.Dataset, bracket: xr.Dataset) -> dict[str, list[float]]:
    """Return rows and brackets by name, each seed's where the boundary was searched."""
    (row,) = bracket.dims
    found = {str(row).removeprefix("boundary_"): bracket[row].values.tolist()}
    if "boundary_low" not in panel:
        return found | {f"{name} end": bracket[name].values.tolist() for name in ("low", "high")}
    return found | {
        f"{name} end, seed {seed}": panel[f"boundary_{name}"]
        .sel(boundary_seed=seed)
        .values.tolist()
        for seed in panel["boundary_seed"].values.tolist()
        for name in ("low", "high")
    }


def _distance_claim(
    above_low: np.ndarray, above_high: np.ndarray, what: str, step: str, source: str
) -> Claim:
    """Judge distances by what the brackets leave open; arguments in decades above either end."""
    text = f"the theory's line is within a factor of 2 of the measured boundary ({what})"
    known = np.isfinite(above_low) & np.isfinite(above_high)
    total, (low, high) = len(known), (above_low[known], above_high[known])
    if not len(low):
        measured = f"0 of {total} rows have both"
        return Claim(text, source, measured, None, rule=RULE, resolve="rows with a boundary")
    middle = np.abs(low + high) / 2
    inside = (low >= 0) & (high <= 0)
    nearest = np.where(inside, 0.0, np.minimum(np.abs(low), np.abs(high)))
    farthest = np.maximum(np.abs(low), np.abs(high))
    holds, partly = _factor_of_two(nearest, farthest)
    return Claim(
        text,
        source,
        f"median {np.median(middle):.2f}, worst {middle.max():.2f} decades in {len(low)} of "
        f"{total} rows, {step}",
        holds,
        rule=RULE,
        resolve="" if holds is not None or partly else FINER,
        partly=partly,
    )


def _factor_of_two(nearest: np.ndarray, farthest: np.ndarray) -> tuple[bool | None, bool]:
    """Return the verdict and whether it holds in part, from the ranges of the distances.

    >>> _factor_of_two(np.array([0.0, 0.1]), np.array([0.2, 0.3]))
    (True, False)
    >>> _factor_of_two(np.array([0.0, 0.1, 0.4]), np.array([0.2, 0.2, 0.5]))
    (None, True)
    """
    if (farthest <= NEAR).all():
        return True, False
    if np.median(nearest) > NEAR:
        return False, False
    return None, bool((nearest > NEAR).any() and np.median(farthest) <= NEAR)


def _mean_loss(panel: xr.Dataset) -> xr.DataArray:
    """Return the mean test loss over the seeds; NaN where one diverged or failed."""
    ended = panel["test_loss"].notnull().all("seed") & ~panel["diverged"].any("seed")
    return panel["test_loss"].mean("seed").where(ended).sortby([_row(panel), "learning_rate"])


def best_rates(panel: xr.Dataset) -> xr.DataArray:
    """The learning rate with the lowest mean test loss of each row, rows without one left out."""
    return _mean_loss(panel).dropna(_row(panel), how="all").idxmin("learning_rate")


def nearest_half(results: xr.Dataset, source: str) -> list[Claim]:
    """Whether the best learning rate is near half the critical one, for the typical row.

    The paper's critical rate is the printed closure's; that of the train closure is corrected.
    """
    claims = []
    for loss, panel in panels(results):
        best = best_rates(panel)
        for closure in ("printed", "train"):
            if closure not in panel["closure"]:
                continue
            half = panel["critical_learning_rate"].sel(closure=closure) / 2
            half = half.sel({_row(panel): best[_row(panel)]})
            ratio = np.log10((best / half).values)
            text = (
                "the best learning rate is within a factor of 2 of half the critical one, by the "
                f"median over the rows ({closure} closure, {loss})"
            )
            claim = _half_claim(text, source, ratio[np.isfinite(ratio)], _grid_step(panel))
            lines = {_row(panel): best[_row(panel)], "best rate": best, "half the critical": half}
            numbers = {name: each.values.tolist() for name, each in lines.items()}
            origin = _origin(closure, loss)
            claims.append(replace(claim, statement=HALF, origin=origin, numbers=numbers))
    return claims


def _half_claim(text: str, source: str, ratio: np.ndarray, step: float) -> Claim:
    """Judge the distances of the best rates, each known to half a step of the grid."""
    if not len(ratio):
        return Claim(text, source, "0 rows have both", None, rule=HALF_RULE, resolve="such rows")
    distance = np.abs(ratio)
    median, worst = float(np.median(distance)), float(distance.max())
    reach = 0.0 if np.isnan(step) else step / 2
    decided = True if median + reach <= NEAR else False if median - reach > NEAR else None
    measured = (
        f"distance: median {median:.2f}, worst {worst:.2f} decades in {len(ratio)} rows; "
        f"best / half: median {10 ** float(np.median(ratio)):.2g}; grid step {step:.2f} decades"
    )
    remedy = "" if decided is not None else "a finer grid of learning rates"
    return Claim(text, source, measured, decided, rule=HALF_RULE, resolve=remedy)


def smaller_is(results: xr.Dataset, source: str, text: str) -> list[Claim]:
    """Whether the best test loss of a row grows with the row's setting, by rank correlation."""
    claims = []
    for loss, panel in panels(results):
        lowest = _mean_loss(panel).min("learning_rate").dropna(_row(panel))
        if lowest.size < 3:
            rows = f"{lowest.size} rows"
            claim = Claim(f"{text} ({loss})", source, rows, None, LOWER, RANK_RULE)
            claims.append(replace(claim, resolve="three rows or more"))
            continue
        rank = float(spearmanr(lowest[_row(panel)].values, lowest.values).statistic)
        ends = f"{float(lowest[0]):.3g} at the smallest, {float(lowest[-1]):.3g} at the largest"
        measured = f"lowest test loss {ends}, rank correlation {rank:.2f}"
        claim = rank_claim(f"{text} ({loss})", source, measured, rank, lowest.size, LOWER)
        lines = {_row(panel): lowest[_row(panel)], "lowest test loss": lowest}
        numbers = {name: each.values.tolist() for name, each in lines.items()}
        claims.append(replace(claim, numbers=numbers))
    return claims


def rank_claim(
    text: str, source: str, measured: str, rank: float, count: int, statement: str
) -> Claim:
    """Return the claim that a rank correlation is positive and above 0.5.

    Args:
        text: the statement as judged.
        source: of it.
        measured: the numbers, without the interval.
        rank: the correlation.
        count: of points that were ranked.
        statement: of the paper.

    Returns:
        The claim: reproduced if the 95 % interval (Fisher's) is above 0 and the rank above 0.5, not
        reproduced if the interval is below 0.5, else undecided.
    """
    low, high = rank_interval(rank, count)
    decided = True if low > 0 and rank > _RANK else False if high < _RANK else None
    return Claim(
        text,
        source,
        f"{measured} ({low:.2f} to {high:.2f})",
        decided,
        statement=statement,
        rule=RANK_RULE,
        resolve="" if decided is not None else "more rows or seeds",
    )


def rank_interval(rank: float, count: int) -> tuple[float, float]:
    """Return the 95 % interval of a rank correlation by Fisher's transformation.

    >>> print(*(f"{end:.2f}" for end in rank_interval(0.9, 8)))
    0.51 0.98
    """
    if count <= 3 or np.isnan(rank):
        return -1.0, 1.0
    if abs(rank) >= 1:
        return float(np.sign(rank)), float(np.sign(rank))
    reach = 1.96 * 1.03 / np.sqrt(count - 3)
    middle = np.arctanh(rank)
    return float(np.tanh(middle - reach)), float(np.tanh(middle + reach))


def _row(panel: xr.Dataset) -> str:
    """Return the name of the setting on the vertical axis."""
    return str(panel["critical_learning_rate"].transpose("closure", ...).dims[1])
