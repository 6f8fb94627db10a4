"""How the paper's statements are judged.

The rules were written down before any of the numbers they judge was seen, and not changed since.
What was known by then: loss curves of seed 0 (VGG without normalization, the deep linear network
at three learning rates), from which the number of steps at small scale and the rule of the second
half come.

- A statement compares two networks trained from the same seeds. It is *reproduced* if it holds in
  every seed, *not reproduced* if in none, and *undecided* otherwise or with fewer than three seeds.
- A run that diverged has an infinite loss, and a number on the ray that is not finite is infinite.
- Training performance is the training loss averaged over the last quarter of the measured steps.
- The landscape of a training (width of the loss band, largest change of the gradient, beta) is the
  median over measured steps: for VGG over the second half of them, since a short run of the
  standard network begins on a plateau where it has no landscape to speak of (the median over all
  is printed beside it), for the deep linear network over all.
- Covariate shift is compared over all measured steps and all layers but the first, which nothing
  precedes: the mean of the cosine, the geometric mean of the l2 difference. "Similar" allows
  BatchNorm a cosine higher by 0.05 and an l2 difference lower by a tenth.
- Changes of moments are medians over units, measured steps and the layers that a norm layer
  follows.
- "As well as" allows a tenth of the loss that the other network has shed.
"""

from __future__ import annotations

import numpy as np
import xarray as xr

from normscope.results import Claim

__all__ = ["MANY_SEEDS", "compared", "spread", "verdict"]

MANY_SEEDS = 3


def verdict(held: np.ndarray) -> bool | None:
    """Whether a statement holds, from whether it held in each seed.

    >>> verdict(np.array([True, True, True])), verdict(np.array([True, False, True]))
    (True, None)
    """
    if len(held) < MANY_SEEDS or held.any() != held.all():
        return None
    return bool(held.all())


def spread(values: np.ndarray) -> str:
    """Mean and standard deviation over seeds, or the range where a value is infinite.

    >>> spread(np.array([1.0, 2.0, 3.0]))
    '2 ± 1'
    >>> spread(np.array([1.0, np.inf]))
    '1 to inf'
    """
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
    allowance: xr.DataArray | float = 0.0,
    note: str = "",
) -> Claim:
    """The claim that a number of one network is below another's, seed by seed.

    Args:
        text: the statement.
        source: where it is made.
        left: the number that should be smaller, over seed; not a number counts as infinite.
        right: the one that should be larger.
        names: of the two networks.
        allowance: by how much the left one may be larger; zero asks for smaller.
        note: further numbers, for the reader.

    Returns:
        The claim with both numbers' spread over seeds and the verdict.
    """
    low, high = (_infinite_where_missing(each) for each in (left, right))
    room = np.broadcast_to(np.asarray(allowance, dtype=float), high.shape)
    with np.errstate(invalid="ignore"):
        held = np.where(room > 0, low <= high + room, low < high)
    measured = (
        f"{names[0]} {spread(low)}, {names[1]} {spread(high)}; {held.sum()} of {len(held)} seeds"
    )
    return Claim(text, source, f"{measured}{note}", verdict(held))


def _infinite_where_missing(values: xr.DataArray) -> np.ndarray:
    plain = np.atleast_1d(values.values.astype(float))
    return np.where(np.isnan(plain), np.inf, plain)
