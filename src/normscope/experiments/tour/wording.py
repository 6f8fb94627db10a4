"""Formatting of numbers over seeds and normalizations for sentences."""

from __future__ import annotations

import numpy as np
import xarray as xr

from normscope.plots.names import with_norm
from normscope.text import format_number


def shared_rate(results: xr.Dataset) -> str:
    """Return the learning rate that all nets share, and where it comes from.

    Limits elsewhere are medians over the seeds; this one is the largest of all.

    >>> limits = xr.DataArray([[2.04, 2.302]], dims=("norm", "seed"))
    >>> shared_rate(xr.Dataset({"limit": limits, "shared_rate": 1.151}))
    '1.15 (half of 2.3, the largest limit in any seed)'
    """
    rate, largest = float(results["shared_rate"]), float(results["limit"].max())
    seeds = " in any seed" if results.sizes["seed"] > 1 else ""
    return (
        f"{format_number(rate, 3)} (half of {format_number(largest, 3)}, the largest limit{seeds})"
    )


def typical(values: xr.DataArray, digits: int = 2) -> str:
    """Format the median over seeds, with the range in brackets where there are several.

    >>> typical(xr.DataArray([1.0, 3.0, 2.0], dims="seed"))
    '2 (1 to 3)'
    """
    known = np.atleast_1d(values.values.astype(float))
    known = known[~np.isnan(known)]
    if not known.size:
        return "not known"
    middle, low, high = (
        format_number(float(each), digits) for each in (np.median(known), known.min(), known.max())
    )
    return middle if low == high else f"{middle} ({low} to {high})"


def counted(held: int, of: int) -> str:
    """Return how often something held, in words.

    >>> counted(3, 3), counted(1, 3), counted(0, 3), counted(1, 1), counted(0, 1)
    ('in all 3 seeds', 'in 1 of 3 seeds', 'in none of 3 seeds', 'in this run', 'not in this run')
    """
    if of == 1:
        return "in this run" if held else "not in this run"
    if held == of:
        return f"in all {of} seeds"
    return f"in {held or 'none'} of {of} seeds"


def in_seeds(smaller: xr.DataArray, larger: xr.DataArray) -> str:
    """Return in how many seeds the first is below the second; NaN counts as infinite.

    >>> seeds = xr.DataArray([1.0, 5.0], dims="seed")
    >>> in_seeds(seeds, xr.full_like(seeds, 3.0))
    'in 1 of 2 seeds'
    """
    low, high = (each.fillna(np.inf) for each in (smaller, larger))
    held = np.atleast_1d((low < high).values)
    return counted(int(held.sum()), held.size)


def factor(value: float, reference: float) -> float:
    """Return the ratio of the larger to the smaller value.

    >>> factor(2.0, 4.0)
    2.0
    """
    ratio = value / reference
    return max(ratio, 1 / ratio)


def contrast(
    values: xr.DataArray,
    most: str = "is largest",
    least: str = "smallest",
    digits: int = 2,
    alone: str = "is",
) -> str:
    """Describe which normalization has the largest value and which the smallest.

    Over several seeds the extremes are those of the medians, and in how many seeds each of the two
    is the extreme is counted.

    >>> pair = xr.DataArray([[1.0], [4.0]], [("norm", ["none", "batch"]), ("seed", [0])])
    >>> contrast(pair, "is most", "least")
    'is most with BatchNorm, 4, and least without normalization, 1, in this run'
    >>> contrast(pair.isel(seed=0))
    'is largest with BatchNorm, 4, and smallest without normalization, 1'

    Args:
        values: over (norm, seed), or over norm only; NaN counts as infinite.
        most: what to say of the largest.
        least: what to say of the smallest.
        digits: of the numbers.
        alone: what to say of a single normalization.
    """
    known = values.fillna(np.inf)
    if known.sizes["norm"] < 2:
        norm = str(known["norm"].values[0])
        return f"{alone} {typical(known.isel(norm=0), digits)} {with_norm(norm)}"
    middle = known.median("seed") if "seed" in known.dims else known
    low, high = str(middle.idxmin("norm").item()), str(middle.idxmax("norm").item())
    words = (
        f"{most} {with_norm(high)}, {typical(known.sel(norm=high), digits)}, and {least} "
        f"{with_norm(low)}, {typical(known.sel(norm=low), digits)}"
    )
    return f"{words}, {_so_often(known, low, high)}" if "seed" in known.dims else words


def _so_often(values: xr.DataArray, low: str, high: str) -> str:
    """Return in how many seeds one is the smallest of all, and the other the largest.

    >>> three = xr.DataArray(
    ...     [[1.0, 1.0], [4.0, 4.0], [3.0, 5.0]],
    ...     [("norm", ["none", "batch", "layer"]), ("seed", [0, 1])],
    ... )
    >>> _so_often(three, "none", "layer")
    'by the median over the seeds: the former in 1 of 2 seeds, the latter in all 2 seeds'
    """
    one, other, of = values.sel(norm=low), values.sel(norm=high), values.sizes["seed"]
    if of == 1 or values.sizes["norm"] == 2:
        return in_seeds(one, other)
    least = int((one < values.drop_sel(norm=low).min("norm")).sum())
    most = int((other > values.drop_sel(norm=high).max("norm")).sum())
    if least == most == of:
        return counted(of, of)
    if least == most:
        return f"by the median over the seeds: each {counted(most, of)}"
    return (
        f"by the median over the seeds: the former {counted(most, of)}, "
        f"the latter {counted(least, of)}"
    )
