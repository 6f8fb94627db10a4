"""The stability gauge: how far the learning rate of a training is from the edge of stability."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import xarray as xr

from normscope.plots.edge_of_stability import edge_share, stability_headline

RECENT = 5
"""Measured values of each variable that the gauge needs."""


def gauge_of(recent: Mapping[str, Sequence[float]]) -> dict[str, Any] | None:
    """Return the share of the learning rate at the edge that is in use, with the scope's sentence.

    Args:
        recent: the last measured values of a scope's variables, those of the probe ``stability``
            among them.

    Returns:
        None if the probe has not measured; ``share`` is None if no edge was measured, ``over``
        whether the rate is above it or the loss is not finite.

    >>> gauge_of({"stability_distance": [1.4], "critical_rate": [0.14]})["words"]
    'at 0.71 of the edge; would be unstable from 0.14 on'
    """
    if not recent.get("stability_distance"):
        return None
    results = xr.Dataset(
        {
            name: ("step", [math.nan] * (RECENT - len(values)) + [*values])
            for name, values in recent.items()
        }
    )
    share = edge_share(results)
    return {
        "share": share if math.isfinite(share) else None,
        "over": share >= 1,
        "words": stability_headline(results),
    }
