"""How results show themselves in a notebook: as one small table, every text escaped.

It stands here, at the bottom of the house, so that results of every part can use it;
`normscope.report.notebook` gives the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

__all__ = ["pairs_html", "table_html"]


def table_html(rows: Sequence[Mapping[str, object]], caption: str = "", note: str = "") -> str:
    """Rows as an HTML table.

    >>> print(table_html([{"a<b": 0.25}], "One row"))
    <table><caption>One row</caption><thead><tr><th scope="col">a&lt;b</th></tr></thead>\
<tbody><tr><td>0.25</td></tr></tbody></table>

    Args:
        rows: values by column; None and what a row does not have show as a dash.
        caption: above the table.
        note: below it, a paragraph for each line.
    """
    columns = list(dict.fromkeys(name for row in rows for name in row))
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in columns)
    body = "".join(
        f"<tr>{''.join(f'<td>{_cell(row.get(name))}</td>' for name in columns)}</tr>"
        for row in rows
    )
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    below = "".join(f"<p>{escape(line)}</p>" for line in note.splitlines() if line.strip())
    return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}"


def pairs_html(pairs: Mapping[str, object], caption: str = "", note: str = "") -> str:
    """Names and values as an HTML table of two columns, the names as its heads.

    Args:
        pairs: values by name.
        caption: above the table.
        note: below it.
    """
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{_cell(value)}</td></tr>'
        for name, value in pairs.items()
    )
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    below = "".join(f"<p>{escape(line)}</p>" for line in note.splitlines() if line.strip())
    return f"<table>{title}<tbody>{rows}</tbody></table>{below}"


def _cell(value: object) -> str:
    if value is None or value != value:  # nothing is known; not a number
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return escape(f"{value:.4g}" if isinstance(value, float) else str(value))
