"""One look for tables in plain text and the sentences below: texts left and numbers right."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real

__all__ = ["WIDTH", "text_table", "wrapped"]

WIDTH = 80
"""Columns of a terminal that nobody has widened."""
_GAP = "  "
_RULE = "-"  # in every encoding


@dataclass(frozen=True)
class _Column:
    """One column: what stands over it, its cells as texts, and how they are set.

    Args:
        head: what stands over it.
        cells: its values.
        is_number: it holds numbers, which stand right.
        is_whole: its texts are numbers with what belongs to them, and are not wrapped.
    """

    head: str
    cells: list[str]
    is_number: bool
    is_whole: bool

    @property
    def widest(self) -> int:
        """Nothing is wrapped from this width on."""
        return max(_shown(line) for text in (self.head, *self.cells) for line in text.split("\n"))

    @property
    def narrowest(self) -> int:
        """Words, and numbers with what belongs to them, are not broken."""
        words = self.head.split()
        for cell in self.cells:
            words += cell.split("\n") if self.is_whole else cell.split()
        return max(map(_shown, words), default=0)


def text_table(
    rows: Sequence[Mapping[str, object]],
    title: str = "",
    numbers: Collection[str] = (),
    width: int | None = WIDTH,
) -> str:
    """Rows as a table in plain text.

    What is too wide has its texts and heads wrapped; columns that do not fit even so follow below,
    beside the first one again. Only a single word may be wider than asked for.

    Args:
        rows: values by column; None, NaN and what a row does not have show as a dash.
        title: above the table, in one line.
        numbers: columns of numbers that are texts already; other numbers are known by their type.
        width: in characters; None for as many as it takes.

    Returns:
        Lines without blanks at their ends; the title alone if there are no rows.

    >>> print(text_table([{"norm": "none", "limit": 0.25}, {"norm": "batch", "limit": 12}], "Nets"))
    Nets
    norm   limit
    ------------
    none    0.25
    batch     12
    """
    names = dict.fromkeys(name for row in rows for name in row)
    columns = [_column(name, [row.get(name) for row in rows], name in numbers) for name in names]
    blocks = [_block(group, width) for group in _groups(columns, width)]
    return "\n".join([*([title] if title else []), "\n\n".join(blocks)]).rstrip("\n")


def wrapped(text: str, width: int = WIDTH) -> str:
    r"""Sentences in lines of a width at most; the rows of a table stay as they are.

    Only a single word, such as a path, may be wider than asked for.

    Args:
        text: lines; each is a paragraph, or a row if it has two blanks side by side.
        width: in characters.

    Returns:
        The lines. Once wrapped, they stay as they are.

    >>> print(wrapped("name  a long row\n\nA sentence of words.", 12))
    name  a long row
    <BLANKLINE>
    A sentence
    of words.
    """
    lines = ([line] if "  " in line else _wrapped(line, width) for line in text.splitlines())
    return "\n".join(each for group in lines for each in group)


def _column(name: str, values: Sequence[object], is_number: bool) -> _Column:
    found = any(isinstance(value, Real) and not isinstance(value, bool) for value in values)
    return _Column(name, [_cell(value) for value in values], is_number or found, is_number)


def _cell(value: object) -> str:
    if value is None or (isinstance(value, Real) and value != value):  # not a number
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _groups(columns: list[_Column], width: int | None) -> list[list[_Column]]:
    """The columns that fit beside each other, the first one in every group."""
    groups: list[list[_Column]] = []
    for column in columns:
        if groups and (width is None or _total([*_least(groups[-1]), column.narrowest]) <= width):
            groups[-1].append(column)
        elif len(groups) == 1 and len(groups[0]) == 1:  # no column stands alone
            groups[0].append(column)
        else:
            groups.append([columns[0], column] if groups else [column])
    return groups


def _least(columns: list[_Column]) -> list[int]:
    return [column.narrowest for column in columns]


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _block(columns: list[_Column], width: int | None) -> str:
    """Heads, rule and rows of columns that fit."""
    widths = _widths(columns, width)
    heads, *rows = (
        [_wrapped(text, wide) for text, wide in zip(texts, widths, strict=True)]
        for texts in zip(*((column.head, *column.cells) for column in columns), strict=True)
    )
    highest = max(map(len, heads))
    sunk = [[""] * (highest - len(lines)) + lines for lines in heads]  # onto the rule
    # wrapping may have left a column narrower than it was allowed to be
    lines_of = zip(sunk, *rows, strict=True)
    widths = [max(_shown(line) for cell in cells for line in cell) for cells in lines_of]
    is_number = [column.is_number for column in columns]
    lines = [line for row in (sunk, *rows) for line in _lines(row, widths, is_number)]
    rule = _RULE * min(_total(widths), width or _total(widths))
    return "\n".join([*lines[:highest], rule, *lines[highest:]])


def _widths(columns: list[_Column], width: int | None) -> list[int]:
    """Widths that fit: the widest column gives first."""
    widths = [column.widest for column in columns]
    while width is not None and _total(widths) > width:
        spare = [place for place, column in enumerate(columns) if widths[place] > column.narrowest]
        if not spare:
            break
        widths[max(spare, key=widths.__getitem__)] -= 1
    return widths


def _wrapped(text: str, width: int) -> list[str]:
    wrapper = textwrap.TextWrapper(max(width, 1), break_long_words=False, break_on_hyphens=False)
    # a wide sign counts twice: a zero stands in its second place meanwhile
    filled = "".join(sign + "\0" * (_shown(sign) - 1) for sign in text)
    lines = [line for part in filled.split("\n") for line in wrapper.wrap(part) or [""]]
    return [line.replace("\0", "") for line in lines]


def _shown(text: str) -> int:
    r"""Columns of a terminal that a text takes.

    >>> _shown("norm"), _shown("e\u0301"), _shown("\u6a21")
    (4, 1, 2)
    """
    widths = (2 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in text)
    return sum(widths) - sum(map(bool, map(unicodedata.combining, text)))


def _lines(row: list[list[str]], widths: list[int], is_number: list[bool]) -> list[str]:
    """The lines of one row, as many as its highest cell has."""
    height = max(map(len, row))
    filled = [cell + [""] * (height - len(cell)) for cell in row]
    return [
        _GAP.join(
            " " * (wide - _shown(text)) + text if right else text + " " * (wide - _shown(text))
            for text, wide, right in zip(line, widths, is_number, strict=True)
        ).rstrip()
        for line in zip(*filled, strict=True)
    ]
