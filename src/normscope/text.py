"""Text for people: plain and HTML tables, wrapping, wording, and results that render themselves.

Everything that prints a table, a list or a duration uses this module. It loads nothing heavy.
"""

from __future__ import annotations

import re
import textwrap
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from numbers import Real
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "WIDTH",
    "Rendered",
    "Table",
    "csv_value",
    "format_duration",
    "format_number",
    "integer_if_whole",
    "join_words",
    "natural_order",
    "plural",
    "printable",
    "text_table",
    "wrap",
]

WIDTH = 80
"""Columns of a terminal of the usual width."""
_GAP = "  "
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\n")


# Wording


def plural(number: int, noun: str, nouns: str = "") -> str:
    """Return a count with its noun.

    >>> plural(1, "record"), plural(1200, "seed"), plural(2, "batch", "batches")
    ('1 record', '1200 seeds', '2 batches')
    """
    return f"{number} {noun if number == 1 else nouns or noun + 's'}"


def join_words(parts: Sequence[str], last: str = "and") -> str:
    """Return an enumeration as a sentence has it; "none" if there is nothing to list.

    >>> join_words(["a", "b", "c"]), join_words(["a", "b"], "or"), join_words([])
    ('a, b and c', 'a or b', 'none')
    """
    if not parts:
        return "none"
    *first, final = parts
    return f"{', '.join(first)} {last} {final}" if first else final


def format_number(value: float, digits: int = 2) -> str:
    """Return a number to a few significant digits, without an exponent where that is short.

    >>> format_number(0.05812), format_number(2.0), format_number(12345.6)
    ('0.058', '2', '12000')
    >>> format_number(0.9962, 3), format_number(float("inf")), format_number(float("nan"))
    ('0.996', 'infinite', 'not known')
    """
    if value != value or value in (float("inf"), -float("inf")):
        return "infinite" if value > 0 else "not known"
    return f"{float(f'{value:.{digits}g}'):.10g}"


def format_duration(seconds: float) -> str:
    """Return a duration in the unit that suits it, to two digits.

    >>> print(*(format_duration(each) for each in (0.0331, 41.3, 150, 5990, 360_000)), sep=", ")
    0.033 s, 41 s, 2.5 min, 100 min, 100 h
    """
    value, unit = (seconds, "s") if seconds < 120 else (seconds / 60, "min")
    if seconds >= 100 * 60:
        value, unit = seconds / 3600, "h"
    return f"{value:.2g} {unit}" if value < (10 if unit == "s" else 99) else f"{value:.0f} {unit}"


def printable(text: str) -> str:
    r"""Return the text with a question mark for what cannot be encoded (lone surrogates).

    >>> printable("caf\u00e9 \ud800")
    'café ?'
    """
    return text.encode(errors="replace").decode()


def natural_order(text: str) -> list[tuple[int, str]]:
    """Return a key that sorts figure2 before figure10.

    >>> sorted(["a/10", "a/2", "a/1b"], key=natural_order)
    ['a/1b', 'a/2', 'a/10']
    """
    parts = re.findall(r"\d+|\D+", text)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def csv_value(value: object) -> object:
    """Return a value for a CSV file, without text that a spreadsheet would run as a formula.

    Such text gets an apostrophe in front, the mark of text in spreadsheets. Numbers stay. Every
    line break becomes a newline: a lone carriage return would end the row.

    >>> print(*(csv_value(each) for each in ("=1+1", "@a", -1.5, "a-b")))
    '=1+1 '@a -1.5 a-b
    """
    if not isinstance(value, str):
        return value
    text = value.replace("\r\n", "\n").replace("\r", "\n")
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text


def integer_if_whole(number: float) -> float:
    """Return a whole float as an integer; others, and infinity, as they are.

    >>> integer_if_whole(6.0), integer_if_whole(11.5), integer_if_whole(float("inf"))
    (6, 11.5, inf)
    """
    return int(number) if float(number).is_integer() else number


# Results


@dataclass(frozen=True)
class Table:
    """A table with its title and the paragraphs below it, as plain text or HTML.

    Args:
        rows: values by column; one mapping alone is shown as pairs of names and values. None, NaN
            and what a row does not have show as a dash.
        title: above the table.
        notes: below it, a paragraph each.
        numbers: columns whose strings are numbers; others are recognized by their type.
    """

    rows: Sequence[Mapping[str, object]] | Mapping[str, object]
    title: str = ""
    notes: Sequence[str] = ()
    numbers: Collection[str] = ()

    def text(self, width: int = WIDTH) -> str:
        """Return the table as lines of at most ``width`` columns.

        >>> print(Table({"limit": 0.25, "norm": "none"}, "One net", ["No run was made."]).text())
        One net
        limit  0.25
        norm   none
        <BLANKLINE>
        No run was made.
        """
        if isinstance(self.rows, Mapping):
            longest = max(map(_columns, self.rows), default=0)
            pairs = (f"{name:<{longest}}  {_cell(value)}" for name, value in self.rows.items())
            table = "\n".join([*([self.title] if self.title else []), *pairs])
        else:
            table = text_table(self.rows, self.title, self.numbers, width)
        return wrap("\n".join([table, *([""] if self.notes else []), *self.notes]), width)

    def html(self) -> str:
        """Return the table as HTML for a notebook, every string escaped.

        >>> "a&lt;b" in Table([{"a<b": 1}]).html(), "<caption" in Table([{"a": 1}], "One").html()
        (True, True)
        """
        parts = _pairs_html(self.rows) if isinstance(self.rows, Mapping) else _rows_html(self.rows)
        title = f'<caption style="{_LEFT}">{escape(self.title)}</caption>' if self.title else ""
        lines = (line for note in self.notes for line in note.splitlines() if line.strip())
        below = "".join(f"<p>{escape(line)}</p>" for line in lines)
        return f'<div style="{_BOX}"><table>{title}{parts}</table></div>{below}'


class Rendered:
    """Mixin for result objects: text and HTML from `_table`, a DataFrame from `to_dict`.

    A subclass defines `to_dict`, and `_table` unless all its plain values are to be shown.
    A dataclass is declared with ``repr=False`` to print as its table in a console.

    Examples:
        >>> class Limit(Rendered):
        ...     def to_dict(self):
        ...         return {"limit": 0.5, "runs": [1, 2]}
        >>> Limit()
        limit  0.5
        >>> Limit().to_dataframe()
           limit    runs
        0    0.5  [1, 2]
    """

    def to_dict(self) -> dict[str, Any]:
        """Return the values by name; arrays, tuples and nested results as plain values."""
        return {name: _plain(value) for name, value in vars(self).items()}

    def _table(self) -> Table:
        """Return what is shown: here the values of `to_dict` that are not lists or mappings."""
        values = self.to_dict().items()
        return Table({name: each for name, each in values if not isinstance(each, list | dict)})

    def text(self, width: int = WIDTH) -> str:
        """Return the result as lines of at most ``width`` columns."""
        return self._table().text(width)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return self._table().html()

    def to_dataframe(self) -> pd.DataFrame:
        """Return one row with the values of `to_dict`."""
        import pandas as pd

        return pd.DataFrame([self.to_dict()])


def _plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if hasattr(value, "tolist"):  # numpy and torch
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, tuple | list) else value


# Tables in plain text


@dataclass(frozen=True)
class _Column:
    """One column of a text table.

    Args:
        head: its title.
        cells: its values as strings.
        is_number: whether it is aligned to the right.
        is_whole: whether its cells are not wrapped.
    """

    head: str
    cells: list[str]
    is_number: bool
    is_whole: bool

    @property
    def widest(self) -> int:
        """The width from which on nothing is wrapped."""
        return max(_columns(line) for text in (self.head, *self.cells) for line in text.split("\n"))

    @property
    def narrowest(self) -> int:
        """The width below which words or numbers would be broken."""
        words = self.head.split()
        for cell in self.cells:
            words += cell.split("\n") if self.is_whole else cell.split()
        return max(map(_columns, words), default=0)


def text_table(
    rows: Sequence[Mapping[str, object]],
    title: str = "",
    numbers: Collection[str] = (),
    width: int | None = WIDTH,
) -> str:
    """Return rows as a table in plain text.

    Strings and heads are wrapped if the table is too wide; columns that do not fit even so follow
    below, beside the first one again. Only a single word may be wider than ``width``.

    Args:
        rows: values by column; None, NaN and what a row does not have show as a dash.
        title: above the table, in one line.
        numbers: columns whose strings are numbers; others are recognized by their type.
        width: in columns of a terminal; None for no limit.

    Returns:
        Lines without trailing blanks; the title alone if there are no rows.

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


def wrap(text: str, width: int = WIDTH) -> str:
    r"""Return paragraphs in lines of at most ``width`` columns; rows of a table stay as they are.

    Only a single word, such as a path, may be wider. Wrapping twice changes nothing.

    Args:
        text: lines; each is a paragraph, or a row of a table if it has two adjacent blanks.
        width: in columns of a terminal.

    >>> print(wrap("name  a long row\n\nA sentence of words.", 12))
    name  a long row
    <BLANKLINE>
    A sentence
    of words.
    """
    lines = ([line] if "  " in line else _wrap_lines(line, width) for line in text.splitlines())
    return "\n".join(each for group in lines for each in group)


def _column(name: str, values: Sequence[object], is_number: bool) -> _Column:
    found = any(isinstance(value, Real) and not isinstance(value, bool) for value in values)
    return _Column(name, [_cell(value) for value in values], is_number or found, is_number)


def _cell(value: object) -> str:
    if value is None or (isinstance(value, Real) and value != value):  # NaN
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _groups(columns: list[_Column], width: int | None) -> list[list[_Column]]:
    """Group the columns that fit beside each other, the first one in every group."""
    groups: list[list[_Column]] = []
    for column in columns:
        if groups and (width is None or _narrowest([*groups[-1], column]) <= width):
            groups[-1].append(column)
        elif len(groups) == 1 and len(groups[0]) == 1:  # the first column is never alone
            groups[0].append(column)
        else:
            groups.append([columns[0], column] if groups else [column])
    return groups


def _narrowest(columns: list[_Column]) -> int:
    return _total([column.narrowest for column in columns])


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _block(columns: list[_Column], width: int | None) -> str:
    """Return heads, rule and rows of columns that fit."""
    widths = _widths(columns, width)
    heads, *rows = (
        [_wrap_lines(text, wide) for text, wide in zip(texts, widths, strict=True)]
        for texts in zip(*((column.head, *column.cells) for column in columns), strict=True)
    )
    height = max(map(len, heads))
    heads = [[""] * (height - len(lines)) + lines for lines in heads]  # aligned at the bottom
    # wrapping may have left a column narrower than it was allowed to be
    cells_of = zip(heads, *rows, strict=True)
    widths = [max(_columns(line) for cell in cells for line in cell) for cells in cells_of]
    is_number = [column.is_number for column in columns]
    lines = [line for row in (heads, *rows) for line in _row_lines(row, widths, is_number)]
    rule = "-" * min(_total(widths), width or _total(widths))
    return "\n".join([*lines[:height], rule, *lines[height:]])


def _widths(columns: list[_Column], width: int | None) -> list[int]:
    """Return widths that fit, taken from the widest column first."""
    widths = [column.widest for column in columns]
    while width is not None and _total(widths) > width:
        spare = [at for at, column in enumerate(columns) if widths[at] > column.narrowest]
        if not spare:
            break
        widths[max(spare, key=widths.__getitem__)] -= 1
    return widths


def _wrap_lines(text: str, width: int) -> list[str]:
    wrapper = textwrap.TextWrapper(max(width, 1), break_long_words=False, break_on_hyphens=False)
    # a wide character counts twice: a zero byte takes its second column meanwhile
    filled = "".join(sign + "\0" * (_columns(sign) - 1) for sign in text)
    lines = [line for part in filled.split("\n") for line in wrapper.wrap(part) or [""]]
    return [line.replace("\0", "") for line in lines]


def _columns(text: str) -> int:
    r"""Return how many columns of a terminal a string takes.

    >>> _columns("norm"), _columns("e\u0301"), _columns("\u6a21")
    (4, 1, 2)
    """
    widths = (2 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in text)
    return sum(widths) - sum(map(bool, map(unicodedata.combining, text)))


def _row_lines(row: list[list[str]], widths: list[int], is_number: list[bool]) -> list[str]:
    """Return the lines of one row, as many as its highest cell has."""
    height = max(map(len, row))
    filled = [cell + [""] * (height - len(cell)) for cell in row]
    return [
        _GAP.join(
            " " * (wide - _columns(text)) + text if right else text + " " * (wide - _columns(text))
            for text, wide, right in zip(line, widths, is_number, strict=True)
        ).rstrip()
        for line in zip(*filled, strict=True)
    ]


# Tables in HTML; styles are in the elements because a notebook keeps no others

_BOX = "overflow-x:auto;max-width:100%"  # a wide table scrolls, not the page
_RIGHT = "text-align:right;white-space:nowrap"
_LEFT = "text-align:left"


def _rows_html(rows: Sequence[Mapping[str, object]]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row))
    styles = {name: _style(*(row.get(name) for row in rows)) for name in names}
    head = "".join(f'<th scope="col" style="{styles[name]}">{escape(name)}</th>' for name in names)
    body = "".join(
        f"<tr>{''.join(_cell_html(row.get(name), styles[name]) for name in names)}</tr>"
        for row in rows
    )
    return f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"


def _pairs_html(pairs: Mapping[str, object]) -> str:
    rows = (
        f'<tr><th scope="row" style="{_LEFT}">{escape(name)}</th>'
        f"{_cell_html(value, _style(value))}</tr>"
        for name, value in pairs.items()
    )
    return f"<tbody>{''.join(rows)}</tbody>"


def _cell_html(value: object, style: str) -> str:
    return f'<td style="{style}">{escape(_cell(value))}</td>'


def _style(*values: object) -> str:
    """Return the alignment of a column: numbers, and strings that read as numbers, to the right."""
    known = [each for each in values if each is not None]
    numbers = any(isinstance(each, Real) and not isinstance(each, bool) for each in known)
    return _RIGHT if numbers or (known and all(map(_reads_as_number, known))) else _LEFT


def _reads_as_number(value: object) -> bool:
    try:
        return isinstance(value, str) and float(value) is not None
    except ValueError:
        return False
