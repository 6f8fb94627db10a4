"""Files that commands write: checked before the work, written atomically after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from normscope.cli.render import warnings_as_notes
from normscope.errors import InputError, NormscopeError
from normscope.files import replacing, try_write
from normscope.registry import unknown_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
        title: of the axes.

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
            axes.set_title(title, fontsize="small", wrap=True)
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
