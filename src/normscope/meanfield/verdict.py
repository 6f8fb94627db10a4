"""Which branch of the theory speaks: the regime, its eigenvalue, and the reason in words."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from normscope.meanfield.fisher import Estimate
from normscope.meanfield.layer_row import NOTHING

__all__ = ["REGIMES", "Verdict", "verdicts"]

REGIMES = ("head", "bound", "explosive", "undetermined")

_HEAD_SHARE = 0.9  # of the largest eigenvalue, above which the last layer alone explains it
_NO_DIRECTION = (
    "no layer has a mean gradient over the data (an odd activation without a shift, or nothing "
    "that singles out a direction), so the bound is zero and says nothing; what remains falls "
    "with the batch size. normscope.max_learning_rate measures it."
)


@dataclass(frozen=True)
class Verdict:
    """The largest eigenvalue and why.

    Args:
        regime: one of :data:`REGIMES`.
        largest: the eigenvalue, None if undetermined.
        reason: in words.
    """

    regime: str
    largest: float | None
    reason: str


def verdicts(found: Estimate, closure: str, batch_size: float, count: int) -> list[Verdict]:
    """The regime of every setting of a sweep.

    Args:
        found: what the closure says.
        closure: its name.
        batch_size: samples in a batch.
        count: number of settings.

    Returns:
        One verdict for each.
    """
    growths = [np.broadcast_to(row.growth, (count,)) for row in found.layers[:-1]]
    growth = np.median(growths, axis=0) if growths else np.ones(count)
    parts = (
        found.lower_bound,
        found.head,
        found.mean_direction,
        found.bulk,
        found.upper_bound,
        growth,
    )
    columns = [np.broadcast_to(part, (count,)).tolist() for part in parts]
    return [_verdict(closure, batch_size, *each) for each in zip(*columns, strict=True)]


def _verdict(
    closure: str,
    batch_size: float,
    bound: float,
    head: float,
    direction: float,
    bulk: float,
    upper: float,
    growth: float,
) -> Verdict:
    if not math.isfinite(bound) or bound <= NOTHING * upper:
        return Verdict("undetermined", None, _NO_DIRECTION)
    if closure == "printed":
        return Verdict("bound", bound, "the sum of all layers' terms, as printed.")
    if bulk > direction:
        reason = (
            f"squared gradients grow by about {growth:.2f} per layer towards the input, and a "
            f"single sample's {bulk:.4g} in a batch of {batch_size:g} exceeds the mean direction's "
            f"{direction:.4g}; the lower bound no longer binds."
        )
        return Verdict("explosive", bulk, reason)
    share = head / direction
    if share >= _HEAD_SHARE:
        reason = (
            f"the last layer's mean gradient alone makes up {share:.0%} of lambda_max (the shares "
            "of the layers are of the lower bound per output); a single sample reaches "
            f"{bulk:.3g} in a batch of {batch_size:g}."
        )
        return Verdict("head", direction, reason)
    reason = (
        f"mean gradients of all layers add up, {share:.0%} of lambda_max from the last one (the "
        "shares of the layers are of the lower bound per output)."
    )
    return Verdict("bound", direction, reason)
