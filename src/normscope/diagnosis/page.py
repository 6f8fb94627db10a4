"""A diagnosis as a section of an HTML report."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from normscope.report import Card, Report, Section, Table, write_report

if TYPE_CHECKING:
    from normscope.diagnosis.results import Diagnosis

_COLUMNS = ("severity", "finding", "module", "what", "measured", "fix", "effect")


def diagnosis_section(diagnosis: Diagnosis, command: str = "") -> Section:
    """Return the findings as a section of a report.

    Args:
        diagnosis: the findings.
        command: that reproduces it; "" if a program made it.
    """
    rows = [
        (each.severity, each.name, each.location, each.what, each.evidence, each.fix, each.effect)
        for each in diagnosis
    ]
    cards = [
        Card("findings above a note", str(sum(each.severity != "note" for each in diagnosis))),
        Card("checks", str(len(diagnosis.checks))),
        Card("passes", str(diagnosis.passes), "of the model, on copies"),
    ]
    found = diagnosis.summary[0].upper() + diagnosis.summary[1:]
    return Section(
        "Diagnosis",
        [f"{found}.", *diagnosis.reasons],
        tables=[Table("Findings, the most severe first", _COLUMNS, rows)] if rows else [],
        command=command,
        command_note="" if command else "There is no command: a program called normscope.doctor.",
        seconds=diagnosis.seconds,
        asked="What is wrong with this model, and what does it cost?",
        cards=cards,
        headline=f"{found}.",
    )


def write_diagnosis(
    diagnosis: Diagnosis, path: str | os.PathLike[str], title: str = "", command: str = ""
) -> Path:
    """Write a diagnosis as one HTML file and return its path; arguments as above."""
    section = diagnosis_section(diagnosis, command)
    return write_report(
        Report(title or "Diagnosis of a model", [section.headline], [section]), path
    )
