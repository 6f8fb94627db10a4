"""Claims of the papers about such nets, judged by the tour's numbers.

The rules are those of the papers' own experiments: a statement holds if it does so in every seed,
fails if in none, and is undecided otherwise or with fewer than three seeds.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import xarray as xr

from normscope.experiments.santurkar2018.claims import NAMES, is_smoother, shifts_no_less
from normscope.experiments.santurkar2018.judging import compared, spread
from normscope.experiments.tour.parts import diagram_part
from normscope.experiments.tour.summary import statement_counts
from normscope.experiments.wei2018.phase_diagram import agreement
from normscope.plots.names import name_of, statement_name
from normscope.results import Claim

_NET = "fully connected net on digits"
_NEAR = 0.1  # of the growth that theory expects of a wide net


def tour_claims(results: xr.Dataset) -> list[Claim]:
    """Return the claims that the tour's numbers can judge.

    Args:
        results: of the tour.

    Returns:
        The claims with their verdicts.
    """
    return [claim for claims in claims_by_part(results).values() for claim in claims]


def claims_by_part(results: xr.Dataset) -> dict[str, list[Claim]]:
    """Return the claims by the part of the tour that is their evidence.

    Args:
        results: of the tour.

    Returns:
        The claims by the name of the part.
    """
    norms = set(map(str, results["norm"].values))
    bare = "none" in norms
    batch, noisy, l1 = (bare and norm in norms for norm in ("batch", "noisy", "l1"))
    smoother = [norm for norm, there in (("batch", batch), ("l1", l1)) if there]
    line = diagram_part(results).expand_dims(loss=["squared_error"]).sel(closure=["train"])
    return {
        "limits": [_higher_rates(results)] if batch else [],
        "training": [_noise(results)] if noisy else [],
        "landscape": [claim for norm in smoother for claim in _smoother(results, norm)],
        "shift": _shift(results) if batch else [],
        "depth": [_explosion(results), _skips(results)] if "batch" in norms else [],
        "theorems": _theorems(results),
        "diagram": agreement(line, "wei2018, Figure 2"),
    }


def _higher_rates(results: xr.Dataset) -> Claim:
    limit = results["limit"]
    return compared(
        f"{_NET}: BatchNorm takes higher learning rates",
        "ioffe2015, Section 3.3",
        limit.sel(norm="none"),
        limit.sel(norm="batch"),
        ("limit without", "with BatchNorm"),
    )


def _smoother(results: xr.Dataset, norm: str) -> list[Claim]:
    section = {"batch": "Figure 4", "l1": "Section 3.3"}[norm]
    claims = is_smoother(results, f"santurkar2018, {section}", _NET, norm)
    return [_named(claim) for claim in claims]


def _shift(results: xr.Dataset) -> list[Claim]:
    """Name the means: the claim's mean of the distances is not the table's."""
    cosine, distance = shifts_no_less(results, "santurkar2018, Section 2.2", _NET)
    return [_named(cosine, "arithmetic"), _named(distance, "geometric")]


def _named(claim: Claim, mean: str = "") -> Claim:
    """Replace the paper's name of the bare net by that of the page."""
    measured = re.sub(rf"\b{NAMES['none']}\b", name_of("none"), claim.measured)
    note = f" ({mean} means over the steps and all layers but the first)" if mean else ""
    return replace(claim, measured=f"{measured}{note}")


def _noise(results: xr.Dataset) -> Claim:
    accuracy = results["test_accuracy"]
    return compared(
        f"{_NET}: BatchNorm trains better even with noise behind it, each net at half its limit",
        "santurkar2018, Figure 2",
        1 - accuracy.sel(norm="noisy"),
        1 - accuracy.sel(norm="none"),
        ("test error with noisy BatchNorm", "without normalization"),
    )


def _explosion(results: xr.Dataset) -> Claim:
    growth = np.atleast_1d(results["growth"].sel(norm="batch").values)
    expected = float(results["expected_growth"])
    near = np.abs(growth / expected - 1) < _NEAR
    wide = int(results.attrs["width"]) >= 100
    return Claim(
        "with BatchNorm the squared gradient grows backwards by the expected factor per layer, "
        f"within {_NEAR:.0%}",
        "yang2019",
        f"{spread(growth)} for {expected:.3f} expected; {near.sum()} of {near.size} seeds",
        (bool(near.all()) if near.all() or not near.any() else None) if wide else None,
    )


def _skips(results: xr.Dataset) -> Claim:
    return compared(
        "skip connections hold the growth of the gradient down",
        "yang2019",
        results["growth_with_skips"],
        results["growth"].sel(norm="batch"),
        ("growth per layer with skips", "without"),
    )


def _theorems(results: xr.Dataset) -> list[Claim]:
    """Return a claim for each statement in the form that the paper prints."""
    return [
        Claim(
            f"{statement_name(name)}, as printed, on the layers of this net",
            "santurkar2018",
            f"holds in {held} of {of} checks",
            held == of,
        )
        for (form, name), (held, of) in statement_counts(results).items()
        if form == "printed"
    ]
