"""What a report is made of: findings in words, then sections of pictures, tables and claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from normscope.results import Claim

__all__ = ["Download", "Picture", "Report", "Section", "Table"]

Value = str | float | int | bool | None


@dataclass(frozen=True)
class Picture:
    """A picture that can be told in words.

    Args:
        svg: the drawing, as matplotlib writes it.
        text: what it shows, for those who do not see it.
        caption: the line below it.
    """

    svg: str = field(repr=False)
    text: str
    caption: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of values that can be sorted by every column.

    Args:
        caption: what the rows are.
        columns: their heads.
        rows: one value for each column; None: nothing is known there.
    """

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Value]]


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


@dataclass(frozen=True)
class Report:
    """A page: what was found, then one section for each result.

    Args:
        title: its only head of the first rank.
        findings: what was found, in sentences; the first screen.
        summary: a table for the first screen.
        sections: the results.
        sources: the files it was made of, which no page may replace.
    """

    title: str
    findings: Sequence[str]
    sections: Sequence[Section]
    summary: Table | None = None
    sources: Sequence[Path] = ()
