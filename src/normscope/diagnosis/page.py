"""A diagnosis as an HTML report."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from normscope.report import Card, Report, Section, Table, write_report

if TYPE_CHECKING:
    from normscope.diagnosis.results import Diagnosis


def write_diagnosis(diagnosis: Diagnosis, path: str | os.PathLike[str], title: str = "") -> Path:
    """Write a diagnosis as one HTML file and return its path."""
    rows = diagnosis.rows()
    cards = [
        Card("findings above a note", str(sum(each.severity != "note" for each in diagnosis))),
        Card("checks", str(len(diagnosis.checks))),
        Card("passes", str(diagnosis.passes), "of the model, on copies"),
    ]
    values = [tuple(row.values()) for row in rows]
    tables = [Table("Findings, the most severe first", tuple(rows[0]), values)] if rows else []
    headline = f"{diagnosis.summary[0].upper()}{diagnosis.summary[1:]}."
    section = Section(
        "Diagnosis",
        [headline, *diagnosis.reasons],
        tables=tables,
        command_note="There is no command: a program called normscope.doctor.",
        seconds=diagnosis.seconds,
        asked="What is wrong with this model, and what does it cost?",
        cards=cards,
        headline=headline,
    )
    return write_report(Report(title or "Diagnosis of a model", [headline], [section]), path)
