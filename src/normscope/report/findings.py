"""The first screen of a report of files: what was found, and a row for each result."""

from __future__ import annotations

from collections.abc import Sequence

from normscope.report.document import Section, Table
from normscope.report.result_files import QUICK
from normscope.report.words import claims_sentence, counted, said_seconds

__all__ = ["findings_of", "summary_of"]

_MOST = 5  # sentences of the first screen


def findings_of(sections: Sequence[Section], names: Sequence[str] | None = None) -> list[str]:
    """The first screen: the claims counted, those that failed named, the rest in its own words.

    Args:
        sections: the results.
        names: of each result's file, said before its own words; "" where those need no name.
    """
    names = [""] * len(sections) if names is None else names
    claims = [claim for section in sections for claim in section.claims]
    found = [claims_sentence(claims)] if claims else []
    judged = [section for section in sections if section.settings.get("scale") != "quick"]
    if len(judged) < len(sections):
        found.append(QUICK)
    failed = [(each, claim) for each in judged for claim in each.claims if claim.holds is False]
    found += [f"Not reproduced in {s.title}: {c.text} ({c.measured})." for s, c in failed[:3]]
    if len(failed) > 3:
        more = len(failed) - 3
        verb = "is" if more == 1 else "are"
        found.append(f"{counted(more, 'further claim')} {verb} not reproduced; see below.")
    others = [each for each in zip(sections, names, strict=True) if not each[0].claims]
    shown = others[: max(_MOST - len(found), 1)]
    each = max((_MOST - len(found)) // max(len(shown), 1), 1)
    found += [
        f"{name}: {sentence}" if name else sentence
        for section, name in shown
        for sentence in section.paragraphs[:each]
    ]
    if len(others) > len(shown):
        more = len(others) - len(shown)
        found.append(
            f"{counted(more, 'further section')} {'follows' if more == 1 else 'follow'} below."
        )
    return found


def summary_of(sections: Sequence[Section]) -> Table | None:
    """One row for each section; None of a single one, which says all that itself."""
    if len(sections) == 1:
        return None
    verdicts = ("reproduced", "not reproduced", "undecided")
    judged = any(section.claims for section in sections)
    rows = []
    for section in sections:
        given = [claim.verdict for claim in section.claims]
        counts = [given.count(each) if given else None for each in verdicts] if judged else []
        kept = [each for each in section.downloads if not each.left_out]
        parts = (len(section.pictures), len(section.tables), len(kept))
        seconds = None if section.seconds is None else float(said_seconds(section.seconds))
        rows.append((section.title, *counts, *parts, seconds))
    columns = ("result", *(verdicts if judged else ()), "figures", "tables", "files", "seconds")
    return Table("Results in this report", columns, rows)
