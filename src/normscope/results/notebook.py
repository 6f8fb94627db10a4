"""HTML tables for notebooks; new code uses `normscope.text.Table`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from normscope.text import Table

__all__ = ["pairs_html", "table_html"]


def table_html(rows: Sequence[Mapping[str, object]], caption: str = "", note: str = "") -> str:
    """Return rows as an HTML table."""
    return Table(rows, caption, note.splitlines()).html()


def pairs_html(pairs: Mapping[str, object], caption: str = "", note: str = "") -> str:
    """Return names and values as an HTML table of two columns."""
    return Table(pairs, caption, note.splitlines()).html()
