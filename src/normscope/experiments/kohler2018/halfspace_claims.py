"""What the article says of halfspaces, in the corrected forms."""

from __future__ import annotations

import xarray as xr

from normscope.results import Claim

__all__ = ["halfspace_claims"]

ARTICLE = "article on batch normalization (kohler2018), learning halfspaces; errata"
ROUNDING = 1e-26  # of a squared gradient


def halfspace_claims(results: xr.Dataset) -> list[Claim]:
    """The article's statements on halfspaces, as corrected.

    Args:
        results: as the experiment returns them.

    Returns:
        The claims.
    """
    parts = {
        "direction": "direction: |w|_S^2 |grad_w f|^2 <= (1 - mu/L)^(2t) Phi^2 gamma^2 gap_0",
        "length": "length: (df/dgamma)^2 <= (2^-T zeta |b - a| / mu)^2 after T bisections",
        "whole": "both: |grad f|^2 in the norm of S^-1 is within the sum of the two bounds",
    }
    claims = [_inequality(results, part, text) for part, text in parts.items()]
    return [*claims, _minimum(results), _printed(results), _line(results), _identity(results)]


def _inequality(results: xr.Dataset, part: str, text: str) -> Claim:
    left, right = results[f"{part}_left"], results[f"{part}_right"]
    share = (left / right).where(left > ROUNDING)
    counts = share.notnull().sum(("seed", "step"))
    used = [str(loss) for loss in counts["loss"].values if int(counts.sel(loss=loss)) > 0]
    worst = float(share.max())
    # the direction's right side is always defined, the others' not at the longest length
    needed = left + right if part == "direction" else left
    known = not bool(needed.isnull().any())
    return Claim(
        text,
        ARTICLE,
        f"largest left / right {worst:.3g} over {int(counts.sum())} points of "
        f"{results.sizes['seed']} seeds, loss {' and '.join(used) or 'none'}"
        f"{_left_out(left, right)}",
        known and worst <= 1,
    )


def _left_out(left: xr.DataArray, right: xr.DataArray) -> str:
    """Which points were not compared, and why; empty if there are none."""
    parts = []
    for loss in left["loss"].values:
        own, bound = left.sel(loss=loss), right.sel(loss=loss)
        reasons = {
            "not a number on the left": int(own.isnull().sum()),
            "at the longest length, where there is no right side": int(bound.isnull().sum()),
            "below rounding": int((own <= ROUNDING).where(bound.notnull(), False).sum()),
        }
        parts += [f"{count} of {loss} ({why})" for why, count in reasons.items() if count]
    return f"; left out: {', '.join(parts)}" if parts else ""


def _minimum(results: xr.Dataset) -> Claim:
    excess = results["excess"].sel(form="exact")
    return Claim(
        "GDNP reaches the minimum of L-BFGS on Gaussian samples, at any scale of the inputs",
        ARTICLE,
        f"largest difference {float(abs(excess).max()):.1e} over scales "
        f"{', '.join(f'{float(s):g}' for s in results['scale'])}",
        bool((abs(excess) < 1e-8).all()),
    )


def _printed(results: xr.Dataset) -> Claim:
    excess = results["excess"].sel(form="printed").max("seed")
    pairs = zip(results["scale"].values, excess.values, strict=True)
    return Claim(
        "the same with h as printed, (u'w)^2 in its last term",
        "article on batch normalization (kohler2018), stopping criterion of GDNP",
        "worst difference by scale: " + ", ".join(f"{s:g}: {_shown(e)}" for s, e in pairs),
        bool((excess < 1e-8).all()),
    )


def _shown(excess: float) -> str:
    return "diverged" if excess > 1e299 else f"{excess:.1e}"


def _line(results: xr.Dataset) -> Claim:
    worst = float(results["off_line"].max(skipna=False))
    return Claim(
        "for Gaussian z all critical points lie on the line of S^-1 u",
        ARTICLE,
        f"largest 1 - cos {worst:.1e} of {results['off_line'].size} points found by BFGS from "
        "random starts",
        worst < 1e-10,
    )


def _identity(results: xr.Dataset) -> Claim:
    worst = float(results["identity"].max(skipna=False))
    return Claim(
        "decoupling: f_BN(w, gamma) = E phi(x'w_tilde), w_tilde = gamma w / |w|_S, for E[x] = 0",
        "article on batch normalization (kohler2018), decoupling",
        f"largest relative difference {worst:.1e} over 20 random (w, gamma), "
        f"{', '.join(str(a) for a in results['activation'].values)}, {results.sizes['seed']} seeds",
        worst < 1e-12,
    )
