"""The parts of a report: findings, then sections of pictures, tables, claims and data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from normscope.results import Claim
from normscope.text import plural


@dataclass(frozen=True)
class Name:
    """A readable name with the key it has in the data.

    >>> str(Name("gradient norm", "gradient_norm")), str(Name("loss", "loss"))
    ('gradient norm (gradient_norm)', 'loss')

    Args:
        words: for a reader.
        key: in the data.
    """

    words: str
    key: str

    def __str__(self) -> str:
        return self.words if self.words == self.key else f"{self.words} ({self.key})"


Value = str | float | int | bool | Name | None


@dataclass(frozen=True)
class Panel:
    """A part of a drawing that a narrow screen shows by itself.

    Args:
        groups: the ids of its elements in the drawing.
        box: left, top, width and height, in the units of the drawing's view box.
    """

    groups: tuple[str, ...]
    box: tuple[float, float, float, float]


@dataclass(frozen=True)
class Series:
    """Values of a drawing that the page shows under the pointer.

    Args:
        name: of the series; "" if it has none.
        x: name of the horizontal axis.
        y: name of the value.
        points: left and top in the units of the drawing's view box, then both values as text.
    """

    name: str
    x: str
    y: str
    points: Sequence[tuple[float, float, str, str]] = field(repr=False)


@dataclass(frozen=True)
class Surface:
    """A loss surface that the page lets a reader turn, read and slice.

    Args:
        names: of the two horizontal axes.
        x: values of the first.
        y: values of the second.
        loss: one row for each value of the first; None where it is not finite.
        path: coordinates of checkpoints; empty if there are none.
    """

    names: tuple[str, str]
    x: Sequence[float] = field(repr=False)
    y: Sequence[float] = field(repr=False)
    loss: Sequence[Sequence[float | None]] = field(repr=False)
    path: Sequence[tuple[float, float]] = field(default=(), repr=False)


@dataclass(frozen=True)
class Picture:
    """A drawing with its text alternative.

    Args:
        svg: the drawing, as matplotlib writes it.
        text: what it shows, for readers who do not see it.
        caption: the line below it; "" for the text.
        panels: the parts of a wide drawing, which a narrow screen shows below each other.
        values: shown under the pointer.
        narrow: the same drawing for a narrow screen; None if it has none.
        surface: shown below the drawing where scripts run; None if it is not one.
    """

    svg: str = field(repr=False)
    text: str
    caption: str = ""
    panels: Sequence[Panel] = ()
    values: Sequence[Series] = field(default=(), repr=False)
    narrow: Picture | None = field(default=None, repr=False)
    surface: Surface | None = None


@dataclass(frozen=True)
class Table:
    """Rows of values that a reader can sort by every column.

    Args:
        caption: what the rows are.
        columns: the column names.
        rows: one value for each column; None if it is unknown.
        note: an explanation of the columns, below the table.
        digits: significant digits of floats.
        folded: whether a reader opens it by its caption.
    """

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Value]]
    note: str = ""
    digits: int = 4
    folded: bool = False


@dataclass(frozen=True)
class Card:
    """A number of the first screen.

    Args:
        label: what it is.
        value: the number, in a few letters.
        note: a short explanation below it.
        colour: that marks it, as "#rrggbb"; "" for none.
    """

    label: str
    value: str
    note: str = ""
    colour: str = ""


@dataclass(frozen=True)
class Download:
    """A data file embedded in the page.

    Args:
        name: of the saved file.
        media_type: such as "text/csv".
        content: its bytes.
        left_out: why it is not in the page, and how to get it; "" if it is.
    """

    name: str
    media_type: str
    content: bytes = field(repr=False)
    left_out: str = ""


@dataclass(frozen=True)
class Section:
    """One result: what was measured, and how to reproduce it.

    Args:
        title: its heading.
        paragraphs: the findings.
        pictures: drawings of it.
        tables: its numbers.
        claims: statements with their verdicts; pictures and tables of the section are the
            evidence.
        settings: all settings, by name.
        versions: of the packages it ran on, by name.
        command: that reproduces it.
        foreign_command: whether the command is text from a file, which is shown without a button
            to copy it.
        seconds: its duration.
        downloads: its data.
        command_note: what else the command does, or why there is none.
        asked: the question it answers; shown first if it is the only section.
        seconds_note: what the duration leaves out.
        cards: numbers of the first screen, if it is the only section.
        headline: the first sentence of the page, if it is the only section.
        folded: whether a reader opens it by its title.
    """

    title: str
    paragraphs: Sequence[str] = ()
    pictures: Sequence[Picture] = ()
    tables: Sequence[Table] = ()
    claims: Sequence[Claim] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    seconds: float | None = None
    downloads: Sequence[Download] = ()
    command_note: str = ""
    asked: str = ""
    seconds_note: str = ""
    foreign_command: bool = False
    cards: Sequence[Card] = ()
    folded: bool = False
    headline: str = ""


@dataclass(frozen=True)
class Report:
    """A page: headline, cards and a picture first, then one section for each result.

    Args:
        title: its heading.
        findings: a few sentences; the first is the headline if no other is given.
        sections: the results.
        summary: a table, below the first picture.
        sources: the files it was made of, which the page may not replace.
        asked: the question; "" for that of its only section.
        overview: the picture of the first screen; sections with the same picture link to it. None
            for the first picture of the sections.
        headline: what was found, in a sentence; "" for that of its only section, or the first
            finding.
        cards: numbers of the first screen; empty for those of its only section, or the number of
            claims by verdict.
    """

    title: str
    findings: Sequence[str]
    sections: Sequence[Section]
    summary: Table | None = None
    sources: Sequence[Path] = ()
    asked: str = ""
    overview: Picture | None = None
    headline: str = ""
    cards: Sequence[Card] = ()

    @property
    def question(self) -> str:
        """The question of the report, or of its only section."""
        alone = self.sections[0].asked if len(self.sections) == 1 else ""
        return self.asked or alone

    @property
    def first_picture(self) -> Picture | None:
        """The picture of the first screen."""
        if self.overview is not None:
            return self.overview
        return next((each for section in self.sections for each in section.pictures), None)

    @property
    def first_sentence(self) -> str:
        """The headline, or the first finding."""
        alone = self.sections[0].headline if len(self.sections) == 1 else ""
        return self.headline or alone or next(iter(self.findings), "")

    @property
    def further_findings(self) -> Sequence[str]:
        """The findings without the headline."""
        rest = (_without_sentence(each, self.first_sentence) for each in self.findings)
        return [each for each in rest if each]

    @property
    def first_cards(self) -> Sequence[Card]:
        """The numbers of the first screen."""
        alone = self.sections[0].cards if len(self.sections) == 1 else ()
        judged = [section for section in self.sections if section.claims]
        quick = bool(judged) and all(each.settings.get("scale") == "quick" for each in judged)
        claims = [claim for section in judged for claim in section.claims]
        return self.cards or alone or claim_cards(claims, ", quick scale" if quick else "")


def _without_sentence(text: str, sentence: str) -> str:
    """Return a text without a sentence that it consists of, begins with or ends with.

    >>> _without_sentence("It falls. It is 2.", "It falls.")
    'It is 2.'
    >>> _without_sentence("It falls by 2.", "It falls")
    'It falls by 2.'
    """
    if text == sentence:
        return ""
    if not sentence.endswith("."):
        return text
    return text.removeprefix(f"{sentence} ").removesuffix(f" {sentence}")


_VERDICTS = {
    "reproduced": "#0a6b37",
    "partly": "#8a5a00",
    "not reproduced": "#b3261e",
    "undecided": "#57606a",
}


def claim_cards(claims: Sequence[Claim], remark: str = "") -> list[Card]:
    """Return the number of claims with each verdict that occurs.

    >>> claim_cards([Claim("2 < 3", "arithmetic", "1 apart", True)])
    [Card(label='reproduced', value='1', note='of 1 claim', colour='#0a6b37')]

    Args:
        claims: to count.
        remark: after the note of every card.
    """
    given = [claim.verdict for claim in claims]
    note = f"of {plural(len(claims), 'claim')}{remark}"
    return [
        Card(verdict, str(given.count(verdict)), note, colour)
        for verdict, colour in _VERDICTS.items()
        if verdict in given
    ]
