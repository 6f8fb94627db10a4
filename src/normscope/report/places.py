"""Where everything of a report stands on its page, and what is said or drawn once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from normscope.errors import DataError
from normscope.report.document import Picture, Report, Section, Table
from normscope.report.drawing import inline_svg
from normscope.results import Claim

__all__ = ["shown_first", "shown_sections"]

_FIRST = "overview"  # the place of the first screen's picture


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
    """A section with the places of its parts.

    Args:
        anchor: its place.
        section: itself.
        paragraphs: what the first screen has not said already.
        first: the place of its picture on the first screen; "" if it has none there.
        pictures: the others.
        tables: all of them.
        claims: all of them.
    """

    anchor: str
    section: Section
    paragraphs: Sequence[str]
    first: str
    pictures: Sequence[ShownPicture]
    tables: Sequence[ShownTable]
    claims: Sequence[ShownClaim]


def shown_first(report: Report) -> ShownPicture | None:
    """The picture of the first screen.

    Args:
        report: what to show.
    """
    picture = report.first_picture
    return None if picture is None else _shown_picture(picture, _FIRST, "p0", report.title)


def shown_sections(report: Report) -> Iterator[ShownSection]:
    """The sections, without what the first screen shows of them.

    Args:
        report: what to show.
    """
    claims, first = 0, report.first_picture
    said = set(report.findings) if len(report.sections) == 1 else set()
    for number, section in enumerate(report.sections, start=1):
        anchor = f"section-{number}"
        pictures = [
            _shown_picture(each, f"{anchor}-figure-{place}", f"p{number}-{place}", section.title)
            for place, each in enumerate(section.pictures, start=1)
            if each is not first
        ]
        tables = [
            ShownTable(f"{anchor}-table-{place}", each)
            for place, each in enumerate(section.tables, start=1)
        ]
        above = _FIRST if any(each is first for each in section.pictures) else ""
        drawn, listed = ([each.anchor for each in part] for part in (pictures, tables))
        evidence = next(filter(None, (above, *drawn, *listed, anchor)))
        shown = _shown_claims(section, evidence, claims)
        claims += len(shown)
        paragraphs = [each for each in section.paragraphs if each not in said]
        yield ShownSection(anchor, section, paragraphs, above, pictures, tables, shown)


def _shown_claims(section: Section, evidence: str, before: int) -> list[ShownClaim]:
    kind = "figure" if section.pictures else "table" if section.tables else "section"
    return [
        ShownClaim(f"claim-{before + place}", each, evidence, f"{kind} of {section.title}")
        for place, each in enumerate(section.claims, start=1)
    ]


def _shown_picture(picture: Picture, anchor: str, prefix: str, title: str) -> ShownPicture:
    try:
        svg = inline_svg(picture.svg, picture.text, prefix, picture.panels)
    except DataError as error:
        raise DataError(f"{title}: {error}") from error
    return ShownPicture(anchor, Markup(svg), picture.caption or picture.text)
