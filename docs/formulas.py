"""Formulas of pages and docstrings as MathML, which a browser draws without fetching anything.

mkdocs calls `on_page_content` for every page, mkdocstrings the extension `Formulas` for every
docstring. Between them stands pymdownx.arithmatex, which finds what is between dollar signs.
"""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import griffe
from latex2mathml.converter import convert

_BLOCK = re.compile(
    r"^(?P<indent> *)\.\. math::(?P<body>.*(?:\n(?P=indent)  +\S.*)*)", re.MULTILINE
)
_INLINE = re.compile(r":math:`([^`]*)`")
_ROLE = re.compile(r":(?:class|func|meth|mod|data):`~?([^`]*)`")
_FOUND = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.DOTALL)


class Formulas(griffe.Extension):
    """Turns a docstring's reStructuredText formulas and roles into Markdown."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called for every object of the package."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    """A docstring with dollar signs around its formulas, and names in backticks."""

    def displayed(match: re.Match[str]) -> str:
        return f"{match['indent']}$${' '.join(match['body'].split())}$$"

    text = _INLINE.sub(r"$\1$", _BLOCK.sub(displayed, text))
    return _ROLE.sub(r"`\1`", text)


def on_page_content(html: str, **context: Any) -> str:
    """Called by mkdocs with the page's HTML."""
    return _FOUND.sub(_drawn, html)


def _drawn(match: re.Match[str]) -> str:
    latex = unescape(match[2]).strip()
    display = "block" if match[1] == "div" else "inline"
    formula = str(convert(latex[2:-2], display=display))  # without \( \) or \[ \]
    return f'<div class="formula">{formula}</div>' if display == "block" else formula
