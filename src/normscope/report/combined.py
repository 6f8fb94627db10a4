"""What was read of several files, as one page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from normscope.report.document import Report, Section
from normscope.report.findings import findings_of, summary_of

__all__ = ["Content"]

_TITLE = "normscope report"


@dataclass
class Content:
    """What was read.

    Args:
        pages: of numbers that have one of their own kind, by their files.
        parts: all else, by its file.
        unread: in words, what of a folder could not be read and why.
    """

    pages: dict[Path, Report] = field(default_factory=dict)
    parts: dict[Path, list[Section]] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)

    @property
    def sections(self) -> list[Section]:
        """The sections; where several files have the same head, each says its folder."""
        heads = Counter(section.title for part in self.parts.values() for section in part)
        alike = [p for p, part in self.parts.items() if any(heads[s.title] > 1 for s in part)]
        names = dict(zip(alike, _names(alike), strict=True)) if alike else {}
        return [
            _named_section(each, names[path], path) if heads[each.title] > 1 else each
            for path, part in self.parts.items()
            for each in part
        ]

    def report(self, last: list[str]) -> Report:
        """One page of all: the first page of its own kind keeps its first screen.

        Of several such pages each finding, head and download names the file that it is of.

        Args:
            last: findings behind all others.
        """
        others = self.sections
        if not self.pages:
            alone = others[0].title if len(others) == 1 else _TITLE
            return Report(alone, [*findings_of(others), *last], others, summary_of(others))
        pages = list(self.pages.values())
        if len(pages) > 1:
            pages = [
                _named(page, name) for page, name in zip(pages, _names(self.pages), strict=True)
            ]
        first, *further = pages
        sections = [each for page in further for each in page.sections] + others
        findings = [sentence for page in pages for sentence in page.findings]
        findings += findings_of(others) if others else []
        return replace(first, findings=[*findings, *last], sections=[*first.sections, *sections])


def _names(paths: Iterable[Path]) -> list[str]:
    """The files without their endings, behind as many folders as tell them apart.

    >>> _names([Path("runs/first/demo.nc"), Path("runs/second/demo.nc")])
    ['first/demo', 'second/demo']
    """
    parts = [path.resolve().with_suffix("").parts for path in paths]
    deepest = max(map(len, parts))
    named = (["/".join(each[-depth:]) for each in parts] for depth in range(1, deepest + 1))
    return next((names for names in named if len(set(names)) == len(names)), list(map(str, paths)))


def _named(page: Report, name: str) -> Report:
    """The page with its file's name before all that another page may have too."""
    summary = page.summary
    if summary is not None:
        summary = replace(summary, caption=f"{name}: {summary.caption}")
    return replace(
        page,
        findings=[f"{name}: {sentence}" for sentence in page.findings],
        sections=[_named_section(each, name) for each in page.sections],
        summary=summary,
    )


def _named_section(section: Section, name: str, path: Path | None = None) -> Section:
    stem = name.replace("/", "_")
    downloads = [replace(each, name=f"{stem}_{each.name}") for each in section.downloads]
    title = f"{name}: {section.title}"
    if path is not None and section.title == path.name:  # it is called by its file already
        title = f"{name}{path.suffix}"
    return replace(section, title=title, downloads=downloads)
