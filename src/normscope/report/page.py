"""Render a report as one HTML file without outside references."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from normscope import __version__
from normscope.errors import DataError, InputError
from normscope.files import replacing
from normscope.report.document import Download, Name, Picture, Report, Table
from normscope.report.drawing import DARK, LIGHT, Palette, inline_svg, is_colour
from normscope.report.narrative import format_seconds
from normscope.results.claim import DECISION
from normscope.text import printable

_OVERVIEW = "overview"  # anchor of the first picture
_MISSING = "-"


def render(report: Report) -> str:
    """Return the report as HTML.

    Style, script, drawings and data are embedded, and the content policy forbids the browser to
    load anything. All strings are escaped.

    Args:
        report: to render.
    """
    style, script = _asset("page.css"), _asset("page.js")
    overview = [] if report.overview is None else [report.overview]
    pictures = [*overview, *(each for section in report.sections for each in section.pictures)]
    if any(each.surface is not None for each in pictures):
        script += _asset("surface.js")
    first = report.first_picture
    template = _environment().get_template("page.html.j2")
    return printable(
        template.render(
            report=report,
            first=None if first is None else _placed_picture(first, _OVERVIEW, "p0", report.title),
            sections=list(_placed_sections(report)),
            style=Markup(style),
            script=Markup(script),
            policy=_policy(style, script),
            version=__version__,
        )
    )


def write_report(report: Report, path: str | os.PathLike[str]) -> Path:
    """Write the report as one HTML file, atomically.

    Args:
        report: to write.
        path: of the file; an existing one is replaced, unless the report was made of it.

    Returns:
        The path.

    Raises:
        InputError: if the path is a folder or one of the report's sources.
    """
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path} is a folder; name a file in it, such as {path / 'report.html'}.")
    if any(_is_same(path, source) for source in report.sources):
        raise InputError(f"{path} is one of the files that the report is made of; name another.")
    text = render(report)
    with replacing(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")
    return path


def _is_same(path: Path, source: Path) -> bool:
    """Return whether two paths resolve to the same file."""
    same = path.resolve() == source.resolve()
    return same or (path.exists() and source.exists() and path.samefile(source))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("normscope.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "breakable": _breakable,
        "cell": _cell,
        "format_value": _format_value,
        "href": _href,
        "mark": _mark,
        "own_rule": _own_rule,
        "seconds": format_seconds,
        "size": _size,
    }
    environment.globals |= {"numeric_columns": _numeric_columns, "light": LIGHT, "dark": DARK}
    environment.globals["decision"] = DECISION
    return environment


def _own_rule(rule: str) -> str:
    """Return a claim's rule without what it shares with others, which is below the table."""
    return "; ".join(part for part in rule.replace(DECISION, "").split("; ") if part)


@cache
def _asset(name: str) -> str:
    return (files("normscope.report") / "templates" / name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """Return the content policy: this script, this style, and embedded images only."""
    rules = (
        "default-src 'none'",
        "img-src data:",
        f"script-src '{_digest(script)}'",
        f"style-src-elem '{_digest(style)}'",
        "style-src-attr 'unsafe-inline'",  # of the drawings, which are sanitized
        "base-uri 'none'",
        "form-action 'none'",
    )
    return "; ".join(rules)


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _placed_sections(report: Report) -> Iterator[dict[str, Any]]:
    """Yield each section with the anchors of its parts, as the template reads it."""
    claims, first = 0, report.first_picture
    said = set(report.findings) if len(report.sections) == 1 else set()
    for number, section in enumerate(report.sections, start=1):
        anchor = f"section-{number}"
        pictures = [
            _placed_picture(each, f"{anchor}-figure-{index}", f"p{number}-{index}", section.title)
            for index, each in enumerate(section.pictures, start=1)
            if each is not first
        ]
        tables = {f"{anchor}-table-{index}": each for index, each in enumerate(section.tables, 1)}
        above = _OVERVIEW if any(each is first for each in section.pictures) else ""
        yield {
            "anchor": anchor,
            "section": section,
            "paragraphs": [each for each in section.paragraphs if each not in said],
            "first": above,  # anchor of its picture on the first screen; "" if it has none there
            "pictures": pictures,
            "tables": list(tables.items()),
            "claims": [(f"claim-{claims + n}", each) for n, each in enumerate(section.claims, 1)],
            "evidence": above
            or next((each["anchor"] for each in pictures), next(iter(tables), anchor)),
            "kind": "figure" if section.pictures else "table" if section.tables else "section",
        }
        claims += len(section.claims)


def _placed_picture(picture: Picture, anchor: str, prefix: str, title: str) -> dict[str, Any]:
    """Return a picture as the template reads it: wide, and narrow if it has such a drawing."""
    drawings = [("wide", picture, prefix)]
    drawings += [("narrow", picture.narrow, f"{prefix}-n")] if picture.narrow else []
    try:
        found = [
            (
                kind,
                Markup(inline_svg(each.svg, picture.text, name, each.panels)),
                _escaped_json([(one.name, one.x, one.y, one.points) for one in each.values]),
            )
            for kind, each, name in drawings
        ]
    except DataError as error:
        raise DataError(f"{title}: {error}") from error
    caption = picture.caption or picture.text
    surface = _escaped_json(None if picture.surface is None else vars(picture.surface))
    return {"anchor": anchor, "drawings": found, "caption": caption, "surface": surface}


def _escaped_json(values: object) -> Markup:
    """Return values as JSON in the text of an element; "" if there are none."""
    if not values:
        return Markup("")
    text = json.dumps(values, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return Markup(html.escape(text, quote=False))


def _mark(colour: str) -> str:
    """Return the declarations of the colour that marks a card; "" if it has none.

    >>> _mark("#000000"), _mark("red;")
    ('--mark:var(--ink)', '')
    """
    if not is_colour(colour):
        return ""
    palette = Palette()
    value = palette.value(colour, is_line=True)
    return ";".join(filter(None, (palette.declarations, f"--mark:{value}")))


@dataclass(frozen=True)
class _Cell:
    """A value of a table.

    Args:
        text: to show.
        order: the number to sort by; None to sort by the text.
        missing: whether the value is unknown; sorted last.
        key: the name in the data, if it differs from the text.
    """

    text: str
    order: str | None = None
    missing: bool = False
    key: str = ""


def _cell(value: object, digits: int = 4) -> _Cell:
    """Return how a value is shown and sorted.

    >>> _cell(0.123456).text, _cell(0.123456, 2).text, _cell(0.123456).order
    ('0.1235', '0.12', '0.123456')
    >>> _cell(None)
    _Cell(text='-', order=None, missing=True, key='')

    Args:
        value: of a table.
        digits: significant digits of a float.
    """
    if isinstance(value, Name):
        return _Cell(value.words, key=value.key if value.key != value.words else "")
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return _Cell(_MISSING, missing=True)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return _Cell(_format_value(value))
    text = f"{value:.{digits}g}" if isinstance(value, float) else str(value)
    if isinstance(value, float) and math.isinf(value):
        return _Cell(text, "Infinity" if value > 0 else "-Infinity")
    return _Cell(text, repr(value))


def _numeric_columns(table: Table) -> list[bool]:
    """Return for each column whether all known values are numbers."""
    columns = [[_cell(row[index]) for row in table.rows] for index in range(len(table.columns))]
    return [
        any(each.order is not None for each in column)
        and all(each.missing or each.order is not None for each in column)
        for column in columns
    ]


def _format_value(value: object) -> str:
    """Format a value; floats to 12 significant digits.

    >>> _format_value(True), _format_value([1, 0.1 + 0.2]), _format_value(1e-7)
    ('yes', '[1, 0.3]', '1e-07')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:.12g}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_format_value, value))}]"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_format_value(each)}" for name, each in value.items())
    return str(value)


def _href(download: Download) -> Markup:
    """Return the file's bytes as a data URL."""
    content = base64.b64encode(download.content).decode()
    return Markup("data:{};base64,{}").format(download.media_type, content)


def _breakable(name: str) -> Markup:
    """Return a name that may be broken after underscores, so that columns are narrow.

    >>> _breakable("a_<b>")
    Markup('a_<wbr>&lt;b&gt;')
    """
    return Markup("_<wbr>").join(name.split("_"))


def _size(download: Download) -> str:
    """Return the size of a file in bytes or kB."""
    size = len(download.content)
    return f"{size} bytes" if size < 1000 else f"{size / 1000:.3g} kB"
