"""Results as plain values and as tables of pandas, which loads on first use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["as_count", "frame"]


def frame(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """A table with one row for each mapping.

    >>> frame([{"norm": "none", "limit": 0.5}])
       norm  limit
    0  none    0.5
    """
    import pandas as pd

    return pd.DataFrame(list(rows))


def as_count(number: float) -> float:
    """A count whose type is float, since it may be a part or infinite: whole ones as integers.

    >>> as_count(6.0), as_count(11.5), as_count(float("inf"))
    (6, 11.5, inf)
    """
    return int(number) if float(number).is_integer() else number
