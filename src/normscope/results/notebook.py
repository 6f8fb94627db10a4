"""How results show themselves in a notebook: as one small table, every text escaped.

It stands here, at the bottom of the house, so that results of every part can use it;
`normscope.report.notebook` gives the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from numbers import Real

__all__ = ["pairs_html", "table_html"]

# in the elements themselves: a notebook has styles of its own, and keeps no others
_BOX = "overflow-x:auto;max-width:100%"  # a wide table scrolls, not the page
_NUMBER = "text-align:right;white-space:nowrap"
_TEXT = "text-align:left"


def table_html(rows: Sequence[Mapping[str, object]], caption: str = "", note: str = "") -> str:
    """Rows as an HTML table.

    >>> "<caption" in table_html([{"a<b": 0.25}], "One row"), "a&lt;b" in table_html([{"a<b": 1}])
    (True, True)

    Args:
        rows: values by column; None and what a row does not have show as a dash. Columns with
            numbers are aligned to the right.
        caption: above the table.
        note: below it, a paragraph for each line.
    """
    columns = list(dict.fromkeys(name for row in rows for name in row))
    styles = {name: _style(*(row.get(name) for row in rows)) for name in columns}
    head = "".join(
        f'<th scope="col" style="{styles[name]}">{escape(name)}</th>' for name in columns
    )
    body = "".join(
        f"<tr>{''.join(_cell(row.get(name), styles[name]) for name in columns)}</tr>"
        for row in rows
    )
    return _boxed(f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>", caption, note)


def pairs_html(pairs: Mapping[str, object], caption: str = "", note: str = "") -> str:
    """Names and values as an HTML table of two columns, the names as its heads.

    Args:
        pairs: values by name.
        caption: above the table.
        note: below it.
    """
    rows = "".join(
        f'<tr><th scope="row" style="{_TEXT}">{escape(name)}</th>{_cell(value, _style(value))}</tr>'
        for name, value in pairs.items()
    )
    return _boxed(f"<tbody>{rows}</tbody>", caption, note)


def _boxed(parts: str, caption: str, note: str) -> str:
    """A table in a box of its own, with what stands above and below it."""
    title = f'<caption style="{_TEXT}">{escape(caption)}</caption>' if caption else ""
    below = "".join(f"<p>{escape(line)}</p>" for line in note.splitlines() if line.strip())
    return f'<div style="{_BOX}"><table>{title}{parts}</table></div>{below}'


def _style(*values: object) -> str:
    """How a column of values is aligned."""
    known = [each for each in values if each is not None]
    numbers = any(isinstance(each, Real) and not isinstance(each, bool) for each in known)
    return _NUMBER if numbers or (known and all(map(_reads_as_number, known))) else _TEXT


def _reads_as_number(value: object) -> bool:
    """Whether a text is a number that was written out already."""
    try:
        return isinstance(value, str) and float(value) is not None
    except ValueError:
        return False


def _cell(value: object, style: str) -> str:
    return f'<td style="{style}">{_text(value)}</td>'


def _text(value: object) -> str:
    if value is None or value != value:  # nothing is known; not a number
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return escape(f"{value:.4g}" if isinstance(value, float) else str(value))
