"""Rules that judge the paper's statements.

The rules for runs of many steps (scale medium and paper) were written before any such run. Known at
that time were the verdicts of short runs (300 steps of VGG, 4,000 of the deep linear network), and
those of the deep linear network's landscape after 10,000 steps.

- A statement compares two networks trained from the same seeds, by the ratio of their numbers (the
  difference, where a difference is allowed). "Smaller" and "better" mean by at least 5 %. The
  decision is that of `normscope.results.claim.decide_below`: the bootstrap interval over at least
  three seeds excludes the threshold, and the mean is further from it than the standard deviation
  over seeds. Seeds in which a number was not measured do not count.
- A run that diverged has an infinite loss, and a number on the ray that is not finite is infinite;
  an infinite number is never below, or similar to, another. A run that did not diverge and has no
  number on the ray was not measured there. Covariate shift and moments have no number after a
  divergence: they are those of the steps before it, and the claim gives the number of steps left
  out.
- Training performance is the training loss averaged over the last quarter of the measured steps.
- A median or mean over measured steps weights each by half the distance to its two neighbours, at
  the ends by the distance to the only neighbour. Evenly spaced steps, as VGG's, weigh the same.
- The landscape of a training (width of the loss band, largest change of the gradient, beta) is the
  median over measured steps. Of a training of VGG with fewer than 1,000 steps it is that over the
  second half of them, since the standard network begins on a plateau where its landscape is flat
  (the median over all steps is printed as well).
- The predictiveness of gradients is the change of the gradient at each distance on the ray, the
  median over the same steps as for the landscape, averaged over the distances.
- Covariate shift is compared over all measured steps and all layers but the first, which nothing
  precedes: the mean of the cosine, the geometric mean of the l2 difference without those that are
  zero. "Similar" allows BatchNorm a cosine higher by 0.05 and an l2 difference lower by a tenth.
- Changes of moments are medians over units, measured steps and the layers that a norm layer
  follows.
- "As well as" allows a tenth of the loss that the other network has shed.
- The printed test accuracies are judged seed by seed, at the paper's settings only and on the whole
  test set: both networks within two points.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from normscope.results import Claim
from normscope.results.claim import DECISION, ENOUGH_SEEDS, bootstrap_interval, decide_below

MARGIN = 0.05  # "smaller" is smaller by at least this share
_LARGEST_LOG = 50.0  # of a ratio; that with an infinite or zero number


def verdict(held: np.ndarray) -> bool | None:
    """Return True if a statement held in every seed, False if in none, None if undecided.

    For statements that are not about the size of a number.

    >>> verdict(np.array([True, True, True])), verdict(np.array([True, False, True]))
    (True, None)
    """
    if len(held) < ENOUGH_SEEDS or held.any() != held.all():
        return None
    return bool(held.all())


def spread(values: np.ndarray) -> str:
    """Format mean and standard deviation over seeds, or the range where a value is infinite.

    Args:
        values: of the seeds; NaN is left out.

    Returns:
        The formatted string.

    >>> spread(np.array([1.0, 2.0, 3.0]))
    '2 ± 1'
    >>> spread(np.array([1.0, np.inf]))
    '1 to inf'
    >>> spread(np.array([np.nan]))
    'not measured'
    """
    values = values[~np.isnan(values)]
    if not len(values):
        return "not measured"
    if not np.isfinite(values).all():
        return f"{np.min(values):.3g} to {np.max(values):.3g}"
    if len(values) == 1:
        return f"{values[0]:.3g}"
    return f"{np.mean(values):.3g} ± {np.std(values, ddof=1):.2g}"


def compared(
    text: str,
    source: str,
    left: xr.DataArray,
    right: xr.DataArray,
    names: tuple[str, str],
    *,
    allowance: xr.DataArray | float | None = None,
    note: str = "",
    statistic: str = "",
) -> Claim:
    """Return the claim that a number of one network is below another's, over seeds.

    Args:
        text: the statement.
        source: where it is made.
        left: the number that should be smaller, over seed; infinite after a divergence, NaN if
            it was not measured.
        right: the one that should be larger.
        names: of the two networks.
        allowance: by how much the left one may be larger; None: it must be smaller by 5 %.
        note: further numbers, for the reader.
        statistic: what the number is, for the rule.

    Returns:
        The claim with both numbers' spread over seeds, the interval of their ratio or difference,
        and the verdict.
    """
    low, high = (np.atleast_1d(each.values.astype(float)) for each in (left, right))
    seeds = {"seed": left["seed"].values.tolist()} if left.dims == ("seed",) else {}
    numbers = {**seeds, names[0]: low.tolist(), names[1]: high.tolist()}
    means = f"{names[0]} {spread(low)}, {names[1]} {spread(high)}"
    known = ~(np.isnan(low) | np.isnan(high))
    low, high = low[known], high[known]
    if allowance is None:
        values, threshold = log_ratios(low, high), np.log1p(-MARGIN)
    else:
        margin = np.broadcast_to(np.asarray(allowance, dtype=float), known.shape)[known]
        values, threshold = _differences(low, high, margin), 0.0
    decided = decide_below(values, threshold)
    held = int((values < threshold if allowance is None else values <= threshold).sum())
    lack = "" if known.all() else f" (not measured in {(~known).sum()} of them)"
    measured = f"{means}; {held} of {len(known)} seeds"
    shown = _interval(values) if allowance is None else ""
    return Claim(
        text,
        source,
        f"{measured}{shown}{lack}{note}",
        decided,
        rule=_rule(statistic, names, allowance is None),
        resolve="" if decided is not None else _remedy(len(low)),
        numbers=numbers,
    )


def log_ratios(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return the logarithms of ratios; an infinite number is never below another.

    >>> log_ratios(np.array([1.0, np.inf, 1.0]), np.array([1.0, np.inf, np.inf])).tolist()
    [0.0, 50.0, -50.0]
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.log(low) - np.log(high)
    found = np.where((low == 0) & (high == 0), 0.0, found)
    found = np.where(np.isinf(low), np.inf, found)
    return np.clip(found, -_LARGEST_LOG, _LARGEST_LOG)


def _differences(low: np.ndarray, high: np.ndarray, allowance: np.ndarray) -> np.ndarray:
    """Return by how much numbers are above what is allowed; an infinite one always is."""
    with np.errstate(invalid="ignore"):
        found = low - high - allowance
    return np.where(np.isinf(low) | np.isnan(found), np.inf, found)


def _interval(values: np.ndarray) -> str:
    if len(values) < 2 or (np.abs(values) >= _LARGEST_LOG).any():
        return ""
    ends = np.exp(bootstrap_interval(values))
    return f", ratio {np.exp(values.mean()):.2g} ({ends[0]:.2g} to {ends[1]:.2g})"


def _rule(statistic: str, names: tuple[str, str], strict: bool) -> str:
    limit = f"{names[0]} / {names[1]} below {1 - MARGIN:g}" if strict else "within the allowance"
    return "; ".join(filter(None, (statistic, limit, DECISION)))


def _remedy(seeds: int) -> str:
    if seeds < ENOUGH_SEEDS:
        return f"{seeds} of at least {ENOUGH_SEEDS} seeds"
    return "seeds disagree, or the effect is within their spread; more seeds"


def is_below(
    low: np.ndarray, high: np.ndarray, allowance: xr.DataArray | float = 0.0
) -> np.ndarray:
    """Return for each seed whether a number is below another, up to the allowance.

    Infinity and NaN are below nothing.

    >>> is_below(np.array([1.0, 1.0, np.inf]), np.array([1.0, 0.95, np.inf]), 0.1).tolist()
    [True, True, False]
    """
    margin = np.broadcast_to(np.asarray(allowance, dtype=float), high.shape)
    with np.errstate(invalid="ignore"):
        below = np.where(margin > 0, low <= high + margin, low < high)
    held: np.ndarray = np.isfinite(low) & below
    return held


def step_weights(steps: np.ndarray) -> np.ndarray:
    """Return the weight of each measured step: half the distance to both neighbours.

    The first and the last weigh the distance to their only neighbour, so that evenly spaced steps
    all weigh the same; a single step weighs 1.

    Args:
        steps: at which was measured, increasing.

    Returns:
        A weight for each.

    >>> step_weights(np.array([0, 10, 20, 100]))
    array([10., 10., 45., 80.])
    >>> step_weights(np.array([7]))
    array([1.])
    """
    return np.gradient(steps.astype(float)) if len(steps) > 1 else np.ones(len(steps))


def weighted_median(values: xr.DataArray, dimensions: Sequence[str] = ("step",)) -> xr.DataArray:
    """Return the value with half of the weight on either side, or the mean of the two middle ones.

    Args:
        values: over step and others; NaN is left out, infinity counts.
        dimensions: over which, ``step`` among them.

    Returns:
        The medians; NaN where there is no value.

    >>> weighted_median(xr.DataArray([5.0, 1.0, 3.0], {"step": [0, 1, 9]}, "step")).item()
    3.0
    """
    weights = _weights(values).broadcast_like(values)
    core = [list(dimensions), list(dimensions)]
    found: xr.DataArray = xr.apply_ufunc(
        _median, values, weights, input_core_dims=core, vectorize=True
    )
    return found


def weighted_mean(values: xr.DataArray, dimensions: Sequence[str] = ("step",)) -> xr.DataArray:
    """Return the mean by the weights of steps; arguments as in `weighted_median`."""
    return values.weighted(_weights(values)).mean(list(dimensions))


def geometric_mean(values: xr.DataArray, dimensions: Sequence[str] = ("step",)) -> xr.DataArray:
    """Return the geometric mean by the weights of steps; zeros are left out.

    Args:
        values: not negative, over step and others.
        dimensions: over which, ``step`` among them.

    Returns:
        The means; NaN where there is no positive value.

    >>> round(geometric_mean(xr.DataArray([2.0, 0.0, 8.0], dims="step")).item(), 12)
    4.0
    """
    positive = values.where(values > 0)
    mean = weighted_mean(positive.copy(data=np.log(positive.values)), dimensions)
    return mean.copy(data=np.exp(mean.values))


def _weights(values: xr.DataArray) -> xr.DataArray:
    """Return weights of the steps at which any value was measured; 0 for the others."""
    others = [name for name in values.dims if name != "step"]
    measured = values.notnull().any(others).values
    weights = np.zeros(len(measured))
    weights[measured] = step_weights(values["step"].values[measured])
    return xr.DataArray(weights, {"step": values["step"]}, "step")


def _median(values: np.ndarray, weights: np.ndarray) -> float:
    known = ~np.isnan(values) & (weights > 0)
    if not known.any():
        return float("nan")
    order = np.argsort(values[known])
    ordered, below = values[known][order], np.cumsum(weights[known][order])
    half = below[-1] / 2
    first, last = np.searchsorted(below, half, "left"), np.searchsorted(below, half, "right")
    return float((ordered[first] + ordered[last]) / 2)
