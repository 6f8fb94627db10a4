"""Reports of files: stores, results of experiments, NetCDF files, and folders of them.

The sections of all files are combined into one page, with a summary and distinct names.
"""

from __future__ import annotations

import difflib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import xarray as xr

from normscope.errors import DataError, InputError, NormscopeError
from normscope.report.datasets import dataset_section
from normscope.report.diagrams import Theory
from normscope.report.document import Report, Section, Table
from normscope.report.drawing import inline_svg
from normscope.report.narrative import format_seconds
from normscope.report.runs import findings_of, is_result_record, read_numbers, section_of_files
from normscope.report.stores import store_sections
from normscope.results import VERDICTS
from normscope.text import natural_order

PageOf = Callable[[xr.Dataset], Report | None]  # a complete page of a dataset, if it has one

_STORES = (".sqlite", ".sqlite3", ".db")
_RESULT = (".json", ".svg", ".md", ".nc")  # files of `Result.write`
_SQLITE = b"SQLite format 3\x00"
_NO_COMMAND = "There is no command: a NetCDF file does not say what wrote it."


def report_of(
    inputs: Iterable[str | os.PathLike[str]],
    title: str | None = None,
    theory: Theory | None = None,
    page_of: PageOf = lambda numbers: None,
) -> Report:
    """Return a report of stores, results and datasets.

    Args:
        inputs: paths of stores, of files that ``normscope run`` wrote, of NetCDF files, and of
            folders with such files.
        title: of the page; None for that of its only result.
        theory: returns the critical learning rates of a phase diagram.
        page_of: returns the complete page of a dataset, or None if it has none.

    Raises:
        InputError: if there is nothing to report on.
    """
    chosen, skipped = _select(inputs)
    if not chosen:
        raise InputError("a report needs a store or a result; name at least one.")
    content = _read(chosen, theory, page_of)
    left = [*skipped, *content.unread]
    unread = [f"Not in this report: {'; '.join(left)}."] * bool(left)
    found = content.report(unread)
    files = [path for source in chosen for path in source.files]
    return replace(found, title=found.title if title is None else title, sources=files)


def _select(inputs: Iterable[str | os.PathLike[str]]) -> tuple[list[_Source], list[str]]:
    """Return what to read, each file once, and a note for each file that is skipped."""
    chosen: dict[Path, _Source] = {}
    skipped: dict[Path, str] = {}
    for each in inputs:
        found, notes = _sources_of(Path(each))
        skipped |= notes
        for source in found:
            if not source.from_folder or source.path.resolve() not in chosen:
                chosen[source.path.resolve()] = source
    return list(chosen.values()), [note for path, note in skipped.items() if path not in chosen]


def _read(sources: Iterable[_Source], theory: Theory | None, page_of: PageOf) -> Content:
    """Read the sources.

    Raises:
        NormscopeError: if a named file cannot be read, or nothing can.
    """
    content = Content()
    errors: dict[str, NormscopeError] = {}
    for source in sources:
        try:
            found = _read_source(source, theory, page_of)
        except NormscopeError as error:
            if not source.from_folder:
                raise
            errors[source.path.name] = error
            continue
        if isinstance(found, Report):
            content.pages[source.path] = found
        else:
            content.parts[source.path] = found
    if not (content.pages or content.parts):
        raise next(iter(errors.values()))
    content.unread += [f"{name} ({str(each).rstrip('.')})" for name, each in errors.items()]
    return content


@dataclass(frozen=True)
class _Source:
    """A file to read: a store, the .json of a result, or a NetCDF file.

    Args:
        path: of the file.
        from_folder: found in a folder rather than named, so that it may be skipped.
    """

    path: Path
    from_folder: bool = False

    @property
    def files(self) -> list[Path]:
        """All files that may be read with it."""
        if self.path.suffix == ".json":
            return [self.path.with_suffix(suffix) for suffix in _RESULT]
        beside = [] if self.path.suffix == ".nc" else ["-wal", "-shm", "-lock"]
        return [self.path, *(self.path.with_name(self.path.name + each) for each in beside)]


def _sources_of(path: Path) -> tuple[list[_Source], dict[Path, str]]:
    """Return what to read for one input, and notes on files that are skipped.

    Raises:
        InputError: if the path does not exist or is of another kind.
    """
    if not path.exists():
        raise InputError(f"{path} does not exist{_closest(path)}")
    if path.is_dir():
        return _sources_in(path)
    if _is_store(path):
        return [_Source(path)], {}
    if path.suffix in _RESULT:
        record = path.with_suffix(".json")
        if path.suffix == ".nc" and not _is_record(record):
            return [_Source(path)], {}
        if record.is_file():
            return [_Source(record)], {}
        raise InputError(f"{path} has no {record.name} beside it, which normscope run writes.")
    raise InputError(
        f"report cannot read {path}; it reads a store ({', '.join(_STORES)}), a file that "
        f"normscope run wrote ({', '.join(_RESULT)}), or a folder of them."
    )


def _is_store(path: Path) -> bool:
    if path.suffix in _STORES:
        return True
    try:
        with path.open("rb") as stream:
            return stream.read(len(_SQLITE)) == _SQLITE
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror or error}).") from error


def _sources_in(folder: Path) -> tuple[list[_Source], dict[Path, str]]:
    """Return everything readable in a folder, figure 2 before figure 10, and skipped files."""
    visible = (path for path in folder.rglob("*") if _is_visible(path, folder))
    found = sorted(visible, key=lambda path: natural_order(str(path)))
    records = [path for path in found if path.suffix == ".json" and _is_record(path)]
    stores = [path for path in found if path.suffix in _STORES and path.stat().st_size]
    results = {path.with_suffix("") for path in records}
    swept = {path.with_suffix(""): path.name for path in stores}
    alone = [p for p in found if p.suffix == ".nc" and p.with_suffix("") not in results]
    numbers = [path for path in alone if path.with_suffix("") not in swept]
    skipped = {
        path.resolve(): f"{path.name} (a sweep writes it from {swept[path.with_suffix('')]})"
        for path in alone
        if path not in numbers
    }
    if not (records or stores or numbers):
        raise InputError(
            f"{folder} holds no result and no store; normscope run and sweep write them."
        )
    return [_Source(path, True) for path in (*records, *numbers, *stores)], skipped


def _is_visible(path: Path, folder: Path) -> bool:
    """Return whether a path is a file that is not hidden, as unfinished files are."""
    hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
    return not hidden and path.is_file()


def _is_record(path: Path) -> bool:
    try:
        return is_result_record(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError):
        return False


def _closest(path: Path) -> str:
    """Return a hint: the closest name in the same folder."""
    if not path.parent.is_dir():
        return f", nor does the folder {path.parent}."
    names = [each.name for each in path.parent.iterdir()]
    close = difflib.get_close_matches(path.name, names, n=1, cutoff=0.6)
    return f"; did you mean {str(path.with_name(close[0]))!r}?" if close else "."


def _read_source(source: _Source, theory: Theory | None, page_of: PageOf) -> Report | list[Section]:
    path = source.path
    try:
        if path.suffix == ".json":
            section = section_of_files(path)
            for picture in section.pictures if source.from_folder else ():
                inline_svg(
                    picture.svg, picture.text, "p"
                )  # raises now, while the file can be skipped
            return [section]
        if path.suffix == ".nc":
            numbers = read_numbers(path)
            page = page_of(numbers)
            if page is not None:
                marked = [replace(s, foreign_command=bool(s.command)) for s in page.sections]
                return replace(page, sections=marked)
            return [dataset_section(numbers, path.name, stem=path.stem, command_note=_NO_COMMAND)]
    except DataError as error:
        if str(path.with_suffix("")) in str(error):
            raise
        raise DataError(f"{path}: {error}") from error
    return store_sections(path, theory)


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
