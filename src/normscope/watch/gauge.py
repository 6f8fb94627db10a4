"""The stability gauge: how far the learning rate of a training is from the edge of stability."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from normscope.results.chunks import STEP
from normscope.results.codec import RawDataset
from normscope.text import format_number

_RATE, _CRITICAL, _ERROR = "learning_rate", "critical_rate", "critical_rate_error"


def gauged_rates(chunk: RawDataset) -> dict[str, float]:
    """Return the rates at the last step at which the probe ``stability`` measured.

    Args:
        chunk: measured steps of a scope.

    Returns:
        Learning rate, critical rate and its error by name; empty if it did not measure.
    """
    found = {}
    for name in (_CRITICAL, _RATE, _ERROR):
        each = chunk.variables.get(name)
        if each is not None and each.dims == (STEP,) and each.values.dtype.kind in "iuf":
            found[name] = each.values.astype(np.float64)
    measured = np.flatnonzero(~np.isnan(found.get(_CRITICAL, np.empty(0))))
    if not len(measured):
        return {}
    return {name: float(values[measured[-1]]) for name, values in found.items()}


def gauge_of(latest: Mapping[str, float]) -> dict[str, Any] | None:
    """Return the share of the critical learning rate that is in use, with a sentence.

    Args:
        latest: of `gauged_rates`.

    Returns:
        None without the rate or the critical rate; ``share`` is None if the update raises the loss
        at every rate.

    >>> gauge_of({"learning_rate": 0.1, "critical_rate": 0.14})["words"]
    'at 0.71 of the edge; a step raises the loss from a learning rate of 0.14 on'
    """
    rate, critical = latest.get(_RATE, math.nan), latest.get(_CRITICAL, math.nan)
    if not (math.isfinite(rate) and math.isfinite(critical)) or rate <= 0 or critical < 0:
        return None
    if critical == 0:
        return {"share": None, "words": "beyond the edge; this step raises the loss at any rate"}
    share = rate / critical
    if math.isinf(latest.get(_ERROR, 0.0)):  # an open end: lower at all rates tried
        words = f"below {format_number(share)} of the edge; the loss is lower at all rates tried"
        return {"share": share, "words": words}
    words = f"at {format_number(share)} of the edge; " if share < 1 else "beyond the edge; "
    words += f"a step raises the loss from a learning rate of {format_number(critical)} on"
    return {"share": share, "words": words}
