"""Where a command writes: refused before the work; if it fails after it, the answer is printed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from normscope.errors import InputError
from normscope.files import try_place

__all__ = ["check_file", "check_folder", "printing_first"]

T = TypeVar("T")


def check_file(out: Path, what: str, example: str = "") -> None:
    """Refuse a file that could not be written, and make nothing.

    Args:
        out: where it is to go; folders that are not there are made with it.
        what: it holds.
        example: of its name.

    Raises:
        InputError: if it is a folder, or its folder cannot be written into.
    """
    if out.is_dir():
        such = f", such as {out / example}" if example else ""
        raise InputError(f"{out} is a folder; name a file in it{such}.")
    _check(out, what)


def check_folder(out: Path, what: str) -> None:
    """Refuse a folder that could not be written into, and make nothing.

    Args:
        out: the folder; it need not be there.
        what: is to go there.

    Raises:
        InputError: if it is no folder, or cannot be written into.
    """
    _check(out / "written", what)


def _check(path: Path, what: str) -> None:
    try:
        try_place(path)
    except OSError as error:
        folder = path.parent
        there = next(each for each in (folder, *folder.absolute().parents) if each.exists())
        reason = f"cannot be written into ({error.strerror or error})"
        if not there.is_dir():
            reason = "is no folder"
        raise InputError(
            f"the {what} cannot go to {folder}: {there} {reason}; choose another."
        ) from error


@contextmanager
def printing_first(write: Callable[[], T]) -> Iterator[T | None]:
    """Write something, and raise what went wrong only after the block, which prints the answer.

    Args:
        write: writes it.

    Yields:
        What it returns; None if it could not be written.

    Raises:
        OSError: as it was raised, after the block.
    """
    failure: OSError | None = None
    written: T | None = None
    try:
        written = write()
    except OSError as error:  # a full disk, say
        failure = error
    yield written
    if failure is not None:
        raise failure
