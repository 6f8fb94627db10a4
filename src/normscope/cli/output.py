"""What commands print: tables for people, strict JSON for programs, progress on stderr."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

Row = dict[str, object]

_DONE_OF_ALL = re.compile(r"\b(\d+) of (\d+)\b")


def print_table(title: str, rows: Sequence[Row]) -> None:
    """Print rows as a table: rich in a terminal, plain text when piped."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    numeric = {name for name in rows[0] if any(isinstance(row[name], float) for row in rows)}
    for name in rows[0]:
        table.add_column(name, justify="right" if name in numeric else "left")
    for row in rows:
        table.add_row(*(_cell(value) for value in row.values()))
    # no markup: what stands in brackets may be a user's name
    console = Console(width=None if sys.stdout.isatty() else 120, markup=False, highlight=False)
    console.print(table)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def print_json(value: object) -> None:
    """Print strict JSON: what is not a finite number becomes null."""
    print(json.dumps(_finite(value), indent=2, allow_nan=False))


class Answer(Protocol):
    """A result that prints as a table and as plain values."""

    def to_dict(self) -> dict[str, object]:
        """Its values by name."""


def print_answer(
    answer: Answer, source: dict[str, object], figure: Path | None, as_json: bool
) -> None:
    """Print a result, and where its figure is: as JSON beside what it was asked of, or as text.

    Args:
        answer: the result.
        source: what it was asked of, by name.
        figure: where its figure was written, if it was.
        as_json: strict JSON instead of text.
    """
    if as_json:
        path = None if figure is None else str(figure)
        print_json({**source, **answer.to_dict(), "figure": path})
        return
    print(answer)
    if figure is not None:
        print(f"Figure: {figure}")


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


@contextmanager
def progress_over(total: int, label: str) -> Iterator[Callable[[str], None]]:
    """A progress bar on stderr.

    Args:
        total: number of parts.
        label: what is on.

    Yields:
        A function to call, with a text, as each part begins.
    """
    with _shown(*_bar_columns()) as bar:
        task = bar.add_task(label, total=total)
        begun = 0

        def begin(text: str) -> None:
            nonlocal begun
            bar.update(task, completed=begun, description=f"{label}: {text}")
            begun += 1

        yield begin


@contextmanager
def working(label: str) -> Iterator[Callable[[str], None]]:
    """A sign of life on stderr for work whose length is told on the way, or not at all.

    Args:
        label: what is on.

    Yields:
        A function to say what is on; "3 of 18" in its text moves the bar and gives the time left.
    """
    from rich.progress import SpinnerColumn, TimeElapsedColumn

    with _shown(SpinnerColumn(), TimeElapsedColumn(), *_bar_columns()) as bar:
        task = bar.add_task(label, total=None)

        def tell(text: str) -> None:
            counted = _DONE_OF_ALL.search(text)
            done, total = (int(part) for part in counted.groups()) if counted else (None, None)
            bar.update(task, completed=done, total=total, description=f"{label}: {text}")

        yield tell


def _bar_columns() -> tuple[ProgressColumn, ...]:
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

    text = TextColumn("{task.description}", markup=False)  # a user's name may hold brackets
    return text, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()


def _shown(*columns: ProgressColumn) -> Progress:
    """The bar; in a terminal only, since it would be noise in a log file."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


@contextmanager
def resumable(store: Path) -> Iterator[None]:
    """Let Ctrl-C inside say what becomes of the work."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"interrupted; what is finished is kept in {store}, and the same command goes on."
        ) from None
