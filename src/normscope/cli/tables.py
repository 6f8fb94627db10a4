"""What commands print for people: tables and sentences."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Collection, Sequence
from itertools import islice, takewhile

from normscope.text import text_table, wrap

Row = dict[str, object]

_RULE = re.compile("-{3,}")
_PIPED = 80  # columns of prose that goes to no terminal
_PIPED_TABLE = 120


def print_table(
    title: str, rows: Sequence[Row], numbers: Collection[str] = (), piped: int = _PIPED_TABLE
) -> None:
    """Print rows as a table with an empty line below: as wide as the terminal at most.

    Args:
        title: above the table.
        rows: values by column.
        numbers: columns of numbers that are texts already.
        piped: columns at most where there is no terminal and COLUMNS does not say how many.
    """
    width = shown_width(piped)
    print_text(f"{text_table(rows, title, numbers, width)}\n\n")


def shown_width(piped: int = _PIPED) -> int:
    """Columns of the terminal; of what goes to none, those of COLUMNS, or else those it is given.

    Args:
        piped: columns where there is no terminal and COLUMNS is not a number above 0.

    Returns:
        How many.
    """
    if sys.stdout.isatty():
        return shutil.get_terminal_size().columns
    try:
        asked = int(os.environ.get("COLUMNS", ""))
    except ValueError:  # no number: the shell's own business
        return piped
    return asked if asked > 0 else piped


def print_note(text: str) -> None:
    """Print sentences, wrapped to the terminal, to 80 columns or COLUMNS when piped; rows stay.

    Args:
        text: lines; each is a paragraph, or a row if it has two blanks side by side.
    """
    print_text(wrap(text, shown_width()))


def print_text(text: str) -> None:
    """Print lines; in a terminal the title and the heads of a table, above its rule, are bold.

    Args:
        text: as wide as it is to be.
    """
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
        # no markup: what stands in brackets may be a user's name
        console.print(Text(line, "bold" if is_head else ""), soft_wrap=True)
