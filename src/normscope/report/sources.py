"""Reports of files: stores, results of experiments, NetCDF files, and folders of them."""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import xarray as xr

from normscope.errors import DataError, InputError, NormscopeError
from normscope.report.combine import Content
from normscope.report.datasets import dataset_section
from normscope.report.diagrams import Theory
from normscope.report.document import Report, Section
from normscope.report.drawing import inline_svg
from normscope.report.runs import is_result_record, read_numbers, section_of_files
from normscope.report.stores import store_sections

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
    found = sorted((path for path in folder.rglob("*") if _is_visible(path, folder)), key=_natural)
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


def _natural(path: Path) -> list[tuple[bool, int, str]]:
    parts = re.split(r"(\d+)", str(path))
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts]


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
