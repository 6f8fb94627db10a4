"""What was read of several files, as one page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from normscope.report.document import Download, Report, Section
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
        """The sections; what another file has too, a head or a download, says its folder."""
        heads = _shared(each.title for part in self.parts.values() for each in part)
        saved = _shared(
            each.name
            for part in (*self.parts.values(), *(page.sections for page in self.pages.values()))
            for section in part
            for each in section.downloads
        )
        alike = [
            path
            for path, part in self.parts.items()
            if heads & {each.title for each in part}
            or any(saved & {each.name for each in section.downloads} for section in part)
        ]
        names = dict(zip(alike, _names(alike), strict=True))
        return [
            _told_apart(each, names[path], path, heads, saved) if path in names else each
            for path, part in self.parts.items()
            for each in part
        ]

    @property
    def _speakers(self) -> list[str]:
        """For each section the name of its file; "" where its sentences are of that file alone."""
        files = _shared(path.name for path in self.parts)
        said = _shared(each for part in self.parts.values() for each in _sentences(part))
        alike = [
            path
            for path, part in self.parts.items()
            if path.name in files or said & _sentences(part)
        ]
        names = dict(zip(alike, _names(alike), strict=True))
        return [names.get(path, "") for path, part in self.parts.items() for _ in part]

    def report(self, last: list[str]) -> Report:
        """One page of all: the first page of its own kind keeps its first screen.

        Of several such pages each finding, head and download names the file that it is of.

        Args:
            last: findings behind all others.
        """
        others = self.sections
        found = findings_of(others, self._speakers) if others else []
        if not self.pages:
            alone = others[0].title if len(others) == 1 else _TITLE
            return Report(alone, [*found, *last], others, summary_of(others))
        pages = list(self.pages.values())
        if len(pages) > 1:
            pages = [
                _named(page, name) for page, name in zip(pages, _names(self.pages), strict=True)
            ]
        first, *further = pages
        sections = [each for page in further for each in page.sections] + others
        findings = [sentence for page in pages for sentence in page.findings]
        return replace(
            first, findings=[*findings, *found, *last], sections=[*first.sections, *sections]
        )


def _shared(words: Iterable[str]) -> set[str]:
    """The words that come more than once."""
    return {word for word, times in Counter(words).items() if times > 1}


def _sentences(part: Iterable[Section]) -> set[str]:
    """What a file may say on the first screen; claims are told by their heads."""
    return {sentence for section in part if not section.claims for sentence in section.paragraphs}


def _names(paths: Iterable[Path]) -> list[str]:
    """The files behind as many folders as tell them apart, with endings if nothing else does.

    >>> _names([Path("runs/first/demo.nc"), Path("runs/second/demo.nc")])
    ['first/demo', 'second/demo']
    >>> _names([Path("runs/phase.db"), Path("runs/phase.sqlite")])
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


def _named_section(section: Section, name: str) -> Section:
    downloads = [_named_download(each, name) for each in section.downloads]
    return replace(section, title=f"{name}: {section.title}", downloads=downloads)


def _named_download(download: Download, name: str) -> Download:
    return replace(download, name=f"{name.replace('/', '_')}_{download.name}")


def _told_apart(
    section: Section, name: str, path: Path, heads: set[str], saved: set[str]
) -> Section:
    """The section with its file's name in the head and before the downloads that are shared."""
    title = section.title
    if title in heads:  # it may be called by its file already
        title = f"{name}{path.suffix}" if title == path.name else f"{name}: {title}"
    downloads = [
        _named_download(each, name) if each.name in saved else each for each in section.downloads
    ]
    return replace(section, title=title, downloads=downloads)
