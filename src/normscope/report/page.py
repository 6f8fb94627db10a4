"""The page: a report as one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from normscope import __version__
from normscope.errors import DataError, InputError
from normscope.files import replacing
from normscope.report.cells import cell, numeric_columns, shown
from normscope.report.colours import DARK, LIGHT
from normscope.report.document import Download, Picture, Report, Section, Table
from normscope.report.drawing import inline_svg
from normscope.report.words import printable
from normscope.results import Claim

__all__ = ["render", "write_report"]


@dataclass(frozen=True)
class ShownPicture:
    """A picture with its place on the page."""

    anchor: str
    svg: Markup
    caption: str


@dataclass(frozen=True)
class ShownTable:
    """A table with its place on the page."""

    anchor: str
    table: Table


@dataclass(frozen=True)
class ShownClaim:
    """A claim with its place on the page and that of its evidence."""

    anchor: str
    claim: Claim
    evidence: str
    evidence_name: str


@dataclass(frozen=True)
class ShownSection:
    """A section with the places of its parts."""

    anchor: str
    section: Section
    pictures: Sequence[ShownPicture]
    tables: Sequence[ShownTable]
    claims: Sequence[ShownClaim]


def render(report: Report) -> str:
    """The report as HTML.

    One file without outside references: style, script, drawings and data are inside it, and its
    content policy forbids the browser to load anything. All texts are escaped.

    Args:
        report: what to show.
    """
    style, script = _asset("page.css"), _asset("page.js")
    template = _environment().get_template("page.html.j2")
    return printable(
        template.render(
            report=report,
            sections=list(_shown_sections(report.sections)),
            style=Markup(style),
            script=Markup(script),
            policy=_policy(style, script),
            version=__version__,
        )
    )


def write_report(report: Report, path: str | os.PathLike[str]) -> Path:
    """Write the report as one HTML file, all of it or nothing.

    Args:
        report: what to show.
        path: of the file; one that is there is replaced, unless the report was made of it.

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
    """Whether two paths are one file, by whichever links."""
    if path.resolve() == source.resolve():
        return True
    return path.exists() and source.exists() and path.samefile(source)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("normscope.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"cell": cell, "shown": shown, "href": _href, "size": _size}
    environment.globals |= {"numeric_columns": numeric_columns, "light": LIGHT, "dark": DARK}
    return environment


@cache
def _asset(name: str) -> str:
    return (files("normscope.report") / "templates" / name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """What the browser may do: run this script, apply this style, show pictures inside the file."""
    rules = (
        "default-src 'none'",
        "img-src data:",
        f"script-src '{_digest(script)}'",
        f"style-src-elem '{_digest(style)}'",
        "style-src-attr 'unsafe-inline'",  # of the drawings, which were cleaned
        "base-uri 'none'",
        "form-action 'none'",
    )
    return "; ".join(rules)


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _shown_sections(sections: Sequence[Section]) -> Iterator[ShownSection]:
    claims = 0
    for number, section in enumerate(sections, start=1):
        anchor = f"section-{number}"
        pictures = [
            _shown_picture(each, f"{anchor}-figure-{place}", f"p{number}-{place}", section.title)
            for place, each in enumerate(section.pictures, start=1)
        ]
        tables = [
            ShownTable(f"{anchor}-table-{place}", each)
            for place, each in enumerate(section.tables, start=1)
        ]
        evidence = [p.anchor for p in pictures] + [t.anchor for t in tables] or [anchor]
        kind = "figure" if pictures else "table" if tables else "section"
        shown_claims = [
            ShownClaim(f"claim-{claims + place}", each, evidence[0], f"{kind} of {section.title}")
            for place, each in enumerate(section.claims, start=1)
        ]
        claims += len(shown_claims)
        yield ShownSection(anchor, section, pictures, tables, shown_claims)


def _shown_picture(picture: Picture, anchor: str, prefix: str, title: str) -> ShownPicture:
    try:
        svg = inline_svg(picture.svg, picture.text, prefix)
    except DataError as error:
        raise DataError(f"{title}: {error}") from error
    return ShownPicture(anchor, Markup(svg), picture.caption or picture.text)


def _href(download: Download) -> Markup:
    """The file's bytes as an address."""
    content = base64.b64encode(download.content).decode()
    return Markup("data:{};base64,{}").format(download.media_type, content)


def _size(download: Download) -> str:
    """The size of a file in words."""
    size = len(download.content)
    return f"{size} bytes" if size < 1000 else f"{size / 1000:.3g} kB"
