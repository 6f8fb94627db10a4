"""Combine sections of several files into one report: first screen, summary, distinct names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from normscope.report.document import Report, Section, Table
from normscope.report.narrative import claims_sentence, format_seconds
from normscope.report.runs import QUICK
from normscope.results import VERDICTS
from normscope.text import plural

_MOST_FINDINGS = 5
_MOST_FAILED = 3  # claims named on the first screen


def findings_of(sections: Sequence[Section], names: Sequence[str] | None = None) -> list[str]:
    """Return the first screen: claims counted, failed ones named, then the other sections.

    Args:
        sections: the results.
        names: of each section's file, to put before its sentences; "" if that is not needed.
    """
    names = [""] * len(sections) if names is None else names
    claims = [claim for section in sections for claim in section.claims]
    found = [claims_sentence(claims)] if claims else []
    judged = [section for section in sections if section.settings.get("scale") != "quick"]
    if len(judged) < len(sections):
        found.append(QUICK)
    failed = [(each, claim) for each in judged for claim in each.claims if claim.holds is False]
    found += [
        f"Not reproduced in {section.title}: {claim.text} ({claim.measured})."
        for section, claim in failed[:_MOST_FAILED]
    ]
    if len(failed) > _MOST_FAILED:
        more = len(failed) - _MOST_FAILED
        verb = "is" if more == 1 else "are"
        found.append(f"{plural(more, 'further claim')} {verb} not reproduced; see below.")
    others = [each for each in zip(sections, names, strict=True) if not each[0].claims]
    shown = others[: max(_MOST_FINDINGS - len(found), 1)]
    each = max((_MOST_FINDINGS - len(found)) // max(len(shown), 1), 1)
    found += [
        f"{name}: {sentence}" if name else sentence
        for section, name in shown
        for sentence in section.paragraphs[:each]
    ]
    if len(others) > len(shown):
        more = len(others) - len(shown)
        verb = "follows" if more == 1 else "follow"
        found.append(f"{plural(more, 'further section')} {verb} below.")
    return found


def _summary_of(sections: Sequence[Section]) -> Table | None:
    """Return a table with one row for each section; None if there is only one."""
    if len(sections) == 1:
        return None
    judged = any(section.claims for section in sections)
    found = {claim.verdict for section in sections for claim in section.claims}
    shown = [each for each in VERDICTS if each in found or each != "partly"] if judged else []
    rows = []
    for section in sections:
        given = [claim.verdict for claim in section.claims]
        counts = [given.count(each) if given else None for each in shown]
        files = [each for each in section.downloads if not each.left_out]
        parts = (len(section.pictures), len(section.tables), len(files))
        seconds = None if section.seconds is None else float(format_seconds(section.seconds))
        rows.append((section.title, *counts, *parts, seconds))
    columns = ("result", *shown, "figures", "tables", "files", "seconds")
    return Table("Results in this report", columns, rows)


@dataclass
class Content:
    """What was read from files.

    Args:
        pages: complete pages, by file.
        parts: sections, by file.
        unread: what of a folder could not be read, and why.
    """

    pages: dict[Path, Report] = field(default_factory=dict)
    parts: dict[Path, list[Section]] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)

    def report(self, last: list[str]) -> Report:
        """Return one report of everything; the first page keeps its first screen.

        If there are several pages, their findings, titles and downloads name their file.

        Args:
            last: findings to put after all others.
        """
        others = self._sections()
        found = findings_of(others, self._file_names()) if others else []
        if not self.pages:
            alone = others[0].title if len(others) == 1 else "normscope report"
            return Report(alone, [*found, *last], others, _summary_of(others))
        pages = list(self.pages.values())
        if len(pages) > 1:
            names = _distinct_names(self.pages)
            pages = [_named_page(page, name) for page, name in zip(pages, names, strict=True)]
        first, *further = pages
        sections = [each for page in further for each in page.sections] + others
        findings = [sentence for page in pages for sentence in page.findings]
        return replace(
            first, findings=[*findings, *found, *last], sections=[*first.sections, *sections]
        )

    def _sections(self) -> list[Section]:
        """Return the sections; titles and downloads that several files share name their file."""
        titles = _shared(each.title for part in self.parts.values() for each in part)
        files = _shared(
            each.name
            for part in (*self.parts.values(), *(page.sections for page in self.pages.values()))
            for section in part
            for each in section.downloads
        )
        alike = [
            path
            for path, part in self.parts.items()
            if titles & {each.title for each in part}
            or any(files & {each.name for each in section.downloads} for section in part)
        ]
        names = dict(zip(alike, _distinct_names(alike), strict=True))
        return [
            _named_section(each, names[path], path, titles, files) if path in names else each
            for path, part in self.parts.items()
            for each in part
        ]

    def _file_names(self) -> list[str]:
        """Return for each section the name of its file; "" if its sentences are unique."""
        files = _shared(path.name for path in self.parts)
        said = _shared(each for part in self.parts.values() for each in _sentences(part))
        alike = [
            path
            for path, part in self.parts.items()
            if path.name in files or said & _sentences(part)
        ]
        names = dict(zip(alike, _distinct_names(alike), strict=True))
        return [names.get(path, "") for path, part in self.parts.items() for _ in part]


def _shared(words: Iterable[str]) -> set[str]:
    """Return the strings that occur more than once."""
    return {word for word, times in Counter(words).items() if times > 1}


def _sentences(part: Iterable[Section]) -> set[str]:
    """Return what a file may add to the first screen; sections with claims add nothing."""
    return {sentence for section in part if not section.claims for sentence in section.paragraphs}


def _distinct_names(paths: Iterable[Path]) -> list[str]:
    """Return the files with as many folders as make them distinct, and suffixes if needed.

    >>> _distinct_names([Path("runs/first/demo.nc"), Path("runs/second/demo.nc")])
    ['first/demo', 'second/demo']
    >>> _distinct_names([Path("runs/phase.db"), Path("runs/phase.sqlite")])
    ['phase.db', 'phase.sqlite']
    """
    whole = [path.resolve() for path in paths]
    deepest = max((len(path.parts) for path in whole), default=1)
    for files in ([path.with_suffix("") for path in whole], whole):
        for depth in range(1, deepest + 1):
            names = ["/".join(path.parts[-depth:]) for path in files]
            if len(set(names)) == len(names):
                return names
    return list(map(str, whole))


def _named_page(page: Report, name: str) -> Report:
    """Return a page with its file's name before headline, findings, titles and downloads."""
    summary = page.summary
    if summary is not None:
        summary = replace(summary, caption=f"{name}: {summary.caption}")
    sections = [
        _rename(each, f"{name}: {each.title}", name, {file.name for file in each.downloads})
        for each in page.sections
    ]
    findings = [f"{name}: {sentence}" for sentence in page.findings]
    headline = f"{name}: {page.headline}" if page.headline else ""
    return replace(page, findings=findings, sections=sections, summary=summary, headline=headline)


def _named_section(
    section: Section, name: str, path: Path, titles: set[str], files: set[str]
) -> Section:
    """Return a section with its file's name in the title and the downloads that are shared."""
    title = section.title
    if title in titles:  # which may be the file's name already
        title = f"{name}{path.suffix}" if title == path.name else f"{name}: {title}"
    return _rename(section, title, name, files)


def _rename(section: Section, title: str, name: str, files: set[str]) -> Section:
    """Return a section with another title, and a name before some of its downloads."""
    prefix = name.replace("/", "_")
    downloads = [
        replace(each, name=f"{prefix}_{each.name}") if each.name in files else each
        for each in section.downloads
    ]
    return replace(section, title=title, downloads=downloads)
