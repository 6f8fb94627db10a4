"""Values of tables as a page shows and sorts them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from normscope.report.document import Name, Table

__all__ = ["Cell", "cell", "numeric_columns", "shown"]

MISSING = "-"


@dataclass(frozen=True)
class Cell:
    """One value.

    Args:
        text: what is shown.
        order: the number to sort by; None: sorted by its text.
        missing: whether nothing is known; sorted last.
        key: the name in the data, if that is another.
    """

    text: str
    order: str | None = None
    missing: bool = False
    key: str = ""


def cell(value: object, digits: int = 4) -> Cell:
    """How a value is shown and sorted.

    >>> cell(0.123456).text, cell(0.123456, 2).text, cell(0.123456).order
    ('0.1235', '0.12', '0.123456')
    >>> cell(None)
    Cell(text='-', order=None, missing=True, key='')

    Args:
        value: of a table.
        digits: of a number that is not whole.
    """
    if isinstance(value, Name):
        return Cell(value.words, key=value.key if value.key != value.words else "")
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return Cell(MISSING, missing=True)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return Cell(shown(value))
    text = f"{value:.{digits}g}" if isinstance(value, float) else str(value)
    if isinstance(value, float) and math.isinf(value):
        return Cell(text, "Infinity" if value > 0 else "-Infinity")
    return Cell(text, repr(value))


def shown(value: object) -> str:
    """A value in words; of numbers all digits but those that rounding made.

    >>> shown(True), shown([1, 0.1 + 0.2]), shown(1e-7), shown("batch")
    ('yes', '[1, 0.3]', '1e-07', 'batch')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:.12g}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(shown, value))}]"
    if isinstance(value, dict):
        return ", ".join(f"{name} {shown(each)}" for name, each in value.items())
    return str(value)


def numeric_columns(table: Table) -> Sequence[bool]:
    """For each column whether all that is known in it are numbers."""
    columns = [[cell(row[place]) for row in table.rows] for place in range(len(table.columns))]
    return [
        any(each.order is not None for each in column)
        and all(each.missing or each.order is not None for each in column)
        for column in columns
    ]
