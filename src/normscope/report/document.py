"""What a report is made of: findings in words, then sections of pictures, tables and claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from normscope.results import Claim

__all__ = ["Download", "Name", "Panel", "Picture", "Report", "Section", "Table", "Value"]


@dataclass(frozen=True)
class Name:
    """A name in words beside that in the data, which a programmer looks for.

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
        groups: the names of its elements in the drawing.
        box: left, top, width and height, in the units of the drawing's view box.
    """

    groups: tuple[str, ...]
    box: tuple[float, float, float, float]


@dataclass(frozen=True)
class Picture:
    """A picture that can be told in words.

    Args:
        svg: the drawing, as matplotlib writes it.
        text: what it shows, for those who do not see it.
        caption: the line below it.
        panels: the parts of a wide drawing, which stand below each other on a narrow screen.
    """

    svg: str = field(repr=False)
    text: str
    caption: str = ""
    panels: Sequence[Panel] = ()


@dataclass(frozen=True)
class Table:
    """Rows of values that can be sorted by every column.

    Args:
        caption: what the rows are.
        columns: their heads.
        rows: one value for each column; None: nothing is known there.
        note: what the heads mean, below the table.
        digits: of numbers that are not whole.
    """

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Value]]
    note: str = ""
    digits: int = 4


@dataclass(frozen=True)
class Download:
    """A file inside the file.

    Args:
        name: that it is saved under.
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
    """One result: what was done, what was seen, and how to do it again.

    Args:
        title: its head.
        paragraphs: what was found, in words.
        pictures: drawings of it.
        tables: its numbers.
        claims: statements with their verdicts; the pictures and tables beside them are the
            evidence.
        settings: all settings, by name.
        versions: of the packages it ran on, by name.
        command: that gives it again.
        seconds: that it took.
        downloads: its data.
        command_note: what the command does besides, or why there is none.
        asked: the question that it answers; a page of this section alone begins with it.
        seconds_note: what part of the seconds is of another run.
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


@dataclass(frozen=True)
class Report:
    """A page: what was asked and found, a picture of it, then one section for each result.

    Args:
        title: its only head of the first rank.
        findings: what was found, in a few sentences; the first screen.
        sections: the results.
        summary: a table, below the first picture.
        sources: the files it was made of, which no page may replace.
        asked: the question, in a sentence; "": that of its only section.
        overview: the picture of the first screen; sections that hold it too refer to it. None: the
            first picture of the sections.
    """

    title: str
    findings: Sequence[str]
    sections: Sequence[Section]
    summary: Table | None = None
    sources: Sequence[Path] = ()
    asked: str = ""
    overview: Picture | None = None

    @property
    def question(self) -> str:
        """What was asked."""
        alone = self.sections[0].asked if len(self.sections) == 1 else ""
        return self.asked or alone

    @property
    def first_picture(self) -> Picture | None:
        """The picture of the first screen."""
        if self.overview is not None:
            return self.overview
        return next((each for section in self.sections for each in section.pictures), None)
