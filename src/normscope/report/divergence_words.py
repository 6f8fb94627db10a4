"""What counts as diverged in a sweep, in one sentence."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import xarray as xr

from normscope.results.settings import settings_of

__all__ = ["common_factor", "divergence_words", "factor_of"]

_FACTOR = "divergence_factor"


def divergence_words(factor: float) -> str:
    """The criterion of a sweep, which is not that of the learning-rate advisor.

    Args:
        factor: multiple of its first value beyond which a loss ends a training.

    Returns:
        One sentence.

    >>> divergence_words(1000.0)
    'Diverged: a loss that is not finite, or beyond 1000 times its first value.'
    """
    return f"Diverged: a loss that is not finite, or beyond {factor:g} times its first value."


def common_factor(settings: Iterable[dict[str, Any]]) -> float | None:
    """The factor of some trainings; None where they have none, or not the same.

    >>> common_factor([{"divergence_factor": 10.0}, {"divergence_factor": 10.0}]), common_factor([])
    (10.0, None)
    """
    found = {each.get(_FACTOR) for each in settings}
    factor = found.pop() if len(found) == 1 else None
    return float(factor) if isinstance(factor, int | float) else None


def factor_of(diagrams: Iterable[xr.Dataset]) -> float | None:
    """The factor of some diagrams, None where it is not known."""
    return common_factor(map(settings_of, diagrams))
