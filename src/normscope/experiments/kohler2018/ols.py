"""Least squares: the rate of the normalized parametrization compared with four other methods."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from normscope.decoupled import LeastSquaresPath, ordinary_least_squares
from normscope.experiments.kohler2018.problems import EVERY_PROBLEM, largest_by_seed, moments
from normscope.experiments.recipe import experiment, side_by_side
from normscope.plots.convergence import least_squares_figure
from normscope.progress import Progress, ProgressCallback
from normscope.results import Claim, Store
from normscope.results.claim import mark_beyond

METHODS = ("gd", "bn_gd", "gdnp", "agd", "cg")
FACTORS = (0.1, 1.0, 1.9, 3.0, 10.0, 100.0)  # of the rate 1/(2L), at which gradient descent is safe
LARGEST = 100.0  # eigenvalue of S: all the rates tried stand the curvature 2 of gamma itself
ARTICLE = "article on batch normalization (kohler2018), linear convergence of least squares"
LINEAR = (
    "Batch normalization of the ordinary least squares problem achieves a linear convergence rate "
    "in gradient descent."
)
SUBLINEAR = "Regular gradient descent on it has only sub-linear convergence."


def ols_claims(results: xr.Dataset) -> list[Claim]:
    """The article's statements on least squares, the false one among them.

    Args:
        results: as :func:`ols` returns it.

    Returns:
        The claims.
    """
    claims = [
        _bound(results),
        _slope(results),
        _sublinear(results),
        _plain(results),
        _rates(results),
    ]
    return mark_beyond(claims, ("errata",))


def _bound(results: xr.Dataset) -> Claim:
    shares = results["gap"].sel(optimizer="gdnp") / results["bound"]
    worst = float(shares.max())
    return Claim(
        "GDNP: rho(w_t) - rho* <= (1 - mu/L)^(2t) (rho(w_0) - rho*) at every step",
        ARTICLE,
        f"largest gap / bound {worst:.12g} over {results.sizes['step']} steps, "
        f"{results.sizes['condition']} conditions up to {float(results['condition'].max()):.3g} "
        f"and {results.sizes['seed']} seeds",
        worst <= 1 + 1e-9,
        statement=LINEAR,
        rule=f"gap / bound at most 1 + 1e-9 at every step of every problem; {EVERY_PROBLEM}",
        numbers=largest_by_seed(shares),
    )


def _slope(results: xr.Dataset) -> Claim:
    """Compare slopes of the logarithm; both are negative, and the gap's must not be flatter."""
    rate = results["rate"].sel(optimizer="gdnp")
    ratio = rate.copy(data=np.log(rate.values)) / (2 * np.log1p(-1 / results["condition"]))
    pairs = zip(results["condition"].values, ratio.mean("seed").values, strict=True)
    text = ", ".join(f"{condition:.3g}: {slope:.3g}" for condition, slope in pairs)
    return Claim(
        "GDNP converges linearly: log gap falls at least as steeply as 2 log(1 - mu/L)",
        ARTICLE,
        f"slope over the bound's, by condition: {text}",
        bool((ratio >= 1 - 1e-3).all()),
        statement=LINEAR,
        rule="slope of the logarithm of the gap over that of the bound, at least 0.999 in every "
        f"problem; {EVERY_PROBLEM}",
        numbers=largest_by_seed(1 / ratio),
    )


def _sublinear(results: xr.Dataset) -> Claim:
    rate = results["rate"].sel(optimizer="gd")
    worst = float(rate.max())
    return Claim(
        "plain gradient descent converges only sub-linearly",
        ARTICLE,
        f"its gap falls by a constant factor per step too: {float(rate.min()):.6g} to {worst:.8g}, "
        "(1 - mu/L)^2 or less",
        not bool((rate < (1 - 1 / results["condition"]) ** 2 * (1 + 1e-3)).all()),
        statement=SUBLINEAR,
        rule="factor of the gap per step above (1 - mu/L)^2 by more than 0.1 % in a problem; not "
        "reproduced if in none",
        numbers=largest_by_seed(rate / (1 - 1 / results["condition"]) ** 2),
    )


def _plain(results: xr.Dataset) -> Claim:
    excess = results["excess"].sel(optimizer="gd")
    factor = (1 - 1 / results["condition"]) ** (2 * results["step"])
    worst = float((excess / (factor * excess.isel(step=0))).max())
    return Claim(
        "plain gradient descent at 1/(2L) has the same factor for the objective (what is true "
        "in place of the above)",
        "standard; errata of kohler2018",
        f"largest excess / bound {worst:.12g}",
        worst <= 1 + 1e-9,
    )


def _rates(results: xr.Dataset) -> Claim:
    falling = (results["fall"] < 1).all(("condition", "seed"))
    fastest = {
        method: float(results["factor"].values[falling.sel(tried=method).values].max())
        for method in ("gd", "bn_gd")
    }
    return Claim(
        "what normalization changes is the range of learning rates: gradient descent on (w, gamma) "
        "stands rates at which plain gradient descent diverges (while gamma itself stands them)",
        "kohler2018; errata",
        f"over the run the objective falls, in every problem, up to {fastest['gd']:g} times "
        f"1/(2L) without and {fastest['bn_gd']:g} times with normalization (tried up to "
        f"{float(results['factor'].max()):g})",
        fastest["gd"] < 2 < fastest["bn_gd"],
    )


@experiment(
    "kohler2018/ols",
    claims=ols_claims,
    figure=least_squares_figure,
    scales={
        "quick": {"dimensions": 10, "steps": 200},
        "small": {},
        "medium": {"seeds": 10},
        "paper": {"seeds": 10},
    },
)
def ols(
    *,
    conditions: Sequence[float] = (10.0, 1e3, 1e6),
    dimensions: int = 50,
    steps: int = 500,
    seeds: int = 3,
    seed: int = 0,
    store: Store,
    progress: ProgressCallback,
) -> xr.Dataset:
    """Gaps of five methods on least squares, with the bound of the normalized one.

    Reference: kohler2018, after the encyclopaedia article on batch normalization.

    Args:
        conditions: of S, whose eigenvalues lie evenly on a logarithmic axis.
        dimensions: of the weights.
        steps: of each method.
        seeds: problems of each condition.
        seed: first seed; the others follow it.
        store: not needed: a run is too short to be resumed.
        progress: receives an event before each condition.

    Returns:
        ``gap`` and ``excess`` (condition, seed, optimizer, step); ``bound`` (condition, seed,
        step); ``rate`` (condition, seed, optimizer); ``fall`` of the excess over the run, by
        learning rate (condition, seed, tried, factor).
    """
    del store
    found = {}
    for condition in conditions:
        progress(Progress(f"condition {condition:g}"))
        own = {
            each: _problem(condition, each, dimensions, steps) for each in range(seed, seed + seeds)
        }
        found[condition] = side_by_side("seed", own)
    return side_by_side("condition", found)


def _problem(condition: float, seed: int, dimensions: int, steps: int) -> xr.Dataset:
    """Run all methods on one problem."""
    random = np.random.default_rng(seed)
    given = moments(dimensions, condition, 0.5, random)
    problem = {"S": given.second * (LARGEST / condition), "u": given.mean}
    start = random.standard_normal(dimensions)
    # at the best length for its direction, where both parametrizations take the same first step
    start *= -(problem["u"] @ start) / (start @ problem["S"] @ start)

    def path(method: str, rate: float | None = None) -> LeastSquaresPath:
        return ordinary_least_squares(
            **problem, method=method, steps=steps, start=start, learning_rate=rate
        )

    paths = {method: path(method) for method in METHODS}
    falls = [
        [_fall(path(method, f / (2 * LARGEST))) for f in FACTORS] for method in ("gd", "bn_gd")
    ]
    return xr.Dataset(
        {
            "gap": (("optimizer", "step"), [each.gap for each in paths.values()]),
            "excess": (("optimizer", "step"), [each.excess for each in paths.values()]),
            "rate": ("optimizer", [each.rate for each in paths.values()]),
            "bound": ("step", paths["gdnp"].bound),
            "fall": (("tried", "factor"), falls),
        },
        {
            "optimizer": list(METHODS),
            "tried": ["gd", "bn_gd"],
            "factor": list(FACTORS),
            "step": np.arange(steps),
        },
    )


def _fall(path: LeastSquaresPath) -> float:
    """Return the last excess over the first; 1e300 if the path overflowed."""
    with np.errstate(over="ignore", invalid="ignore"):
        fall = float(path.excess[-1] / path.excess[0])
    return fall if np.isfinite(fall) else 1e300
