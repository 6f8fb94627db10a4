"""What commands print on stdout: strict JSON, tables, paragraphs, results; notes on stderr."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from normscope.errors import NormscopeWarning
from normscope.text import text_table, wrap

if TYPE_CHECKING:
    from torch import nn

Row = Mapping[str, object]

_RULE = re.compile("-{3,}")
_PIPED = 80  # columns if stdout is not a terminal


class _Result(Protocol):
    def to_dict(self) -> dict[str, Any]: ...

    def text(self, width: int) -> str: ...


def print_result(
    result: _Result,
    source: Row,
    figure: Path | None,
    as_json: bool,
    note: str,
    text: Callable[[int], str] | None = None,
) -> None:
    """Print a result as JSON or as text.

    Args:
        result: of the library.
        source: what it was computed from, by name; part of the JSON.
        figure: the file of its figure, if one was written.
        as_json: strict JSON instead of text.
        note: paragraphs below the text.
        text: returns the text for a width; None: that of the result.
    """
    if as_json:
        print_json(
            {**source, **result.to_dict(), "figure": None if figure is None else str(figure)}
        )
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
