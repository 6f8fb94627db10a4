"""How results show themselves in a notebook."""

from normscope.results.notebook import pairs_html, table_html

__all__ = ["pairs_html", "table_html"]
