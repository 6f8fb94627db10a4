"""What the article says of networks with a hidden layer, and what is true of it."""

from __future__ import annotations

import xarray as xr

from normscope.results import Claim

__all__ = ["mlp_claims"]

ARTICLE = "article on batch normalization (kohler2018), multilayer perceptrons"
ROUNDING = 1e-26  # of a squared gradient


def mlp_claims(results: xr.Dataset) -> list[Claim]:
    """The article's statements on hidden units, as printed and as they hold.

    Args:
        results: as the experiment returns them.

    Returns:
        The claims.
    """
    return [_bound(results), _from_zero(results), _printed(results), _singular(results)]


def _bound(results: xr.Dataset) -> Claim:
    left = results["gradient"]
    share = left / results["bound"]
    # below rounding there is nothing to compare; a nan is not below it and makes the claim fail
    worst = float(share.where(~(left <= ROUNDING), 0.0).max(skipna=False))
    fall = float((left.isel(step=-1) / left.isel(step=0)).max(skipna=False))
    return Claim(
        "each unit, from zero: |grad f|^2 in the norm of S^-1 <= (1 - mu/L)^(2t) C gap_0 plus the "
        "square of the bisection's bound",
        f"{ARTICLE}; errata",
        f"largest left / right {worst:.2g} over {results.sizes['unit']} units, "
        f"{results.sizes['step']} points, {results.sizes['seed']} seeds; the gradient falls to "
        f"{fall:.1e} of its start or less",
        worst <= 1 and fall < 1e-2,
    )


def _from_zero(results: xr.Dataset) -> Claim:
    off = results["off_line_from_zero"]
    return Claim(
        "unit by unit from zero, every unit ends on the line of S^-1 u",
        f"{ARTICLE}; errata",
        f"largest 1 - cos {float(off.max()):.1e} over {off.size} units",
        float(off.max(skipna=False)) < 1e-4,
    )


def _printed(results: xr.Dataset) -> Claim:
    off = results["off_line_joint"].max("unit")
    gain = (results["value_line"] - results["value_joint"]).min()
    return Claim(
        "the critical points of each hidden unit align along one line",
        ARTICLE,
        f"the best joint minimum has units off the line, largest 1 - cos {float(off.min()):.3g} to "
        f"{float(off.max()):.3g} by seed, with a gradient of "
        f"{float(results['stationary'].max()):.0e}, and is lower than any point of the line, by "
        f"{float(gain):.1e} or more",
        bool((off < 1e-4).all()),
    )


def _singular(results: xr.Dataset) -> Claim:
    off = results["off_line_joint"].max("unit") > 1e-4
    singular = results["singular"] < 1e-5
    return Claim(
        "a joint critical point lies off the line only where the matrix of mean second derivatives "
        "by the units' margins is singular",
        "errata of kohler2018: from Stein's identity",
        f"least over largest eigenvalue there {float(results['singular'].max()):.0e} or less",
        bool((singular | ~off).all()),
    )
