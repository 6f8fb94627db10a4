"""What commands print and write: JSON, tables and results on stdout, notes on stderr, files.

Files are checked before the work and written atomically after it.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import islice, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from normscope.errors import InputError, NormscopeError, NormscopeWarning
from normscope.files import replacing, try_write
from normscope.registry import unknown_name
from normscope.text import Rendered, text_table, wrap

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import nn

    from normscope.cli.sources import Source

Row = Mapping[str, object]

_RULE = re.compile("-{3,}")
_PIPED = 80  # columns if stdout is not a terminal


def print_result(
    result: Rendered,
    source: Source,
    figure: Path | None,
    as_json: bool,
    note: str,
    text: Callable[[int], str] | None = None,
) -> None:
    """Print a result as JSON or as text.

    Args:
        result: of the library.
        source: what it was computed from; part of the JSON.
        figure: the file of its figure, if one was written.
        as_json: strict JSON instead of text.
        note: paragraphs below the text.
        text: returns the text for a width; None: that of the result.
    """
    if as_json:
        path = None if figure is None else str(figure)
        print_json({**source._asdict(), **result.to_dict(), "figure": path})
        return
    print_text((text or result.text)(shown_width()))
    print_note(f"\n{note}")
    if figure is not None:
        print(f"Figure: {figure}")


def print_json(value: object) -> None:
    """Print strict JSON; numbers that are not finite become null."""
    print(json.dumps(_finite(value), indent=2, allow_nan=False))


def _finite(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def print_table(title: str, rows: Sequence[Row], numbers: Collection[str] = ()) -> None:
    """Print rows as a table with an empty line below.

    Args:
        title: above the table.
        rows: values by column.
        numbers: columns whose strings are numbers.
    """
    print_text(f"{text_table(rows, title, numbers, shown_width())}\n\n")


def print_note(text: str) -> None:
    """Print paragraphs wrapped to the terminal, or to 80 columns or COLUMNS when piped."""
    print_text(wrap(text, shown_width()))


def print_text(text: str) -> None:
    """Print lines; in a terminal the title and heads of a table, above its rule, are bold."""
    lines = text.splitlines()
    if not sys.stdout.isatty():
        print("\n".join(lines))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console()
    for number, line in enumerate(lines):
        below = takewhile(bool, lines[number:])
        is_head = any(map(_RULE.fullmatch, islice(below, 1, None)))
        # no markup: brackets may be part of a user's name
        console.print(Text(line, "bold" if is_head else ""), soft_wrap=True)


def print_to_stderr(note: str) -> None:
    """Print a note on stderr, if it is open."""
    if sys.stderr is not None:
        print(f"normscope: note: {note}", file=sys.stderr)


def shown_width() -> int:
    """Return the columns of the terminal; when piped, COLUMNS if it is a number above 0, or 80."""
    if sys.stdout.isatty():
        return shutil.get_terminal_size().columns
    try:
        asked = int(os.environ.get("COLUMNS", ""))
    except ValueError:
        return _PIPED
    return asked if asked > 0 else _PIPED


def describe_parameters(model: nn.Module, whose: str = "") -> str:
    """Return which parameters are trained: all of them, or how many (a tied one counts once).

    Args:
        model: what is measured.
        whose: words after "parameters", such as " of the model".

    >>> from torch import nn
    >>> head = nn.Linear(9, 200)
    >>> describe_parameters(head)
    'all parameters'
    >>> head.bias.requires_grad_(False).shape
    torch.Size([200])
    >>> describe_parameters(head)
    'the 1,800 of 2,000 parameters that are trained'
    """
    parameters = list(model.parameters())
    every = sum(each.numel() for each in parameters)
    trained = sum(each.numel() for each in parameters if each.requires_grad)
    if trained == every:
        return "all parameters"
    return f"the {trained:,} of {every:,} parameters{whose} that are trained"


@contextmanager
def warnings_as_notes() -> Iterator[None]:
    """Print normscope's warnings as notes on stderr, with options in place of arguments."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def show_note(message: Any, category: type[Warning], *more: Any, **options: Any) -> None:
            if issubclass(category, NormscopeWarning):
                print_to_stderr(str(message).replace("mode='train'", "--mode train"))
            else:
                show(message, category, *more, **options)

        warnings.simplefilter("default", NormscopeWarning)
        warnings.showwarning = show_note
        yield


T = TypeVar("T")


def check_file(out: Path, what: str, example: str = "") -> None:
    """Raise an error if a file could not be written; nothing is created.

    Args:
        out: its path; missing folders will be created.
        what: its content.
        example: of a file name.

    Raises:
        InputError: if it is a folder, or its folder is not writable.
    """
    if out.is_dir():
        such = f", such as {out / example}" if example else ""
        raise InputError(f"{out} is a folder; name a file in it{such}.")
    _check(out, what)


def check_folder(out: Path, what: str) -> None:
    """Raise an error if files could not be written into a folder; nothing is created.

    Args:
        out: the folder, which may be missing.
        what: will be written there.

    Raises:
        InputError: if it is not a folder, or not writable.
    """
    _check(out / "written", what)


def _check(path: Path, what: str) -> None:
    try:
        try_write(path)
    except OSError as error:
        if path.exists() and not path.is_file():
            raise InputError(
                f"the {what} cannot go to {path}, which is a device or a pipe; name a file."
            ) from error
        folder = path.parent
        there = next(each for each in (folder, *folder.absolute().parents) if each.exists())
        reason = f"is not writable ({error.strerror or error})"
        if not there.is_dir():
            reason = "is not a folder"
        raise InputError(
            f"the {what} cannot go to {folder}: {there} {reason}; choose another."
        ) from error


def check_figure(out: Path | None) -> None:
    """Raise an error if a figure could not be written.

    Args:
        out: its path; None for no figure.

    Raises:
        UnknownNameError: if its suffix is not a format of figures.
        InputError: if the file is not writable.
    """
    if out is None:
        return
    from matplotlib.backend_bases import FigureCanvasBase

    formats = FigureCanvasBase.get_supported_filetypes()
    check_file(out, "figure", "figure.svg")
    if out.suffix.removeprefix(".").lower() not in formats:
        raise unknown_name("figure format", out.suffix, [".svg", ".png", ".pdf"])


def draw_then_print(
    out: Path | None, draw: Callable[[Axes], object], title: str = ""
) -> AbstractContextManager[Path | None]:
    """Draw on the axes of a new figure and write it; see `write_then_print`.

    Args:
        out: the file; None for no figure.
        draw: draws on the axes.
        title: of the figure.

    Returns:
        A context with the path of the figure; None without one.
    """

    def write() -> Path | None:
        if out is None:
            return None
        from normscope.plots.style import new_figure

        figure = new_figure()
        axes = figure.subplots()
        draw(axes)
        if title:
            figure.suptitle(title, fontsize="small")  # above the labels that are above the axes
        return save_figure(figure, out)

    return write_then_print(write)


def save_figure(figure: Figure, out: Path) -> Path:
    """Write a figure atomically and return its path."""
    with replacing(out) as unfinished:
        figure.savefig(unfinished)
    return out


@contextmanager
def write_then_print(write: Callable[[], T]) -> Iterator[T | None]:
    """Write files; if that fails, raise only after the block, which prints the answer.

    Args:
        write: writes them.

    Yields:
        What it returns; None if it failed.

    Raises:
        OSError: such as of a full disk, after the block.
    """
    failure: OSError | None = None
    written: T | None = None
    try:
        written = write()
    except OSError as error:
        failure = error
    yield written
    if failure is not None:
        raise failure


@contextmanager
def resumable(store: Path) -> Iterator[None]:
    """Let Ctrl-C inside the block report what is kept; warnings, as of a damaged store, are notes.

    Args:
        store: the file that keeps finished work; it may be missing.
    """
    try:
        with warnings_as_notes():
            yield
    except KeyboardInterrupt:
        kept = f"finished work is kept in {store}; run the same command to resume"
        if not _has_results(store):
            kept = "nothing was computed yet"
        raise KeyboardInterrupt(f"interrupted; {kept}.") from None


def _has_results(store: Path) -> bool:
    """Return whether a store has results; True if it cannot be read now."""
    if not store.exists():
        return False
    from normscope.results import Store

    try:
        with Store(store, read_only=True) as opened:
            return any(number for state, number in opened.counts().items() if state.has_result)
    except (NormscopeError, OSError):
        return True
