"""Decide a comparison by its effect and its spread over seeds. No torch."""

from __future__ import annotations

from itertools import product

import numpy as np

ENOUGH_SEEDS = 3
"""Seeds below which nothing is decided."""
LEVEL = 0.95
"""Of the bootstrap interval."""
DECISION = (
    f"decided if the {LEVEL:.0%} bootstrap interval over at least {ENOUGH_SEEDS} seeds excludes "
    "the threshold, and the mean is further from it than a standard deviation over seeds"
)
"""The decision rule of `decide_below` in words."""
_ALL_RESAMPLES = 5  # up to so many values, every resample counts; no random number decides
_DRAWN = 10_000


def bootstrap_interval(values: np.ndarray, level: float = LEVEL) -> tuple[float, float]:
    """Return the percentile bootstrap interval of the mean.

    Up to five values, all resamples are taken; of more, 10,000 with a fixed seed.

    Args:
        values: of the seeds, finite, at least one.
        level: share of the resampled means inside.

    Returns:
        The lower and the upper end.

    >>> bootstrap_interval(np.array([1.0, 2.0, 3.0]))
    (1.0, 3.0)
    """
    count = len(values)
    if count <= _ALL_RESAMPLES:
        index = np.array(list(product(range(count), repeat=count)))
    else:
        index = np.random.default_rng(0).integers(count, size=(_DRAWN, count))
    # by order statistics, so that rounding cannot move an end past a threshold it equals
    means = np.sort(values[np.sort(index, axis=1)].mean(axis=1))
    outside = int((1 - level) / 2 * len(means))
    return float(means[outside]), float(means[-1 - outside])


def decide_below(values: np.ndarray, threshold: float = 0.0) -> bool | None:
    """Return whether a number is below a threshold, by its spread over seeds.

    Args:
        values: of the seeds; infinite ones count as very large.
        threshold: the number they are compared with.

    Returns:
        True or False if the bootstrap interval of the mean excludes the threshold and the mean is
        further from it than a standard deviation over seeds; None otherwise, with fewer than
        three seeds or with one that is NaN.

    >>> decide_below(np.array([-1.0, -1.1, -0.9])), decide_below(np.array([1.0, 1.1]))
    (True, None)
    >>> decide_below(np.array([-1.0, -1.1, 0.5])), decide_below(np.array([2.0, 2.0, np.inf]))
    (None, False)
    """
    if len(values) < ENOUGH_SEEDS or np.isnan(values).any():
        return None
    shifted = values - threshold
    finite = shifted[np.isfinite(shifted)]
    if not np.isfinite(shifted).all():
        # an infinite value is like the largest finite one: it has a sign, and no spread
        bound = max(1.0, float(np.abs(finite).max(initial=0.0)))
        shifted = np.clip(shifted, -bound, bound)
    low, high = bootstrap_interval(shifted)
    mean, spread = float(shifted.mean()), float(shifted.std(ddof=1))
    if high < 0 and -mean > spread:
        return True
    return False if low > 0 and mean > spread else None
