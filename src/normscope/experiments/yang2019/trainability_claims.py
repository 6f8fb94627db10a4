"""What is said of the depth that still trains, judged by final losses within a budget of steps."""

from __future__ import annotations

import math

import numpy as np
import xarray as xr

from normscope.results import Claim

__all__ = ["LEARNT", "NAMES", "stuck_depths", "trainability_claims"]

NAMES = ("batch", "batch, skip")
LEARNT = 0.5  # of the loss of guessing: a net that stays above has not trained
NOTHING = 0.95  # of the loss of guessing: a net that stays above has learnt nothing
ARTICLE = "yang2019, in the encyclopaedia article"


def trainability_claims(results: xr.Dataset) -> list[Claim]:
    """Where plain nets stop training, whether more steps help, and that skip connections do.

    Args:
        results: as the experiment yang2019/trainability returns it.

    Returns:
        The claims.
    """
    more = [_with_more_steps(results)] if results.attrs["longer"] > 1 else []
    return [_within_the_budget(results), *more, _skips(results)]


def stuck_depths(best_loss: xr.DataArray, guessing: float) -> list[int]:
    """Depths at which no seed comes below half the loss of guessing, at any learning rate.

    Args:
        best_loss: of one architecture, (depth, seed).
        guessing: the loss of guessing.

    Returns:
        The depths, from the least.
    """
    stuck = best_loss.min("seed") > LEARNT * guessing
    return [int(depth) for depth in stuck["depth"].values[stuck.values]]


def _within_the_budget(results: xr.Dataset) -> Claim:
    guessing, steps = math.log(results.attrs["classes"]), results.attrs["steps"]
    plain = results["best_loss"].sel(architecture="batch")
    depths, stuck = [int(depth) for depth in results["depth"].values], stuck_depths(plain, guessing)
    onwards = bool(stuck) and stuck == depths[-len(stuck) :]
    if onwards:
        at = f"no seed below it from depth {stuck[0]} on"
    elif stuck:
        at = f"no seed below it at depth {', '.join(str(depth) for depth in stuck)} alone"
    else:
        at = "at every depth tried a seed below it"
    return Claim(
        f"deep plain batch-normalized nets do not train within {steps} steps, at every learning "
        "rate tried",
        ARTICLE,
        f"half the loss of guessing is {LEARNT * guessing:.2f}; {at}; "
        + _by_depth(results, "batch"),
        onwards if len(depths) > 1 and _shallow_trains(results) else None,
    )


def _with_more_steps(results: xr.Dataset) -> Claim:
    guessing, times = math.log(results.attrs["classes"]), results.attrs["longer"]
    losses = results["longer_loss"]
    tried = [depth for depth in results["depth"].values if losses.sel(depth=depth).notnull().any()]
    texts = []
    for depth in tried:
        best = losses.sel(depth=depth).fillna(np.inf).min("learning_rate").values
        trains = "trains" if best.min() < LEARNT * guessing else "does not"
        slow = ", but learns" if trains != "trains" and best.max() < NOTHING * guessing else ""
        texts.append(f"depth {depth} {trains}{slow}: {_spread(best)}")
    deepest = losses.isel(depth=-1).fillna(np.inf)
    reached = bool(tried) and tried[-1] == results["depth"].values[-1] and _shallow_trains(results)
    return Claim(
        f"the deepest is untrainable, not merely slow: {times} times the steps leave it at the "
        f"loss of guessing ({guessing:.2f}, or less by at most 5 %)",
        ARTICLE,
        f"best loss after {times * results.attrs['steps']} steps, plain nets that had stopped: "
        + ("; ".join(texts) or "none was trained on"),
        bool(deepest.min() > NOTHING * guessing) if reached else None,
    )


def _skips(results: xr.Dataset) -> Claim:
    guessing = math.log(results.attrs["classes"])
    plain, skip = (results["best_loss"].sel(architecture=name) for name in NAMES)
    stuck = stuck_depths(plain, guessing)
    lifted = skip.sel(depth=stuck).values < LEARNT * guessing
    return Claim(
        "residual connections lift it: nets as deep as the plain ones that stopped train within "
        "the same steps",
        ARTICLE,
        _by_depth(results, "batch, skip"),
        bool(lifted.all()) if stuck and _shallow_trains(results) else None,
    )


def _shallow_trains(results: xr.Dataset) -> bool:
    """Whether the steps and learning rates are enough for a plain net of the least depth."""
    shallow = results["best_loss"].sel(architecture="batch").isel(depth=0)
    return bool((shallow < LEARNT * math.log(results.attrs["classes"])).all())


def _by_depth(results: xr.Dataset, architecture: str) -> str:
    """The best loss of each depth, and the learning rate with the least mean loss."""
    loss = results["loss"].sel(architecture=architecture).fillna(np.inf)
    best = results["best_loss"].sel(architecture=architecture)
    texts = []
    for depth in results["depth"].values:
        means = loss.sel(depth=depth).mean("seed")
        rate = float(means["learning_rate"].values[means.values.argmin()])
        texts.append(f"{depth}: {_spread(best.sel(depth=depth).values)} at rate {rate:g}")
    return f"best loss by depth, {best.sizes['seed']} seeds: {', '.join(texts)}"


def _spread(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> str:
    return f"{values.mean():.3g} ({values.min():.3g} to {values.max():.3g})"
